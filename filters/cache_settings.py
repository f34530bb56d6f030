"""What a profile says of its cache."""

from __future__ import annotations

from typing import Annotated

import msgspec

from filters.api import Config
from filters.cache_flight import Coalesce
from filters.cache_key import KeyRule
from filters.cache_rules import Ignored
from filters.units import Duration, Size, SomeSize, SomeTime


class CacheConfig(Config, frozen=True):
    """What is kept, for how long, and from which sighting on."""

    ttl: SomeTime = Duration("300s")
    """How long an answer serves, or up to a tenth less."""
    ttl_context: SomeTime = Duration("120s")
    """How long one that rests on a conversation, a document or a tool's result serves."""
    admit_after: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    """A request is stored from this many sightings in `window` on."""
    window: SomeTime = Duration("1h")
    """Over what time sightings are counted."""
    any_temperature: bool = False
    """Also requests whose answer would vary; else temperature 0, or a seed and no temperature."""
    tools: bool = False
    """Also answers that call a tool of the client's."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Longer answers are not stored."""
    max_answer: SomeSize = Size("64KiB")
    """Answers of more bytes are not stored either, nor shared."""
    coalesce: Coalesce = Coalesce()
    """Those who ask the same at the same time wait for one answer."""
    ignore: tuple[Ignored, ...] = ()
    """Members of a request that do not count, such as `user`."""
    share_tenants: bool = False
    """Give one tenant's answers to the others."""
    across_dialects: bool = False
    """Answer a plain question from what was stored for a client of another provider's."""

    @property
    def key_rule(self) -> KeyRule:
        """What of it bears on keys."""
        return KeyRule(frozenset(self.ignore), self.share_tenants, self.across_dialects)
