"""The admin port serves metrics and health, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.admin import Admin


class Running:
    """A started admin port and a client of it."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client
        self.reason = ""
        self.registry = CollectorRegistry()
        self.settled = Counter("settled", "How often", registry=self.registry)
        self.admin = Admin("127.0.0.1", 0, self.registry, lambda: self.reason, self.settled.inc)

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        url = f"http://127.0.0.1:{self.admin.port}{path}"
        async with self.client.get(url, headers=headers) as response:
            await response.read()
            return response


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with aiohttp.ClientSession() as client:
        running = Running(client)
        await running.admin.start()
        yield running
        await running.admin.stop()


async def test_metrics_are_shown_in_the_text_format(running: Running) -> None:
    """What asks for nothing special gets what every Prometheus reads."""
    Counter("forebay_sample", "A sample", registry=running.registry).inc(3)
    response = await running.get("/metrics")
    families = {
        family.name: family for family in text_string_to_metric_families(await response.text())
    }
    assert 3 == families["forebay_sample"].samples[0].value
    assert response.headers["content-type"].startswith("text/plain; version=")


async def test_metrics_hold_what_waited_to_be_counted(running: Running) -> None:
    """What ended before it was asked is in the answer."""
    shown = await (await running.get("/metrics")).text()
    assert "settled_total 1.0" in shown


async def test_metrics_are_shown_as_openmetrics_to_who_asks(running: Running) -> None:
    """The format follows the Accept header."""
    Counter("forebay_sample", "A sample", registry=running.registry).inc(3)
    response = await running.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    parsed = openmetrics.text_string_to_metric_families(await response.text())  # type: ignore[no-untyped-call] # it has no types
    families = {family.name: family for family in parsed}
    assert 3 == families["forebay_sample"].samples[0].value
    assert response.headers["content-type"].startswith("application/openmetrics-text")


async def test_the_process_is_live_while_the_loop_runs(running: Running) -> None:
    """Not being ready is no reason to be restarted."""
    running.reason = "draining"
    response = await running.get("/healthz")
    assert (200, {"status": "live"}) == (response.status, await response.json())


async def test_a_ready_process_says_so(running: Running) -> None:
    """No reason against it means ready."""
    response = await running.get("/readyz")
    assert (200, {"status": "ready"}) == (response.status, await response.json())


async def test_a_process_that_is_not_ready_says_why(running: Running) -> None:
    """The status is for Kubernetes, the reason for a person."""
    running.reason = "draining"
    response = await running.get("/readyz")
    expected = {"status": "not ready", "reason": "draining"}
    assert (503, expected) == (response.status, await response.json())


@pytest.mark.parametrize("path", ["/", "/config", "/metrics/x", "/debug/pprof", "//healthz"])
async def test_no_other_path_is_served(running: Running, path: str) -> None:
    """Nothing else is exposed."""
    response = await running.get(path)
    assert 404 == response.status


async def test_nothing_can_be_written(running: Running) -> None:
    """The port answers reads only."""
    url = f"http://127.0.0.1:{running.admin.port}/metrics"
    async with running.client.post(url, data=b"x") as response:
        assert 405 == response.status


async def test_a_port_in_use_is_an_os_error(running: Running) -> None:
    """The start stops, with nothing left open."""
    second = Admin("127.0.0.1", running.admin.port, running.registry, lambda: "")
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
