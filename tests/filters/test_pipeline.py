"""The order of filters, and what becomes of an exchange when one of them breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import pytest

from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Delta,
    Exchange,
    Filter,
    Need,
    Outcome,
    Ports,
    ReplyHead,
    RequestHead,
    Verdict,
)
from filters.dialects.openai_chat import OPENAI_CHAT
from filters.document import Document
from filters.errors import FilterError, PortError
from filters.lockstep import Lockstep
from filters.pipeline import SPARE_S, WAIT_S, AnyFilter, Pipeline, Run
from tests.fakes import FakeClock, FakeStore, PortWait, drive, fake_ports

BODY: Final = b'{ "model":"m", "messages":[{"role":"user","content":"hi"}] }'
TEAPOT: Final = Answer(418, {"x": "y"}, b"short and stout")


def made_ports() -> Ports:
    return fake_ports()


def made_run(*filters: type[AnyFilter], ports: Ports | None = None) -> Run:
    ports = ports or made_ports()
    return Run(Pipeline([(kind, Config()) for kind in filters], ports))


def made_exchange(body: bytes = BODY) -> Exchange:
    path = "/v1/chat/completions"
    return Exchange(
        profile="default",
        tenant="t",
        head=RequestHead("POST", path, {":path": path}),
        dialect=OPENAI_CHAT,
        prompt=OPENAI_CHAT.read(Document(body), path),
        pool="full",
    )


class Plain(Filter[Config]):
    """Overrides nothing."""

    name: ClassVar[str] = "plain"
    config_type: ClassVar[type[Config]] = Config


def logging(
    tag: str, log: list[str], act: Callable[[str, Exchange], Any] = lambda hook, exchange: None
) -> type[AnyFilter]:
    """Make a filter that logs every call and does what `act` does with the hook's name.

    What `act` returns is the verdict at a request and the deltas at a delta.
    """

    class Logging(Filter[Config]):
        name: ClassVar[str] = tag
        config_type: ClassVar[type[Config]] = Config

        async def on_request(self, exchange: Exchange) -> Verdict:
            log.append(f"{tag} request")
            verdict: Verdict = act("request", exchange) or CONTINUE
            return verdict

        async def on_response(self, exchange: Exchange) -> None:
            log.append(f"{tag} response")
            act("response", exchange)

        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            log.append(f"{tag} delta {delta.raw.decode()}")
            made: Iterable[Delta] | None = act("delta", exchange)
            return (delta,) if made is None else made

        async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
            log.append(f"{tag} finish {outcome}")
            act("finish", exchange)

    return Logging


def raising(hook: str, error: BaseException) -> Callable[[str, Exchange], Any]:
    """Make an `act` that raises in one hook."""

    def act(called: str, exchange: Exchange) -> None:
        if called == hook:
            raise error

    return act


def whole_run(run: Run, exchange: Exchange, outcome: Outcome = Outcome.COMPLETE) -> bytes:
    """Take an exchange through every hook and return the bytes the client gets."""
    assert drive(run.request(exchange)) is None
    exchange.reply_head = ReplyHead(200, {})
    drive(run.response(exchange))
    sent = b"".join(delta.raw for delta in run.delta(exchange, Delta(b"1")))
    drive(run.finish(exchange, outcome))
    return sent


# --- Order ---------------------------------------------------------------------------------------


def test_requests_pass_in_order_and_replies_in_reverse() -> None:
    """A, B, C on the way there; C, B, A on the way back and at the end."""
    log: list[str] = []
    run = made_run(*(logging(tag, log) for tag in "abc"))
    assert b"1" == whole_run(run, made_exchange())
    expected = ["a request", "b request", "c request"]
    expected += ["c response", "b response", "a response"]
    expected += ["c delta 1", "b delta 1", "a delta 1"]
    expected += ["c finish complete", "b finish complete", "a finish complete"]
    assert expected == log


def test_the_first_answer_wins() -> None:
    """Filters behind the one that answered see nothing, not even the end."""
    log: list[str] = []
    answers = logging("b", log, lambda hook, _: TEAPOT if hook == "request" else None)
    run = made_run(logging("a", log), answers, logging("c", log))
    exchange = made_exchange()
    assert TEAPOT == drive(run.request(exchange))
    drive(run.finish(exchange, Outcome.ANSWERED))
    assert ["a request", "b request", "b finish answered", "a finish answered"] == log


def test_what_one_filter_makes_of_a_delta_the_next_one_sees() -> None:
    """A delta may become several or none; every result passes the filters before it in turn."""
    log: list[str] = []

    def doubled(hook: str, exchange: Exchange) -> Any:
        return [Delta(b"x"), Delta(b"y")] if hook == "delta" else None

    def swallowed(hook: str, exchange: Exchange) -> Any:
        return [] if hook == "delta" else None

    run = made_run(logging("a", log), logging("b", log, swallowed), logging("c", log, doubled))
    assert b"" == whole_run(run, made_exchange())
    assert ["c delta 1", "b delta x", "b delta y"] == [line for line in log if "delta" in line]


def test_hooks_that_are_not_overridden_are_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase nobody listens to costs nothing: the defaults of the base class do not run."""
    run = made_run(Plain)

    def never(*_: Any) -> Any:
        raise AssertionError("called")

    for hook in ("on_response", "on_delta", "on_finish"):
        monkeypatch.setattr(Filter, hook, never)
    exchange = made_exchange()
    assert b"1" == whole_run(run, exchange)
    assert {} == exchange.notes


def test_a_pipeline_without_filters_changes_nothing() -> None:
    """The empty profile answers nothing and sends every delta on as it is."""
    run = made_run()
    assert b"1" == whole_run(run, made_exchange())
    assert [] == run.timings


def test_each_exchange_has_filters_of_its_own() -> None:
    """State kept in a filter's attributes never leaks into another exchange."""
    seen: list[AnyFilter] = []

    class Keeping(Plain):
        async def on_request(self, exchange: Exchange) -> Verdict:
            seen.append(self)
            return CONTINUE

    pipeline = Pipeline([(Keeping, Config())], made_ports())
    for _ in range(2):
        drive(Run(pipeline).request(made_exchange()))
    assert seen[0] is not seen[1]


def test_a_filter_is_prepared_once() -> None:
    """What every exchange of a profile shares is computed when the profile is made."""
    prepared: list[object] = []

    class Preparing(Plain):
        @classmethod
        def prepare(cls, config: Config) -> Any:
            prepared.append(object())
            return prepared[-1]

        async def on_request(self, exchange: Exchange) -> Verdict:
            assert self.prepared is prepared[0]
            return CONTINUE

    pipeline = Pipeline([(Preparing, Config())], made_ports())
    for _ in range(2):
        exchange = made_exchange()
        drive(Run(pipeline).request(exchange))
        assert {} == exchange.notes
    assert 1 == len(prepared)


@pytest.mark.parametrize("edits", [False, True])
def test_a_pipeline_knows_whether_a_filter_edits_the_reply(edits: bool) -> None:
    """One editor is enough for the whole profile."""

    class Editing(Plain):
        edits_stream: ClassVar[bool] = edits

    pipeline = Pipeline([(Plain, Config()), (Editing, Config())], made_ports())
    assert edits is pipeline.edits_stream


# --- Waiting -------------------------------------------------------------------------------------


def test_a_filter_that_does_not_wait_suspends_nobody() -> None:
    """The whole way through a pipeline runs in one step when no port is slow."""
    waits: list[PortWait] = []
    run, exchange = made_run(Plain, logging("a", [])), made_exchange()
    drive(run.request(exchange), waits)
    drive(run.response(exchange), waits)
    drive(run.finish(exchange, Outcome.COMPLETE), waits)
    assert [] == waits


def test_a_filter_may_wait_for_a_port() -> None:
    """A slow port suspends the exchange, and the filters behind it see the request after it."""
    clock = FakeClock()
    store = FakeStore(clock)
    store.waiting = True
    log: list[str] = []

    class Asking(Plain):
        async def on_request(self, exchange: Exchange) -> Verdict:
            await self.ports.store.get(b"key")
            log.append("answered")
            return CONTINUE

    run = made_run(Asking, logging("a", log), ports=fake_ports(clock, store=store))
    waits: list[PortWait] = []
    drive(run.request(made_exchange()), waits)
    assert [PortWait("store")] == waits
    assert ["answered", "a request"] == log


def test_each_stage_is_timed_with_its_waits() -> None:
    """A stage's nanoseconds cover all it did, also when it failed."""
    ports = made_ports()
    clock = ports.clock
    assert isinstance(clock, FakeClock)

    def late(seconds: float) -> Callable[[str, Exchange], None]:
        return lambda hook, exchange: clock.advance(seconds)

    def late_and_broken(hook: str, exchange: Exchange) -> None:
        clock.advance(3)
        raise RuntimeError

    kinds = [logging("a", [], late(1)), logging("b", [], late_and_broken), logging("c", [])]
    run = made_run(*kinds, ports=ports)
    drive(run.request(made_exchange()))
    assert [("a", 1_000_000_000), ("b", 3_000_000_000), ("c", 0)] == run.timings


def test_exchanges_in_lockstep_go_through_each_stage_together() -> None:
    """And no stage is timed with what others did meanwhile."""
    ports, log, lockstep = made_ports(), list[str](), Lockstep()
    clock = ports.clock
    assert isinstance(clock, FakeClock)

    def late(hook: str, exchange: Exchange) -> None:
        clock.advance(1)
        log.append(exchange.tenant)

    pipeline = Pipeline([(logging(name, [], late), Config()) for name in "ab"], ports)
    runs = [Run(pipeline), Run(pipeline)]
    steps = []
    for run, tenant in zip(runs, ("first", "second"), strict=True):
        exchange = made_exchange()
        exchange.tenant = tenant
        steps.append(run.request(exchange, lockstep))
    lockstep.several = True
    for _ in range(2):
        assert [lockstep, lockstep] == [step.send(None) for step in steps]
    for step in steps:
        with pytest.raises(StopIteration):
            step.send(None)
    assert ["first", "second", "first", "second"] == log
    assert [("a", 1_000_000_000), ("b", 1_000_000_000)] == runs[0].timings == runs[1].timings


# --- Failing -------------------------------------------------------------------------------------


def test_what_a_filter_did_before_it_failed_is_undone() -> None:
    """The exchange goes on as the filter found it; what others did stays."""

    def edit(name: str, fails: bool) -> Callable[[str, Exchange], None]:
        def act(hook: str, exchange: Exchange) -> None:
            if hook != "request":
                return
            exchange.prompt.document.set((name,), 1)
            exchange.pool = name
            exchange.upstream_headers[name] = name
            exchange.client_headers[name] = name
            exchange.need(Need.REPLY if fails else Need.END)
            if fails:
                raise ValueError

        return act

    run = made_run(
        logging("kept", [], edit("kept", False)), logging("lost", [], edit("lost", True))
    )
    exchange = made_exchange()
    assert drive(run.request(exchange)) is None
    assert b'"kept":1' in exchange.prompt.document.render()
    assert b"lost" not in exchange.prompt.document.render()
    assert "kept" == exchange.pool
    assert {"kept": "kept"} == exchange.upstream_headers == exchange.client_headers
    assert Need.END is exchange.needs


def test_a_body_goes_out_byte_for_byte_when_its_only_editor_fails() -> None:
    """Undone is undone: not one byte of the odd formatting differs."""

    def act(hook: str, exchange: Exchange) -> None:
        exchange.prompt.turns()[0].texts[0].value = "edited"
        exchange.prompt.document.set(("temperature",), 0)
        exchange.prompt.document.remove(("model",))
        raise ValueError

    run, exchange = made_run(logging("a", [], act)), made_exchange()
    assert drive(run.request(exchange)) is None
    assert exchange.prompt.document.changed is False
    assert BODY == exchange.prompt.document.render()
    assert ["hi"] == [text.value for turn in exchange.prompt.turns() for text in turn.texts]


@pytest.mark.parametrize(
    ("hook", "middle", "end"),
    [
        ("request", "a response, a delta 1", "failed"),
        ("response", "b response, a response, a delta 1", "failed"),
        ("delta", "b response, a response, b delta 1, a delta 1", "failed"),
        ("finish", "b response, a response, b delta 1, a delta 1", "complete"),
    ],
)
def test_a_filter_that_failed_sees_nothing_more_but_the_end(
    hook: str, middle: str, end: str
) -> None:
    """The others go on as if it were not there; it still lets go of what it holds, as failed."""
    log: list[str] = []
    failing = logging("b", log, raising(hook, RuntimeError("the prompt said: secret")))
    run, exchange = made_run(logging("a", log), failing), made_exchange()
    assert b"1" == whole_run(run, exchange)
    expected = f"a request, b request, {middle}, b finish {end}, a finish complete"
    assert expected == ", ".join(log)
    assert {"b.failed": "RuntimeError"} == exchange.notes


def test_a_filter_that_cannot_be_made_is_left_out() -> None:
    """It saw nothing, so it has nothing to let go of."""
    log: list[str] = []

    class Unmade(logging("b", log)):  # type: ignore[misc]  # a class made by a function
        def __init__(self, *_: Any) -> None:
            raise OSError("no such file: /secret")

    run, exchange = made_run(logging("a", log), Unmade, logging("c", log)), made_exchange()
    whole_run(run, exchange)
    assert {"b.failed": "OSError"} == exchange.notes
    assert [] == [line for line in log if line.startswith("b")]
    assert ["a request", "c request"] == log[:2]
    assert ["c finish complete", "a finish complete"] == log[-2:]


def test_a_failing_delta_hook_loses_nothing() -> None:
    """What it had given for earlier ones of several deltas is given; what it failed at goes on."""
    log: list[str] = []
    calls: list[bytes] = []

    def two(hook: str, exchange: Exchange) -> Any:
        return [Delta(b"x"), Delta(b"y")] if hook == "delta" else None

    class SecondFails(Plain):
        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            calls.append(delta.raw)
            yield Delta(b"edited")
            if delta.raw == b"y":
                raise ValueError

    run, exchange = made_run(SecondFails, logging("c", log, two)), made_exchange()
    drive(run.request(exchange))
    assert [b"edited", b"y"] == [delta.raw for delta in run.delta(exchange, Delta(b"1"))]
    assert [b"x", b"y"] == [delta.raw for delta in run.delta(exchange, Delta(b"2"))]
    assert [b"x", b"y"] == calls
    assert {"plain.failed": "ValueError"} == exchange.notes


def test_what_an_editor_did_to_a_delta_before_it_failed_is_undone() -> None:
    """An editor may write into the delta it was given: the client gets the bytes that came."""

    class Scribbling(Plain):
        edits_stream: ClassVar[bool] = True

        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            delta.raw = b"half an edit"
            raise ValueError

    run, exchange = made_run(Scribbling), made_exchange()
    drive(run.request(exchange))
    assert [Delta(b"1", text="one")] == list(run.delta(exchange, Delta(b"1", text="one")))


def test_a_refusal_becomes_an_answer_in_the_providers_shape() -> None:
    """Of a `FilterError` the client reads status and text, and filters behind it see nothing."""
    log: list[str] = []
    refusing = logging("b", log, raising("request", FilterError(429, "too many requests")))
    run, exchange = made_run(logging("a", log), refusing, logging("c", log)), made_exchange()
    answer = drive(run.request(exchange))
    assert answer is not None
    assert 429 == answer.status
    assert {"content-type": "application/json"} == answer.headers
    assert OPENAI_CHAT.error(429, "too many requests") == answer.body
    assert {"b.refused": 429} == exchange.notes
    drive(run.finish(exchange, Outcome.ANSWERED))
    assert ["a request", "b request", "b finish answered", "a finish answered"] == log


def test_a_refusal_after_the_request_is_a_failure() -> None:
    """The reply is under way: it is too late to refuse, and the client gets what came."""
    run = made_run(logging("a", [], raising("response", FilterError(403, "no"))))
    exchange = made_exchange()
    assert b"1" == whole_run(run, exchange)
    assert {"a.failed": "FilterError"} == exchange.notes


def test_a_port_that_failed_is_named() -> None:
    """A `PortError` says what broke in words of its own adapter, which quotes no prompt."""
    run = made_run(logging("a", [], raising("request", PortError("redis get: timed out"))))
    exchange = made_exchange()
    assert drive(run.request(exchange)) is None
    assert {"a.failed": "redis get: timed out"} == exchange.notes


# --- Cancelled -----------------------------------------------------------------------------------


class Cancelled(BaseException):
    """Stands for the event loop's own: no `Exception`, so that nothing swallows it."""


@pytest.mark.parametrize("hook", ["request", "response"])
def test_a_cancelled_filter_is_told_of_the_end(hook: str) -> None:
    """Cancellation is no failure: it passes through, and who saw the request lets go."""
    log: list[str] = []
    cancelled = logging("b", log, raising(hook, Cancelled()))
    run, exchange = made_run(logging("a", log), cancelled, logging("c", log)), made_exchange()
    with pytest.raises(Cancelled):
        whole_run(run, exchange)
    drive(run.finish(exchange, Outcome.GONE))
    reached = "ba" if hook == "request" else "cba"
    assert [f"{tag} finish gone" for tag in reached] == [line for line in log if "finish" in line]
    assert {} == exchange.notes


def test_an_end_that_was_cancelled_goes_on_where_it_stopped() -> None:
    """Each filter is told exactly once, whatever interrupts the telling."""
    log: list[str] = []
    cancelled = logging("b", log, raising("finish", Cancelled()))
    run, exchange = made_run(logging("a", log), cancelled, logging("c", log)), made_exchange()
    drive(run.request(exchange))
    log.clear()
    with pytest.raises(Cancelled):
        drive(run.finish(exchange, Outcome.COMPLETE))
    assert ["c finish complete", "b finish complete"] == log
    drive(run.finish(exchange, Outcome.COMPLETE))
    assert ["c finish complete", "b finish complete", "a finish complete"] == log
    drive(run.finish(exchange, Outcome.COMPLETE))
    assert 3 == len(log)


# --- Waits ---------------------------------------------------------------------------------------


def waiting(seconds: float) -> type[AnyFilter]:
    """Make a filter that may wait so long."""

    class Waiting(Plain):
        @classmethod
        def longest_wait_s(cls, config: Config) -> float:
            return seconds

    return Waiting


def test_the_waits_of_all_filters_are_asked_for_together() -> None:
    """They come one after the other, and a busy moment beside them."""
    filters = [(kind, Config()) for kind in (waiting(1.5), Plain, waiting(0.5))]
    assert 2.0 + SPARE_S == Pipeline(filters, made_ports()).patience_s


def test_short_waits_are_not_worth_a_word() -> None:
    """The proxy waits so long by itself; a message each would cost every exchange."""
    assert 0.0 == Pipeline([(waiting(WAIT_S), Config())], made_ports()).patience_s
    assert 0.0 == Pipeline([(Plain, Config())], made_ports()).patience_s
