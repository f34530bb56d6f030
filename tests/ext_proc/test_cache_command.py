"""`forebay cache` shows what is kept, lets go of what is named, and never of more."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.redis_client import RedisClient, name_of
from ext_proc.adapters.redis_store import RedisStore
from ext_proc.admin import Admin
from ext_proc.cache_desk import CacheDesk
from ext_proc.cache_entry import Entry, Which
from ext_proc.config import RedisSettings
from ext_proc.session import tenant_of
from ext_proc.telemetry import Telemetry
from ext_proc.tools import cache, cache_page, cache_redis
from ext_proc.tools.cache_redis import AT_ONCE, Counted, RedisEntries
from ext_proc.tools.cache_server import CacheServer
from filters.api import RequestHead
from filters.cache_record import Record, write_record
from filters.errors import ConfigError
from tests.fakes import FakeStoreWatch
from tests.redis_server import RedisCluster, RedisServer
from tests.web_server import end

ANNE, BEN = "a" * 16, "b" * 16
SECRET = "what was said"
LATE_S = 5.0  # a shared machine may pause a test for longer than the 5 ms of production


def key(profile: str = "faq", tenant: str = ANNE, number: int = 1) -> bytes:
    return f"{profile}:{tenant}:{number:048x}".encode()


KEPT = [key(), key(number=2), key(tenant=BEN), key("chat")]


def record(text: str = SECRET) -> bytes:
    now_s = SystemClock().now()
    reply = {"model": "demo-7b", "choices": [{"message": {"content": text}}]}
    return write_record(
        Record(
            at=now_s,
            ends=now_s + 300,
            quality="FULL",
            output_tokens=34,
            input_tokens=12,
            body=json.dumps(reply).encode(),
            dialect="openai.chat",
        )
    )


def options(*words: str) -> Namespace:
    parser = ArgumentParser()
    cache.add_arguments(parser)
    return parser.parse_args(words)


def written(folder: Path, **store: object) -> str:
    path = folder / "forebay.yaml"
    profiles: dict[str, Any] = {"faq": {"cache": {}}, "chat": {"cache": {}}}
    path.write_text(json.dumps({"forebay": {"store": store, "profiles": profiles}}))
    return str(path)


@pytest.fixture(autouse=True)
def _no_store_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_REDIS_URL", raising=False)


# --- Redis ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield [server]
    server.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.nodes[:3]


class Filled:
    """A Redis with four answers, what belongs to some of them, and what is somebody else's."""

    def __init__(self, url: str, client: RedisClient) -> None:
        self.url = url
        self.client = client

    async def names(self) -> set[str]:
        """Return every name that is there."""
        found: set[str] = set()
        for node in await self.client.masters():
            (names,) = await self.client.ask_at(node, "keys", ("KEYS", "*"))
            found |= {name.decode() for name in names}
        return found


@pytest.fixture(params=["one", pytest.param("cluster", marks=pytest.mark.slow)])
async def filled(request: pytest.FixtureRequest) -> AsyncIterator[Filled]:
    servers: list[RedisServer] = request.getfixturevalue(request.param)
    url = servers[0].url
    if len(servers) > 1:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in servers)
    client = RedisClient(url, SystemClock(), FakeStoreWatch(), timeout_s=LATE_S)
    for node in await client.masters():
        await client.ask_at(node, "flush", ("FLUSHALL",))
    store = RedisStore(client, SystemClock())
    for one in KEPT:
        await store.put(one, record(), 300)
        await store.sighted(one, 60, 5)
    for kind in (b"lead", b"waits", b"landed"):
        await client.ask("put", key(), ("SET", name_of(kind, key()), b"x", "PX", 60_000))
    await client.ask("put", b"other", ("SET", b"somebody:{other}", b"x"))
    yield Filled(url, client)
    await client.close()


@pytest.fixture
async def entries(filled: Filled) -> AsyncIterator[RedisEntries]:
    entries = RedisEntries(RedisSettings(url=filled.url), SystemClock())
    yield entries
    await entries.close()


def unseen(scanned: int, found: int) -> None:
    """Look at no progress."""


async def test_what_is_kept_is_counted_by_profile(entries: RedisEntries, filled: Filled) -> None:
    """Answers and the bytes they take; what is somebody else's is not counted."""
    counted = await entries.count(unseen)
    masters = await filled.client.masters()
    assert (
        Counted(
            entries=4,
            bytes=counted.bytes,
            patterns=4,
            profiles={
                "chat": {"entries": 1, "bytes": counted.bytes // 4},
                "faq": {"entries": 3, "bytes": counted.bytes * 3 // 4},
            },
            sampled=False,
            masters=len(masters),
        )
        == counted
    )
    assert len(record()) < counted.bytes // 4 < len(record()) + 10


async def test_what_is_no_answer_by_its_type_is_not_counted(
    entries: RedisEntries, filled: Filled
) -> None:
    """Somebody else's list under a name of ours leaves the others to be counted."""
    expected = await entries.count(unseen)
    name = name_of(b"answer", key(number=9))
    await filled.client.ask("put", key(number=9), ("RPUSH", name, b"x"))
    assert expected == await entries.count(unseen)


@pytest.mark.parametrize(
    ("which", "gone"),
    [
        (Which(profile="faq"), [*KEPT[:3]]),
        (Which(tenant=ANNE), [KEPT[0], KEPT[1], KEPT[3]]),
        (Which(profile="faq", tenant=BEN), [KEPT[2]]),
        (Which(profile="fa"), []),
        (Which(), KEPT),
    ],
    ids=["profile", "tenant", "both", "the beginning of a name", "all"],
)
async def test_a_purge_takes_what_was_named(
    which: Which, gone: list[bytes], entries: RedisEntries, filled: Filled
) -> None:
    """Answers, what counts their sightings and what is on its way; no lock, nobody else's name."""
    before = await filled.names()
    taken = {name_of(kind, one).decode() for one in gone for kind in (b"answer", b"seen")}
    if key() in gone:
        taken.add(name_of(b"landed", key()).decode())
    purged = await entries.purge(which, unseen)
    assert (len(gone), len(taken) - len(gone)) == (purged.entries, purged.others)
    assert before - taken == await filled.names()


async def test_a_purge_can_be_tried(entries: RedisEntries, filled: Filled) -> None:
    """It counts the same, and takes nothing."""
    before = await filled.names()
    tried = await entries.purge(Which(profile="faq"), unseen, dry_run=True)
    assert (3, 4) == (tried.entries, tried.others)
    assert before == await filled.names()


@pytest.mark.slow
async def test_many_are_taken_in_small_steps(entries: RedisEntries, filled: Filled) -> None:
    """More than one step has names for, and more than go in one batch."""
    names = [name_of(b"answer", key("chat", number=n)) for n in range(2, 3 * AT_ONCE)]
    for first in range(0, len(names), 500):
        for name in names[first : first + 500]:
            one = name.partition(b"{")[2].rstrip(b"}")
            await filled.client.ask("put", one, ("SET", name, b"x"))
    steps: list[tuple[int, int]] = []
    purged = await entries.purge(
        Which(profile="chat"), lambda scanned, found: steps.append((scanned, found))
    )
    assert 3 * AT_ONCE - 1 == purged.entries
    assert steps == sorted(steps)
    assert len(steps) > 3 * AT_ONCE // cache_redis.UNLINKED
    assert 3 == (await entries.count(unseen)).entries


@pytest.mark.slow
async def test_of_very_many_a_part_tells(
    entries: RedisEntries, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not looked at is taken to be as what was."""
    for node in await filled.client.masters():
        await filled.client.ask_at(node, "flush", ("FLUSHALL",))
    many = 6 * AT_ONCE
    for number in range(many):
        one = key(number=number)
        await filled.client.ask("put", one, ("SET", name_of(b"answer", one), b"12345"))
    monkeypatch.setattr(cache_redis, "MOST_COUNTED", 10)
    counted = await entries.count(unseen)
    assert (True, many, 5 * many) == (counted.sampled, counted.entries, counted.bytes)


async def test_an_answer_is_shown_as_it_lies_there(entries: RedisEntries, filled: Filled) -> None:
    """A large one is packed; its text is not shown unasked."""
    store = RedisStore(filled.client, SystemClock())
    await store.put(key(number=9), record(SECRET * 500), 120)
    entry = await entries.entry(key(number=9).decode())
    assert entry is not None
    assert ("redis", "zstd", "demo-7b", 12, 34, None) == (
        *(entry.place, entry.compression, entry.model),
        *(entry.input_tokens, entry.output_tokens, entry.body),
    )
    assert entry.stored_bytes < entry.body_bytes / 10
    assert 0 < entry.ttl_s <= 120 < entry.serves_s
    shown = await entries.entry(key(number=9).decode(), with_body=True)
    assert shown is not None
    assert SECRET in (shown.body or "")


async def test_what_is_no_value_of_ours_says_why(entries: RedisEntries, filled: Filled) -> None:
    """The cache takes it for a miss."""
    await filled.client.ask("put", key(), ("SET", name_of(b"answer", key()), b"?"))
    entry = await entries.entry(key().decode())
    assert entry is not None
    assert ("foreign", -0.001) == (entry.unreadable, entry.ttl_s)


async def test_a_key_without_an_answer_has_no_entry(entries: RedisEntries) -> None:
    """Its time may be over."""
    assert await entries.entry(key(number=77).decode()) is None


def test_what_others_wrote_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, models and bodies may hold its control codes, and marks that rich would read."""
    shown = Entry(
        key="faq:shared:0", profile="faq", tenant="shared", place="redis", ttl_s=1, stored_bytes=1
    )
    odd = "[/b]\x1b[2J\x9b\u202e"
    cache_page.show_entries("k", [msgspec.structs.replace(shown, model=odd, body=f"{odd}\n\té")])
    counted = Counted(1, 1, 0, {odd: {"entries": 1, "bytes": 1}}, sampled=False, masters=1)
    cache_page.show_stats(None, counted, CacheServer("127.0.0.1:1"), now_s=0)
    told = capsys.readouterr().out
    harmless = r"[/b]\x1b[2J\x9b\u202e"
    assert 3 == told.count(harmless)
    assert f"{harmless}\n\té\n" in told
    assert set("\x1b\x9b\u202e").isdisjoint(told)


def test_redis_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path) -> None:
    """In one line, and nothing is purged elsewhere."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = written(tmp_path, redis={"url": f"redis://127.0.0.1:{port}/0"})
    with pytest.raises(ConfigError, match=r"redis operator: ConnectionError; is it running, and"):
        cache.run(options("purge", "--config", config))


# --- The server -----------------------------------------------------------------------------------


@asynccontextmanager
async def serving(memory: MemoryStore | None, registry: CollectorRegistry) -> AsyncIterator[str]:
    """Serve an admin port; yield its address."""
    desk = CacheDesk(registry, memory, SystemClock())
    admin = Admin("127.0.0.1", 0, registry, lambda: "", cache=desk)
    await admin.start()
    yield f"127.0.0.1:{admin.port}"
    await admin.stop()


async def run(*words: str) -> int:
    return await asyncio.to_thread(cache.run, options(*words))


@pytest.fixture
async def memory() -> MemoryStore:
    memory = MemoryStore(SystemClock(), 16 * 1024**2)
    for one in KEPT:
        await memory.put(one, record(), 300)
    return memory


async def test_memory_is_asked_of_its_server(
    memory: MemoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All three verbs, in words and as JSON."""
    config = written(tmp_path, memory={})
    async with serving(memory, CollectorRegistry()) as address:
        where = ("--config", config, "--admin", address)
        assert 0 == await run("stats", *where)
        shown = capsys.readouterr().out
        assert "memory         4 answers, " in shown
        assert 0 == await run("get", key().decode(), *where)
        shown = capsys.readouterr().out
        assert "demo-7b" in shown
        assert SECRET not in shown
        assert 0 == await run("get", key().decode(), *where, "--body")
        assert SECRET in capsys.readouterr().out
        assert 1 == await run("get", key(number=7).decode(), *where)
        assert "nothing is kept" in capsys.readouterr().out
        assert 0 == await run("purge", "--profile", "faq", *where, "--json")
        report = json.loads(capsys.readouterr().out)
        assert (3, None, "faq:*:*") == (report["memory"], report["redis"], report["pattern"])
        assert 0 == await run("purge", "--profile", "gone", *where)
        assert "the file has no profile gone" in capsys.readouterr().out
    assert [key("chat")] == memory.keys()


async def test_figures_are_those_of_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hits by profile, times of the store, and what went wrong."""
    telemetry = Telemetry.open(SystemClock(), io.BytesIO(), version="1", level=50)
    telemetry.caches("faq")
    telemetry.store_took("redis", "get", 400_000)
    telemetry.read("store_breaker", "", lambda: 2)
    async with serving(None, telemetry.registry) as address:
        assert 0 == await run("stats", "--config", written(tmp_path), "--admin", address)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("redis get      median 0.38 ms, P99 ") for line in lines)
    assert "breaker        open" in lines
    assert any(line.startswith("faq ") for line in lines)


async def test_two_levels_are_cleared_from_below(
    filled: Filled, memory: MemoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Redis, then the memory before it; other replicas have theirs for some seconds yet."""
    config = written(tmp_path, memory={"longest": "7s"}, redis={"url": filled.url})
    async with serving(memory, CollectorRegistry()) as address:
        where = ("--config", config, "--admin", address)
        assert 0 == await run("get", key().decode(), *where, "--json")
        found = json.loads(capsys.readouterr().out)["entries"]
        assert ["memory", "redis"] == [entry["place"] for entry in found]
        assert 0 == await run("purge", "--tenant", ANNE, *where)
    shown = capsys.readouterr().out
    assert "redis          gone: 3 answers and 4 names that go with them, in " in shown
    assert "memory         gone: 3 answers, at 127.0.0.1:" in shown
    assert "other replicas may give copies for 7.0 s yet" in shown
    assert [key(tenant=BEN)] == memory.keys()


async def test_a_redis_is_shown_also_without_a_server(
    filled: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the server counts is said to be missing."""
    config = written(tmp_path, redis={"url": filled.url})
    nobody = ("--admin", "127.0.0.1:1")
    assert 0 == await run("stats", "--config", config, *nobody)
    shown = capsys.readouterr().out
    assert "4 answers, " in shown
    assert "nobody answers at 127.0.0.1:1: hits and times are counted in the server" in shown
    assert 0 == await run("stats", "--config", config, *nobody, "--json")
    report = json.loads(capsys.readouterr().out)
    assert (4, None) == (report["redis"]["entries"], report["server"])


@pytest.mark.parametrize("words", [("stats",), ("get", key().decode()), ("purge",)])
async def test_memory_without_a_server_is_told_with_what_to_do(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """There is nothing to look into, and the next step is in the line."""
    config = written(tmp_path, memory={})
    with pytest.raises(ConfigError, match=r"nobody answers at 127.0.0.1:1, .* start it"):
        await run(*words, "--config", config, "--admin", "127.0.0.1:1")


async def test_a_server_with_another_store_than_the_file_is_not_purged_silently(
    tmp_path: Path,
) -> None:
    """Its environment may have given it a Redis: what was to go would still be there."""
    async with serving(None, CollectorRegistry()) as address:
        with pytest.raises(ConfigError, match="FOREBAY_REDIS_URL chooses one beside the file"):
            await run("purge", "--config", written(tmp_path, memory={}), "--admin", address)


async def test_another_server_is_taken_for_none_of_ours(tmp_path: Path) -> None:
    """An older Forebay, too, knows no such path."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    with pytest.raises(ConfigError, match=f"expected Forebay's admin port at {address}, got"):
        await run("stats", "--config", written(tmp_path), "--admin", address)
    await end(runner)


# --- Whose ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "mesh", "head"),
    [
        (["Authorization: Bearer sk-1"], "", {"authorization": "Bearer sk-1"}),
        (["x-api-key:k", "", "cookie: c"], "", {"x-api-key": "k", "cookie": "c"}),
        (["X-Tenant: anne"], "x-tenant", {"x-tenant": "anne"}),
        (["x-api-key: k"], "x-tenant", {"x-api-key": "k"}),
    ],
    ids=["one", "several", "the mesh's", "past the mesh"],
)
def test_a_tenant_is_hashed_as_requests_are(
    lines: list[str], mesh: str, head: dict[str, str]
) -> None:
    """The lines are headers, as the client sends them."""
    expected = tenant_of(RequestHead("POST", "/v1/chat/completions", head), mesh)[:16]
    assert expected == cache.read_tenant(lines, mesh)


def test_a_credential_in_the_query_is_one_too() -> None:
    """Gemini's clients may send it there."""
    head = RequestHead("POST", "/v1beta/models/x:generateContent?key=AIza", {})
    assert tenant_of(head, "")[:16] == cache.read_tenant(["?key=AIza"], "")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["sk-secret"], "expected a line NAME: VALUE with a name among authorization"),
        (["x-else: sk-secret"], "expected a line NAME: VALUE with a name among"),
        ([], "expected a credential on standard input, got nothing"),
    ],
)
def test_what_is_no_credential_is_not_repeated(lines: list[str], why: str) -> None:
    """It may be one that was written another way."""
    with pytest.raises(ConfigError) as error:
        cache.read_tenant(lines, "")
    assert why in str(error.value)
    assert "sk-secret" not in str(error.value)


def test_a_credential_is_not_taken_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Others on the machine can read that, and the shell keeps it."""
    with pytest.raises(SystemExit):
        options("purge", "--tenant", "Bearer sk-secret")
    told = capsys.readouterr().err
    assert "expected 16 hex digits" in told
    assert "sk-secret" not in told


def test_a_tenant_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pipe, as a password manager writes it."""
    asked: list[Which] = []

    async def purge(_: object, __: object, which: Which, **___: Any) -> int:
        asked.append(which)
        return 0

    monkeypatch.setattr(cache, "_purge", purge)
    monkeypatch.setattr("sys.stdin", io.StringIO("Authorization: Bearer sk-1\n"))
    assert 0 == cache.run(options("purge", "--tenant", "-", "--config", written(tmp_path)))
    expected = tenant_of(RequestHead("POST", "/", {"authorization": "Bearer sk-1"}), "")[:16]
    assert [Which(tenant=expected)] == asked
