"""Simulated replicas take their time, fail on command, and tell what their caches hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import uvloop
import zmq
import zmq.asyncio

from ext_proc.adapters.kv_events import KvEvents
from ext_proc.adapters.kv_settings import Place
from ext_proc.adapters.kv_wire import Batch, Stored
from ext_proc.adapters.replica_signals import PageReader, Said
from ext_proc.tools.kv_publisher import END, KEPT_BATCHES, Form, Publisher
from ext_proc.tools.replica_faults import Fault, Kind
from ext_proc.tools.replica_life import INSTANT, Life, Model
from ext_proc.tools.replica_model import BLOCK_TOKENS, Hardware
from ext_proc.tools.simulator import Simulator
from tests.ext_proc.test_replica_time import FakeTimers

PATIENCE_S: Final = 60.0
SLOW: Final = Hardware(step_s=1e6, block_tokens=16)
"""Nothing of it is ever done while a test runs."""
SMALL: Final = replace(INSTANT, cache_tokens=64 * 16, block_tokens=16)
CHAT: Final = "/v1/chat/completions"
GONE: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def two() -> AsyncIterator[Simulator]:
    async with Simulator(replicas=2, names=["a", "b"]) as simulator:
        yield simulator


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def post(
    http: aiohttp.ClientSession, url: str, body: Any = None, path: str = CHAT
) -> tuple[aiohttp.ClientResponse, Any]:
    async with http.post(url + path, json=body or ask("Say hello")) as response:
        return response, await response.json()


async def fail(http: aiohttp.ClientSession, url: str, fault: str) -> tuple[int, Any]:
    async with http.post(f"{url}/simulator/faults/{fault}") as response:
        return response.status, await response.json()


async def recover(http: aiohttp.ClientSession, url: str, rest: str = "") -> tuple[int, Any]:
    async with http.delete(f"{url}/simulator/faults{rest}") as response:
        return response.status, await response.json()


async def look(http: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with http.get(f"{url}/simulator") as response:
        replicas: list[dict[str, Any]] = (await response.json())["replicas"]
        return replicas


async def said(http: aiohttp.ClientSession, url: str) -> Said:
    async with http.get(f"{url}/metrics") as response:
        found = PageReader().read(await response.read(), whole=True)
    assert found is not None
    return found


async def reach(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0)


# --- The model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_turn_of_a_conversation_finds_the_last_one(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    """Prompt and answer are in the cache, but for the block that was not full."""
    async with Simulator(model=Model(SMALL)) as simulator:
        first = ask("word " * 200)
        _, reply = await post(http, simulator.url, first)
        answer = reply["choices"][0]["message"]["content"]
        messages = [*first["messages"], {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": "Go on"})
        turn = {"model": "m", "messages": messages, "stream": stream}
        async with http.post(simulator.url + CHAT, json=turn) as response:
            cached = int(response.headers["x-simulated-cached-tokens"])
    tokens = reply["usage"]["total_tokens"]
    assert reply["usage"]["prompt_tokens"] < cached <= tokens


async def test_geminis_turns_are_found_too(http: aiohttp.ClientSession) -> None:
    """In whichever order a client writes role and parts."""
    path = "/v1beta/models/g:generateContent"
    async with Simulator(model=Model(SMALL)) as simulator:
        for role_first in (True, False):

            def content(role: str, text: str, role_first: bool = role_first) -> dict[str, Any]:
                parts = [{"text": text}]
                if role_first:
                    return {"role": role, "parts": parts}
                return {"parts": parts, "role": role}

            contents = [content("user", "word " * 200 + str(role_first))]
            _, reply = await post(http, simulator.url, {"contents": contents}, path)
            said = reply["candidates"][0]["content"]["parts"][0]["text"]
            contents += [content("model", said), content("user", "Go on")]
            response, _ = await post(http, simulator.url, {"contents": contents}, path)
            cached = int(response.headers["x-simulated-cached-tokens"])
            assert reply["usageMetadata"]["promptTokenCount"] < cached


async def test_several_answers_share_one_prompt(http: aiohttp.ClientSession) -> None:
    """The second choice finds what the first one computes."""
    async with Simulator() as simulator:
        _, reply = await post(http, simulator.url, ask("word " * 200, n=3))
        life = simulator.replicas[0].life
    tokens = reply["usage"]["prompt_tokens"]
    assert (
        tokens + 2 * (tokens - (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS) == life.engine.prefilled
    )


async def test_a_request_longer_than_the_context_is_refused(http: aiohttp.ClientSession) -> None:
    """In the provider's shape, with both numbers."""
    async with Simulator(model=Model(context_tokens=100)) as simulator:
        response, reply = await post(http, simulator.url, ask("x" * 4_000))
        fits, _ = await post(http, simulator.url, ask("x"))
    assert (400, 200) == (response.status, fits.status)
    assert reply["error"]["message"].startswith(
        "The model reads and writes at most 100 tokens, but the request has 1007 and asks for "
    )


async def test_without_a_context_everything_is_taken(http: aiohttp.ClientSession) -> None:
    """What does not fit is taken as far as it does: an upstream for tests takes any body."""
    async with Simulator(model=Model(SMALL)) as simulator:
        response, reply = await post(http, simulator.url, ask("x" * 100_000))
    assert 200 == response.status
    assert 25_007 == reply["usage"]["prompt_tokens"]


async def test_an_embedding_is_read_like_a_prompt(http: aiohttp.ClientSession) -> None:
    """It takes prefill, and no token of an answer."""
    async with Simulator() as simulator:
        await post(http, simulator.url, {"model": "e", "input": "word " * 100}, "/v1/embeddings")
        life = simulator.replicas[0].life
        page = life.metrics().decode()
    assert 125 == life.engine.prefilled
    assert 'vllm:generation_tokens_total{engine="0",model_name="simulated"} 0.0' in page


async def test_what_is_under_way_is_in_the_page(http: aiohttp.ClientSession) -> None:
    """Tokens are counted as they are written, and those of a client that left stay counted."""
    hardware = replace(INSTANT, decode_s=0.001)
    async with Simulator(model=Model(hardware)) as simulator:
        life = simulator.replicas[0].life
        body = ask("Say hello", stream=True, max_tokens=100_000, ignore_eos=True)
        async with http.post(simulator.url + CHAT, json=body) as response:
            await response.content.readany()
            page = life.metrics().decode()
            counted = [line for line in page.splitlines() if "generation_tokens_total{" in line]
            response.close()
        await reach(lambda: life.running == 0)
        page = life.metrics().decode()
    assert not counted[0].endswith(" 0.0")
    assert (
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="simulated"} 1.0'
        in page
    )


# --- Faults --------------------------------------------------------------------------------------


async def test_who_looks_sees_every_replica(http: aiohttp.ClientSession, two: Simulator) -> None:
    """What it is made of, what it does, and what it suffers from."""
    await fail(http, two.url, "slow?factor=8&replica=b")
    a, b = await look(http, two.url)
    assert ("a", [], 1.0) == (a["name"], a["faults"], a["speed"])
    fault = {"kind": "slow", "after_s": 0, "for_s": None, "factor": 8, "status": 503, "share": 1}
    assert ("b", [fault], 1 / 8) == (b["name"], b["faults"], b["speed"])
    assert two.ports == [a["port"], b["port"]]
    assert 64 == a["hardware"]["block_tokens"]


async def test_a_slow_replica_recovers(http: aiohttp.ClientSession, two: Simulator) -> None:
    """Its speed is what it was."""
    await fail(http, two.url, "slow")
    slow = two.replicas[0].life.timed.speed
    await recover(http, two.url, "/slow")
    assert (0.25, 1.0) == (slow, two.replicas[0].life.timed.speed)


async def test_an_erring_replica_answers_in_the_providers_shape(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Requests fail; health and metrics do not."""
    await fail(http, two.url, "error?status=500")
    response, reply = await post(http, two.url)
    async with http.get(f"{two.url}/health") as health:
        assert (500, "Simulated error 500.", 200) == (
            response.status,
            reply["error"]["message"],
            health.status,
        )
    await said(http, two.url)


async def test_a_share_of_requests_fails(http: aiohttp.ClientSession, two: Simulator) -> None:
    """Drawn for each request, the same ones in each run."""
    await fail(http, two.url, "error?share=0.5")
    statuses = [(await post(http, two.url))[0].status for _ in range(40)]
    assert {200, 503} == set(statuses)


async def test_a_crashed_replica_takes_no_connection_until_it_is_up_again(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Its port is the one it had; it began anew and holds nothing of before."""
    a, b = (f"http://127.0.0.1:{port}" for port in two.ports)
    await post(http, a, ask("word " * 100))
    began_s = (await said(http, a)).began_s
    assert 200 == (await fail(http, b, "crash?replica=a"))[0]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", two.port)
    assert [False, True] == [replica["listening"] for replica in await look(http, b)]
    assert 200 == (await recover(http, b, "?replica=*"))[0]
    response, _ = await post(http, a, ask("word " * 100))
    assert "0" == response.headers["x-simulated-cached-tokens"]
    again_s = (await said(http, a)).began_s
    assert began_s is not None
    assert again_s is not None
    assert began_s < again_s


def test_a_crash_resets_connections_whatever_loop_runs() -> None:
    """The command runs on uvloop."""

    async def crash() -> None:
        async with aiohttp.ClientSession() as http, Simulator(replicas=2, model=Model(SLOW)) as two:
            task = asyncio.create_task(post(http, two.url))
            await reach(lambda: two.replicas[0].life.running == 1)
            await fail(http, f"http://127.0.0.1:{two.ports[1]}", "crash?replica=replica-0")
            with pytest.raises(GONE):
                async with asyncio.timeout(PATIENCE_S):
                    await task

    uvloop.run(crash())


class Hurrying(FakeTimers):
    """Time passes whenever anybody looks."""

    def time(self) -> float:
        self.now_s += 1.0
        return self.now_s


async def test_requests_may_end_as_it_is_looked_how_far_they_are() -> None:
    """A page is written all the same, and they are counted once."""
    life = Life(Model(replace(SMALL, step_s=1.0)), "m", Hurrying(), None)
    counts, page = range(100, 105), b""
    async with life.run("word " * 10, [""] * len(counts), counts):
        for _ in range(100):
            page = life.metrics()
    assert b'vllm:generation_tokens_total{engine="0",model_name="m"} 510.0' in page


async def test_a_replica_that_is_asked_to_crash_says_that_it_will(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Who asks hears of it; who is being answered does not."""
    model = Model(SLOW)
    async with Simulator(replicas=2, model=model) as simulator:
        task = asyncio.create_task(post(http, simulator.url))
        await reach(lambda: simulator.replicas[0].life.running == 1)
        status, reply = await fail(http, simulator.url, "crash")
        with pytest.raises(GONE):
            await task
    assert (200, False) == (status, reply["replicas"][0]["listening"])


async def test_the_last_replica_does_not_crash_for_ever(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Nobody could undo it; for a while it may."""
    await fail(http, two.url, "crash?replica=b")
    status, reply = await fail(http, two.url, "crash")
    message = "none would be left to undo it: say how long it lasts, as for=10s"
    assert (400, {"error": message}) == (status, reply)
    assert 200 == (await fail(http, two.url, "crash?for=1ms"))[0]
    await reach(lambda: two.replicas[0].listening)
    assert (await post(http, two.url))[0].status == 200


async def test_a_hung_replica_answers_nothing_and_then_begins_anew(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Neither health nor metrics; who waited is cut off when it is up again."""
    life, server = two.replicas[0].life, two.replicas[0]._server
    assert server is not None
    await fail(http, two.url, "hang")
    requests = server.requests_count
    # Not with GET: a client may ask a second time by itself.
    paths = ("/health", "/metrics", CHAT)
    tasks = [asyncio.create_task(http.post(two.url + path)) for path in paths]
    await reach(lambda: server.requests_count == requests + len(tasks))
    await recover(http, two.url, "/hang")
    for task in tasks:
        with pytest.raises(GONE):
            await task
    assert (await post(http, two.url))[0].status == 200
    assert life is not two.replicas[0].life


async def test_a_silent_replica_says_that_it_is_well_and_idle(
    http: aiohttp.ClientSession,
) -> None:
    """Whatever it has to do, and whoever asks."""
    async with Simulator(model=Model(SLOW)) as simulator:
        life = simulator.replicas[0].life
        tasks = [asyncio.create_task(post(http, simulator.url))]
        await reach(lambda: life.running == 1)
        await fail(http, simulator.url, "silent")
        requests = len(simulator.requests)
        tasks.append(asyncio.create_task(post(http, simulator.url)))
        await reach(lambda: len(simulator.requests) > requests)
        found = await said(http, simulator.url)
        async with http.get(f"{simulator.url}/health") as health:
            status = health.status
        undone = [task.done() for task in tasks]
        await recover(http, simulator.url)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert (200, 0, 0, [False, False]) == (status, found.running, found.waiting, undone)
    assert all(isinstance(one, GONE) for one in ended)


async def test_frozen_metrics_stay_what_they_were(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """To the byte, while the replica works on."""
    await fail(http, two.url, "frozen")
    pages = []
    for again in (True, False):
        async with http.get(f"{two.url}/metrics") as response:
            pages.append(await response.read())
        if again:
            await post(http, two.url)
    await recover(http, two.url)
    async with http.get(f"{two.url}/metrics") as response:
        pages.append(await response.read())
    assert pages[0] == pages[1] != pages[2]


async def test_stale_metrics_are_not_to_be_had(http: aiohttp.ClientSession, two: Simulator) -> None:
    """Everything else is."""
    await fail(http, two.url, "stale")
    task = asyncio.create_task(http.get(f"{two.url}/metrics"))
    response, _ = await post(http, two.url)
    undone = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (200, True) == (response.status, undone)


async def test_faults_come_and_go_by_themselves(http: aiohttp.ClientSession) -> None:
    """From the start on, after a while and for a while."""
    faults = [
        ("a", Fault(Kind.SLOW, after_s=0.001)),
        ("*", Fault(Kind.ERROR)),
        ("b", Fault(Kind.FROZEN, for_s=0.001)),
    ]
    async with Simulator(names=["a", "b"], faults=faults) as simulator:
        a, b = simulator.replicas
        assert {Kind.ERROR, Kind.FROZEN} == set(b.faults)
        await reach(lambda: {Kind.ERROR, Kind.SLOW} == set(a.faults))
        await reach(lambda: {Kind.ERROR} == set(b.faults))
        await recover(http, simulator.url, "?replica=*")
        assert [{}, {}] == [a.faults, b.faults]


async def test_what_a_replica_suffers_from_outlives_a_restart(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """A slow one that crashed is slow when it is up again."""
    b = two.replicas[1]
    await fail(http, two.url, "slow?replica=b")
    await fail(http, two.url, "crash?replica=b")
    await recover(http, two.url, "/crash?replica=b")
    assert (0.25, {Kind.SLOW}) == (b.life.timed.speed, set(b.faults))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("lame", 'expected one of slow, error, hang, silent, crash, frozen, stale, got "lame"'),
        ("slow?by=4", 'expected one of after, for, factor, status, share, got "by"'),
        ("slow?replica=c", 'expected one of a, b or "*", got "c"'),
    ],
)
async def test_what_is_not_understood_is_told(
    http: aiohttp.ClientSession, two: Simulator, query: str, message: str
) -> None:
    """And nothing is changed."""
    assert (400, {"error": message}) == await fail(http, two.url, query)
    assert [{}, {}] == [replica.faults for replica in two.replicas]


async def test_there_is_nothing_else_at_the_desk(
    http: aiohttp.ClientSession, two: Simulator
) -> None:
    """Another path or method is a 404."""
    async with http.put(f"{two.url}/simulator/faults/slow") as response:
        assert 404 == response.status
    async with http.get(f"{two.url}/simulator/else") as response:
        assert 404 == response.status


# --- Events --------------------------------------------------------------------------------------


class Subscriber:
    """A real subscriber, as vLLM's own example is one."""

    def __init__(self, publisher: Publisher) -> None:
        self.context = zmq.asyncio.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.connect(f"tcp://127.0.0.1:{publisher.port}")
        self.events.subscribe(b"")
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.connect(f"tcp://127.0.0.1:{publisher.replay_port}")

    async def next(self) -> tuple[int, Any]:
        """Return the number of the next batch, and what is in it."""
        async with asyncio.timeout(PATIENCE_S):
            topic, number, payload = await self.events.recv_multipart()
        assert b"" == topic
        return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)

    async def missed(self, first: int) -> list[tuple[int, Any]]:
        """Return the batches from one on, as the second socket has them."""
        batches = []
        async with asyncio.timeout(PATIENCE_S):
            await self.replay.send_multipart((b"", first.to_bytes(8, "big")))
            while (reply := await self.replay.recv_multipart())[1] != END:
                batches.append((int.from_bytes(reply[1], "big"), msgspec.msgpack.decode(reply[2])))
        return batches

    async def all_events(self) -> list[Any]:
        """Return every event so far."""
        return [event for _, batch in await self.missed(0) for event in batch[1]]

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
async def telling() -> AsyncIterator[Simulator]:
    """Run a replica of 64 blocks that tells of them."""
    async with Simulator(model=Model(SMALL), events_port=0) as simulator:
        yield simulator


@pytest.fixture
async def subscriber(telling: Simulator) -> AsyncIterator[Subscriber]:
    publisher = telling.replicas[0].publisher
    assert publisher is not None
    subscriber = Subscriber(publisher)
    # A subscription takes a while to arrive: until then batches are lost.
    async with asyncio.timeout(PATIENCE_S):
        while not await subscriber.events.poll(1):
            publisher.publish(msgspec.msgpack.encode([0.0, [], 0]))
    yield subscriber
    subscriber.close()


async def next_of(subscriber: Subscriber) -> Any:
    """Return the next batch that has events."""
    while not (batch := (await subscriber.next())[1])[1]:
        pass
    return batch


async def test_a_prompt_that_was_computed_is_told_block_by_block(
    http: aiohttp.ClientSession, telling: Simulator, subscriber: Subscriber
) -> None:
    """Names, what came before, the very tokens; the answer's blocks follow on the prompt's."""
    await post(http, telling.url, ask("word " * 40))
    now_s, events, rank = await next_of(subscriber)
    (kind, names, parent, tokens, size, *rest) = events[0]
    text = struct.pack(f"<{len(tokens)}I", *tokens).decode()
    prompt = json.dumps(ask("word " * 40)["messages"][0], separators=(",", ":"))
    assert ("BlockStored", None, 16, [None, "GPU", None]) == (kind, parent, size, rest)
    assert (prompt[: len(text)], 16 * len(names), 0) == (text, len(tokens), rank)
    assert now_s > 1e9
    _, events, _ = await next_of(subscriber)
    assert ("BlockStored", names[-1]) == (events[0][0], events[0][2])


async def test_what_another_prompt_has_too_is_told_once(
    http: aiohttp.ClientSession, telling: Simulator, subscriber: Subscriber
) -> None:
    """Only blocks that nobody could find before, and then what they follow on."""
    for end in ("left", "right"):
        await post(http, telling.url, ask("word " * 60 + end * 20, max_tokens=1))
    first, second = await subscriber.all_events()
    assert set() == set(first[1]) & set(second[1])
    assert second[2] in first[1]


async def test_who_keeps_count_of_events_knows_what_the_cache_holds(
    http: aiohttp.ClientSession, telling: Simulator, subscriber: Subscriber
) -> None:
    """What had to make room is told, too."""
    for number in range(8):
        await post(http, telling.url, ask(f"{number} " + "word " * 300))
    cache = telling.replicas[0].life.engine.cache
    held: set[int] = set()
    removed = 0
    for event in await subscriber.all_events():
        if event[0] == "BlockRemoved":
            assert "GPU" == event[2]
            held -= set(event[1])
            removed += len(event[1])
        else:
            held |= set(event[1])
    assert 0 < removed == cache.evicted
    assert 0 < len(held) <= cache.blocks
    assert all(block in cache for block in held)


async def test_who_missed_batches_gets_them_again(
    http: aiohttp.ClientSession, telling: Simulator, subscriber: Subscriber
) -> None:
    """From a number on, in their order, then an end."""
    for text in ("word ", "other "):
        await post(http, telling.url, ask(text * 40))
    batches = await subscriber.missed(0)
    assert list(range(len(batches))) == [number for number, _ in batches]
    assert batches[-2:] == await subscriber.missed(len(batches) - 2)


async def test_who_missed_nothing_gets_an_end(telling: Simulator, subscriber: Subscriber) -> None:
    """At once."""
    assert [] == await subscriber.missed(KEPT_BATCHES)


async def test_a_restarted_replica_counts_from_nothing_at_its_ports(
    http: aiohttp.ClientSession, telling: Simulator
) -> None:
    """Who follows it sees that it is another one."""
    before = telling.replicas[0].publisher
    assert before is not None
    await fail(http, telling.url, "silent")
    await recover(http, telling.url)
    after = telling.replicas[0].publisher
    assert after is not None
    assert after is not before
    assert (before.port, before.replay_port) == (after.port, after.replay_port)
    subscriber = Subscriber(after)
    try:
        await post(http, telling.url, ask("word " * 40))
        number, _ = (await subscriber.missed(0))[0]
    finally:
        subscriber.close()
    assert 0 == number


async def test_events_may_be_maps(http: aiohttp.ClientSession) -> None:
    """As later releases of vLLM write them."""
    model = Model(SMALL, form=Form.MAPS)
    async with Simulator(model=model, events_port=0) as simulator:
        publisher = simulator.replicas[0].publisher
        assert publisher is not None
        await post(http, simulator.url, ask("word " * 40))
        subscriber = Subscriber(publisher)
        try:
            _, batch = (await subscriber.missed(0))[0]
        finally:
            subscriber.close()
    (event,) = batch["events"]
    assert {"ts", "events", "data_parallel_rank"} == set(batch)
    assert ("BlockStored", None, 16) == (
        event["type"],
        event["parent_block_hash"],
        event["block_size"],
    )
    assert 16 * len(event["block_hashes"]) == len(event["token_ids"])


async def test_ports_for_events_stand_in_rows() -> None:
    """Each as far from its replica's own as the others: so a gateway is told of all at once."""
    made = Simulator(replicas=3, port=8_081, events_port=5_557)
    assert [(5_557, 5_560), (5_558, 5_561), (5_559, 5_562)] == [
        replica.events_ports for replica in made.replicas
    ]


async def test_a_row_of_ports_for_events_ends_at_the_last_one() -> None:
    """Else a replica would tell at port 1."""
    with pytest.raises(OSError, match="there is no port above 65,535"):
        await Simulator(replicas=2, events_port=65_533).__aenter__()


@pytest.mark.parametrize("form", list(Form))
async def test_our_own_listener_understands_what_is_told(
    http: aiohttp.ClientSession, form: Form
) -> None:
    """The very one that picks are made by."""
    heard: list[Batch] = []
    told = asyncio.Event()

    class Ears:
        def heard(self, address: str, batch: Batch) -> None:
            heard.append(batch)
            told.set()

        def began(self, address: str) -> None:
            pass

    async with Simulator(model=Model(SMALL, form=form), events_port=0) as simulator:
        publisher = simulator.replicas[0].publisher
        assert publisher is not None
        host = "tcp://127.0.0.1"
        place = Place(f"{host}:{publisher.port}", f"{host}:{publisher.replay_port}")
        listener = KvEvents(Ears())
        listener.follow({"a": place})
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not told.is_set():  # a subscription takes a while to arrive
                    number = len(simulator.requests)
                    await post(http, simulator.url, ask(f"{number} " + "word " * 40))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(told.wait(), 0.1)
        finally:
            listener.close()
    stored = [event for batch in heard for event in batch.events if isinstance(event, Stored)]
    assert stored
    assert {16} == {event.block_tokens for event in stored}
    assert 0 == sum(batch.ignored for batch in heard)


async def test_a_taken_port_for_events_is_an_os_error(telling: Simulator) -> None:
    """And nothing stays open."""
    publisher = telling.replicas[0].publisher
    assert publisher is not None
    with pytest.raises(OSError, match="in use"):
        await Simulator(events_port=publisher.port).__aenter__()
