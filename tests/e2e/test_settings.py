"""The running server follows its file, and a route to a profile that is missing serves nobody."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.exchanges import CHATS
from tests.gateway import Gateway, Upstream

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
MISSING: Final = "nonesuch"


def _lead_astray(tree: dict[str, Any]) -> None:
    """Have the routes below /p/batch name a profile that does not exist."""
    listener = tree["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        if route["name"].startswith("batch"):
            own = route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]
            own["overrides"]["grpc_initial_metadata"][0]["value"] = MISSING


@pytest.fixture
def own(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    """Run a gateway whose settings a test may change."""
    with gateways.open(upstream=upstream, edit=_lead_astray) as gateway:
        yield gateway


def _block(gateway: Gateway) -> dict[str, Any]:
    block: dict[str, Any] = gateway.tree["node"]["metadata"]["forebay"]
    return block


def _rewrite(gateway: Gateway, event: str) -> dict[str, Any]:
    """Write the file anew and return the line in which the server says what it made of it."""
    mark = gateway.server_log.mark()
    gateway.write()
    (line,) = gateway.server_log.wait_for(lambda line: f'"event":"{event}' in line, mark=mark)
    said: dict[str, Any] = json.loads(line)
    return said


async def test_a_changed_file_changes_the_running_server(
    own: Gateway, http: aiohttp.ClientSession, question: str
) -> None:
    """Filters, their settings, tenants and profiles, within a second and without a restart.

    A bad version is refused as a whole with the places that are wrong, and counted.
    """
    call, other = Caller(http, own.url, "a key"), Caller(http, own.url, "another key")
    asked = ask_for(CHAT, question, temperature=0)
    low_risk = ask_for(CHAT, f"List the parts. {question}")
    assert ("MISS", "BEST_EFFORT") == ((await call(asked)).cache, (await call(low_risk)).quality)

    profiles = _block(own)["profiles"]
    profiles["default"]["cache"] = {"admit_after": 1}
    profiles["default"]["route"] = False
    profiles["chat"] = {}
    _block(own)["tenant"] = {"header": "x-team"}
    del profiles["documents"]
    _rewrite(own, "settings applied")
    with own.watch():
        assert "MISS" == (await call(asked, "", {"x-team": "1"})).cache
    assert "HIT" == (await other(asked, "", {"x-team": "1"})).cache
    assert "MISS" == (await call(asked, "", {"x-team": "2"})).cache
    assert "FULL" == (await call(low_risk)).quality
    assert None is (await call(asked, "chat")).cache
    assert 500 == (await call(asked, "documents")).status

    good = copy.deepcopy(own.tree)
    profiles["default"]["cache"] = {"admit_after": "often", "tll": "1s"}
    profiles["faq"] = {"base": "faq"}
    said = _rewrite(own, "settings refused")
    for place in ("default.cache.admit_after", "default.cache.tll", "faq.base"):
        assert f"forebay.profiles.{place}" in said["problems"]
    assert "HIT" == (await other(asked, "", {"x-team": "1"})).cache
    assert "MISS" == (await call(ask_for(CHAT, question), "faq")).cache

    own.tree.clear()
    own.tree.update(good)
    _block(own)["profiles"]["default"]["cache"] = False
    _rewrite(own, "settings applied")
    assert None is (await call(asked, "", {"x-team": "1"})).cache
    counted = {
        name.partition('"')[2].partition('"')[0]: value
        for name, value in own.metrics().items()
        if name.startswith("forebay_config_reloads_total")
    }
    assert {"taken": 2, "refused": 1} == counted


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_route_to_a_profile_that_is_missing_is_a_500_in_the_providers_shape(
    own: Gateway, http: aiohttp.ClientSession, stream: bool
) -> None:
    """It fails closed, names the profile and what the operator may do, and asks no upstream."""
    call = Caller(http, own.url)
    for dialect in CHATS:
        with own.watch() as seen:
            reply = await call(ask_for(dialect, "Why?", stream=stream), "batch")
        error = reply.json["error"]
        assert (500, []) == (reply.status, seen.received)
        assert MISSING in error["message"]
        assert "forebay check" in error["message"]
        match dialect:
            case "gemini.generate":
                assert (500, "INTERNAL") == (error["code"], error["status"])
            case "anthropic.messages":
                assert ("error", "api_error") == (reply.json["type"], error["type"])
            case _:
                assert {"message", "type", "param", "code"} == set(error)
        assert (MISSING, "refused") == (seen.lines[0]["profile"], seen.lines[0]["outcome"])
