"""Tell the prose of a prompt from the parts whose every character counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import ahocorasick_rs as ahocorasick

from filters.document import parse
from filters.errors import NotJson

GAP: Final = re.compile(r"((?:\n|\r\n)[ \t]*+(?:\r?\n[ \t]*+)++)")
"""What stands between two paragraphs; as it begins with one of two characters it is found soon."""
# A fence that is never closed protects the rest: better too little cleaned than code harmed. So
# does an element that holds code, or a call of a tool, or what it gave back.
_VERBATIM: Final = re.compile(
    r"(?P<fence>`{3,}|(?:(?<=\n)|(?<!.))[ ]{0,3}~{3,}).*?(?:(?P=fence)|\Z)"
    r"|`[^`\n]+`"
    r"|\$\$.*?(?:\$\$|\Z)"
    r"|\$[^$\n]+\$"
    r"|\\\[.*?(?:\\\]|\Z)"
    r"|\\\(.*?(?:\\\)|\Z)"
    r"|\\begin\{(?P<environment>\w+\*?)\}.*?(?:\\end\{(?P=environment)\}|\Z)"
    r"|<(?P<element>pre|code|tool_call|tool_response|tool_result|function_calls|function_results)"
    r"(?:\s[^<>]{0,1000})?>.*?(?:</(?P=element)>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_ELEMENTS: Final = ("<pre", "<code", "<tool_", "<function_", "<PRE", "<CODE")
_JSON_START: Final = re.compile(r'\{\s*"|\[\s*\{\s*"')
# A string may end with the text, in the middle of an escape as well: none is begun twice.
_JSON_MARK: Final = re.compile(r'"(?>[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
_LOOKED_AT_CHARS: Final = 400  # of a line: its beginning tells what it is

# What a line of code, of a log, a diff or a shell begins with, or holds, and prose does not.
_BEGINS: Final = re.compile(
    r"\s*(?:"
    r"(?:def|fn|func|function|class|struct|enum|interface|trait|impl)\s+[\w$.:]+\s*[({:<]"
    r"|from\s+[\w.]+\s+import\s|import\s+[\w.*{},]+;?\s*\Z|import\s+[\w.{}*,]+\s+(?:as|from)\s"
    r"|(?:const|let|var|val|auto)\s+[\w$\[{][\w$,\]}:]*\s*="
    r"|(?:public|private|protected|static|final|async|export)\s+(?:[\w<>\[\]]+\s+)*[\w<>]+\("
    r"|(?:int|char|bool|float|double|long|void|string|String|size_t)\s+[*&\w]+\s*[=(;,\[]"
    r"|(?:if|while|for|switch|catch)\s*\([^\n]*[)]\s*+[{;]?\s*+\Z"
    r"|[A-Za-z_$][\w$.]*(?:\[[^\]\n]*\])?(?:\s*:\s*[\w\[\]|,.]+)?\s*(?:[-+*/%&|^:]|\?\?)?=(?![=>])"
    r"|[A-Za-z_$][\w$]*(?:(?:\.|::|->)[\w$]+)*\([^\n]*\)\s*+[;:{]?\s*+\Z"
    r"|(?<=\s)(?:for|while|if|elif|else|with|try|except|finally)\b[^\n]*:\s*\Z"
    r"|//|/\*|\*/|\#!|\#include\b|\#define\b|@\w+(?:\([^\n]*\))?\s*\Z|>>>\s|\.\.\.\s{2,}"
    r"|\$\s+\w+\s|[)\]}]+[;,]?\s*\Z"
    r"|(?:SELECT|INSERT\s+INTO|UPDATE|DELETE\s+FROM|CREATE\s+TABLE|FROM|WHERE|JOIN|VALUES)\s"
    r"|diff\s--git\s|@@\s|\+\+\+\s|---\s\S|[<>=]{7}\s|index\s[0-9a-f]{6,}"
    r"|\[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d|\[?\d\d:\d\d:\d\d"
    r"|(?:INFO|WARN(?:ING)?|ERROR|DEBUG|FATAL)[\s:\]]|Traceback\s|at\s[\w$.<>]+\(|File\s\""
    r")"
)
# Of what begins with a letter, nothing above matches without one of these.
_FIRST_WORDS: Final = frozenset(
    [
        "def", "fn", "func", "function", "class", "struct", "enum", "interface", "trait", "impl",
        "from", "import", "const", "let", "var", "val", "auto", "int", "char", "bool", "float",
        "double", "long", "void", "string", "String", "size_t", "SELECT", "INSERT", "UPDATE",
        "DELETE", "CREATE", "FROM", "WHERE", "JOIN", "VALUES", "diff", "index", "Traceback", "File",
    ]
)  # fmt: skip
_LEVELS: Final = ("INFO", "WARN", "ERROR", "DEBUG", "FATAL")
_HOLDS: Final = re.compile(r"""\w\(["']|\w::\w|\w\(\);|\s(?:==|!=|&&|\|\||\+=)\s|\)\s*->\s""")
# Found with vector instructions, at a tenth of the cost of looking for one after the other.
_HELD: Final = ahocorasick.AhoCorasick(
    ['("', "('", "();", "::", "==", "!=", "&&", "||", "+=", "->"],
    ahocorasick.MatchKind.LeftmostFirst,
)
_LAST: Final = frozenset("{};,>")


def edit_prose(text: str, edit: Callable[[str], str], *, unmarked: bool = True) -> str:
    """Return `text` with `edit` applied outside code, mathematics, JSON and logs.

    Code is what is fenced or marked inline, what stands in an element for it, and, where `unmarked`
    is true, lines that read like nothing else. A text that is JSON as a whole has no prose.
    """
    if text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return text
    pieces = _pieces(text)
    if unmarked:
        pieces = _lines(pieces)
    return "".join(edit(piece) if is_prose else piece for is_prose, piece in pieces if piece)


def is_code(line: str) -> bool:
    """Tell whether a line reads like code, a log, a diff or a shell, and not like prose."""
    head = line[:_LOOKED_AT_CHARS]
    bare = head.lstrip()
    if bare[:1] in ("<", ""):
        return False
    # Most lines are prose, which plain comparisons tell: a search for a pattern takes 10 us a line.
    return bool(
        (_may_begin_code(bare) and _BEGINS.match(head))
        or (_HELD.find_matches_as_strings(head) and _HOLDS.search(head))
        or (line.rstrip()[-1:] in _LAST and _ends_code(line[-_LOOKED_AT_CHARS:].rstrip()))
    )


def _may_begin_code(bare: str) -> bool:
    """Tell whether a line, without the spaces before it, may begin as code does."""
    if not bare[0].isascii() or not (bare[0].isalpha() or bare[0] == "_"):
        return True  # the pattern tells it by one character
    return (
        "=" in bare
        or "(" in bare
        or bare.split(None, 1)[0] in _FIRST_WORDS
        or bare.startswith(_LEVELS)
        or bare.rstrip()[-1:] == ":"
    )


def _ends_code(tail: str) -> bool:
    """Tell whether the end of a line, without spaces behind it, reads like code."""
    match tail[-1:]:
        case "}":
            return True
        case ";":
            return tail[-2:-1] == ")" or tail[:-1].rstrip()[-1:] == "]"
        case ",":
            return tail[-2:-1] == "}"
        case ">":
            return tail[-2:-1] == "="
        case "{":
            before = tail[:-1].rstrip()
            return before[-1:].isalnum() or before[-1:] in tuple("_)]\"'") or before[-2:] == "=>"
        case _:
            return False


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Cut out what is marked as code, mathematics or JSON; say of each piece if it is prose."""
    # One character is found twenty times as fast as two.
    if (
        "`" in text
        or "$" in text
        or "\\" in text
        or "~~~" in text
        or ("<" in text and any(mark in text for mark in _ELEMENTS))
    ):
        at = 0
        for found in _VERBATIM.finditer(text):
            yield from _without_json(text[at : found.start()])
            yield False, found[0]
            at = found.end()
        yield from _without_json(text[at:])
    else:
        yield from _without_json(text)


def _without_json(text: str) -> Iterator[tuple[bool, str]]:
    at = 0
    while '"' in text and (start := _JSON_START.search(text, at)):
        end = _end_of_json(text, start.start())
        yield True, text[at : start.start()]
        yield False, text[start.start() : end]
        at = end
    yield True, text[at:]


def _end_of_json(text: str, start: int) -> int:
    """Return where the brackets opened at `start` are closed, or the end of the text."""
    depth = 0
    for mark in _JSON_MARK.finditer(text, start):
        if mark[0] in ("{", "["):
            depth += 1
        elif mark[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return mark.end()
    return len(text)


def _lines(pieces: Iterator[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    """Cut lines of code out of prose, with the empty lines between them."""
    for is_prose, piece in pieces:
        if not is_prose:
            yield False, piece
            continue
        prose: list[str] = []
        code: list[str] = []
        blank: list[str] = []  # behind code: code if more comes, prose otherwise
        for line in _LINES.findall(piece):
            if not line.strip():
                (blank if code else prose).append(line)
            elif is_code(line) or _goes_on(line, code, blank) or _is_block(line, prose):
                if prose:
                    yield True, "".join(prose)
                    prose = []
                code += [*blank, line]
                blank = []
            else:
                if code:
                    yield False, "".join(code)
                    code = []
                prose += [*blank, line]
                blank = []
        if code:
            yield False, "".join(code)
        yield True, "".join(prose + blank)


def _goes_on(line: str, code: list[str], blank: list[str]) -> bool:
    """Tell whether a line belongs to the code right above: it is indented, or one of a diff."""
    return bool(code) and not blank and line[0] in " \t+-"


def _is_block(line: str, prose: list[str]) -> bool:
    """Tell whether a line begins a block of code as Markdown has it, indented behind a gap."""
    if not line.startswith(("    ", "\t")) or line.lstrip()[0] == "<":
        return False
    return not prose or not prose[-1].strip()


def _is_json(text: str) -> bool:
    try:
        parse(text.encode())
    except (NotJson, UnicodeEncodeError):
        return False
    return True
