"""Write log lines as JSON, one object a line."""

from __future__ import annotations

import fcntl
import json
import logging
import select
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from filters.api import Clock
from filters.errors import ConfigError

LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
}
PIPE_BYTES: Final = 1024 * 1024  # 2,000 lines: what a burst writes while its reader is busy
MOST_FRAMES: Final = 8  # the innermost ones say where an error came from
Fields: TypeAlias = MutableMapping[str, Any]
Processor: TypeAlias = Callable[[Any, str, Fields], Any]


def parse_level(text: str) -> int:
    """Return the level that FOREBAY_LOG_LEVEL names, WARN when empty; raise `ConfigError`."""
    level = LEVELS.get(text.upper() or "WARN")
    if level is None:
        raise ConfigError("FOREBAY_LOG_LEVEL", f'expected DEBUG, INFO, WARN or ERROR, got "{text}"')
    return level


class Lines:
    """Writes whole lines to a stream, and neither fails nor waits for it: a log harms no request.

    Whoever reads a pipe may stop to read. What would have to wait for it is lost.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: Final = stream
        self._poll: Final = _poll(stream)
        self._torn = False
        """The last line was cut off."""
        self._lock: Final = threading.Lock()
        self.lost = 0
        """Lines that could not be written, for instance because nobody reads the pipe any more."""
        self._held: list[bytes] | None = None

    def write(self, line: bytes) -> None:
        """Write a line that ends without its line feed."""
        with self._lock:
            if self._held is not None:
                self._held.append(line)
            else:
                self._write([line])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the lines that come meanwhile at the end, in one go."""
        with self._lock:
            self._held = []
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, None
                self._write(held)

    def _write(self, lines: list[bytes]) -> None:
        written = 0
        try:
            for chunk, ends in self._chunks(lines):
                if self._poll is not None and not self._poll.poll(0):
                    break
                self._stream.write(chunk)
                self._stream.flush()
                self._torn = not chunk.endswith(b"\n")
                written += ends
        except (OSError, ValueError):  # ValueError: the stream is closed
            pass
        self.lost += len(lines) - written

    def _chunks(self, lines: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Yield what a stream takes at once, and how many lines end in it.

        A pipe that says it is ready takes PIPE_BUF bytes without waiting, and perhaps no more.
        """
        if self._poll is None:
            yield b"\n".join([*lines, b""]), len(lines)
            return
        chunk = b"\n" if self._torn else b""
        ends = 0
        for line in lines:
            if chunk and len(chunk) + len(line) >= select.PIPE_BUF:
                yield chunk, ends
                chunk, ends = b"", 0
            chunk += line + b"\n"
            ends += 1
            while len(chunk) > select.PIPE_BUF:
                yield chunk[: select.PIPE_BUF], 0
                chunk = chunk[select.PIPE_BUF :]
        if ends:
            yield chunk, ends

    # structlog calls the method that is named for the level.
    debug = info = warning = error = critical = write


def _poll(stream: BinaryIO) -> select.poll | None:
    """Return what tells when a stream is ready; None for one that is always, as it is memory."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return None
    with suppress(OSError):  # no pipe, or more than this user may have
        fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return poll


def exchange_line(at: float, fields: Mapping[str, Any]) -> bytes:
    """Write the one line of an exchange, which no level turns off; `at` is Unix time.

    Without structlog: its ways through loggers and processors cost more than the line does.
    """
    return _encoded({"time": _moment(at), "level": "info", "event": "exchange", **fields})


def event_logger(lines: Lines, clock: Clock, level: int) -> FilteringBoundLogger:
    """Return the logger of everything else; a call below `level` does nothing."""
    return _logger(lines, level, (describe_exception, _render(clock)))


def _logger(lines: Lines, level: int, processors: Sequence[Processor]) -> FilteringBoundLogger:
    logger: FilteringBoundLogger = structlog.wrap_logger(
        lines,
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
    ).bind()
    return logger


def _render(clock: Clock) -> Processor:
    """Return the last processor: the time in front, and all of it as JSON."""
    now = clock.now

    def render(_: Any, level: str, fields: Fields) -> bytes:
        return _written(now(), level, fields)

    return render


_ENCODE: Final = msgspec.json.Encoder(enc_hook=str).encode


def _written(at: float, level: str, fields: Mapping[str, Any]) -> bytes:
    return _encoded({"time": _moment(at), "level": level, **fields})


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _encoded(line: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODE(line)
    except UnicodeEncodeError:  # half a surrogate pair: a client's JSON may say "\\ud800"
        return json.dumps(line, default=str).encode()


def describe_exception(_: Any, __: str, fields: Fields) -> Fields:
    """Replace `exc_info` by the error's type and where it came from.

    Its text is left out: it may quote what was being worked on, a prompt or a key.
    """
    error = fields.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        fields["error"] = type(error).__name__
        fields["at"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__, limit=-MOST_FRAMES)
        ]
    return fields


class LibraryLogs(logging.Handler):
    """Passes what libraries log on to a logger, so that every line is JSON.

    Only the first line of a message: asyncio shows the text of errors in the next ones.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger: Final = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Write a library's record as one of ours."""
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        event = record.getMessage().partition("\n")[0]
        self._logger.log(level, event, logger=record.name, exc_info=record.exc_info)
