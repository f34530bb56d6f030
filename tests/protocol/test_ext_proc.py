"""Whole exchanges over the wire: the handler on the real transport, against the session alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import grpc
import pytest

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.codec import Body, Event, Headers, Trailers, encode
from ext_proc.conversation import Message
from ext_proc.session import Facts
from filters.api import CONTINUE, Config, Exchange, Filter, Outcome, Verdict
from filters.dialects.openai_chat import OpenAIChat
from tests.ext_proc.test_session import (
    ANSWER,
    CHAT,
    CONVERSATION,
    JSON,
    SCRIPTS,
    reply,
    request,
    stage,
    stored,
)
from tests.protocol.conftest import MEGABYTE, Call, Serve, ask, ext_proc, read, written
from tests.session_scripts import Gone, Open, Sleep, Stage, StoreFails, read_script


def said(message: bytes | None) -> pb.ProcessingResponse:
    """Read an answer; that it is there is part of what is expected."""
    assert message is not None
    return pb.ProcessingResponse.FromString(message)


def kind(message: bytes | None) -> str:
    """Return which part of an exchange an answer is for."""
    return said(message).WhichOneof("response") or ""


def untimed(played: Stage) -> list[Facts]:
    """Return what the books say, but for when tokens came.

    A chunk passes on before it is looked at, so that the next line of a script may come first.
    """
    return [replace(facts, first_token_ns=0, token_gaps_ns=[]) for facts in played.books.ended]


class Replay:
    """Plays one script over the wire and without it, and compares after every event."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._alone, self._wired = stage(), stage()
        self._call: Call | None = None
        self._opened = 0

    async def play(self, script: str) -> None:
        handler, watch = ext_proc(self._wired.gateway)
        self._served = await self._serve(handler)
        for _, action in read_script(script):
            match action:
                case Open(profile):
                    await self._close()
                    self._alone.act(action)
                    self._call = (
                        self._served.process()
                        if profile == "-"
                        else self._served.process(x_forebay_profile=profile)
                    )
                    self._opened += 1
                case Gone():
                    await self._close()
                case Headers() | Body() | Trailers():
                    await self._send(action)
                case Sleep() | StoreFails():
                    self._alone.act(action)
                    self._wired.act(action)
        await self._close()
        assert untimed(self._alone) == untimed(self._wired)
        assert self._alone.store.values == self._wired.store.values
        assert [] == watch.failed

    async def _send(self, event: Event) -> None:
        assert self._call is not None
        if self._alone.peer.closed:
            return
        commands = self._alone.receive(event)
        await self._call.write(written(event))
        for command in commands:
            assert said(encode(command)) == said(await read(self._call))
        if self._alone.peer.closed:
            assert await read(self._call) is None
            assert grpc.StatusCode.OK is await self._call.code()

    async def _close(self) -> None:
        if self._call is None:
            return
        self._call.cancel()
        self._call = None
        self._alone.leave()
        await self._served.handler.ended(self._opened)


@pytest.mark.parametrize(
    "script",
    [pytest.param(file.read_text(), id=file.stem) for file in sorted(SCRIPTS.glob("*.txt"))],
)
async def test_an_exchange_goes_over_the_wire_as_its_script_says(serve: Serve, script: str) -> None:
    """Every answer, every entry in the books and the store are the same as without the wire."""
    await Replay(serve).play(script)


async def test_our_side_ends_when_nobody_needs_the_reply(serve: Serve) -> None:
    """The proxy need not end its own: it goes on alone from the answer to the body."""
    made = stage()
    handler, _ = ext_proc(made.gateway)
    served = await serve(handler)
    call = served.process(x_forebay_profile="default")
    answers = await ask(call, request())
    assert ["request_headers", "request_body"] == [kind(answer) for answer in answers]
    assert await read(call) is None
    assert grpc.StatusCode.OK is await call.code()
    await served.handler.ended(1)
    assert [Outcome.FORWARDED] == [facts.outcome for facts in made.books.ended]


@pytest.mark.parametrize("after", range(1, len(CONVERSATION)))
async def test_a_client_that_leaves_in_any_phase_ends_the_exchange_once(
    serve: Serve, after: int
) -> None:
    """Nothing is stored, and the books say that it went."""
    made = stage()
    handler, watch = ext_proc(made.gateway)
    served = await serve(handler)
    call = served.process(x_forebay_profile="faq")
    await ask(call, CONVERSATION[:after])
    call.cancel()
    await served.handler.ended(1)
    assert [Outcome.GONE] == [facts.outcome for facts in made.books.ended]
    assert [] == stored(made)
    assert [] == watch.failed


async def test_a_client_that_leaves_while_the_store_is_slow_ends_the_exchange_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is cancelled, not waited for."""
    made = stage()
    asked = asyncio.Event()

    async def slow(key: bytes) -> bytes | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(made.store, "get", slow)
    handler, watch = ext_proc(made.gateway)
    served = await serve(handler)
    call = served.process(x_forebay_profile="faq")
    headers, body = request()
    await ask(call, [headers])
    await call.write(written(body))
    await asked.wait()
    call.cancel()
    await served.handler.ended(1)
    assert [Outcome.GONE] == [facts.outcome for facts in made.books.ended]
    assert [] == watch.failed


@pytest.mark.parametrize(
    ("garbage", "text"),
    [
        (b"\xff", "not a ProcessingRequest"),
        (b"", "a ProcessingRequest that says nothing"),
        (written(request()[0]), "request headers may not come after request_head"),
        (
            written(Trailers(Message.RESPONSE_TRAILERS)),
            "response trailers may not come after request_head",
        ),
    ],
    ids=["no message", "empty", "twice", "too early"],
)
async def test_a_mistake_of_the_proxy_ends_its_stream_only(
    serve: Serve, garbage: bytes, text: str
) -> None:
    """It reads what the mistake was; a neighbour on the same connection goes on."""
    made = stage()
    handler, watch = ext_proc(made.gateway)
    served = await serve(handler)
    neighbour = served.process(x_forebay_profile="faq")
    headers, body = request()
    await ask(neighbour, [headers])
    call = served.process(x_forebay_profile="faq")
    await ask(call, [headers])
    await call.write(garbage)
    assert await read(call) is None
    assert grpc.StatusCode.INVALID_ARGUMENT is await call.code()
    assert text == await call.details()
    assert [("conversation", "ConversationError")] == watch.failed
    assert ["request_body"] == [kind(answer) for answer in await ask(neighbour, [body])]
    await served.handler.ended(1)
    assert 1 == len(made.books.ended)


async def test_a_bug_of_ours_ends_its_stream_only(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is told no more than that; the exchange is counted as failed, and the bug too."""
    secret = "the prompt said: my password"

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError(secret)

    made = stage()
    handler, watch = ext_proc(made.gateway)
    served = await serve(handler)
    neighbour = served.process(x_forebay_profile="faq")
    await ask(neighbour, request())
    with monkeypatch.context() as patch:
        patch.setattr(OpenAIChat, "read", broken)
        call = served.process(x_forebay_profile="default")
        headers, body = request()
        await ask(call, [headers])
        await call.write(written(body))
        assert await read(call) is None
    assert grpc.StatusCode.OK is not await call.code()
    assert "internal error" == await call.details()
    assert [("bug", "ZeroDivisionError")] == watch.failed
    await served.handler.ended(1)
    assert [Outcome.FAILED] == [facts.outcome for facts in made.books.ended]
    assert 2 == len(await ask(neighbour, reply(JSON, ANSWER)))
    await served.handler.ended(2)
    assert 1 == len(stored(made))


async def test_the_route_names_profile_and_trace(serve: Serve) -> None:
    """In the stream's metadata, where no client can write; its headers of that name are nothing."""
    made = stage()
    handler, _ = ext_proc(made.gateway)
    served = await serve(handler)
    call = served.process(x_forebay_profile="faq", traceparent="00-a-b-01")
    forged = {"x-forebay-profile": "raw", "traceparent": "00-c-d-01"}
    await ask(call, request(headers=forged))
    assert [("faq", "00-a-b-01")] == made.books.begun
    call.cancel()
    await served.handler.ended(1)


async def test_open_exchanges_keep_the_settings_they_began_with(serve: Serve) -> None:
    """New settings are for the next exchange: nothing changes under one that is under way."""
    old, new = stage(), Stage({"default": []})
    handler, _ = ext_proc(old.gateway)
    served = await serve(handler)
    headers, body = request()
    before = served.process(x_forebay_profile="default")
    await ask(before, [headers])
    handler.gateway = new.gateway
    after = served.process(x_forebay_profile="default")
    await ask(after, [headers])
    assert await read(after) is None
    assert ["request_body"] == [kind(answer) for answer in await ask(before, [body])]
    await served.handler.ended(2)
    assert [Outcome.FORWARDED] == [facts.outcome for facts in old.books.ended]
    assert [Outcome.PASSED] == [facts.outcome for facts in new.books.ended]


class Sign(Filter[Config]):
    """Signs every text."""

    name: ClassVar[str] = "sign"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        for turn in exchange.prompt.turns():
            for text in turn.texts:
                text.value += " -- signed"
        return CONTINUE


async def test_a_prompt_of_nine_megabytes_is_rewritten(serve: Serve) -> None:
    """It comes whole, and is sent back whole with its length."""
    handler, watch = ext_proc(Stage({"sign": [(Sign, Config())]}).gateway)
    served = await serve(handler)
    text = b"word " * (9 * MEGABYTE // 5)
    call = served.process(x_forebay_profile="sign")
    _, answer = await ask(call, request(CHAT.replace(b"hi", text)))
    response = said(answer).request_body.response
    expected = CHAT.replace(b"hi", text + b" -- signed")
    assert expected == response.body_mutation.body
    lengths = [
        option.header.raw_value
        for option in response.header_mutation.set_headers
        if option.header.key == "content-length"
    ]
    assert [b"%d" % len(expected)] == lengths
    assert [] == watch.failed


async def test_two_hundred_exchanges_at_once_keep_apart(serve: Serve) -> None:
    """Every other client leaves half-way; each exchange ends once, as it should, and is right."""
    made = stage()
    handler, watch = ext_proc(made.gateway)
    served = await serve(handler)

    async def one(number: int) -> None:
        call = served.process(x_forebay_profile="faq")
        body = CHAT.replace(b"hi", b"question %d" % number)
        if number % 2:
            await ask(call, request(body)[: 1 + number % 4 // 2])
            call.cancel()
            return
        answers = await ask(call, request(body) + reply(JSON, ANSWER[:90], ANSWER[90:]))
        expected = ["request_headers", "request_body", "response_headers"]
        assert [*expected, "response_body", "response_body"] == [kind(each) for each in answers]
        assert await read(call) is None

    await asyncio.gather(*(one(number) for number in range(200)))
    await served.handler.ended(200)
    ends = [facts.outcome for facts in made.books.ended]
    assert (100, 100) == (ends.count(Outcome.COMPLETE), ends.count(Outcome.GONE))
    assert 100 == len(stored(made))
    assert [] == watch.failed
