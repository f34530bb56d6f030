"""What an operator is shown of one request: the metrics that it moved and the span it left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.calls import Ask, Caller
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver, attributes


@dataclass(frozen=True, slots=True)
class Shown:
    """One request in the books."""

    moved: dict[str, float]
    """Each sample that is not what it was before, to the difference."""
    span: dict[str, Any]
    """The attributes of Forebay's span."""

    def cut(self, rule: str) -> list[float]:
        """Return the tokens that the metrics have for a rule, before and after it."""
        name = 'forebay_cut_tokens_total{{rule="{}",when="{}"}}'
        return [self.moved.get(name.format(rule, when), 0) for when in ("before", "after")]


async def shown_of(
    asked: Ask, profile: str, *, call: Caller, gateway: Gateway, receiver: OtlpReceiver
) -> Shown:
    """Ask, and return what is shown of it."""
    trace_id = uuid4().hex
    gateway.settle()
    before = gateway.metrics()
    with gateway.watch():
        await call(asked, profile, {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    moved = {
        name: value - before.get(name, 0)
        for name, value in gateway.metrics().items()
        if value != before.get(name, 0)
    }
    spans = map(attributes, receiver.trace(trace_id, 4))
    (ours,) = (span for span in spans if "forebay.profile" in span)
    return Shown(moved, ours)
