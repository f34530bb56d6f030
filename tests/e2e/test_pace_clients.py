"""The official clients read a paced answer as the answer, chunks whole or cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.e2e import test_clients as ways
from tests.e2e.conftest import Gateways
from tests.e2e.test_clients import Asking, Way
from tests.gateway import Gateway, Upstream

pytestmark = ways.pytestmark
CUT: Final = "faq"
STREAMS: Final = [way for way in ways.WAYS if way.__name__.endswith("_stream")]


def with_pace(tree: dict[str, Any]) -> None:
    """Have a profile cut what comes, into the smallest pieces."""
    profiles = tree["node"]["metadata"]["forebay"]["profiles"]
    profiles[CUT] = {"pace": {"rate": 20, "adapt": False, "every": "50ms", "chunks": "cut"}}


@pytest.fixture(scope="module")
def paced(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    """Run a gateway as it is shipped, with one profile that cuts."""
    with gateways.open(upstream=upstream, edit=with_pace) as gateway:
        yield gateway
        gateway.settle()
        assert 0 == gateway.metrics()["forebay_pace_streams"]


@pytest.mark.parametrize("way", STREAMS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("profile", [CUT, "chat"])
async def test_a_client_reads_the_answer(
    paced: Gateway, question: str, way: Way, profile: str
) -> None:
    """The same text as from a profile that does nothing."""
    with paced.watch() as seen:
        answer = await way(Asking(f"{paced.url}/p/{profile}", uuid4().hex), question * 3)
    with paced.watch():
        expected = await way(Asking(f"{paced.url}/p/raw", uuid4().hex), question * 3)
    assert expected == answer
    assert "complete" == seen.lines[0]["outcome"]
    assert "pace.rate" in seen.notes


async def test_the_way_to_the_client_is_told_to_nobody_else(paced: Gateway, question: str) -> None:
    """Envoy sets the round trip for Forebay, and takes it off."""
    with paced.watch() as seen:
        await ways.chat_async_stream(Asking(f"{paced.url}/p/chat", uuid4().hex), question)
    (received,) = seen.received
    assert "x-forebay-rtt" not in {name.lower() for name in received.headers}
