"""Strip HTML from pasted pages, and leave markup alone where markup is the subject."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from filters.segments import edit_prose, is_code
from filters.tags import TAG, Tags, is_between, read_tags
from filters.words import WordFinder

_HIDDEN_OPEN: Final = re.compile(
    r"<(?P<comment>!--)|<(?P<name>script|style)\b[^<>]{0,4000}>", re.IGNORECASE
)
_DOCTYPE: Final = re.compile(r"<!doctype\b[^<>]{0,1000}>", re.IGNORECASE)
_ENTITIES: Final = {
    "nbsp": " ", "ensp": " ", "emsp": " ", "thinsp": " ", "shy": "", "ndash": "–", "mdash": "—",
    "hellip": "…", "ldquo": "“", "rdquo": "”", "lsquo": "\u2018", "rsquo": "’", "middot": "·",
    "bull": "•", "copy": "©", "reg": "®", "trade": "™", "times": "×", "divide": "÷", "deg": "°",
    "plusmn": "±", "quot": '"', "apos": "'", "laquo": "«", "raquo": "»", "euro": "€", "pound": "£",
    "yen": "¥", "cent": "¢", "sect": "§", "para": "¶", "frac12": "½", "eacute": "é", "egrave": "è",
    "agrave": "à", "ccedil": "ç", "auml": "ä", "ouml": "ö", "uuml": "ü", "Auml": "Ä", "Ouml": "Ö",
    "Uuml": "Ü", "szlig": "ß", "ntilde": "ñ", "oacute": "ó", "iacute": "í", "aacute": "á",
    "larr": "←", "rarr": "→", "check": "✓",
}  # fmt: skip
# Three of them may be markup's own marks: they are read where no tag or entity can come of it.
_ENTITY: Final = re.compile(
    r"&(?:(?P<amp>amp)(?!;#?\w{1,10};)|(?P<lt>lt)(?=;[\s0-9=])|(?<=[\s0-9]&)(?P<gt>gt)"
    r"|(?P<name>[A-Za-z]{3,6}[0-9]{0,2})|#(?P<decimal>[0-9]{2,6})|#[xX](?P<hex>[0-9a-fA-F]{2,5}));"
)
# Whoever says one of these may ask about the entity itself.
_ABOUT_ENTITIES: Final = WordFinder(
    [
        "entity", "entities", "mean", "means", "meaning", "symbol", "character", "characters",
        "stand for", "stands for", "unescape", "decode", "encode", "encoding", "什么意思", "符号",
        "字符", "实体", "编码", "解码",
    ]
)  # fmt: skip
# Whoever says one of these words may want the markup itself looked at.
_ABOUT_MARKUP: Final = WordFinder(
    [
        "html", "html5", "xhtml", "xml", "svg", "css", "jsx", "tsx", "dom", "markup", "markdown",
        "tag", "tags", "element", "elements", "attribute", "attributes", "selector", "selectors",
        "xpath", "template", "templates", "component", "components", "snippet", "snippets", "code",
        "coding", "bug", "bugs", "debug", "debugging", "fix", "fixed", "fixing", "error", "errors",
        "wrong", "render", "renders", "rendered", "rendering", "parse", "parser", "parsing",
        "scrape", "scraper", "scraping", "escape", "escaped", "escaping", "sanitize", "sanitise",
        "xss", "accessibility", "aria", "seo", "javascript", "typescript", "react", "vue",
        "angular", "webpage", "webpages", "website", "websites", "frontend", "front-end", "button",
        "buttons", "div", "span", "class", "style", "styles", "styled", "stylesheet", "layout",
        "responsive", "bootstrap", "tailwind", "centre", "center", "hyperlink", "hyperlinks",
        "validate", "validator", "clickable", "按钮", "布局", "排版", "页面", "模板", "组件",
        "居中", "链接", "标签", "标记语言", "源码", "源代码", "代码", "网页", "前端", "元素",
        "属性", "选择器", "样式", "注释", "报错", "错误", "修复", "调试", "渲染", "解析", "爬虫",
        "转义",
    ]
)  # fmt: skip
TRACES: Final = ("<", "&")
"""A text without any of these holds no markup."""
_NAMED_CHARS: Final = 200  # between `<script>` and `</script>` where both are named
_SCRIPT: Final = re.compile(r"[={}();:<\n]")
_LINE_CHARS: Final = 200  # before a script: whether it stands in a line of code
_INDENT: Final = re.compile(r"\n[ \t]+")
_SPACES: Final = re.compile(r"\n +")
# A system prompt says of many things how to write them: these words say what the work is.
_WORKS_ON_MARKUP: Final = WordFinder(
    [
        "html", "css", "jsx", "tsx", "dom", "xss", "scraper", "scraping", "front-end", "frontend",
        "web developer", "web development", "web page", "web pages", "前端", "网页", "爬虫",
    ]
)  # fmt: skip
_ENDS_CHARS: Final = 4_000  # a question stands before or behind what it is about


def is_about_markup(texts: Iterable[str], systems: Iterable[str] = ()) -> bool:
    """Tell whether what is said outside the elements of texts speaks of markup: it may be asked.

    So it is where a sentence names a tag. Of a text that is tags from end to end all that is said
    counts. Only the beginning and the end of what is said are looked at. Of `systems`, system
    prompts, a few plain words count.
    """
    return any(
        said is None
        or _ABOUT_MARKUP.first(said[:_ENDS_CHARS])
        or _ABOUT_MARKUP.first(said[-_ENDS_CHARS:])
        for said in map(_said_outside, texts)
    ) or any(_WORKS_ON_MARKUP.first(system[:_ENDS_CHARS]) for system in systems)


def _said_outside(text: str) -> str | None:
    """Return what is said outside elements; None where tags are or hold nothing else."""
    if "<" not in text:
        return text
    bare = _bare(text)
    tags = read_tags(bare)
    if tags.names_a_tag or tags.is_source:
        return None
    if tags.first is None or tags.last is None:
        return bare
    begins, ends = tags.first.start(), tags.last.end()
    if not _speaks(bare[:begins]) and not _speaks(bare[ends:]):
        return TAG.sub(" ", bare)
    if tags.last[0][1] == "/" and not _speaks(TAG.sub("", bare[begins:ends])):
        return None
    outside: list[str] = []
    at = 0
    for start, end in tags.spans:
        outside.append(bare[at:start])
        at = end
    return TAG.sub(" ", " ".join((*outside, bare[at:])))


def _speaks(text: str) -> bool:
    return any(map(str.isalnum, text))


def strip_markup(text: str) -> str:
    """Return `text` without HTML tags, comments, scripts and styles, outside code.

    Block tags and rows become line breaks, table cells a tab, entities characters. Tags that HTML
    does not know stay, and those that are named and mark nothing up.
    """
    if "<" in text and (TAG.search(text) or _HIDDEN_OPEN.search(text)):
        # First whole scripts, whose lines are code; then tags, where lines of code may hold some.
        bare = edit_prose(text, _bare, unmarked=False)
        tags = read_tags(bare)
        stripped = edit_prose(bare, lambda prose: _strip(prose, tags))
        if text.startswith("<"):
            stripped = stripped.lstrip("\n")
        return stripped.rstrip() if text.endswith(">") else stripped
    if "&" in text and _ENTITY.search(text) and not _ABOUT_ENTITIES.first(text[-_ENDS_CHARS:]):
        return edit_prose(text, _decode)
    return text


def _strip(prose: str, tags: Tags) -> str:
    begins = end = -1
    ends_block = False
    gaps: list[str | None] = []  # what takes each tag's place from the first that goes; None: stays
    for tag in TAG.finditer(prose):
        gap = None if tags.keep(tag) else _gap(tag)
        if gap is not None:
            begins = tag.start() if begins < 0 else begins
            end = tag.end()
            ends_block = tag["block"] is not None
        if begins >= 0:
            gaps.append(gap)
    if begins < 0:
        return _decode(prose)
    # Between tags a line's indentation is the page's own layout, and so are spaces behind a block;
    # a tab at the beginning of a line is an empty cell.
    page = _INDENT.sub("\n", prose[begins:end])
    each = iter(gaps)
    page = TAG.sub(lambda tag: tag[0] if (gap := next(each, None)) is None else gap, page)
    page = _decode(_SPACES.sub("\n", page))
    rest = prose[end:]
    return f"{prose[:begins]}{page}{rest.lstrip(' ') if ends_block else rest}"


def _bare(text: str) -> str:
    return _DOCTYPE.sub("", _drop_hidden(text))


def _decode(prose: str) -> str:
    return _ENTITY.sub(_character, prose) if "&" in prose else prose


def _character(entity: re.Match[str]) -> str:
    if entity["name"]:
        return _ENTITIES.get(entity["name"], entity[0])
    if entity["amp"] or entity["lt"] or entity["gt"]:
        return "&" if entity["amp"] else "<" if entity["lt"] else ">"
    code = int(entity["decimal"]) if entity["decimal"] else int(entity["hex"], 16)
    if code == 0xA0:
        return " "
    character = chr(code)
    return character if character.isprintable() and character not in "<>&" else entity[0]


def _gap(tag: re.Match[str]) -> str:
    """Return what takes a tag's place."""
    if tag["block"]:
        return "\n"
    if tag["row"]:  # the next one begins a line
        return "\n" if tag[0][1] != "/" else ""
    return "\t" if tag["cell"] and tag[0][1] == "/" else ""


def _drop_hidden(text: str) -> str:
    """Drop comments, scripts and styles; one that is never closed, or begins in code, stays."""
    pieces: list[str] = []
    lower = ""
    at = 0
    for opening in _HIDDEN_OPEN.finditer(text):
        if opening.start() < at:
            continue
        line = text.rfind("\n", max(at, opening.start() - _LINE_CHARS), opening.start()) + 1
        if is_code(text[max(line, opening.start() - _LINE_CHARS) : opening.start()]):
            continue
        if opening["comment"]:
            closing, haystack = "-->", text
        else:
            # Where lower case has another length (Turkish dotted I), positions would not match.
            lower = lower or (text.lower() if len(text.lower()) == len(text) else text)
            closing, haystack = f"</{opening['name'].lower()}>", lower
        end = haystack.find(closing, opening.end())
        if end < 0:
            break
        if _is_named(text, opening, end):
            continue
        pieces.append(text[at : opening.start()])
        at = end + len(closing)
    return "".join(pieces) + text[at:]


def _is_named(text: str, opening: re.Match[str], end: int) -> bool:
    """Tell whether both ends of a comment, script or style are named, with words between them."""
    between = text[opening.end() : min(end, opening.end() + _NAMED_CHARS)]
    if opening.end() + len(between) < end:
        return False
    if opening["comment"]:
        return is_between(between)
    return between[:1] == " " and _speaks(between) and not _SCRIPT.search(between)
