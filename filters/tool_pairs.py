"""Tell which calls of tools and which results belong together, in every provider's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from filters.document import Json

_RESULT_KEYS: Final = ("tool_call_id", "tool_use_id", "approval_request_id")
# Of Gemini, whose older models give no id; OpenAI's functions, from before tools, have names alone.
_CALLS: Final = ("functionCall", "function_call")
_RESULTS: Final = ("functionResponse", "function_response")


class Ends(NamedTuple):
    """What pairs the calls and the results in one message."""

    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def ends_in(message: Json) -> Ends:
    """Return the names that make pairs of what is in a message; goes through all of it."""
    calls: list[str] = []
    results: list[str] = []
    for is_result, name in _tools(message):
        (results if is_result else calls).append(name)
    return Ends(tuple(calls), tuple(results))


def breaks_a_pair(kept: Sequence[Ends], gone: Sequence[Ends]) -> bool:
    """Tell whether of a call and its result one stays and the other goes."""
    return _answers(kept, gone) or _answers(gone, kept)


def _answers(messages: Sequence[Ends], others: Sequence[Ends]) -> bool:
    """Tell whether a result in `messages` has its call in `others` alone.

    Some clients give every round's calls the same names, so it counts how many there are.
    """
    results = Counter(name for ends in messages for name in ends.results)
    missing = results - Counter(name for ends in messages for name in ends.calls)
    return bool(missing) and any(name in missing for ends in others for name in ends.calls)


def _tools(value: Json, key: str = "") -> Iterator[tuple[bool, str]]:
    """Yield for every call (False) and result (True) somewhere in a message what pairs them.

    `key` is the name under which the value stands.
    """
    if isinstance(value, list):
        for item in value:
            yield from _tools(item)
    elif isinstance(value, dict):
        for is_result, name in _names(value, key):
            if isinstance(name, str):
                yield is_result, name
        for below in value:
            yield from _tools(value[below], below)


def _names(value: dict[str, Json], key: str) -> Iterator[tuple[bool, Json]]:
    """Yield what one object says of itself."""
    kind = value.get("type")
    for name in _RESULT_KEYS:
        yield True, value.get(name)
    if key in _CALLS or key in _RESULTS:
        yield key in _RESULTS, value.get("id") or value.get("name")
    elif value.get("role") == "function":
        yield True, value.get("name")
    elif "call_id" in value:
        yield isinstance(kind, str) and kind.endswith("_output"), value["call_id"]
    elif kind is not None:
        yield False, value.get("id")  # of a call, or of something that no result names
