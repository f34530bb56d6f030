"""Let who runs a bench have simulated replicas fail and recover while they run.

| request | effect |
|---|---|
| `GET /simulator` | what each replica is made of, does, and suffers from |
| `POST /simulator/faults/slow?factor=4&for=10s` | has the replica that is asked fail |
| `DELETE /simulator/faults/slow` | has it recover from that; without a name, from everything |

`?replica=NAME` names another one, `*` all. `after=5s` has it begin later, and `for=10s` end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from aiohttp import web

from ext_proc.tools.replica_faults import ALL, Fault, Kind
from ext_proc.tools.replica_life import Life, Model
from filters.document import encode

PATH: Final = "/simulator"
_FAULTS: Final = f"{PATH}/faults"


class Replica(Protocol):
    """What can fail here."""

    port: int

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def model(self) -> Model:
        """What it is made of."""

    @property
    def faults(self) -> Mapping[Kind, Fault]:
        """What it suffers from."""

    @property
    def life(self) -> Life:
        """See `simulator.Replica`."""

    @property
    def listening(self) -> bool:
        """Likewise."""

    def plan(self, fault: Fault, *, keep: asyncio.BaseTransport | None = None) -> None:
        """Likewise."""

    async def recover(self, *kinds: Kind, keep: asyncio.BaseTransport | None = None) -> None:
        """Likewise."""


class Desk:
    """Where replicas are commanded: at each of them, for any of them."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas: Final = replicas

    async def answer(self, request: web.BaseRequest, at: Replica) -> web.Response:
        """Do what a request to one of them says."""
        try:
            replicas = self._named(request.query.get("replica"), at)
            match request.method, request.path.removeprefix(_FAULTS).strip("/"):
                case "GET", _ if request.path == PATH:
                    replicas = self._replicas
                case "POST", kind:
                    self._fail(request, replicas, kind)
                case "DELETE", kind:
                    kinds = [Fault.read(kind, {}).kind] if kind else []
                    for replica in replicas:
                        await replica.recover(*kinds, keep=request.transport)
                case _:
                    return _reply({"error": f"There is no {request.method} {request.path}."}, 404)
        except ValueError as error:
            return _reply({"error": str(error)}, 400)
        return _reply({"replicas": [_state(replica) for replica in replicas]})

    def _named(self, name: str | None, at: Replica) -> Sequence[Replica]:
        if name is None:
            return [at]
        named = [replica for replica in self._replicas if name in (ALL, replica.name)]
        if not named:
            names = ", ".join(replica.name for replica in self._replicas)
            raise ValueError(f'expected one of {names} or "{ALL}", got "{name}"')
        return named

    def _fail(self, request: web.BaseRequest, replicas: Sequence[Replica], kind: str) -> None:
        options = {name: text for name, text in request.query.items() if name != "replica"}
        fault = Fault.read(kind, options)
        up = {replica.name for replica in self._replicas if replica.listening}
        ends = fault.for_s < math.inf
        if fault.kind is Kind.CRASH and not ends and up <= {one.name for one in replicas}:
            raise ValueError("none would be left to undo it: say how long it lasts, as for=10s")
        for replica in replicas:
            replica.plan(fault, keep=request.transport)


def _state(replica: Replica) -> Mapping[str, Any]:
    life = replica.life
    return {
        "name": replica.name,
        "port": replica.port,
        "listening": replica.listening,
        "running": len(life.engine.running),
        "waiting": len(life.engine.waiting),
        "kv_usage": life.usage,
        "evicted_blocks": life.engine.cache.evicted,
        "busy_s": life.engine.busy_s,
        "prefilled_tokens": life.engine.prefilled,
        "speed": life.timed.speed,
        "hardware": asdict(replica.model.hardware),
        "faults": [_fault(fault) for fault in replica.faults.values()],
    }


def _fault(fault: Fault) -> Mapping[str, Any]:
    lasts = fault.for_s if fault.for_s < math.inf else None
    return {"kind": str(fault.kind), **asdict(fault), "for_s": lasts}


def _reply(body: Mapping[str, Any], status: int = 200) -> web.Response:
    text = encode(body)
    return web.Response(body=text, status=status, headers={"content-type": "application/json"})
