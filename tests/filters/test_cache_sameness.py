"""Which differences between two requests count, held against real requests of every dialect."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from filters.api import Exchange, RequestHead
from filters.cache_key import KeyRule, cache_key
from filters.cache_rules import IGNORABLE, TABLE, How, Ignored, as_markdown
from filters.dialects import DIALECTS
from filters.document import Document
from filters.errors import NotJson
from tests.exchanges import CHATS, ask
from tests.golden_cases import GOLDEN, load

CASES: Final = sorted(path.parent for path in GOLDEN.glob("*/*/request.json"))


def exchange(case: Path, body: Any, *, raw: bytes | None = None, **other: Any) -> Exchange:
    """Return the exchange of a golden case with another body, or in other bytes."""
    dialect = DIALECTS[case.parent.name]
    path = other.pop("path", None) or load(case / "request.view.json")["path"]
    document = Document(json.dumps(body).encode() if raw is None else raw)
    head = RequestHead("POST", path, other.pop("headers", {}))
    prompt = dialect.read(document, path)
    base = {"profile": "p", "tenant": "t", "pool": "full"}
    return Exchange(head=head, dialect=dialect, prompt=prompt, **{**base, **other})


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value below `value`."""
    below: Any = ()
    if isinstance(value, dict):
        below = value.items()
    elif isinstance(value, list):
        below = enumerate(value)
    for step, inner in below:
        yield (*at, step)
        yield from places(inner, (*at, step))


def changed(value: Any) -> Any:
    """Return another value of the same kind, the least different there is."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case None:
            return 0
        case list():
            return [*value, "x"]
        case _:
            return {**value, "x": 1}


def laid_out_anew(value: Any, dice: random.Random) -> Any:
    """Return the same JSON value with the members of every object in another order."""
    if isinstance(value, dict):
        members = list(value.items())
        dice.shuffle(members)
        return {name: laid_out_anew(inner, dice) for name, inner in members}
    return [laid_out_anew(inner, dice) for inner in value] if isinstance(value, list) else value


@given(st.sampled_from(CASES), st.data())
@settings(max_examples=400)
def test_any_change_of_what_counts_makes_another_key(case: Path, data: st.DataObject) -> None:
    """Every value of a body can be changed, every one taken out, and something put in anywhere."""
    body = load(case / "request.json")
    before = exchange(case, body)
    delivery = before.prompt.transport_members()
    place = data.draw(st.sampled_from([at for at in places(body) if at[0] not in delivery]))
    parent = body
    for step in place[:-1]:
        parent = parent[step]
    if data.draw(st.booleans()):
        parent[place[-1]] = changed(parent[place[-1]])
    else:
        del parent[place[-1]]
    try:
        after = exchange(case, body)
    except NotJson:
        assume(False)
    assert cache_key(before) != cache_key(after)


@given(st.sampled_from(CASES), st.randoms(use_true_random=False), st.integers(0, 4))
def test_the_order_of_members_and_the_white_space_between_tokens_make_no_other_key(
    case: Path, dice: random.Random, indent: int
) -> None:
    """It is the same JSON value, however it is written."""
    body = load(case / "request.json")
    again = laid_out_anew(body, dice)
    raw = json.dumps(again, indent=indent, ensure_ascii=dice.random() < 0.5).encode()
    assert cache_key(exchange(case, body)) == cache_key(exchange(case, again, raw=raw))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_how_the_answer_is_delivered_makes_no_other_key(case: Path) -> None:
    """Streamed or not, with usage or not, kept under which key of the provider's prefix cache."""
    body = load(case / "request.json")
    before = exchange(case, body)
    after = exchange(case, body, headers={"user-agent": "x", "accept": "y", "traceparent": "z"})
    assert cache_key(before) == cache_key(after)
    name = case.parent.name
    members = {"stream": True, "stream_options": {"include_usage": True}, "prompt_cache_key": "k"}
    if name == "anthropic.messages":
        members = {"stream": True, "cache_control": {"type": "ephemeral"}}
    elif name.endswith(".embeddings"):
        members = {}
    elif name == "gemini.generate":
        path = load(case / "request.view.json")["path"]
        members = {}
        other = path.partition(":")[0] + ":streamGenerateContent?alt=sse&key=k"
        assert cache_key(before) == cache_key(exchange(case, body, path=other))
    kept = {key: value for key, value in body.items() if key not in members}
    assert cache_key(exchange(case, kept)) == cache_key(exchange(case, {**kept, **members}))


@given(st.sampled_from(CHATS), st.data())
def test_white_space_in_prose_makes_no_other_key(dialect: str, data: st.DataObject) -> None:
    """Words parted by any run of spaces, tabs of their own and line ends are the same words."""
    words = data.draw(st.lists(st.text("abcé总.", min_size=1, max_size=4), min_size=2, max_size=6))
    runs = st.sampled_from([" ", "  ", "\n", "\r\n", "   \n"])
    spaced = words[0] + "".join(data.draw(runs) + word for word in words[1:])
    plain = " ".join(words)
    key = cache_key(ask(dialect, spaced, system=spaced))
    assert cache_key(ask(dialect, plain, system=plain)) == key
    assert cache_key(ask(dialect, "".join(words), system=plain)) != key


@pytest.mark.parametrize("field", ["profile", "tenant", "shaped_by"])
@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: f"{case.parent.name}-{case.name}")
def test_what_is_known_of_the_exchange_counts(case: Path, field: str) -> None:
    """Whose it is, how it was prepared, and under which settings."""
    body = load(case / "request.json")
    others: dict[str, Any] = {field: "other"}
    assert cache_key(exchange(case, body)) != cache_key(exchange(case, body, **others))


# --- What a profile may say ----------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", Ignored)
def test_a_member_is_ignored_where_the_profile_says_so_and_the_dialect_has_it(
    dialect: str, name: Ignored
) -> None:
    """Everywhere else it counts, for nobody knows what it means there."""
    case = next(case for case in CASES if case.parent.name == dialect)
    body = load(case / "request.json")
    body.pop(name, None)
    value = False if name is Ignored.STORE else "x"
    without, with_ = exchange(case, body), exchange(case, {**body, name: value})
    rule = KeyRule(ignore=frozenset((name,)))
    assert cache_key(without) != cache_key(with_)
    ignored = cache_key(without, rule) == cache_key(with_, rule)
    assert (name in IGNORABLE[dialect]) == ignored


def test_a_completion_that_is_to_be_kept_is_not_the_same_as_one_that_is_not() -> None:
    """Only `store: false` is what chat does anyway."""
    rule = KeyRule(ignore=frozenset((Ignored.STORE,)))
    keys = [
        cache_key(ask("openai.chat", "q", more={"store": store}), rule) for store in (False, True)
    ]
    assert keys[0] == cache_key(ask("openai.chat", "q"), rule) != keys[1]


def test_tenants_share_answers_only_where_the_profile_says_so() -> None:
    """Then the key says so too, in the tenant's place."""
    one, other = (ask("openai.chat", "q", tenant=tenant * 32) for tenant in "ab")
    assert cache_key(one) != cache_key(other)
    shared = KeyRule(share_tenants=True)
    assert cache_key(one, shared) == cache_key(other, shared)
    assert cache_key(one, shared).startswith(b"default:shared:")


# --- Data ----------------------------------------------------------------------------------------


def with_image(dialect: str, data: str) -> Exchange:
    part = {
        "openai.chat": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        "openai.responses": {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        "anthropic.messages": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        },
        "gemini.generate": {"inlineData": {"mimeType": "image/png", "data": data}},
    }[dialect]
    member = {"openai.responses": "input", "gemini.generate": "contents"}.get(dialect, "messages")
    inner = "parts" if dialect == "gemini.generate" else "content"
    return ask(dialect, "q", more={member: [{"role": "user", inner: [part, part]}]})


@pytest.mark.parametrize("size", [16, 5_000, 200_000])
@pytest.mark.parametrize(
    "dialect", ["openai.chat", "openai.responses", "anthropic.messages", "gemini.generate"]
)
def test_another_image_makes_another_key(dialect: str, size: int) -> None:
    """At its end as at its beginning, short ones as they stand and long ones by their hash."""
    keys = {
        cache_key(with_image(dialect, data))
        for data in ("A" * size, "A" * (size - 1) + "B", "B" + "A" * (size - 1))
    }
    assert 3 == len(keys)
    assert cache_key(with_image(dialect, "A" * size)) in keys


def test_an_image_does_not_count_as_its_place() -> None:
    """Two images that change places are another prompt."""
    a, b = "A" * 5_000, "B" * 5_000
    parts = [{"type": "image_url", "image_url": {"url": data}} for data in (a, b)]

    def of(content: list[Any]) -> bytes:
        more = {"messages": [{"role": "user", "content": content}]}
        return cache_key(ask("openai.chat", "q", more=more))

    assert of(parts) != of(parts[::-1])


# --- The table -----------------------------------------------------------------------------------


def test_the_docs_show_the_table() -> None:
    """`docs/cache.md` has it as the code has it."""
    docs = Path(__file__).parents[2] / "docs" / "cache.md"
    assert as_markdown() in docs.read_text(encoding="utf-8")


HELD_BY: Final = {
    How.COUNTS: test_any_change_of_what_counts_makes_another_key,
    How.FOLDED: test_white_space_in_prose_makes_no_other_key,
    How.HASHED: test_another_image_makes_another_key,
    How.SETTING: test_a_member_is_ignored_where_the_profile_says_so_and_the_dialect_has_it,
    How.DROPPED: test_how_the_answer_is_delivered_makes_no_other_key,
}


def test_every_kind_of_row_is_held_by_a_test() -> None:
    """A kind that is added without one is no promise."""
    assert {row.how for row in TABLE} == set(How) == set(HELD_BY)
