"""Speak in fits to hundreds of streams at once, as models do: `bench pacing`'s upstream.

A process of its own that does little beside: events are bytes made before, one loop and one heap
hold all streams. A stream's first event has the time at which it was sent, its last one the same
and how late each of its events went.
"""

from __future__ import annotations

import heapq
import json
import re
import select
import signal
import socket
import sys
import time
from typing import Any, Final, NamedTuple

WORD: Final = " word"
SENT: Final = re.compile(rb'"id":"@(\d+)"')
"""When the first event was sent, in nanoseconds of the wall clock, as the kernel stamps packets."""
LATE: Final = re.compile(rb'"id":"late((?: \d+)*) @(\d+)"')
"""How many microseconds later than it was to go each event went, and when the last one was sent."""
HEADER: Final = "x-speech"
"""Which of `SPEECHES` a request wants, for how many seconds: `fits 8`."""
THINKS_S: Final = 0.5
"""From the reply's head to the first event: what a request costs must not make that look late."""
LONGEST_WAIT_S: Final = 0.5
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Speech(NamedTuple):
    """How a model speaks: so many events in a fit, and so many fits a second."""

    about: str
    tokens: int
    """In an event."""
    events: int
    apart_s: float
    """Between two events of a fit."""
    fit_s: float

    @property
    def events_per_s(self) -> float:
        """How many events come a second."""
        return self.events / self.fit_s

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens * self.events_per_s

    def fits(self, seconds: float) -> int:
        """Return how many of them are spoken."""
        return max(1, round(seconds / self.fit_s))

    def words(self, seconds: float) -> int:
        """Return how many tokens are spoken in all; the first event has one."""
        return 1 + self.fits(seconds) * self.events * self.tokens


SPEECHES: Final = {
    "even": Speech("8 tokens each 100 ms", 8, 1, 0.0, 0.1),
    "fits": Speech("four events of 8 tokens, then a third of a second nothing", 8, 4, 0.01, 1 / 3),
    "lumps": Speech("one event of 32 tokens each third of a second", 32, 1, 0.0, 1 / 3),
}


def event(text: str, name: str = "c") -> bytes:
    """Return an event of a streamed chat completion."""
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    said = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return (
        b"data: %b\n\n" % json.dumps({**said, "choices": [choice]}, separators=(",", ":")).encode()
    )


def chunk(data: bytes) -> bytes:
    """Return a chunk of a reply's body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_WORDS: Final = {name: chunk(event(WORD * one.tokens)) for name, one in SPEECHES.items()}


class Mouth:
    """One connection: reads a request, answers it, reads the next."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: Final = connection
        self._asked = b""
        self._name = ""
        self._speech = SPEECHES["even"]
        self._left = 0
        """Events to come behind the first."""
        self._said = 0
        self._began_ns = 0
        self._late_us: list[int] = []

    def hear(self, data: bytes, now_ns: int) -> int | None:
        """Take a piece of a request; return when to say something once it is whole."""
        self._asked += data
        head, ends, body = self._asked.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not ends or len(body) < int(fields.get(b"content-length", b"0")):
            return None
        self._asked = b""
        name, seconds = fields[HEADER.encode()].decode().split()
        self._name, self._speech = name, SPEECHES[name]
        self._left = self._speech.fits(float(seconds)) * self._speech.events
        self._said, self._late_us = -1, []
        self.connection.sendall(_HEAD)
        self._began_ns = now_ns + round(THINKS_S * 1e9)
        return self._began_ns

    def speak(self, due_ns: int, now_ns: int) -> int | None:
        """Say what is due; return when the next is, if any is."""
        speech, said = self._speech, self._said
        if said < 0:
            data = chunk(event(WORD, f"@{time.time_ns()}"))
        elif said < self._left:
            self._late_us.append((now_ns - due_ns) // 1000)
            data = _WORDS[self._name]
        else:
            late = " ".join(map(str, self._late_us))
            data = (
                chunk(event("", f"late {late} @{time.time_ns()}"))
                + chunk(b"data: [DONE]\n\n")
                + b"0\r\n\r\n"
            )
        self.connection.sendall(data)
        if said >= self._left:
            return None
        self._said = said = said + 1
        fit, number = divmod(said, speech.events)
        # The first fit begins a beat behind the first event, which is alone.
        return self._began_ns + round((0.01 + fit * speech.fit_s + number * speech.apart_s) * 1e9)


class Speaker:
    """All connections, and what each is to say when."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening: Final = listening
        self._poll: Final = select.epoll()
        self.mouths: Final[dict[int, Mouth]] = {}
        self._due: Final[list[tuple[int, int, Mouth]]] = []
        listening.setblocking(False)  # noqa: FBT003 - its only argument
        self._poll.register(listening, select.EPOLLIN)

    def turn(self) -> None:
        """Wait for who asks or what is due, half a second at most, and do it."""
        due = self._due
        wait_s = (due[0][0] - time.monotonic_ns()) / 1e9 if due else LONGEST_WAIT_S
        for number, _ in self._poll.poll(min(LONGEST_WAIT_S, max(0.0, wait_s))):
            if number == self._listening.fileno():
                self._welcome()
            else:
                self._hear(number, self.mouths[number])
        while due and due[0][0] <= (now_ns := time.monotonic_ns()):
            due_ns, number, mouth = heapq.heappop(due)
            if self.mouths.get(number) is mouth:
                self._say(number, mouth, due_ns, now_ns)

    def _welcome(self) -> None:
        connection, _ = self._listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.mouths[connection.fileno()] = Mouth(connection)
        self._poll.register(connection, select.EPOLLIN)

    def _hear(self, number: int, mouth: Mouth) -> None:
        try:
            data = mouth.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._leave(number)
        elif at_ns := mouth.hear(data, time.monotonic_ns()):
            heapq.heappush(self._due, (at_ns, number, mouth))

    def _say(self, number: int, mouth: Mouth, due_ns: int, now_ns: int) -> None:
        try:
            at_ns = mouth.speak(due_ns, now_ns)
        except OSError:
            self._leave(number)
        else:
            if at_ns is not None:
                heapq.heappush(self._due, (at_ns, number, mouth))

    def _leave(self, number: int) -> None:
        self.mouths.pop(number).connection.close()


def main() -> None:
    """Speak at a port of this machine until SIGTERM."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    host, _, port = sys.argv[1].rpartition(":")
    with socket.create_server((host, int(port)), backlog=4096) as listening:
        speaker = Speaker(listening)
        while not stop:
            speaker.turn()


if __name__ == "__main__":
    main()
