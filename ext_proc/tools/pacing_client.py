"""Read hundreds of streams and keep when each piece came: `bench pacing`'s clients.

A process of its own that looks at nothing while it reads. When a piece came is what the kernel says
of it, so that a client that is late makes no gap; how late it was is told beside.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from ext_proc.tools.load import cpu_clock_ns
from ext_proc.tools.pacing_speech import HEADER, LATE, SENT, SPEECHES, THINKS_S, WORD

SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; the module `socket` does not name it
STARTS_S: Final = 4.0
"""All streams are begun by then."""
SETTLES_S: Final = 1.0
"""By then each flows as it will."""
TAIL_S: Final = 0.5
"""What waits at the end goes faster: no gap of that time counts."""
SAME_NS: Final = 4_000_000
"""What comes closer together is one frame: the tick of Forebay's clock is longer."""
PATIENCE_S: Final = 30.0
"""After the time at which all should be over."""
_STAMP: Final = struct.Struct("qq")


class Listening(msgspec.Struct, frozen=True):
    """Who is asked, for what, and whose time is taken."""

    port: int
    path: str
    speech: str
    streams: int
    seconds: float
    """For how long each speaks."""
    pids: tuple[int, ...]

    @property
    def window_s(self) -> tuple[float, float]:
        """From when to when all streams flow, in seconds from the first one's start on."""
        return STARTS_S + THINKS_S + SETTLES_S, THINKS_S + self.seconds - TAIL_S


class Heard(msgspec.Struct, frozen=True):
    """What came. Microseconds, ascending."""

    seconds: float
    """How long the window was."""
    frames: int
    """In the window."""
    gaps_us: list[int]
    firsts_us: list[int]
    """From the upstream's sending to the client's receiving of each stream's first event."""
    ends_us: list[int]
    """From the upstream's sending of each stream's end to the client's receiving of its last byte.
    """
    read_late_us: list[int]
    """From the kernel's receiving to the client's reading."""
    sent_late_us: list[int]
    """From when the upstream was to send to when it did."""
    cpu_ns: tuple[int, ...]
    """Of each process, in the window."""
    errors: dict[str, int]


class Ear:
    """One stream."""

    __slots__ = ("connection", "data", "read_ns", "times_ns")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.times_ns: list[int] = []
        """When each piece came, by the kernel's clock."""
        self.read_ns: list[int] = []
        self.data: list[bytes] = []


def request(what: Listening, number: int) -> bytes:
    """Return what a client asks; nobody asks the same, for answers might be shared."""
    said = {"role": "user", "content": f"Speak for the {number}th time."}
    asked = {"model": "m", "stream": True, "messages": [said]}
    body = json.dumps(asked)
    return (
        f"POST {what.path}/v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"{HEADER}: {what.speech} {what.seconds}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


def listen(what: Listening) -> Heard:
    """Ask for all streams and read them to their ends."""
    poll = select.epoll()
    ears: list[Ear] = []
    open_ears: dict[int, Ear] = {}
    marks: list[tuple[int, tuple[int, ...]]] = []
    """Wall clock and CPU times at both ends of the window."""
    began = time.monotonic()
    until = began + STARTS_S + THINKS_S + what.seconds + PATIENCE_S
    window = [began + edge for edge in what.window_s]
    while len(ears) < what.streams or open_ears:
        now = time.monotonic()
        if now > until:
            break
        if len(marks) < len(window) and now >= window[len(marks)]:
            marks.append((time.time_ns(), tuple(cpu_clock_ns(pid) for pid in what.pids)))
        wait_s = 0.05
        while len(ears) < what.streams:
            wait_s = began + len(ears) * STARTS_S / what.streams - now
            if wait_s > 0:
                break
            connection = socket.create_connection(("127.0.0.1", what.port))
            connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            connection.sendall(request(what, len(ears)))
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            open_ears[connection.fileno()] = ear = Ear(connection)
            ears.append(ear)
            poll.register(connection, select.EPOLLIN)
        for number, _ in poll.poll(min(0.05, max(0.0, wait_s))):
            if not _read(open_ears[number]):
                open_ears.pop(number).connection.close()
    return heard(what, [(ear.times_ns, ear.read_ns, ear.data) for ear in ears], marks)


def _read(ear: Ear) -> bool:
    """Read a piece; return whether there may be more."""
    try:
        data, told, _, _ = ear.connection.recvmsg(1 << 16, 64)
    except OSError:
        return False
    now_ns = time.time_ns()
    if not data:
        return False
    seconds, ns = _STAMP.unpack(told[0][2]) if told else divmod(now_ns, 1_000_000_000)
    ear.times_ns.append(seconds * 1_000_000_000 + ns)
    ear.read_ns.append(now_ns)
    ear.data.append(data)
    return True


Kept = tuple[list[int], list[int], list[bytes]]
"""When the pieces of a stream came, when they were read, and what they were."""


def heard(
    what: Listening, streams: Sequence[Kept], marks: Sequence[tuple[int, tuple[int, ...]]]
) -> Heard:
    """Make figures of what was kept; without both ends of the window there are none."""
    words = SPEECHES[what.speech].words(what.seconds)
    errors: dict[str, int] = {}
    gaps_ns: list[int] = []
    firsts_us: list[int] = []
    ends_us: list[int] = []
    read_late_us: list[int] = []
    sent_late_us: list[int] = []
    (from_ns, cpu_before), (to_ns, cpu_after) = marks if len(marks) == 2 else ((0, ()), (0, ()))
    frames = 0
    for times_ns, read_ns, data in streams:
        whole = b"".join(data)
        if error := wrong(whole, words):
            errors[error] = errors.get(error, 0) + 1
            continue
        texts = [at for at, piece in zip(times_ns, data, strict=True) if WORD.encode() in piece]
        came = [at for at in frames_of(texts) if from_ns <= at < to_ns]
        frames += len(came)
        gaps_ns += [later - at for at, later in pairwise(came)]
        late_ns = zip(times_ns, read_ns, strict=True)
        read_late_us += [(read - at) // 1000 for at, read in late_ns if from_ns <= at < to_ns]
        if (sent := SENT.search(whole)) and texts:
            firsts_us.append((texts[0] - int(sent[1])) // 1000)
        if late := LATE.search(whole):
            sent_late_us += map(int, late[1].split())
            ends_us.append((times_ns[-1] - int(late[2])) // 1000)
    return Heard(
        seconds=(to_ns - from_ns) / 1e9,
        frames=frames,
        gaps_us=sorted(gap // 1000 for gap in gaps_ns),
        firsts_us=sorted(firsts_us),
        ends_us=sorted(ends_us),
        read_late_us=sorted(read_late_us),
        sent_late_us=sorted(sent_late_us),
        cpu_ns=tuple(after - before for before, after in zip(cpu_before, cpu_after, strict=True)),
        errors=errors,
    )


def frames_of(times_ns: Sequence[int]) -> list[int]:
    """Return when each frame came: pieces that come together are one."""
    frames: list[int] = []
    for at in times_ns:
        if not frames or at - frames[-1] > SAME_NS:
            frames.append(at)
    return frames


def wrong(data: bytes, words: int) -> str:
    """Return what is wrong with a stream, nothing if it is whole."""
    if not data.startswith(b"HTTP/1.1 200 "):
        return f"status {data[9:12].decode('latin-1')}" if data else "no reply"
    if data.count(WORD.encode()) != words:
        return "a word is missing, or came twice"
    return "" if b"data: [DONE]" in data else "no end"


def main() -> None:
    """Read what is wanted on standard input, and write what came to standard output."""
    gc.disable()  # a pause would be taken for a gap
    what = msgspec.json.decode(sys.stdin.buffer.read(), type=Listening)
    sys.stdout.buffer.write(msgspec.json.encode(listen(what)))


if __name__ == "__main__":
    main()
