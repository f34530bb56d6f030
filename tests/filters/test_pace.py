"""A paced answer is the same answer, whoever gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Delta, Exchange, Filter, Need, Outcome, Ports
from filters.document import parse
from filters.framing import Event
from filters.pace import LATE_MS, MOST_CUT_CHARS, RTT_HEADER, PaceConfig, PaceFilter
from filters.pacing import Pacer
from filters.pipeline import Pipeline, Run
from tests.exchanges import CHATS, answer, ask, reply_head
from tests.fakes import FakeClock, FakeReplicas, drive, fake_ports

SSE = "text/event-stream"
CUT = PaceConfig(chunks="cut")


class Flow:
    """An exchange whose reply comes when the test says, with the time that passes."""

    def __init__(
        self,
        dialect: str = "openai.chat",
        config: PaceConfig = CUT,
        *,
        kind: str = SSE,
        exchange: Exchange | None = None,
        replicas: FakeReplicas | None = None,
        others: Sequence[type[Filter[Any]]] = (),
    ) -> None:
        self.clock = FakeClock()
        self.ports: Ports = fake_ports(self.clock, replicas=replicas or FakeReplicas())
        filters = [(PaceFilter, config), *((kind, kind.config_type()) for kind in others)]
        self.run = Run(Pipeline(filters, self.ports))
        self.exchange = exchange or ask(dialect, "why?", stream=True)
        drive(self.run.request(self.exchange))
        self.exchange.reply_head = reply_head(kind)
        drive(self.run.response(self.exchange))

    def events(self, text: str) -> list[Event]:
        """Return the events in which the provider streams a text."""
        dialect = self.exchange.dialect
        reply = parse(answer(dialect.name, text))
        kind, stream = dialect.replay(reply, self.exchange.prompt)
        framer = dialect.framer(kind, self.exchange.prompt)
        assert framer is not None
        return [*framer.feed(stream), *framer.close()]

    def feed(self, event: Event) -> Sequence[Delta]:
        return self.run.delta(self.exchange, self.exchange.dialect.read_event(event))

    def later(self, seconds: float) -> list[Sequence[Delta]]:
        """Return the frames that come by then."""
        until_ns = self.clock.monotonic_ns() + round(seconds * 1e9)
        frames = []
        while (wake_ns := self.run.wake_ns()) is not None and wake_ns <= until_ns:
            self.clock.advance(max(0, wake_ns - self.clock.monotonic_ns()) / 1e9)
            frames.append(self.run.due(self.exchange, self.clock.monotonic_ns()))
        return frames

    def end(self) -> list[Delta]:
        out = list(self.run.end(self.exchange))
        for frame in self.later(0.3):
            out += frame
        assert None is self.run.wake_ns()
        drive(self.run.finish(self.exchange, Outcome.COMPLETE))
        return out

    def reread(self, deltas: Sequence[Delta]) -> str:
        """Return the text that a client reads from the bytes."""
        dialect = self.exchange.dialect
        framer = dialect.framer(SSE, self.exchange.prompt)
        assert framer is not None
        stream = b"".join(delta.raw for delta in deltas)
        events = [*framer.feed(stream), *framer.close()]
        return "".join(dialect.read_event(event).text for event in events)


@pytest.mark.parametrize("dialect", CHATS)
def test_a_burst_is_said_little_by_little(dialect: str) -> None:
    """The text is the same, and so is how it ends."""
    flow = Flow(dialect)
    text = "".join(f" word{number}" for number in range(200))
    events = flow.events(text)
    out = [delta for event in events for delta in flow.feed(event)]
    assert text.startswith(flow.reread(out))
    assert len(flow.reread(out)) < len(text) / 4
    out += flow.end()
    assert text == flow.reread(out)
    assert events[-1].raw == out[-1].raw
    assert flow.exchange.notes["pace.held_ms"] == pytest.approx(280, abs=10)


@pytest.mark.parametrize("dialect", CHATS)
def test_chunks_that_stay_whole_keep_their_bytes(dialect: str) -> None:
    """All of them, in their order."""
    flow = Flow(dialect, PaceConfig())
    events = flow.events("".join(f" word{number}" for number in range(200)))
    out = [delta for event in events for delta in flow.feed(event)] + flow.end()
    assert [event.raw for event in events] == [delta.raw for delta in out]


@pytest.mark.slow
@pytest.mark.parametrize("dialect", CHATS)
@given(text=st.text(min_size=1, max_size=400), pauses=st.lists(st.integers(0, 900), max_size=30))
def test_any_text_in_any_time_is_the_same_text(dialect: str, text: str, pauses: list[int]) -> None:
    """Byte for byte, though its events are cut and come in lumps."""
    flow = Flow(dialect)
    events = flow.events(text)
    expected = flow.reread([flow.exchange.dialect.read_event(event) for event in events])
    out: list[Delta] = []
    for number, event in enumerate(events):
        out += flow.feed(event)
        if number < len(pauses):
            for frame in flow.later(pauses[number] / 1000):
                out += frame
    out += flow.end()
    assert expected.encode() == flow.reread(out).encode()


@pytest.mark.parametrize(("chars", "cut"), [(MOST_CUT_CHARS, True), (MOST_CUT_CHARS + 1, False)])
def test_an_event_of_very_many_tokens_stays_whole(chars: int, cut: bool) -> None:
    """Others wait while one is cut."""
    flow = Flow()
    data = b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"x" * chars)
    event = Event(b"data: %b\n\n" % data, data=data)
    assert cut is (event.raw != flow.feed(event)[0].raw)


def test_how_late_its_latest_frame_went_is_noted() -> None:
    """It is the process that was late, not the model."""
    flow = Flow()
    for event in flow.events("".join(f" word{number}" for number in range(200))):
        flow.feed(event)
    flow.clock.advance(0.1305)
    flow.run.due(flow.exchange, flow.clock.monotonic_ns())
    flow.end()
    assert 30.5 == flow.exchange.notes[LATE_MS]


def test_a_plain_reply_and_one_that_nobody_streams_do_not_wait() -> None:
    """An error, for one."""
    flow = Flow(kind="application/json")
    delta = Delta(b"{}", "x" * 4_000)
    assert [delta] == flow.run.delta(flow.exchange, delta)
    assert None is flow.run.wake_ns()
    plain = ask("openai.chat", "why?")
    Flow(exchange=plain)
    assert Need.NOTHING == plain.needs


def test_what_stands_before_sees_the_answer_when_it_comes() -> None:
    """Pace is first in its profile, and replies pass it last."""
    seen: list[Delta] = []

    class Watches(Filter[PaceConfig]):
        name = "watches"
        config_type = PaceConfig

        def on_delta(self, exchange: Exchange, delta: Delta) -> Sequence[Delta]:
            seen.append(delta)
            return (delta,)

    flow = Flow(others=(Watches,))
    events = flow.events("".join(f" word{number}" for number in range(200)))
    for event in events:
        flow.feed(event)
    assert [event.raw for event in events] == [delta.raw for delta in seen]


def test_a_filter_that_breaks_lets_go_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, in front of what came then."""
    flow = Flow()
    events = flow.events("".join(f" word{number}" for number in range(200)))
    out = [delta for event in events[:20] for delta in flow.feed(event)]

    def fail(self: PaceFilter, text: str) -> int:
        raise RuntimeError

    monkeypatch.setattr(PaceFilter, "_tokens", fail)
    out += [delta for event in events[20:] for delta in flow.feed(event)]
    assert None is flow.run.wake_ns()
    assert "".join(f" word{number}" for number in range(200)) == flow.reread(out)
    assert "RuntimeError" == flow.exchange.notes["pace.failed"]


def test_one_that_breaks_when_a_frame_is_due_lets_go_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All at once, and what comes after it does not wait."""
    flow = Flow()
    events = flow.events("".join(f" word{number}" for number in range(200)))
    out = [delta for event in events[:20] for delta in flow.feed(event)]
    monkeypatch.setattr(Pacer, "due", None)
    (frame,) = flow.later(0.1)
    out += frame
    assert None is flow.run.wake_ns()
    out += [delta for event in events[20:] for delta in flow.feed(event)]
    assert "".join(f" word{number}" for number in range(200)) == flow.reread(out)
    assert "TypeError" == flow.exchange.notes["pace.failed"]


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), (" 8 chars", 1), (" nine char", 2), ("x" * 128, 25)]
)
def test_short_texts_are_counted_by_their_length(text: str, tokens: int) -> None:
    """A token is a word or a part of one; longer texts are estimated with care."""
    assert tokens == PaceFilter(CUT, PaceFilter.prepare(CUT), Flow().ports)._tokens(text)


@pytest.mark.parametrize(
    ("rtt", "gpu", "rate"),
    [
        ("3", 0.2, 120),
        ("29.9", 0.49, 120),
        ("30", 0.2, 80),
        ("3", 0.5, 80),
        ("3", None, 80),
        ("", 0.2, 80),
        ("far", 0.2, 80),
        ("nan", 0.2, 80),
        ("-1", 0.2, 80),
    ],
)
def test_a_near_client_of_an_idle_gpu_gets_more(rtt: str, gpu: float | None, rate: float) -> None:
    """Where either is not known, it is not taken for granted."""
    replicas = FakeReplicas(gpus={} if gpu is None else {"10.0.0.1:8000": gpu})
    exchange = ask("openai.chat", "why?", stream=True, headers={RTT_HEADER: rtt})
    exchange.endpoints = ("10.0.0.1:8000",)
    flow = Flow(exchange=exchange, replicas=replicas)
    for event in flow.events("".join(f" word{number}" for number in range(2_000))):
        flow.feed(event)
    flow.later(4)
    flow.end()
    assert flow.exchange.notes["pace.rate"] == pytest.approx(rate, abs=2)


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [(0.2, 0.8, 80), (0.8, 0.2, 120), (0.2, None, 80), (None, 0.2, 120)],
)
def test_a_gpu_that_gets_busy_or_rests_is_followed(
    before: float | None, after: float | None, rate: float
) -> None:
    """While what came waits; whether it is known or not."""
    gpus = {} if before is None else {"10.0.0.1:8000": before}
    exchange = ask("openai.chat", "why?", stream=True, headers={RTT_HEADER: "3"})
    exchange.endpoints = ("10.0.0.1:8000",)
    flow = Flow(exchange=exchange, replicas=FakeReplicas(gpus=gpus))
    for event in flow.events("".join(f" word{number}" for number in range(2_000))):
        flow.feed(event)
    flow.later(3)
    gpus.clear()
    if after is not None:
        gpus["10.0.0.1:8000"] = after
    flow.later(6)
    assert None is not flow.run.wake_ns()
    flow.end()
    assert flow.exchange.notes["pace.rate"] == pytest.approx(rate, abs=2)


@pytest.mark.parametrize(("rtt", "looks"), [("3", 1 + 5), ("300", 0)])
@pytest.mark.parametrize("waits", [True, False])
def test_the_gpu_is_looked_at_once_a_second(rtt: str, looks: int, *, waits: bool) -> None:
    """However many frames go, and whether something waits; never for a client that is far."""
    asked: list[str] = []

    class Counting(FakeReplicas):
        def gpu_usage(self, pool: str, address: str) -> float | None:
            asked.append(address)
            return super().gpu_usage(pool, address)

    exchange = ask("openai.chat", "why?", stream=True, headers={RTT_HEADER: rtt})
    exchange.endpoints = ("10.0.0.1:8000",)
    flow = Flow(exchange=exchange, replicas=Counting(gpus={"10.0.0.1:8000": 0.2}))
    events = flow.events("".join(f" word{number}" for number in range(2_000)))
    if waits:
        for event in events:
            flow.feed(event)
    for number in range(10 * 5 + 9):
        frames = flow.later(0.1)
        if waits:
            assert frames
        else:
            assert flow.feed(events[number])
            flow.clock.advance(0.1)
    assert ["10.0.0.1:8000"] * looks == asked


def test_a_client_that_leaves_frees_what_waits() -> None:
    """Nothing is left to send, or to keep."""
    flow = Flow()
    for event in flow.events("".join(f" word{number}" for number in range(200))):
        flow.feed(event)
    assert None is not flow.run.wake_ns()
    drive(flow.run.finish(flow.exchange, Outcome.GONE))
    assert None is flow.run.wake_ns()


def test_its_settings_shape_no_answer() -> None:
    """Stored ones are found whatever the pace."""
    assert None is PaceFilter.shaping(PaceConfig(rate=5))
