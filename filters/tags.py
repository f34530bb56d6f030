"""Find the tags of HTML in a text, and tell those that mark it up from those that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
# Attributes have values, but for those of HTML that need none and those of frameworks: what other
# words stand behind a name makes a comparison or a placeholder of it. Behind a value in quotes
# anything may follow, for pages have mistakes. No part gives back what it took, and none runs over
# a `<`: the search is linear.
_QUOTED: Final = r"""(?:"[^"<]*+"|'[^'<]*+')"""
_NAMED: Final = r"[A-Za-z_:@*#\[(][\w:.@\-\])]*+\s*+="
_BARE: Final = (
    "(?:allowfullscreen|async|autofocus|autoplay|checked|compact|contenteditable|controls"
    "|crossorigin|default|defer|disabled|download|formnovalidate|hidden|inert|ismap|itemscope|loop"
    "|multiple|muted|nomodule|noresize|noshade|novalidate|nowrap|open|playsinline|readonly|required"
    r"|reversed|selected|(?:data|aria|ng|v|x)-[\w.:-]++)(?![^\s/>])"
)
_ATTRIBUTES: Final = (
    rf"""(?:\s++(?:{_NAMED}\s*+[^\s"'<>]++|{_BARE}))*+"""
    rf"""(?:\s++{_NAMED}\s*+{_QUOTED}(?:[^<>"']|{_QUOTED})*+)?+\s*+"""
)
TAG: Final = re.compile(
    rf"</?(?P<name>(?P<block>{_BLOCK})|(?P<row>{_ROW})|(?P<cell>{_CELL})|{_INLINE})"
    rf"(?P<attributes>{_ATTRIBUTES})/?>",
    re.IGNORECASE,
)
# Prompts use tags of their own as frames, such as <context>, and call some of them as HTML does.
_AMBIGUOUS: Final = frozenset(
    (
        "a", "address", "article", "aside", "body", "cite", "data", "details", "dialog", "footer",
        "form", "head", "header", "label", "main", "mark", "menu", "meta", "option", "q",
        "section", "source", "summary", "template", "time", "title",
    )
)  # fmt: skip
# In HTML nothing stands in these: closed, they are a prompt's own.
_NEVER_CLOSED: Final = frozenset(
    ("area", "base", "col", "embed", "img", "input", "link", "meta", "param", "source", "track")
)
_BREAKS: Final = frozenset(("br", "hr", "wbr"))
_VOID: Final = _NEVER_CLOSED | _BREAKS
_MAY_STAY_OPEN: Final = _VOID | {
    "body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt",
    "tbody", "td", "tfoot", "th", "thead", "tr",
}  # fmt: skip
_KNOWN: Final = re.compile(rf"{_BLOCK}|{_ROW}|{_CELL}|{_INLINE}|script|style|pre|svg|path|g|output")
_CLOSING: Final = re.compile(r"</([a-zA-Z][\w.-]{0,40})>")
# Between two tags of one name: both are named, and hold nothing.
_BETWEEN: Final = re.compile(
    r"\s+(?:and|or|vs\.?|to|und|oder|bis|et|ou|à|y|o|e|a|и|или|до|و)\s+|\s*(?:[/,…-]|和|与|跟|或|到)\s*"
)
_BETWEEN_CHARS: Final = 12
# What frameworks write and browsers do not read: the source of a page, and no page.
_SOURCE_ATTRIBUTE: Final = re.compile(
    r"\s(?:v-[a-z]|[@:*#\[(]\w|className\s?=|on[A-Z]\w*\s?=|[\w:-]+=\{)"
)
_COMPONENT: Final = re.compile(r"<[A-Z][a-z]\w*+(?:\s[^<>]*+|/)?+(?<=/)>")
_PROLOG: Final = "<?xml"
_LEFT_CHARS: Final = 80  # of a line: is there a sentence that the tag stands in?
_RIGHT_CHARS: Final = 200
_ASKS: Final = re.compile(r"[^\n.!。！<]*(?:<[^<>\n]{0,40}>[^\n.!。！<]*){0,8}[?？؟]")
_BREAKS_IN_LAYOUT: Final = 2


class Tags(NamedTuple):
    """What the tags of one text are."""

    first: re.Match[str] | None
    last: re.Match[str] | None
    spans: list[tuple[int, int]]
    """What stands in elements, or behind a tag that is never closed, in order and apart."""
    closed: frozenset[str]
    """The names of elements that are opened and closed, in lower case and as they are closed."""
    frames: frozenset[str]
    """The names that HTML knows and that frame a part of the prompt here."""
    is_page: bool
    """Tags mark the text up: an element is closed, or a tag has attributes."""
    names_a_tag: bool
    """A sentence outside elements names a tag: it may be the subject."""
    is_source: bool
    """It is written for a framework or as XML, not for a browser."""
    has_breaks: bool
    """Lines that are no page are broken by tags."""

    def keep(self, tag: re.Match[str]) -> bool:
        """Tell whether a tag is part of what is said, and not of its markup."""
        name = tag["name"].lower()
        if name in self.frames or self.is_source:
            return True
        if not self.is_page:
            return not (self.has_breaks and name in _BREAKS and _breaks_line(tag))
        if tag[0][1] == "/" or _is_adorned(tag):
            return False
        # `a<b>c` compares, `List<Form>` is a type, and so is `Vec<U>` beside `<u>x</u>`.
        is_closed = (tag["name"] if _is_glued(tag) else name) in self.closed
        if is_closed or name in _MAY_STAY_OPEN:
            return False
        return _is_glued(tag) or _is_in_sentence(tag)


def read_tags(text: str) -> Tags:
    """Tell of every tag what it is, in one pass."""
    first = last = None
    opened: dict[str, list[re.Match[str]]] = {}
    alone: list[re.Match[str]] = []  # closing tags that close nothing
    spans: list[tuple[int, int]] = []
    closed: set[str] = set()
    adorned: set[str] = set()
    plain: set[str] = set()
    breaks = 0
    is_source = bool(_PROLOG in text and "<html" not in text)
    for last in TAG.finditer(text):
        first = first or last
        name = last["name"].lower()
        if last[0][1] == "/":
            if not opened.get(name):
                alone.append(last)
                continue
            opening = opened[name].pop()
            if is_between(text[opening.end() : last.start()]):
                alone += [opening, last]
                continue
            closed |= {name, last["name"]}
            start = opening.start()
            while spans and spans[-1][1] > start:
                start = min(start, spans.pop()[0])
            spans.append((start, last.end()))
            continue
        opened.setdefault(name, []).append(last)
        attributes = last["attributes"]
        if attributes and not is_source:
            is_source = _SOURCE_ATTRIBUTE.search(attributes) is not None
        if _is_adorned(last):
            adorned.add(name)
        else:
            plain.add(name)
            breaks += name in _BREAKS and _breaks_line(last)
    alone += [tag for tags in opened.values() for tag in tags]
    is_page = bool(closed or adorned)
    names_a_tag = False
    begins = None  # where something begins that nothing ends
    for tag in _outside(alone, spans):
        names_a_tag = _is_named(tag)
        if names_a_tag:
            break
        if begins is None and is_page and _opens(tag):
            begins = tag.start()
    if begins is not None and last:
        spans = [span for span in spans if span[1] <= begins]
        spans.append((begins, last.end()))
    return Tags(
        first,
        last,
        spans,
        frozenset(closed),
        _frames(text, plain, adorned, closed),
        is_page,
        names_a_tag,
        is_source or _has_component(text),
        breaks >= _BREAKS_IN_LAYOUT,
    )


def is_between(text: str) -> bool:
    """Tell whether a text joins the names of two tags and is not what an element holds."""
    return len(text) <= _BETWEEN_CHARS and _BETWEEN.fullmatch(text) is not None


def _frames(text: str, plain: set[str], adorned: set[str], closed: set[str]) -> frozenset[str]:
    """Return the names that HTML knows and that frame a part of the prompt here.

    Prompts call frames `<source>` or `<summary>` as well: without attributes, beside frames that
    HTML does not know or with no other HTML around.
    """
    own = frozenset(closed & _NEVER_CLOSED)
    maybe = (plain & _AMBIGUOUS) - own
    is_page = bool((plain | adorned) - _AMBIGUOUS - own)
    if maybe and is_page:
        names = {name.lower() for name in _CLOSING.findall(text)}
        is_page = not own and all(map(_KNOWN.fullmatch, names))
    return own if is_page else own | (maybe - adorned)


def _has_component(text: str) -> bool:
    return any(
        not _KNOWN.fullmatch(found[0][1:].lower().split("/")[0].split()[0])
        for found in _COMPONENT.finditer(text)
    )


def _outside(tags: list[re.Match[str]], spans: list[tuple[int, int]]) -> Iterator[re.Match[str]]:
    """Yield those of the tags, in order, that stand in no span."""
    at = 0
    for tag in sorted(tags, key=re.Match.start):
        while at < len(spans) and spans[at][1] <= tag.start():
            at += 1
        if at == len(spans) or tag.start() < spans[at][0]:
            yield tag


def _is_named(tag: re.Match[str]) -> bool:
    """Tell whether a sentence names a tag that opens or closes nothing.

    Those that a page may leave open, or that have attributes, count in a question only.
    """
    if not _is_apart(tag):
        return False
    left, right = _line(tag)
    has_left = _speaks(left) and left.rstrip()[-1:] not in (":", "：")
    if _is_adorned(tag):
        return has_left and _ASKS.match(right) is not None
    if has_left and tag["name"].lower() not in _MAY_STAY_OPEN:
        return True
    return (has_left or _speaks(right)) and _ASKS.match(right) is not None


def _is_adorned(tag: re.Match[str]) -> bool:
    """Tell whether a tag has attributes with values: a word by itself proves no tag."""
    return "=" in tag["attributes"]


def _is_in_sentence(tag: re.Match[str]) -> bool:
    return _is_apart(tag) and all(map(_speaks, _line(tag)))


def _line(tag: re.Match[str]) -> tuple[str, str]:
    """Return what stands on both sides of a tag in its line, up to the next tag to the left."""
    text, start, end = tag.string, tag.start(), tag.end()
    left = text[max(start - _LEFT_CHARS, 0) : start]
    left = left[max(left.rfind("\n"), left.rfind(">")) + 1 :]
    return left, text[end : end + _RIGHT_CHARS].partition("\n")[0]


def _speaks(text: str) -> bool:
    return any(map(str.isalnum, text))


def _is_apart(tag: re.Match[str]) -> bool:
    """Tell whether no word and no other tag touches the tag; some scripts have no spaces."""
    text, start, end = tag.string, tag.start(), tag.end()
    around = (text[start - 1 : start], text[end : end + 1])
    return not any(one in ("<", ">") or _is_letter(one) for one in around if one)


def _is_glued(tag: re.Match[str]) -> bool:
    """Tell whether a word touches the tag's left side, as in a comparison or a type."""
    before = tag.string[tag.start() - 1 : tag.start()]
    return before.isalnum() or (before != "" and before in "_)]")


def _opens(tag: re.Match[str]) -> bool:
    return tag[0][1] != "/" and tag["name"].lower() not in _VOID and not _is_glued(tag)


def _is_letter(character: str) -> bool:
    """Tell whether it is a letter or digit of a script that has spaces between words."""
    code = ord(character)
    return character.isalnum() and code < 0x2E80 and not 0x0E00 <= code < 0x1100


def _breaks_line(tag: re.Match[str]) -> bool:
    """Tell whether a break stands right behind what it ends, or before what it begins."""
    text, start, end = tag.string, tag.start(), tag.end()
    before, behind = text[start - 1 : start], text[end : end + 1]
    if before in ("", "\n"):
        return behind != "" and _is_letter(behind)
    return before in (".", "!", "?") or _is_letter(before)
