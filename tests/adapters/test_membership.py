"""A pool has the replicas that Envoy has for its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ext_proc.adapters.membership import (
    MOST_REPLICAS,
    Fixed,
    Follower,
    Listed,
    Members,
    Named,
    look_up,
    members_of,
)
from ext_proc.yaml_file import parse_yaml

PATIENCE_S = 60.0


def endpoint(host: str, port: int = 8000, health: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {
        "endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}
    }
    return {**made, "health_status": health} if health else made


def assignment(*endpoints: dict[str, Any], name: str = "full") -> dict[str, Any]:
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": list(endpoints)}]}


def cluster(kind: str | None, *endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "full", "load_assignment": assignment(*endpoints), **more}
    return {**made, "type": kind} if kind else made


@pytest.mark.parametrize("kind", ["STATIC", None])
def test_addresses_in_the_yaml_are_taken_as_they_stand(kind: str | None) -> None:
    """IPv6 is written as Envoy writes it; a socket's path is no replica to choose."""
    pipe = {"endpoint": {"address": {"pipe": {"path": "/run/model.sock"}}}}
    seen = cluster(kind, endpoint("10.0.0.1"), endpoint("fd00::1", 80), pipe)
    assert Fixed(("10.0.0.1:8000", "[fd00::1]:80")) == members_of(seen)


@pytest.mark.parametrize("kind", ["STRICT_DNS", "LOGICAL_DNS"])
def test_names_are_looked_up(kind: str) -> None:
    """A headless service has an address for each pod."""
    seen = cluster(kind, endpoint("vllm.models"), dns_lookup_family="V4_ONLY")
    assert Named((("vllm.models", 8000),), "V4_ONLY") == members_of(seen)


@pytest.mark.parametrize(
    "source",
    [{"path_config_source": {"path": "/etc/envoy/full.yaml"}}, {"path": "/etc/envoy/full.yaml"}],
)
def test_a_file_that_envoy_watches_is_watched(source: dict[str, Any]) -> None:
    """Both ways to name it."""
    seen = {"name": "full", "type": "EDS", "eds_cluster_config": {"eds_config": source}}
    assert Listed("/etc/envoy/full.yaml", "full") == members_of(seen)


@pytest.mark.parametrize(
    "seen",
    [
        {},
        {"type": "EDS", "eds_cluster_config": {"eds_config": {"ads": {}}}},
        {"type": "ORIGINAL_DST"},
        {"load_assignment": {"endpoints": "none"}},
        cluster("STATIC", endpoint("10.0.0.1", 0), endpoint("a-name")),
    ],
)
def test_what_cannot_be_followed_has_no_replicas(seen: dict[str, Any]) -> None:
    """Envoy chooses there."""
    assert Fixed(()) == members_of(seen)


def test_endpoints_that_are_said_to_be_ill_do_not_count() -> None:
    """Whoever wrote the list knows."""
    seen = cluster("STATIC", endpoint("10.0.0.1", health="DRAINING"), endpoint("10.0.0.2"))
    assert Fixed(("10.0.0.2:8000",)) == members_of(seen)


class Turns:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self.asleep = asyncio.Event()
        self._go_on = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await self._go_on.wait()
        self._go_on.clear()

    async def next(self) -> None:
        """Let one look happen."""
        async with asyncio.timeout(PATIENCE_S):
            await self.asleep.wait()
            self.asleep.clear()
            self._go_on.set()
            await self.asleep.wait()


class Followed:
    """A follower at work, and what it told."""

    def __init__(self, members: Members, **more: Any) -> None:
        self.turns = Turns()
        self.told: list[Sequence[str]] = []
        self.failed: list[str] = []
        self.follower = Follower(
            members, self.told.append, self.failed.append, sleep=self.turns.sleep, **more
        )
        self.task = asyncio.create_task(self.follower.run())

    async def first(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.turns.asleep.wait()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_fixed_addresses_are_told_once() -> None:
    """Nothing is to be followed."""
    followed = Followed(Fixed(("10.0.0.1:1", "10.0.0.1:1")))
    await followed.task
    assert [("10.0.0.1:1",)] == followed.told


def names(*answers: Sequence[str] | OSError) -> Callable[[str, int, str], Any]:
    """Return a look-up that gives one answer after the other."""
    left = list(answers)

    async def look_up(host: str, port: int, family: str) -> Sequence[str]:
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return look_up


async def test_names_are_looked_up_again_and_again() -> None:
    """A change is told, the same again is not, in whatever order."""
    answers = (["a:1", "b:1"], ["b:1", "a:1"], ["b:1"])
    followed = Followed(Named((("vllm", 1),)), look_up=names(*answers))
    await followed.turns.next()
    await followed.turns.next()
    await followed.close()
    assert [("a:1", "b:1"), ("b:1",)] == followed.told


async def test_a_look_up_that_fails_changes_nothing() -> None:
    """DNS may be slow just when it is needed; those known go on serving."""
    followed = Followed(Named((("vllm", 1),)), look_up=names(["a:1"], OSError("no"), ["a:1"]))
    await followed.turns.next()
    await followed.turns.next()
    await followed.close()
    assert ([("a:1",)], ["vllm: OSError"]) == (followed.told, followed.failed)


async def test_no_more_replicas_are_taken_than_can_be_weighed() -> None:
    """A wildcard may have thousands."""
    many = [f"10.0.{at // 250}.{at % 250}:1" for at in range(2 * MOST_REPLICAS)]
    followed = Followed(Named((("vllm", 1),)), look_up=names(many))
    await followed.first()
    await followed.close()
    assert MOST_REPLICAS == len(followed.told[0])


@pytest.mark.parametrize("family", ["AUTO", "V4_ONLY", "V4_PREFERRED", "ALL"])
async def test_addresses_need_no_dns(family: str) -> None:
    """A name that is an address is its own answer."""
    assert ["127.0.0.1:80"] == await look_up("127.0.0.1", 80, family)
    assert [] == await look_up("127.0.0.1", 80, "V6_ONLY")


LIST = """\
version_info: "1"
resources:
- "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: full
  endpoints:
  - lb_endpoints:
    - endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 8000}}}
- cluster_name: other
  endpoints:
  - lb_endpoints:
    - endpoint: {address: {socket_address: {address: 10.0.9.9, port_value: 8000}}}
"""


async def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    """What cannot be read changes nothing."""
    path = tmp_path / "full.yaml"
    other = tmp_path / "other.yaml"
    path.write_text(LIST)
    followed = Followed(Listed(str(path), "full"))
    await followed.first()
    await followed.turns.next()
    other.write_text("endpoints: [")
    other.rename(path)
    await followed.turns.next()
    other.write_text(LIST.replace("10.0.0.1", "10.0.0.22"))
    other.rename(path)
    await followed.turns.next()
    path.unlink()
    await followed.turns.next()
    await followed.close()
    assert [("10.0.0.1:8000",), ("10.0.0.22:8000",)] == followed.told
    assert [f"{path}: BadConfig", f"{path}: FileNotFoundError"] == followed.failed


async def test_a_file_that_is_being_written_is_read_when_it_stands_still(tmp_path: Path) -> None:
    """Half a list is one too, and whoever is not in it would be forgotten with all he holds."""
    path = tmp_path / "full.yaml"
    path.write_text(LIST)
    followed = Followed(Listed(str(path), "full"))
    await followed.first()
    path.write_text(LIST[: LIST.index("endpoints")])
    await followed.turns.next()
    path.write_text(LIST.replace("10.0.0.1", "10.0.0.22"))
    await followed.turns.next()
    assert [("10.0.0.1:8000",)] == followed.told
    await followed.turns.next()
    await followed.close()
    assert [("10.0.0.1:8000",), ("10.0.0.22:8000",)] == followed.told


@pytest.mark.parametrize("port", [True, 0, 65_536, "80"])
def test_a_port_is_a_number(port: Any) -> None:
    """Booleans are numbers to Python alone."""
    assert Fixed(()) == members_of(cluster("STATIC", endpoint("10.0.0.1", port)))


def test_the_yaml_of_a_cluster_is_taken_as_it_is_read() -> None:
    """Its values are those of the file."""
    text = """
name: full
type: STRICT_DNS
load_assignment:
  cluster_name: full
  endpoints:
  - lb_endpoints:
    - endpoint: {address: {socket_address: {address: vllm, port_value: 8000}}}
"""
    assert Named((("vllm", 8000),)) == members_of(parse_yaml("x.yaml", text).value)
