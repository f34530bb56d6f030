"""Tell the document in a prompt from the task that it comes with, by how the prompt is laid out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

from filters.sentences import split_sentences
from filters.token_estimate import estimate_tokens

Span: TypeAlias = tuple[int, int]

LEAST_TOKENS: Final = 60  # a shorter passage is no document
MOST_TASK_TOKENS: Final = 120  # a longer paragraph is not the task
MOST_QUESTION_CHARS: Final = 4_000
MOST_MARKS: Final = 200  # text with more of them is laid out otherwise
MOST_TASKS: Final = 20  # paragraphs at one end
MOST_ODD_TASK_TOKENS: Final = 60  # of a first one that does not read like a task

_TAG: Final = re.compile(
    r"<(?P<close>/?)(?P<name>documents?|docs?|context|articles?|texts?|passages?|sources?|content"
    r"|transcript|reports?|emails?|papers?|data|materials?|story|book|chapter|page|input"
    r"|search_results?|results?|文章|文档|材料|资料|正文|原文|内容)(?:\s[^<>]{0,500})?>",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(
    r"\"\"\"(?P<quotes>.*?)\"\"\"|'''(?P<ticks>.*?)'''"
    r"|```(?:text|txt|markdown|md)[ \t\r]*+\n(?P<fence>.*?)\n```",
    re.DOTALL,
)
_DOCUMENT_MARK: Final = re.compile(
    r"^[ \t]*+(?:#{1,6}[ \t]*+|\*\*|\[)?(?:(?:the|full|original|source|input|reference)[ \t]+)?"
    r"(?:documents?|articles?|text|context|passages?|transcript|content|report|e-?mail|story|paper"
    r"|background|source|notes|letter|chapter|excerpt|参考(?:资料|内容|文献)|阅读材料|背景(?:资料|信息)?|文章(?:内容)?"
    r"|文档(?:内容)?|正文|材料|资料|原文|全文|上下文|文本|内容)"
    r"[ \t]*+(?:\d{1,3}|[一二三四五六七八九十])?[ \t]*+(?:\*\*|\])?[ \t]*+[:：](?:\*\*)?",
    re.MULTILINE | re.IGNORECASE,
)
_TASK_MARK: Final = re.compile(
    r"^[ \t]*+(?:#{1,6}[ \t]*+|\*\*|\[)?(?:questions?|query|q|tasks?|instructions?|request|answer"
    r"|your (?:task|answer)|output(?: format)?|user"
    r"|问题|提问|请问|任务|要求|指令|说明|回答|答案|输出(?:格式|要求)?)"
    r"[ \t]*+\d{0,3}[ \t]*+(?:\*\*|\])?[ \t]*+[:：]",
    re.MULTILINE | re.IGNORECASE,
)
_TASK_LIKE: Final = re.compile(
    r"\W*(?:please|answer|use|using|do not|don't|never|always|only|return|respond|reply|output"
    r"|write|give|list|explain|describe|summari[sz]e|translate|extract|find|compare|classify|read"
    r"|based on|according to|from the|you are|you will|your task|act as|imagine|i want|i need"
    r"|i would|can you|could you|tell me|what|when|where|who|why|how|which|is|are|does|do|did"
    r"|let's|keep|make|consider)\b"
    r"|\W*(?:请|不要|只|用|以|根据|依据|基于|按照|输出|回答|总结|概括|翻译|提取|列出|解释|说明|分析|比较|你是"
    r"|你将|我想|我要|我需要|帮我|告诉|阅读|下面|以下|必须|禁止)",
    re.IGNORECASE,
)
_GAP: Final = re.compile(r"\n[ \t\r]*\n\s*")
_LINE_END: Final = re.compile(r"\n\s*")


def find_passages(text: str, *, has_task: bool) -> list[Span]:
    """Return where in `text` the document stands, empty where there is none.

    It is what an element such as `<document>` holds, what stands in triple quotes, what follows
    `Document:`, or else the long paragraphs between a beginning and an end that say what to do.
    With `has_task` the last sentence and a short first paragraph are never part of it.
    """
    for found in (_elements(text), _quotes(text), _marked(text)):
        if spans := [bare for span in found if _is_long(text, bare := _bare(text, span))]:
            return spans
    spans = [_bare(text, span) for span in _paragraphs(text, has_task=has_task)]
    return [span for span in spans if _is_long(text, span)]


def question_in(task: str) -> str:
    """Return what a task asks: its questions, or else what it says to do, or else all of it."""
    sentences = [sentence.text for sentence in split_sentences(task[-MOST_QUESTION_CHARS:])]
    questions = [one for one in sentences if "?" in one or "？" in one]
    orders = questions or [one for one in sentences if _TASK_LIKE.match(one)]
    return " ".join(orders or sentences)


def outside(text: str, spans: list[Span]) -> str:
    """Return what is left of `text` without `spans`: the task."""
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces.append(text[at:start])
        at = end
    return "\n".join([*pieces, text[at:]])


def _elements(text: str) -> Iterator[Span]:
    """Yield what elements that hold documents hold; of nested ones the inner."""
    if "</" not in text:
        return
    opened: list[tuple[str, int, bool]] = []
    for tag in _TAG.finditer(text):
        name = tag["name"].lower()
        if not tag["close"]:
            opened = [(one, at, True) for one, at, _ in opened]
            opened.append((name, tag.end(), False))
        elif opened and opened[-1][0] == name:
            _, start, holds_others = opened.pop()
            if not holds_others:
                yield start, tag.start()


def _quotes(text: str) -> Iterator[Span]:
    if '"""' in text or "'''" in text or "```" in text:
        for found in _QUOTED.finditer(text):
            yield found.span(found.lastgroup or 0)


def _marked(text: str) -> Iterator[Span]:
    """Yield what stands from each mark of a document to the next mark or the task's."""
    marks = list(islice(_DOCUMENT_MARK.finditer(text), MOST_MARKS + 1))
    if len(marks) > MOST_MARKS:
        return
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        if task := _TASK_MARK.search(text, mark.end(), end):
            yield mark.end(), task.start()
        elif end < len(text):
            yield mark.end(), end
        else:
            yield from _without_end(text, mark.end())


def _paragraphs(text: str, *, has_task: bool) -> Iterator[Span]:
    """Yield what stands between the paragraphs that say what to do."""
    blocks = _blocks(text, 0, _GAP)
    if len(blocks) == 1:
        blocks = _blocks(text, 0, _LINE_END)
    first, last = 0, len(blocks)
    while first < min(last, MOST_TASKS) and _is_task(text, blocks[first]):
        first += 1
    if has_task and first == 0 and last > 1 and _is_odd_task(text, blocks[0]):
        first = 1
    while last > max(first, len(blocks) - MOST_TASKS) and _is_task(text, blocks[last - 1]):
        last -= 1
    if has_task and first < last == len(blocks) and _is_short(text, blocks[-1], MOST_TASK_TOKENS):
        last -= 1
    if first == last:
        return
    start, end = blocks[first][0], blocks[last - 1][1]
    if has_task and first == 0:
        start += _first_sentence(text[start : blocks[0][1]])
    if has_task and last == len(blocks):
        end -= _last_sentence(text[start:end])
    yield start, end


def _without_end(text: str, start: int) -> Iterator[Span]:
    """Yield a document that goes to the end of a text, but for what is asked there."""
    blocks = _blocks(text, start, _GAP)
    if len(blocks) > 1 and _is_short(text, blocks[-1], MOST_TASK_TOKENS):
        yield start, blocks[-2][1]
    else:
        yield start, len(text) - _last_sentence(text[start:])


def _blocks(text: str, start: int, gap: re.Pattern[str]) -> list[Span]:
    """Return where the blocks between gaps stand, without white space around them."""
    blocks: list[Span] = []
    for found in gap.finditer(text, start):
        blocks.append((start, found.start()))
        start = found.end()
    blocks.append((start, len(text)))
    trimmed = ((at, at + len(text[at:end].rstrip())) for at, end in blocks)
    return [(at, end) for at, end in trimmed if text[at:end].strip()] or [(0, 0)]


def _last_sentence(text: str) -> int:
    """Return how long the last sentence is, or all of the text where it is the only one."""
    sentences = split_sentences(text[-2_000:])  # no sentence is longer
    return len(sentences[-1].text) if sentences else 0


def _first_sentence(paragraph: str) -> int:
    """Return how long a paragraph's first sentence is, or the words that introduce the rest."""
    head = paragraph[:2_000]
    for mark in (":", "："):
        at = head.find(mark)
        if 0 <= at < 200 and not head[at + 1 : at + 2].isdigit():
            return at + 1
    sentences = split_sentences(head)
    return len(sentences[0].text) if sentences else 0


def _is_task(text: str, span: Span) -> bool:
    """Whether a paragraph is short and says what to do, or asks."""
    paragraph = text[span[0] : span[1]]
    if not _is_short(text, span, MOST_TASK_TOKENS):
        return False
    return paragraph[-1:] in tuple("?？:：") or bool(_TASK_LIKE.match(paragraph))


def _is_odd_task(text: str, span: Span) -> bool:
    return _is_short(text, span, MOST_ODD_TASK_TOKENS)


def _is_short(text: str, span: Span, most_tokens: int) -> bool:
    start, end = span
    return end - start <= 10 * most_tokens and estimate_tokens(text[start:end]) <= most_tokens


def _bare(text: str, span: Span) -> Span:
    """Return `span` without the white space at its ends."""
    inside = text[span[0] : span[1]]
    start = span[0] + len(inside) - len(inside.lstrip())
    return start, start + len(inside.strip())


def _is_long(text: str, span: Span) -> bool:
    return estimate_tokens(text[span[0] : span[1]]) >= LEAST_TOKENS
