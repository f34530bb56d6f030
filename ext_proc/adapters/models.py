"""Ask small models in folders of this machine, apart from the loop and never for longer than asked.

A folder is opened when it is first asked for, in a thread of its own; whoever cannot wait for that
gets `PortError`, and the next one finds it open. The libraries that run models are imported with
the first folder: a server without one pays nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from filters.api import Clock
from filters.errors import PortError

T = TypeVar("T")

THREADS: Final = 2  # a run keeps a core busy; more of them take the cores of the proxy
MOST_WAITING: Final = 16  # with 10 ms a run the last one waits 80 ms: more would only come late
MOST_FOLDERS: Final = 4  # a model takes 20 to 500 MB
RETRY_NS: Final = 30_000_000_000  # a folder that could not be opened may have been put right
UNUSED_NS: Final = 60_000_000_000  # what was asked this lately does not make room for another
MOST_REASON_CHARS: Final = 200  # the library may print a graph behind its reason


class Stop:
    """Ends a call that runs in another thread."""

    def __init__(self) -> None:
        self.asked = False
        """Nothing more may be begun for this call."""
        self.end: Callable[[], None] | None = None
        """Ends what is under way; whoever runs a graph sets it."""

    def now(self) -> None:
        """End the call as soon as it can be."""
        self.asked = True
        if self.end is not None:
            self.end()


class Classifier(Protocol):
    """An open sequence classifier; any thread may call it."""

    def classify(self, text: str, stop: Stop) -> Mapping[str, float]:
        """Return the probability of each label."""


class Summariser(Protocol):
    """An open sequence-to-sequence model; any thread may call it."""

    def summarise(self, text: str, max_tokens: int, stop: Stop) -> str:
        """Return at most `max_tokens` tokens of what the model makes of `text`."""


def open_classifier(folder: Path) -> Classifier:
    """Open a folder through onnxruntime; raise `PortError` when it cannot be used."""
    with _extra():
        from ext_proc.adapters.models_onnx import OnnxClassifier
    return OnnxClassifier.open(folder)


def open_summariser(folder: Path) -> Summariser:
    """Open a folder through onnxruntime; raise `PortError` when it cannot be used."""
    with _extra():
        from ext_proc.adapters.models_bart import BartSummariser
    return BartSummariser.open(folder)


class _extra:  # noqa: N801 - reads as a clause of `with`
    """Tell which extra brings a library that is missing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            message = f"{error.name} is not installed; pip install 'forebay[onnx]' brings it"
            raise PortError(message) from None


@dataclass(slots=True)
class _Folder:
    """A folder that is open, being opened, or could not be."""

    opening: asyncio.Future[Any]
    used_ns: int
    failed_ns: int | None = None


class LocalModels:
    """The `Models` port over folders of this machine. Lives in one event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        threads: int = THREADS,
        most_waiting: int = MOST_WAITING,
        open_classifier: Callable[[Path], Classifier] = open_classifier,
        open_summariser: Callable[[Path], Summariser] = open_summariser,
    ) -> None:
        """Start nothing yet; `threads` calls run at a time and `most_waiting` more may wait."""
        self._clock: Final = clock
        self._most: Final = threads + most_waiting
        self._free: Final = threading.BoundedSemaphore(self._most)
        self._running: Final = ThreadPoolExecutor(threads, "models")
        self._opening: Final = ThreadPoolExecutor(1, "models-open")
        self._open_classifier: Final = open_classifier
        self._open_summariser: Final = open_summariser
        self._folders: Final[dict[tuple[Any, str], _Folder]] = {}
        self._stops: Final[set[Stop]] = set()
        """Of the calls under way or waiting."""
        self._closed = False

    async def classify(self, folder: str, text: str, deadline_s: float) -> Mapping[str, float]:
        """Return the probability of each label of the sequence classifier in `folder`.

        Raise `PortError` when the folder cannot be used, when `deadline_s` passes, and when too
        many calls wait.
        """

        async def ask() -> Mapping[str, float]:
            model = await self._opened(self._open_classifier, folder)
            stop = Stop()
            return await self._run(lambda: model.classify(text, stop), stop)

        return await _in_time(ask, folder, deadline_s)

    async def summarise(self, folder: str, text: str, max_tokens: int, deadline_s: float) -> str:
        """Return what the sequence-to-sequence model in `folder` makes of `text`.

        Raise `PortError` as `classify` does.
        """

        async def ask() -> str:
            model = await self._opened(self._open_summariser, folder)
            stop = Stop()
            return await self._run(lambda: model.summarise(text, max_tokens, stop), stop)

        return await _in_time(ask, folder, deadline_s)

    async def opened(self) -> None:
        """Wait until every folder that was asked for is open, or could not be opened."""
        await asyncio.gather(
            *(folder.opening for folder in self._folders.values()), return_exceptions=True
        )

    def close(self) -> None:
        """Take no more calls and end those there are: Python's own end waits for threads."""
        # Nothing is cancelled, for who waits is to read a PortError: it ends as soon as it begins.
        self._closed = True
        self._opening.shutdown(wait=False)
        self._running.shutdown(wait=False)
        for stop in tuple(self._stops):
            stop.now()

    async def _opened(self, how: Callable[[Path], T], name: str) -> T:
        """Return the model in a folder, opening it in the background when nobody did."""
        if self._closed:
            raise PortError("closed")
        now_ns = self._clock.monotonic_ns()
        key = (how, name)
        folder = self._folders.get(key)
        if folder and folder.failed_ns is not None and now_ns - folder.failed_ns >= RETRY_NS:
            del self._folders[key]
            folder = None
        if folder is None:
            self._make_room(name, now_ns)
            opening = asyncio.get_running_loop().run_in_executor(
                self._opening, self._open, how, Path(name)
            )
            folder = self._folders[key] = _Folder(opening, now_ns)
            opening.add_done_callback(lambda done: self._note_failure(key, done))
        folder.used_ns = now_ns
        # Whoever runs out of time leaves; the folder is opened all the same.
        return cast("T", await asyncio.shield(folder.opening))

    def _open(self, how: Callable[[Path], T], folder: Path) -> T:
        if self._closed:
            raise PortError("closed")
        return how(folder)

    def _note_failure(self, key: tuple[Any, str], opening: asyncio.Future[Any]) -> None:
        folder = self._folders.get(key)
        if opening.exception() is not None and folder is not None and folder.opening is opening:
            folder.failed_ns = self._clock.monotonic_ns()

    def _make_room(self, name: str, now_ns: int) -> None:
        """Forget the folder that was not asked for the longest, when there are too many."""
        if len(self._folders) < MOST_FOLDERS:
            return
        oldest = min(self._folders, key=lambda key: self._folders[key].used_ns)
        if (
            self._folders[oldest].failed_ns is None
            and now_ns - self._folders[oldest].used_ns < UNUSED_NS
        ):
            raise PortError(f"{name}: expected at most {MOST_FOLDERS} models in use, got another")
        del self._folders[oldest]

    async def _run(self, work: Callable[[], T], stop: Stop) -> T:
        """Do `work` in a thread; it is stopped when the caller leaves."""
        if self._closed:  # while the folder was being opened
            raise PortError("closed")
        if not self._free.acquire(blocking=False):
            raise PortError(f"expected at most {self._most} calls at a time, got another")
        future = self._running.submit(work)
        future.add_done_callback(lambda _: self._free.release())
        self._stops.add(stop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop.now()
            raise
        finally:
            self._stops.discard(stop)


async def _in_time(ask: Callable[[], Awaitable[T]], folder: str, deadline_s: float) -> T:
    """Await a call, and make a `PortError` of whatever is wrong with it."""
    try:
        async with asyncio.timeout(deadline_s):
            return await ask()
    except TimeoutError:
        raise PortError(f"{folder}: not done in {deadline_s * 1e3:.0f} ms") from None
    except PortError as error:
        raise PortError(_with_place(folder, str(error))) from None
    except Exception as error:  # noqa: BLE001 - what the libraries raise has no common base
        lines = str(error).splitlines() or [""]
        raise PortError(
            f"{folder}: {type(error).__name__}: {lines[0]}"[:MOST_REASON_CHARS]
        ) from None


def _with_place(folder: str, message: str) -> str:
    return message if message.startswith(folder) else f"{folder}: {message}"
