"""Find where in its bytes a JSON text has which value, so that one can be exchanged in place."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, Final

from filters.document import Path, parse

_TOKEN: Final = re.compile(
    rb'"(?>[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL
)  # a string, a mark, or a number or word


def spans(raw: bytes, wanted: Container[Path]) -> dict[Path, tuple[int, int]]:
    """Return where the strings, numbers and words at the paths `wanted` begin and end.

    `raw` must be JSON. Of members of one name the last counts, as `parse` has it. The time is that
    of a few regular expressions for each token.
    """
    found: dict[Path, tuple[int, int]] = {}
    steps: list[Any] = []
    begun = ended = 0
    for token in _TOKEN.finditer(raw):
        start = token.start()
        match raw[start]:
            case 0x7B:  # {
                steps.append(None)  # no member's name yet
            case 0x5B:  # [
                steps.append(0)
            case 0x7D | 0x5D:  # } ]
                steps.pop()
            case 0x2C:  # ,
                last = steps[-1]
                steps[-1] = last + 1 if isinstance(last, int) else None
            case 0x3A:  # :
                steps[-1] = parse(raw[begun:ended])
            case _:
                begun, ended = start, token.end()
                if (path := tuple(steps)) in wanted:
                    found[path] = begun, ended
    return found
