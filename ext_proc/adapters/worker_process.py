"""What a worker process runs: read a piece of work from stdin, do it, write what came of it.

It is started as a script and imports nothing of Forebay but what the work itself needs. A frame is
its length in eight bytes and a pickle.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import BinaryIO, Final

HEADER: Final = struct.Struct("!Q")
NICENESS: Final = 5  # whoever waits for the loop comes before whoever waits for a summary


def main() -> None:
    """Work until stdin ends, which it does when the server is gone."""
    # Ctrl-C reaches the whole group: the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    # What the work prints must not get between the frames.
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    path = _read(source)
    if path is not None:
        sys.path[:] = pickle.loads(path)  # noqa: S301 - from our own parent
    while (frame := _read(source)) is not None:
        frames.write(_framed(_done(frame)))
        frames.flush()


def _done(frame: bytes) -> bytes:
    """Do the work in `frame`; return the pickled `(True, result)` or `(False, error's name)`."""
    try:
        bound_s, work, arguments = pickle.loads(frame)  # noqa: S301 - likewise
        # Work that never ends is ended by the kernel, even when nobody is left to do it.
        signal.alarm(bound_s)
        return pickle.dumps((True, work(*arguments)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever the work raises; its text may quote a prompt
        return pickle.dumps((False, type(error).__name__))
    finally:
        signal.alarm(0)


def _read(source: BinaryIO) -> bytes | None:
    """Return the next frame, or None when there is no whole one left."""
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    frame = source.read(size)
    return frame if len(frame) == size else None


def _framed(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


if __name__ == "__main__":
    main()
