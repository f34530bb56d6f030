"""Which calls and results belong together, in every provider's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from filters.tool_pairs import breaks_a_pair, ends_in

CHAT = (
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {}}]},
    {"role": "tool", "tool_call_id": "c", "content": "x"},
)
FUNCTION = (
    {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
    {"role": "function", "name": "look", "content": "x"},
)
RESPONSES = (
    {"type": "function_call", "id": "fc", "call_id": "c", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
)
APPROVAL = (
    {"type": "mcp_approval_request", "id": "a", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
)
ANTHROPIC = (
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
)
GEMINI = (
    {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}}}]},
)
GEMINI_IDS = (
    {"role": "model", "parts": [{"function_call": {"id": "1", "name": "look"}}]},
    {"role": "user", "parts": [{"function_response": {"id": "1", "name": "look"}}]},
)
PAIRS = [CHAT, FUNCTION, RESPONSES, APPROVAL, ANTHROPIC, GEMINI, GEMINI_IDS]


def breaks(kept: Sequence[Any], gone: Sequence[Any]) -> bool:
    return breaks_a_pair([*map(ends_in, kept)], [*map(ends_in, gone)])


@pytest.mark.parametrize(("call", "result"), PAIRS)
def test_a_pair_is_broken_where_one_stays_and_the_other_goes(call: Any, result: Any) -> None:
    """Whichever of them it is."""
    assert breaks([result], [call])
    assert breaks([call], [result])


@pytest.mark.parametrize(("call", "result"), PAIRS)
def test_a_pair_that_stays_or_goes_is_whole(call: Any, result: Any) -> None:
    """Also beside another of the same name, as some clients call every call."""
    assert not breaks([call, result], [])
    assert not breaks([], [call, result])
    assert not breaks([call, result], [call, result])


def test_a_result_whose_call_is_nowhere_breaks_nothing() -> None:
    """The provider remembers the call, or refuses the request as it would have."""
    assert not breaks([RESPONSES[1]], [{"role": "user", "content": "x"}])


@pytest.mark.parametrize("odd", [None, 1, "x", [[]], {"tool_call_id": 1}, {"functionCall": []}])
def test_any_message_may_be_looked_at(odd: Any) -> None:
    """What has no name pairs with nothing."""
    assert not breaks([odd], [odd, CHAT[0]])
