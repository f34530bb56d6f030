"""Say that work takes long when it does, and not when it might have."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from filters.lockstep import Lockstep

T = TypeVar("T")


@types.coroutine
def told_before_waiting(
    work: Coroutine[Any, Any, T], tell: Callable[[], Coroutine[Any, Any, None]]
) -> Generator[Any, Any, T]:
    """Do `work`, and await `tell()` before the first time that it waits for something.

    What is raised in `tell` is raised in the work, where it waits.
    """
    told = False
    try:
        waited = work.send(None)
        while True:
            try:
                if not told and type(waited) is not Lockstep:  # a pause is no wait
                    told = True
                    yield from tell().__await__()
                got = yield waited
            except BaseException as error:  # noqa: BLE001 - a cancellation too belongs into the work
                waited = work.throw(error)
            else:
                waited = work.send(got)
    except StopIteration as done:
        result: T = done.value
        return result
