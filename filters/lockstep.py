"""Let exchanges that came together go through their stages together.

What one stage needs of code and data is then in the processor's caches for all but the first of
them. FD.io's VPP takes vectors of packets through its nodes for the same reason.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final


class Lockstep:
    """Awaited between stages, it lets the others go as far. It yields itself to who drives them.

    No timeout or task group may be open meanwhile: the current task is no longer the same.
    """

    __slots__ = ("several",)

    def __init__(self) -> None:
        self.several = False
        """It may be awaited: there are others, or may be."""

    def __await__(self) -> Generator[Lockstep, None, None]:
        """Return at the driver's next round."""
        yield self


ALONE: Final = Lockstep()
"""For an exchange that nobody drives together with others: it is not to be awaited."""
