"""Every pattern over texts of the pieces that patterns look for: none raises, none loses a word."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Effort, Parameter, Thinking
from filters.cleaning import RULES, Passage, clean, clean_passages, may_find
from filters.dialects import DIALECTS
from filters.document import Document, encode
from filters.errors import NotJson
from filters.greetings import drop_repeated_greetings, kinds_in
from filters.markup import strip_markup
from filters.media import TRACES as MEDIA
from filters.media import shorten_media
from filters.padding import TRACES as PADDING
from filters.padding import drop_padding
from filters.passages import find_passages, outside, question_in
from filters.segments import edit_prose, is_code
from filters.sentences import split_sentences
from filters.spacing import HIDDEN_TRACES, drop_invisible, tidy_spacing
from filters.spacing import TRACES as SPACING
from filters.tags import TAG, read_tags
from filters.terms import names_in, terms_of
from filters.traces import WITH_TRACES, rules_traced
from filters.transcript import may_be_transcript, read_transcript, take_summary, without_summaries
from filters.units import Duration, Size
from tests.odd_json import odd_json

PIECES: Final = [
    *"<>&;:/=\"'`~$\\|{}[]()#-+*_.,!?…。！？；：，、·—",
    *"\u200b\ufeff\u00ad\u00a0\u3000İ\u017fK中好谢0 9\t",
    "\n", "\n\n", "\r\n", "  ", " \n", "\n \n", "\n    ", "\u2028", "\x85", "\x1c",
    "Dr. ", "e.g. ", "No. 7", "3.5", "1. ", "第一章", "# ", "- ", "> ", "said", "word ", "A",
    "<b>", "</b>", "<br>", "<p class=x>", "<title>", "<!--", "-->", "<script>", "</script>",
    "<A/>", "<?xml", "&amp;", "&#65;", "&#x41;", "&nbsp;", "<pre>", "</pre>", "<tool_call>",
    "[user]: ", "[Assistant]：", "[用户] :", "[Summary of prior 3 turns]: x", "```", '"""', "'''",
    "Document:", "Question: ", "问题：", "<document>", "</document>", "\\(", "\\)", "$$", '{"a": ',
    "Hi! ", "Hellooo ", "thanks", "Thank you", "谢谢", "你好，", "Best regards", "how are you ",
    "data:image/png;base64,", "iVBORw0KGgo", "AAAA" * 30, "/9j/", "<pad>", "[PAD]", "-" * 12,
    "........", " . . . .", "x = f('a')", "if (a) {", "};", "2024-01-02 03:04", "P-204", "'s",
    "\U0001f3f4\U000e0067", "\U000e0061", "👨\u200d👩", "5ms", "1.5h", "64KiB", "٣", "²",
]  # fmt: skip
TEXTS: Final = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.lists(
        st.one_of(st.sampled_from(PIECES), st.text(st.characters(codec="utf-8"), max_size=6)),
        max_size=20,
    ).map("".join),
)
pytestmark = pytest.mark.slow
RULES_OF_ONE_TEXT: Final = {
    "zero_width": drop_invisible,
    "media": shorten_media,
    "padding": drop_padding,
    "html": strip_markup,
    "white_space": tidy_spacing,
}


@given(TEXTS)
def test_sentences_joined_are_the_text(text: str) -> None:
    """Whatever ends them."""
    assert text == "".join(sentence.text for sentence in split_sentences(text))


@given(TEXTS)
def test_a_transcript_joined_is_the_text(text: str) -> None:
    """What stands before its first mark, and then what each says."""
    before, parts = read_transcript(text)
    assert text == before + "".join(part.text for part in parts)
    assert text.endswith(take_summary(text)[1])
    assert len(without_summaries(text)) <= len(text)
    assert isinstance(may_be_transcript(text, 0), bool)


@given(TEXTS, st.booleans())
def test_a_document_stands_in_its_text(text: str, has_task: bool) -> None:
    """In order, apart and not empty."""
    spans = find_passages(text, has_task=has_task)
    places = [place for span in spans for place in span]
    assert places == sorted(places)
    assert all(text[start:end].strip() for start, end in spans)
    assert isinstance(question_in(outside(text, spans)), str)


@given(TEXTS)
def test_terms_are_words(text: str) -> None:
    """None is empty."""
    assert all(terms_of(text))
    assert all(names_in(text))


@given(TEXTS)
def test_tags_are_told_apart(text: str) -> None:
    """Each stays or goes, and what stands in elements is in order."""
    tags = read_tags(text)
    assert [] == [tag for tag in TAG.finditer(text) if tags.keep(tag) not in (True, False)]
    assert tags.spans == sorted(tags.spans)
    assert len(strip_markup(text)) <= len(text)


@given(TEXTS)
def test_what_is_edited_by_nothing_stays(text: str) -> None:
    """Prose and code, put together, are the text."""
    assert text == edit_prose(text, str)
    assert text == edit_prose(text, str, unmarked=False)
    assert {True, False}.issuperset(map(is_code, text.split("\n")))


@given(TEXTS)
def test_tidying_leaves_what_can_be_seen(text: str) -> None:
    """In its order, and twice is once."""
    tidy = tidy_spacing(text)
    assert text.split() == tidy.split()
    assert tidy == tidy_spacing(tidy)


@given(TEXTS, st.sets(st.sampled_from(["greeting", "thanks", "closing"])))
def test_greetings_only_go(text: str, said: set[str]) -> None:
    """Nothing is put in their place."""
    left = drop_repeated_greetings(text, said)
    assert len(left) <= len(text)
    assert kinds_in(left) <= kinds_in(text) | said | {"trouble", "wellbeing", "presence"}


@given(TEXTS)
def test_a_rule_without_a_trace_finds_nothing(text: str) -> None:
    """So it need not look."""
    quiet = WITH_TRACES - rules_traced(text)
    assert [text] * len(quiet) == [RULES_OF_ONE_TEXT[name](text) for name in quiet]


@given(TEXTS, st.sets(st.sampled_from(RULES)))
def test_a_text_in_which_no_rule_may_find_anything_stays(text: str, rules: set[str]) -> None:
    """Whatever was said before it, so it need not be cleaned."""
    kind = "Hello! How are you? Thank you. Sorry to bother you. Bye."
    passages = [Passage(kind), Passage(text, turn=2, answers=1)]
    after = clean_passages(passages, rules, ()).values[1]
    assert may_find([text], rules) or text == after


def test_no_trace_hides_one_of_another_rule() -> None:
    """What is found first hides what overlaps with it."""
    for some, others in itertools.combinations((MEDIA, SPACING, PADDING, HIDDEN_TRACES), 2):
        for one, other in itertools.product(some, others):
            assert not overlap(one, other), (one, other)


def overlap(one: str, other: str) -> bool:
    """Tell whether the end of one of two words may be the beginning of the other, or all of it."""
    sizes = range(1, min(len(one), len(other)) + 1)
    ends = any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in sizes)
    return ends or one in other or other in one


@given(TEXTS)
def test_any_text_is_cleaned(text: str) -> None:
    """By every rule at once."""
    assert bool(clean(text, RULES).strip()) == bool(text.strip())


@given(TEXTS)
@pytest.mark.parametrize("kind", [Duration, Size])
def test_a_value_with_a_unit_is_read_or_refused(kind: type[Duration | Size], text: str) -> None:
    """What is read is written and read again."""
    try:
        value = kind(text)
    except ValueError:
        return
    assert pytest.approx(value, abs=1e-6) == kind(str(value))


BODIES: Final = odd_json(
    "messages", "model", "content", "role", "user", "system", "assistant", "tool", "text", "type",
    "parts", "contents", "input", "prompt", "instructions", "systemInstruction", "temperature",
    "max_tokens", "reasoning_effort", "reasoning", "effort", "thinking", "high", "budget_tokens",
    "generationConfig", "thinkingConfig", "thinkingBudget", "chat_template_kwargs", "enabled",
)  # fmt: skip
MODELS: Final = st.one_of(
    TEXTS,
    st.lists(
        st.sampled_from(["gpt-", "5", "5.1", "o3", "-pro", "-chat", "claude-", "opus-4", "/", "4o",
                         "gemini-2.5-", "flash", "3-5", "-sonnet", "models/", "-", "qwen", "٣"]),
        max_size=5,
    ).map("".join),
)  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "contents", "input", "prompt", "system"]), BODIES
    ),
    more=BODIES,
    model=MODELS,
    path=TEXTS,
)
def test_any_request_is_read_or_refused(
    name: str, body: dict[str, Any], more: Any, model: str, path: str
) -> None:
    """And of one that is read everything can be asked and bounded."""
    members = {**(more if isinstance(more, dict) else {}), **body, "model": model}
    document = Document(encode(members))
    try:
        prompt = DIALECTS[name].read(document, path)
    except NotJson:
        return
    assert all(isinstance(text.value, str) for turn in prompt.turns() for text in turn.texts)
    assert isinstance(prompt.takes_temperature(), bool)
    for parameter in Parameter:
        prompt.parameter(parameter)
    for effort in (Effort.NONE, Effort.LOW):
        prompt.limit_thinking(Thinking(effort, 0, always=True))
    prompt.instruct("x")
    assert isinstance(Document(document.render()).root, dict)
