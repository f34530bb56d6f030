"""The admin port shows the cache of its process to this machine, and lets go of what is named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.admin import Admin
from ext_proc.cache_desk import AT_ONCE, CacheDesk
from filters.cache_record import Record, write_record
from tests.fakes import FakeClock

ANNE, BEN = "a" * 16, "b" * 16
BODY = json.dumps({"model": "demo-7b", "choices": [{"message": {"content": "A secret"}}]}).encode()


def key(profile: str = "faq", tenant: str = ANNE, number: int = 1) -> bytes:
    return f"{profile}:{tenant}:{number:048x}".encode()


class Desk:
    """A started admin port over a store in memory, and a client of it."""

    def __init__(self, client: aiohttp.ClientSession, memory: MemoryStore | None) -> None:
        self.client = client
        registry = CollectorRegistry()
        desk = CacheDesk(registry, memory, FakeClock())
        self.admin = Admin("127.0.0.1", 0, registry, lambda: "", cache=desk)

    async def ask(
        self, method: str, path: str, data: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.admin.port}{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(method, url, data=data, headers=named) as response:
            return response.status, json.loads(await response.read())

    async def purge(self, **what: object) -> tuple[int, Any]:
        data = json.dumps(what).encode()
        return await self.ask("POST", "/cache/purge", data, content_type="application/json")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def memory(clock: FakeClock) -> MemoryStore:
    memory = MemoryStore(clock, 16 * 1024**2)
    record = Record(
        at=clock.now() - 30,
        ends=clock.now() + 60,
        quality="FULL",
        output_tokens=34,
        input_tokens=12,
        body=BODY,
        dialect="openai.chat",
        took_ms=1500,
    )
    for profile, tenant in (("faq", ANNE), ("faq", BEN), ("chat", ANNE)):
        await memory.put(key(profile, tenant), write_record(record), 90)
    return memory


@pytest.fixture
async def desk(memory: MemoryStore) -> AsyncIterator[Desk]:
    async with aiohttp.ClientSession() as client:
        desk = Desk(client, memory)
        await desk.admin.start()
        yield desk
        await desk.admin.stop()


async def test_an_entry_is_shown_without_its_answer(desk: Desk) -> None:
    """Age, time left, tokens, sizes, model: everything but what was said."""
    status, entry = await desk.ask("GET", f"/cache/entries/{key().decode()}")
    assert 200 == status
    assert entry == {
        "key": key().decode(),
        "profile": "faq",
        "tenant": ANNE,
        "place": "memory",
        "ttl_s": 90,
        "stored_bytes": entry["stored_bytes"],
        "compression": "none",
        "unreadable": "",
        "age_s": 30,
        "serves_s": 60,
        "input_tokens": 12,
        "output_tokens": 34,
        "body_bytes": len(BODY),
        "content_type": "application/json",
        "dialect": "openai.chat",
        "model": "demo-7b",
        "quality": "FULL",
        "took_ms": 1500,
        "context": False,
        "body": None,
    }
    assert len(BODY) < entry["stored_bytes"] < len(BODY) + 100


async def test_the_answer_is_shown_to_who_asks_for_it(desk: Desk) -> None:
    """It is the operator's own wish."""
    _, entry = await desk.ask("GET", f"/cache/entries/{key().decode()}?body=1")
    assert BODY.decode() == entry["body"]


async def test_what_is_no_record_says_why(desk: Desk, memory: MemoryStore) -> None:
    """The cache takes it for a miss, and an operator sees the reason."""
    await memory.put(key(number=2), b"not ours", 90)
    _, entry = await desk.ask("GET", f"/cache/entries/{key(number=2).decode()}")
    assert ("foreign", "", 8) == (entry["unreadable"], entry["model"], entry["stored_bytes"])


@pytest.mark.parametrize(
    ("name", "status", "why"),
    [
        (key(number=9).decode(), 404, "no such entry in memory"),
        ("faq:x:y", 400, "expected a key PROFILE:TENANT:DIGEST"),
    ],
    ids=["unknown", "no key"],
)
async def test_what_is_not_there_is_said_to_be(
    name: str, status: int, why: str, desk: Desk
) -> None:
    """A key that cannot be one is another mistake than one of an answer that is gone."""
    found, told = await desk.ask("GET", f"/cache/entries/{name}")
    assert status == found
    assert told["error"].startswith(why)


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ({"profile": "faq"}, {key("chat")}),
        ({"tenant": ANNE}, {key(tenant=BEN)}),
        ({"profile": "faq", "tenant": BEN}, {key(), key("chat")}),
        ({"profile": "fa"}, {key(), key(tenant=BEN), key("chat")}),
        ({}, set()),
    ],
    ids=["profile", "tenant", "both", "the beginning of a name", "all"],
)
async def test_a_purge_takes_what_was_named(
    what: dict[str, str], left: set[bytes], desk: Desk, memory: MemoryStore
) -> None:
    """And nothing else."""
    assert (200, {"memory": True, "entries": 3 - len(left)}) == await desk.purge(**what)
    assert left == set(memory.keys())


async def test_a_purge_can_be_tried(desk: Desk, memory: MemoryStore) -> None:
    """It says what it would take, and takes nothing."""
    assert (200, {"memory": True, "entries": 2}) == await desk.purge(profile="faq", dry_run=True)
    assert 3 == len(memory)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_has_ended_is_not_counted_as_purged(
    desk: Desk, memory: MemoryStore, clock: FakeClock, dry_run: bool
) -> None:
    """It lies there until somebody comes upon it."""
    clock.advance(90)
    assert 3 == len(memory)
    assert (200, {"memory": True, "entries": 0}) == await desk.purge(dry_run=dry_run)
    assert (3 if dry_run else 0) == len(memory)


async def test_a_large_store_is_purged_in_pieces(desk: Desk, memory: MemoryStore) -> None:
    """Others have their turn in between, and all of it is looked at."""
    for number in range(AT_ONCE + 1):
        await memory.put(key("batch", number=number), b"x", 90)
    assert (200, {"memory": True, "entries": AT_ONCE + 1}) == await desk.purge(profile="batch")
    assert 3 == len(memory)


async def test_the_store_is_shown_by_profile(desk: Desk, memory: MemoryStore) -> None:
    """How many answers, and the bytes of their records."""
    status, stats = await desk.ask("GET", "/cache/stats")
    assert 200 == status
    kept = stats["memory"]
    assert (3, memory.size, memory.room) == (kept["entries"], kept["bytes"], kept["room"])
    assert ["chat", "faq"] == list(kept["profiles"])
    assert 2 * kept["profiles"]["chat"]["bytes"] == kept["profiles"]["faq"]["bytes"]


async def test_a_process_without_memory_has_nothing_of_its_own() -> None:
    """Answers are elsewhere: its figures are still its own."""
    async with aiohttp.ClientSession() as client:
        desk = Desk(client, None)
        await desk.admin.start()
        _, stats = await desk.ask("GET", "/cache/stats")
        assert stats["memory"] is None
        assert (200, {"memory": False, "entries": 0}) == await desk.purge()
        status, _ = await desk.ask("GET", f"/cache/entries/{key().decode()}")
        assert 404 == status
        await desk.admin.stop()


# --- Who is answered ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"],
)
async def test_a_form_of_a_web_page_purges_nothing(
    content_type: str, desk: Desk, memory: MemoryStore
) -> None:
    """A page can send these anywhere without asking; what can be read as JSON is no reason."""
    status, told = await desk.ask("POST", "/cache/purge", b"{}", content_type=content_type)
    assert 415 == status
    assert told["error"].startswith("expected content-type application/json")
    assert 3 == len(memory)


@pytest.mark.parametrize(
    "path", ["/cache/stats", f"/cache/entries/{key().decode()}", "/cache/purge"]
)
async def test_a_name_that_was_made_to_lead_here_is_refused(path: str, desk: Desk) -> None:
    """A page whose own name resolves to this machine may send and read anything."""
    method = "POST" if path == "/cache/purge" else "GET"
    headers = {"host": "evil.example:9464", "content_type": "application/json"}
    status, told = await desk.ask(method, path, b"{}", **headers)
    assert 403 == status
    assert {"error": "expected the address of this machine as the host"} == told


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9464", "[::1]:9464", "[::1]"])
async def test_this_machine_has_several_names(host: str, desk: Desk) -> None:
    """With a port or without."""
    status, _ = await desk.ask("GET", "/cache/stats", host=host)
    assert 200 == status


@pytest.mark.parametrize("host", ["", "127.0.0.1.evil.example", "10.0.0.1", "[::1", ":80"])
async def test_no_other_name_will_do(host: str, desk: Desk) -> None:
    """However it looks."""
    status, _ = await desk.ask("GET", "/cache/stats", host=host)
    assert 403 == status


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "Input data was truncated"),
        (b'{"profil": "faq"}', "Object contains unknown field `profil`"),
        (b'{"profile": "*"}', "expected a profile's name, got '*'"),
        (b'{"tenant": "sk-123"}', "expected 16 hex digits"),
        (b'{"dry_run": 1}', "Expected `bool`, got `int`"),
    ],
)
async def test_a_purge_of_something_else_is_refused(
    data: bytes, why: str, desk: Desk, memory: MemoryStore
) -> None:
    """What is misspelt must not become a purge of everything; a credential is not repeated."""
    status, told = await desk.ask("POST", "/cache/purge", data, content_type="application/json")
    assert 400 == status
    assert told["error"].startswith(why)
    assert "sk-123" not in told["error"]
    assert 3 == len(memory)


async def test_a_long_question_is_not_read(desk: Desk) -> None:
    """A name and sixteen digits are short."""
    url = f"http://127.0.0.1:{desk.admin.port}/cache/purge"
    headers = {"content-type": "application/json"}
    async with desk.client.post(url, data=b" " * 5_000, headers=headers) as response:
        assert 413 == response.status
