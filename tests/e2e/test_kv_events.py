"""Replicas behind Envoy say what they hold, and get the prompts that begin so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import zmq

from ext_proc.adapters.prompt_tokens import TokenCutter
from ext_proc.tools.replica_life import INSTANT, Model
from ext_proc.tools.simulator import Simulator
from tests.adapters.test_prompt_tokens import tokens_of, write_model
from tests.calls import Ask, Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import PATIENCE_S, SHIPPED, Edit, Gateway
from tests.kv_publisher import AllBlocksCleared, KvPublisher, stored

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLE: Final = SHIPPED.parent / "examples" / "replicas.yaml"
FULL: Final = "full"
COUNT: Final = 3
TEXT: Final = " ".join(map(str, range(200)))
"""Short enough to be cut at once: a busy machine may be late with a long one."""


class Telling:
    """Replicas, each of which somebody tells what it holds in place of."""

    def __init__(self, replicas: Sequence[Simulator]) -> None:
        self.replicas = replicas
        self.publishers: list[KvPublisher] = []
        self.offsets = (0, 0)

    @property
    def ports(self) -> list[int]:
        return [replica.port for replica in self.replicas]

    async def begin(self, stack: AsyncExitStack) -> None:
        """Publish at ports as far from each replica's own."""
        for offset in range(1_000, 20_000, 500):
            try:
                async with AsyncExitStack() as opening:
                    self.publishers = [
                        await opening.enter_async_context(
                            KvPublisher(port + offset, port + offset + 250)
                        )
                        for port in self.ports
                    ]
                    stack.push_async_exit(opening.pop_all())
            except (zmq.ZMQError, OverflowError):
                continue
            self.offsets = (offset, offset + 250)
            return
        raise AssertionError("no ports")


@pytest.fixture
async def telling() -> AsyncIterator[Telling]:
    async with AsyncExitStack() as stack:
        model = Model(replace(INSTANT, prefill_s=1 / 50_000))
        replicas = [Simulator(names=[f"replica-{at}"], model=model) for at in range(COUNT)]
        for replica in replicas:
            await stack.enter_async_context(replica)
        made = Telling(replicas)
        await made.begin(stack)
        yield made


def until(gateway: Gateway, name: str, true: Callable[[float | None], bool]) -> None:
    """Wait until a metric is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not true(found := gateway.metrics().get(name)):
        assert time.monotonic() < end_s, f"{name} is {found}"


def question(turn: int) -> Ask:
    return ask_for("openai.chat", f"{TEXT}\n\nQuestion {turn}?", stream=True)


async def test_a_prompt_goes_where_a_replica_says_it_holds_it(
    gateways: Gateways,
    transport: Edit,
    telling: Telling,
    http: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    """Another gateway sent it there. What was thrown away draws nobody any more."""
    folder = write_model(tmp_path / "model")

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        port, replay_port = telling.offsets
        forebay["pools"][FULL]["replicas"] = {
            "explore": 0,
            "kv_events": {"port": port, "replay_port": replay_port, "relative": True},
            "tokenizer": str(folder),
        }
        forebay["profiles"]["default"] = {"pick": {"across_tenants": True}}

    with gateways.open(pools={FULL: telling.ports}, edit=edit, file=EXAMPLE) as gateway:
        for publisher in telling.publishers:
            await publisher.subscribed()
        until(gateway, 'forebay_kv_prompts_total{pool="full",result="good"}', lambda one: one == 0)
        cutter = TokenCutter(folder)
        written = cutter.template.write(msgspec.json.decode(question(0).body))
        tokens = tokens_of(cutter.join(cutter.pieces(written)))
        caller = Caller(http, gateway.url, "key-of-the-test")
        served: list[str] = []
        for at in (2, 1):
            telling.publishers[at].publish(stored(tokens, salt=at))
            blocks = 'forebay_kv_blocks{pool="full"}'
            until(gateway, blocks, lambda one: one == len(tokens) // 16)
            with gateway.watch() as seen:
                reply = await caller(question(at))
            served.append(reply.headers["x-simulated-replica"])
            assert seen.notes["pick.held"] > len(tokens) // 8
            telling.publishers[at].publish(AllBlocksCleared())
            until(gateway, blocks, lambda one: one == 0)
        assert ["replica-2", "replica-1"] == served
        assert 2 == gateway.metrics()['forebay_kv_prompts_total{pool="full",result="good"}']
