"""Print what replicas' word of their caches is worth, as the table in docs/kv-events.md.

`python -m ext_proc.tools.routing_events_table` takes some minutes of one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ext_proc.tools.routing_events import EventRun
from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_possible import possible

SHOWN: Final = ("shared", "code", "long")
GATEWAYS: Final = (1, 2, 4)
REPLICAS: Final = 8
REQUESTS: Final = 9_000
"""Of each load, as in `forebay bench routing`."""
HEAD: Final = (
    "| load | gateways | hits | with events | p95 ms | with events |\n|---|---|---|---|---|---|"
)


def rows(
    name: str, *, requests: int = REQUESTS, replicas: int = REPLICAS, shared: bool = True
) -> Iterator[str]:
    """Yield a row of the table for each number of gateways; `shared` is `across_tenants`."""
    load = LOADS[name]
    most = possible(load, replicas, requests).hit_rate
    for gateways in GATEWAYS:
        without, told = (
            EventRun(load, replicas, gateways=gateways, events=events, shared=shared).go(requests)
            for events in (False, True)
        )
        hits = (f"{one.hit_rate / most:.1%}".replace("%", " %") for one in (without, told))
        waits = (f"{one.percentile(0.95) * 1000:,.0f}" for one in (without, told))
        yield f"| {' | '.join((name, str(gateways), *hits, *waits))} |"


def main() -> None:
    """Print the table, and the rows of one load without `across_tenants` behind it."""
    print(HEAD)
    for name in SHOWN:
        for row in rows(name):
            print(row, flush=True)
    print("\nWithout across_tenants:\n")
    for row in rows(SHOWN[0], shared=False):
        print(row, flush=True)


if __name__ == "__main__":
    main()
