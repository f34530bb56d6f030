"""Strip HTML from pasted pages, and leave markup alone where markup is the subject."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from filters.segments import edit_prose
from filters.words import WordFinder

_BLOCK: Final = (
    "address|article|aside|blockquote|body|br|center|dd|details|dialog|div|dl|dt|fieldset|figcaption"
    "|figure|footer|form|h[1-6]|head|header|hgroup|hr|html|iframe|legend|li|link|main|menu|meta|nav"
    "|noscript|object|ol|optgroup|option|p|picture|section|select|source|summary|svg|table|tbody"
    "|tfoot|thead|title|tr|ul|video"
)
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
    rf"</?(?:(?P<block>{_BLOCK})|(?P<cell>{_CELL})|{_INLINE}){_ATTRIBUTES}/?>", re.IGNORECASE
)
_HIDDEN_OPEN: Final = re.compile(
    r"<(?P<comment>!--)|<(?P<name>script|style)\b[^<>]{0,4000}>", re.IGNORECASE
)
_DOCTYPE: Final = re.compile(r"<!doctype\b[^<>]{0,1000}>", re.IGNORECASE)
_ENTITIES: Final = {
    "&nbsp;": " ", "&ensp;": " ", "&emsp;": " ", "&ndash;": "–", "&mdash;": "—", "&hellip;": "…",
    "&ldquo;": "“", "&rdquo;": "”", "&lsquo;": "\u2018", "&rsquo;": "’", "&middot;": "·",
    "&bull;": "•",
    "&copy;": "©", "&reg;": "®", "&trade;": "™", "&times;": "×", "&deg;": "°", "&quot;": '"',
    "&#39;": "'", "&apos;": "'", "&#160;": " ", "&laquo;": "«", "&raquo;": "»",
}  # fmt: skip
_ENTITY: Final = re.compile("|".join(map(re.escape, _ENTITIES)))
# Whoever says one of these words may want the markup itself looked at.
_ABOUT_MARKUP: Final = WordFinder(
    [
        "html",
        "html5",
        "xhtml",
        "xml",
        "svg",
        "css",
        "jsx",
        "tsx",
        "dom",
        "markup",
        "markdown",
        "tag",
        "tags",
        "element",
        "elements",
        "attribute",
        "attributes",
        "selector",
        "selectors",
        "xpath",
        "template",
        "templates",
        "component",
        "components",
        "snippet",
        "snippets",
        "code",
        "coding",
        "bug",
        "bugs",
        "debug",
        "debugging",
        "fix",
        "fixed",
        "fixing",
        "error",
        "errors",
        "wrong",
        "render",
        "renders",
        "rendered",
        "rendering",
        "parse",
        "parser",
        "parsing",
        "scrape",
        "scraper",
        "scraping",
        "escape",
        "escaped",
        "escaping",
        "sanitize",
        "sanitise",
        "xss",
        "accessibility",
        "aria",
        "seo",
        "javascript",
        "typescript",
        "react",
        "vue",
        "angular",
        "webpage",
        "webpages",
        "website",
        "websites",
        "frontend",
        "front-end",
        "标签",
        "标记语言",
        "源码",
        "源代码",
        "代码",
        "网页",
        "前端",
        "元素",
        "属性",
        "选择器",
        "样式",
        "注释",
        "报错",
        "错误",
        "修复",
        "调试",
        "渲染",
        "解析",
        "爬虫",
        "转义",
    ]
)
_ENDS_CHARS: Final = 4_000  # a question stands before or behind what it is about


def is_about_markup(bare: Iterable[str]) -> bool:
    """Tell whether texts without their tags speak of markup, so that tags may be the subject.

    Only the beginning and the end of a text are looked at.
    """
    return any(
        _ABOUT_MARKUP.first(text[:_ENDS_CHARS]) or _ABOUT_MARKUP.first(text[-_ENDS_CHARS:])
        for text in bare
    )


def strip_markup(text: str) -> str:
    """Return `text` without HTML tags, comments, scripts and styles, outside code.

    Block tags become line breaks, table cells a tab. Tags that HTML does not know stay.
    """
    if "<" not in text or not (_TAG.search(text) or _HIDDEN_OPEN.search(text)):
        return text
    return edit_prose(text, _strip)


def _strip(prose: str) -> str:
    bare = _TAG.sub(_gap, _DOCTYPE.sub("", _drop_hidden(prose)))
    if bare == prose:
        return prose
    return _ENTITY.sub(lambda match: _ENTITIES[match[0]], bare)


def _gap(tag: re.Match[str]) -> str:
    if tag["block"]:
        return "\n"
    return "\t" if tag["cell"] and tag[0][1] == "/" else ""


def _drop_hidden(text: str) -> str:
    """Drop comments, scripts and styles; one that is never closed stays."""
    pieces: list[str] = []
    lower = ""
    at = 0
    for opening in _HIDDEN_OPEN.finditer(text):
        if opening.start() < at:
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
