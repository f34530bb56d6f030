"""Fields dropped from requests by JSONPath, and what no rule drops."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters.api import CONTINUE, Cut, Exchange
from filters.clean import CleanConfig, CleanFilter
from filters.document import encode, parse
from filters.drops import MOST_FILTERED, MOST_LOOKED_AT, compile_rule
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import drive, fake_ports

CALLED: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": None,
    "name": "helper",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "used", "arguments": ""}}],
}
BODY: Final[dict[str, Any]] = {
    "model": "m",
    "metadata": {"team": "a", "trace": {"id": 1}},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        },
        CALLED,
        {"role": "tool", "tool_call_id": "1", "content": "found", "name": "used"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "used"}, "cache_control": {}},
        {"type": "function", "function": {"name": "idle"}},
        {"type": "web_search", "cost": 3},
    ],
    "tool_choice": "auto",
}


def chat(body: dict[str, Any]) -> Exchange:
    return exchange_of("openai.chat", encode(body), "/v1/chat/completions")


def left(exchange: Exchange, *rules: str) -> Any:
    """Return what is left of a body."""
    config = CleanConfig(drop=rules)
    clean = CleanFilter(config, CleanFilter.prepare(config), fake_ports())
    assert CONTINUE is drive(clean.on_request(exchange))
    return parse(exchange.prompt.document.render())


def without(*paths: tuple[str | int, ...]) -> dict[str, Any]:
    """Return the body without what is at paths, the last first."""
    body = copy.deepcopy(BODY)
    for path in paths:
        node: Any = body
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]
    return body


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        ("$.metadata", [("metadata",)]),
        ("$.metadata.trace", [("metadata", "trace")]),
        ("$['metadata', 'nonesuch']", [("metadata",)]),
        ("$..trace", [("metadata", "trace")]),
        ("$.metadata.trace.id", [("metadata", "trace")]),  # nothing is left of it
        ("$.tools[2]", [("tools", 2)]),
        ("$.tools[-1]", [("tools", 2)]),
        ("$.tools[1:]", [("tools", 2), ("tools", 1)]),
        ("$.tools[*]", [("tools", 2), ("tools", 1)]),  # one is called
        ("$.tools[?(@.function.name == 'idle')]", [("tools", 1)]),
        ("$.tools[?(@.cost > 2 && @.type == 'web_search')]", [("tools", 2)]),
        ("$.messages[*].name", [("messages", 1, "name")]),
        ("$.messages[0]", [("messages", 0)]),
        ("$.messages[*]", [("messages", 0)]),
        ("$.tools[*].cache_control", [("tools", 0, "cache_control")]),
        ("$.messages[?(@.role == 'system')]", [("messages", 0)]),
        ("$.messages[*].content[?(@.type == 'image_url')]", [("messages", 1, "content", 1)]),
        (
            "$.messages[*].content[*].cache_control",
            [("messages", 1, "content", 0, "cache_control")],
        ),
    ],
)
def test_a_rule_drops_what_it_names(rule: str, paths: list[tuple[str | int, ...]]) -> None:
    """And nothing else; calls and results of tools keep all that is in them."""
    assert without(*paths) == left(chat(BODY), rule)


@pytest.mark.parametrize(
    "rule",
    [
        "$.nonesuch",
        "$.metadata[0]",
        "$.tools.name",
        "$.tools[7]",
        "$.messages",
        "$.messages[1:]",
        "$.messages[*].content",
        "$.messages[0].content",
        "$.messages[*].content[*].text",
        "$.messages[*].tool_calls",
        "$.messages[3].content",
        "$.tools",
        "$.tools[0]",
        "$.tools[*].function.name",
    ],
)
def test_messages_texts_and_tools_in_use_stay(rule: str) -> None:
    """Whatever a rule says; so does a body in which nothing is meant."""
    exchange = chat(BODY)
    assert BODY == left(exchange, rule)
    assert not exchange.prompt.document.changed


def test_a_search_stays_outside_messages() -> None:
    """A rule looks into them where it names their field first."""
    assert without(("tools", 0, "cache_control")) == left(chat(BODY), "$..cache_control")


def test_the_last_part_of_a_message_stays() -> None:
    """Providers refuse a message without any."""
    body = copy.deepcopy(BODY)
    del body["messages"][1]["content"][0]
    assert body == left(chat(body), "$.messages[*].content[*]")


def test_where_no_tool_is_left_there_is_nothing_to_choose() -> None:
    """Providers refuse a choice without tools."""
    body = copy.deepcopy(BODY)
    body["messages"] = body["messages"][:2]
    expected = {key: value for key, value in body.items() if key not in ("tools", "tool_choice")}
    assert expected == left(chat(body), "$.tools[*]")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "idle"}}])
def test_a_tool_that_is_asked_for_stays(choice: Any) -> None:
    """All of them where any must be called."""
    body = BODY | {"tool_choice": choice}
    assert body == left(chat(body), "$.tools[1]")


def test_what_gemini_declares_and_allows_is_found() -> None:
    """Its tools are lists in lists, and its choice names functions in a list."""
    declared = {"functionDeclarations": [{"name": "used"}, {"name": "idle"}]}
    body = {
        "contents": [{"role": "user", "parts": [{"text": "What?"}]}],
        "tools": [declared, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["used"]}},
        "safetySettings": [{"category": "x"}],
    }
    exchange = exchange_of("gemini.generate", encode(body), "/v1beta/models/m:generateContent")
    rules = ("$.safetySettings", "$.tools[*].functionDeclarations[*]", "$.tools[1]")
    expected = {**body, "tools": [{"functionDeclarations": [{"name": "used"}]}]}
    del expected["safetySettings"]
    assert expected == left(exchange, *rules)


@pytest.mark.parametrize("dialect", CHATS)
def test_what_was_dropped_is_counted(dialect: str) -> None:
    """In tokens of its JSON; the texts behind it are cleaned as ever."""
    exchange = ask(dialect, "a   b", more={"extra": {"x": 1}})
    body = left(exchange, "$.extra")
    assert parse(ask(dialect, "a b").prompt.document.raw) == body
    assert Cut("clean.drop", 2, 0) == exchange.cuts[0]


@pytest.mark.parametrize(
    "more",
    [
        {"deep": [{"x": index} for index in range(MOST_LOOKED_AT)]},
        {"deep": [{"x": index} for index in range(MOST_FILTERED + 1)]},
    ],
)
def test_a_body_with_very_many_values_keeps_its_fields(more: dict[str, Any]) -> None:
    """Looking through all of them would hold up others; the note says so."""
    exchange = chat(BODY | more)
    assert BODY | more == left(exchange, "$..y", "$.deep[?(@.x == 1)]")
    assert "fields" == exchange.notes["clean.skip"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("", 'expected a JSONPath such as "$.safetySettings", got ""'),
        ("$[", 'expected a JSONPath such as "$.safetySettings", got "$["'),
        ("$.a.`parent`", 'expected a JSONPath such as "$.safetySettings", got "$.a.`parent`"'),
        ("$.a | $.b", 'expected a JSONPath such as "$.safetySettings", got "$.a | $.b"'),
        ("$.a[?(@.b =~ 'x')]",
         """expected a JSONPath such as "$.safetySettings", got "$.a[?(@.b =~ 'x')]\""""),
        ("$.a[?(@..b)]", 'expected a JSONPath such as "$.safetySettings", got "$.a[?(@..b)]"'),
        ("metadata", 'expected a JSONPath that begins with "$.", got "metadata"'),
        ("$", 'expected a JSONPath that begins with "$.", got "$"'),
        ("$.*", 'expected a JSONPath that names a field first, got "$.*"'),
        ("$..[0]", 'expected a JSONPath that names a field first, got "$..[0]"'),
        ("$.model", 'expected a field that a request can do without, got "$.model"'),
        ("$['stream']", 'expected a field that a request can do without, got "$[\'stream\']"'),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_followed_is_refused(rule: str, message: str) -> None:
    """What has no bound, takes everything, or takes what a request needs."""
    with pytest.raises(ValueError, match="expected") as caught:
        compile_rule(rule)
    assert message == str(caught.value)


NAMES: Final = st.sampled_from(["a", "b", "messages", "tools", "content", "name", "text", "role"])
STEPS: Final = st.one_of(
    NAMES.map(lambda name: f".{name}"),
    NAMES.map(lambda name: f"..{name}"),
    st.sampled_from(["[*]", "[0]", "[-1]", "[1:]", "[?(@.name)]"]),
)


@given(NAMES, st.lists(STEPS, max_size=4).map("".join))
@example("messages", "[*][*]")
def test_no_rule_takes_a_text_or_a_message(first: str, steps: str) -> None:
    """Whatever it says, every turn but the system's is there with its texts."""
    exchange = chat(BODY)
    left(exchange, f"$.{first}{steps}")
    texts = [
        text.value
        for turn in exchange.prompt.turns()
        for text in turn.texts
        if turn.role != "system"
    ]
    assert ["What?", "found"] == texts
    assert CALLED in exchange.prompt.document.root["messages"]


@pytest.mark.slow
def test_many_messages_with_tools_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each found field looked through all of them: 5,000 messages took 19 s, these would 5 min."""
    monkeypatch.setattr("filters.drops.MOST_LOOKED_AT", 100_000)
    message = {**CALLED, "content": "a"}
    exchange = chat({"model": "m", "messages": [message, {**BODY["messages"][1]}] * 10_000})
    kept = [message.get("name") for message in left(exchange, "$.messages[*].name")["messages"]]
    assert ["helper", None] * 10_000 == kept
