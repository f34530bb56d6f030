"""Keep the answers of a pool on its way in apart from those of the pool that it replaces."""

from __future__ import annotations

from typing import Any, ClassVar

from filters.api import CONTINUE, Config, Exchange, Filter, Verdict


class CanaryConfig(Config, frozen=True):
    """Nothing: a stage is a setting of its pool."""


class CanaryFilter(Filter[CanaryConfig]):
    """Stands in front of `cache` as long as some pool serves a share of the tenants.

    A tenant that moves finds no answers of the pool that it left, and after the way back none of
    the one that it came from; all others find what they had.
    """

    name: ClassVar[str] = "canary"
    config_type: ClassVar[type[Config]] = CanaryConfig

    @classmethod
    def shaping(cls, config: CanaryConfig) -> Any:
        """Change nothing but the name under which answers are kept."""
        return None

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Say who will answer, where that is not who answers others."""
        if shaped := self.ports.stages.shaped_by(exchange.profile, exchange.tenant):
            exchange.shaped_by = shaped
        return CONTINUE
