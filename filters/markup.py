"""Strip HTML from pasted pages, and leave markup alone where markup is the subject."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from filters.segments import edit_prose, is_code
from filters.words import WordFinder

_BLOCK: Final = (
    "address|article|aside|blockquote|body|br|center|details|dialog|div|dl|fieldset|figcaption"
    "|figure|footer|form|h[1-6]|head|header|hgroup|hr|html|iframe|legend|link|main|menu|meta|nav"
    "|noscript|object|ol|optgroup|p|picture|section|select|source|summary|svg|table|tbody|tfoot"
    "|thead|title|ul|video"
)
_ROW: Final = "dd|dt|li|option|tr"
_CELL: Final = "caption|col|colgroup|td|th"
_INLINE: Final = (
    "a|abbr|acronym|area|audio|b|base|bdi|bdo|big|button|canvas|cite|data|datalist|del|dfn|em|embed"
    "|font|i|img|input|ins|kbd|label|map|mark|meter|nobr|param|progress|q|rp|rt|ruby|s|samp|small"
    "|span|strike|strong|sub|sup|template|textarea|time|track|tt|u|var|wbr"
)
# Only names HTML knows: prompts use tags of their own, such as <context> or <question>, as frames.
# An attribute list of over 4,000 characters is not one: the bound keeps the search linear. So does
# that the list takes the spaces behind it and never gives one back.
_ATTRIBUTES: Final = r"""(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*'){0,4000}+)?+"""
_TAG: Final = re.compile(
    rf"</?(?P<name>(?P<block>{_BLOCK})|(?P<row>{_ROW})|(?P<cell>{_CELL})|{_INLINE})"
    rf"(?P<attributes>{_ATTRIBUTES})/?>",
    re.IGNORECASE,
)
_AMBIGUOUS: Final = frozenset(
    (
        "address", "article", "aside", "body", "cite", "data", "details", "dialog", "footer",
        "form", "head", "header", "label", "main", "mark", "menu", "meta", "option", "q",
        "section", "source", "summary", "template", "time", "title",
    )
)  # fmt: skip
_KNOWN: Final = re.compile(rf"{_BLOCK}|{_ROW}|{_CELL}|{_INLINE}|script|style|pre|svg|path|g|output")
_CLOSING: Final = re.compile(r"</([a-zA-Z][\w.-]{0,40})>")
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
    """Tell whether what is said around the tags of texts speaks of markup: it may be the subject.

    Of a text that is tags from end to end all that is said counts. Only the beginning and the end
    of what is said are looked at. Of `systems`, system prompts, a few plain words count.
    """
    return any(
        said is None
        or _ABOUT_MARKUP.first(said[:_ENDS_CHARS])
        or _ABOUT_MARKUP.first(said[-_ENDS_CHARS:])
        for said in map(_said_around, texts)
    ) or any(_WORKS_ON_MARKUP.first(system[:_ENDS_CHARS]) for system in systems)


def _said_around(text: str) -> str | None:
    """Return what is said around tags; None where they hold nothing else to be about."""
    if "<" not in text:
        return text
    bare = _bare(text)
    first, last = _ends_of_tags(bare)
    if first is None or last is None:
        return bare
    around = f"{bare[: first.start()]} {bare[last.end() :]}"
    if not any(map(str.isalnum, around)):
        return _TAG.sub(" ", bare)
    page = bare[first.start() : last.end()]
    if last[0][1] != "/" or any(map(str.isalnum, _TAG.sub("", page))):
        return around
    return None


def strip_markup(text: str) -> str:
    """Return `text` without HTML tags, comments, scripts and styles, outside code.

    Block tags and rows become line breaks, table cells a tab, entities characters. Tags that HTML
    does not know stay.
    """
    if "<" in text and (_TAG.search(text) or _HIDDEN_OPEN.search(text)):
        frames = _frames(text)
        # First whole scripts, whose lines are code; then tags, where lines of code may hold some.
        bare = edit_prose(text, _bare, unmarked=False)
        stripped = edit_prose(bare, lambda prose: _strip(prose, frames))
        if text.startswith("<"):
            stripped = stripped.lstrip("\n")
        return stripped.rstrip() if text.endswith(">") else stripped
    if "&" in text and _ENTITY.search(text) and not _ABOUT_ENTITIES.first(text[-_ENDS_CHARS:]):
        return edit_prose(text, _decode)
    return text


def _frames(text: str) -> frozenset[str]:
    """Return the names that HTML knows and that frame a part of the prompt here.

    Prompts call frames `<source>` or `<summary>` as well: without attributes, beside frames that
    HTML does not know or with no other HTML around.
    """
    plain: set[str] = set()
    adorned: set[str] = set()
    is_page = False
    for tag in _TAG.finditer(text):
        name = tag["name"].lower()
        if name not in _AMBIGUOUS:
            is_page = True
        elif tag["attributes"]:
            adorned.add(name)
        else:
            plain.add(name)
    if plain and is_page:
        closed = (name.lower() for name in _CLOSING.findall(text))
        is_page = all(_KNOWN.fullmatch(name) for name in closed)
    return frozenset() if is_page else frozenset(plain - adorned)


def _strip(prose: str, frames: frozenset[str]) -> str:
    first, last = _ends_of_tags(prose)
    if first is None or last is None:
        return _decode(prose)
    closed: dict[str, bool] = {}
    # Between tags a line's indentation is the page's own layout, and so are spaces behind a block;
    # a tab at the beginning of a line is an empty cell.
    begins = max(first.start() - 1, 0)  # a tag is judged by the character before it
    page = _INDENT.sub("\n", prose[begins : last.end()])
    page = _TAG.sub(lambda tag: _gap(tag, closed, frames), page)
    page = _decode(_SPACES.sub("\n", page))
    rest = prose[last.end() :]
    return f"{prose[:begins]}{page}{rest.lstrip(' ') if last['block'] else rest}"


def _bare(text: str) -> str:
    return _DOCTYPE.sub("", _drop_hidden(text))


def _ends_of_tags(text: str) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    """Return the first tag and the last."""
    first = last = None
    for last in _TAG.finditer(text):
        first = first or last
    return first, last


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


def _gap(tag: re.Match[str], closed: dict[str, bool], frames: frozenset[str]) -> str:
    """Return what takes a tag's place; `closed` keeps which one-letter tags are closed."""
    if frames and tag["name"].lower() in frames:
        return tag[0]
    if tag["block"]:
        return "\n"
    if tag["row"]:  # the next one begins a line
        return "\n" if tag[0][1] != "/" else ""
    if tag["cell"]:
        return "\t" if tag[0][1] == "/" else ""
    letter = tag[0][1:-1]
    if len(letter) > 1 or not letter.isupper():
        return ""
    # A type's parameter may have a tag's name, as in `Vec<U>`; it is never closed.
    text, at = tag.string, tag.start()
    if at == 0 or not text[at - 1].isalnum():
        return ""
    if letter not in closed:
        closed[letter] = f"</{letter}>" in text
    return "" if closed[letter] else tag[0]


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
        pieces.append(text[at : opening.start()])
        at = end + len(closing)
    return "".join(pieces) + text[at:]
