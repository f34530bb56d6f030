"""What `forebay up` says of requests, and of servers that do not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ext_proc.config import Settings, load, read_settings
from ext_proc.tools import up
from ext_proc.tools.derivation import Target
from ext_proc.yaml_file import parse_yaml

REWRITES = {
    "default": [("/v1/", "/base/v1/"), ("/v1beta/", "/base/v1beta/")],
    "faq": [("/p/faq/", "/base/")],
    "raw": [("/p/raw/", "/")],
}


@pytest.mark.parametrize(
    ("route", "logged", "expected"),
    [
        ("default", "/base/v1/models", "/v1/models"),
        ("default", "/base/v1beta/models/m:countTokens", "/v1beta/models/m:countTokens"),
        ("faq", "/base/v1/models", "/p/faq/v1/models"),
        ("faq", "/p/faq/v1/models", "/p/faq/v1/models"),
        ("raw", "/v1/models", "/p/raw/v1/models"),
        ("untouched", "/files/1", "/files/1"),
    ],
)
def test_a_request_is_shown_at_the_path_that_was_asked_for(
    route: str, logged: str, expected: str
) -> None:
    """Envoy logs another one where a request went upstream, and this one where it did not."""
    entry = {"method": "GET", "path": logged, "route": route, "status": 200}
    assert up.request_line(entry, REWRITES).plain.startswith(f"GET  {expected}  200 ")


def test_as_many_replicas_are_simulated_as_are_picked_among() -> None:
    """Where the file names none to pick among, `full` has two."""
    folder = Path(__file__).parents[2] / "envoy"
    counts = {}
    for name in ("forebay.yaml", "examples/replicas.yaml"):
        settings = load(folder / name, {})
        counts[name] = {each: up.count_replicas(settings, each) for each in settings.clusters}
    expected = {
        "forebay.yaml": {"full": 2, "best_effort": 1},
        "examples/replicas.yaml": {"full": 4},
    }
    assert expected == counts


@pytest.fixture
def dead_port() -> Iterator[int]:
    """Return a port that is taken and refuses connections."""
    with closing(socket.socket()) as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


def with_redis(url: str) -> Settings:
    block = f"store: {{redis: {{url: '{url}'}}}}, pools: {{full: {{cluster: full}}}}"
    file = parse_yaml("given", f"forebay: {{{block}, profiles: {{raw: {{}}}}}}")
    settings, problems = read_settings(file, {})
    assert settings is not None, problems
    return settings


async def test_servers_that_refuse_connections_have_a_sentence_each(dead_port: int) -> None:
    """It says what does not work for now."""
    place = f"127.0.0.1:{dead_port}"
    assert [
        f"Redis at redis://{place}/2 does not answer: answers are not kept until it does",
        f"http://{place}/b does not answer: requests end in 503 until it does",
    ] == await up.find_doubts(
        with_redis(f"redis://{place}/2"), Target("127.0.0.1", dead_port, path="/b")
    )


async def test_a_redis_is_looked_for_at_its_socket(tmp_path: Path) -> None:
    """A URL may name a file."""
    (doubt,) = await up.find_doubts(with_redis(f"unix://{tmp_path}/none"), None)
    assert doubt.startswith(f"Redis at unix://{tmp_path}/none does not answer: ")


async def test_servers_that_take_connections_are_not_spoken_of() -> None:
    """Nothing is asked of them."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as one:
        port = one.sockets[0].getsockname()[1]
        settings = with_redis(f"redis://127.0.0.1:{port}")
        assert [] == await up.find_doubts(settings, Target("127.0.0.1", port))


async def test_one_server_of_several_that_takes_connections_is_enough(dead_port: int) -> None:
    """It knows the others, of a cluster as of Sentinels."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as one:
        port = one.sockets[0].getsockname()[1]
        places = f"127.0.0.1:{dead_port},127.0.0.1:{port}"
        assert [] == await up.find_doubts(with_redis(f"redis+cluster://{places}"), None)
    gone = f"redis+sentinel://127.0.0.1:{dead_port},127.0.0.1:{dead_port}/answers"
    assert [
        f"Redis at {gone} does not answer: answers are not kept until it does"
    ] == await up.find_doubts(with_redis(gone), None)


async def test_a_name_that_dns_cannot_hold_does_not_answer() -> None:
    """It is no reason to end."""
    (doubt,) = await up.find_doubts(with_redis("redis://a..test"), None)
    assert doubt.startswith("Redis at redis://a..test does not answer: ")


async def test_a_server_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may drop what it does not let pass."""
    monkeypatch.setattr(up, "KNOCK_S", 0.01)
    assert not await up._opens(asyncio.get_running_loop().create_future())
