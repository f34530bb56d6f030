"""Models in folders: opened once and off the loop, bounded, never later than asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from ext_proc.adapters import models
from ext_proc.adapters.models import LocalModels, Stop
from filters.errors import PortError
from tests import tiny_models
from tests.fakes import FakeClock

SOON_S = 60.0  # nothing here takes so long


class HeldClassifier:
    """Answers when it is let, or when it is stopped."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.stopped = threading.Event()

    def classify(self, text: str, stop: Stop) -> Mapping[str, float]:
        def end() -> None:
            self.stopped.set()
            self.go.set()

        stop.end = end
        self.begun.release()
        assert self.go.wait(SOON_S)
        return {text: 1.0}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


Make = Callable[..., LocalModels]


@pytest.fixture
async def make(clock: FakeClock) -> AsyncIterator[Make]:
    """Return a maker of ports over given openers, which are closed behind the test."""
    made: list[LocalModels] = []

    def new(**settings: object) -> LocalModels:
        made.append(LocalModels(clock, **settings))  # type: ignore[arg-type] # a test's settings
        return made[-1]

    yield new
    for one in made:
        one.close()


async def began(held: HeldClassifier) -> None:
    """Wait until a call is under way."""
    assert await asyncio.to_thread(held.begun.acquire, timeout=SOON_S)


async def test_a_folder_is_opened_once_for_all_calls(make: Make) -> None:
    """Also for those that come while it is being opened."""
    opened: list[Path] = []
    held = HeldClassifier()
    held.go.set()

    def opener(folder: Path) -> HeldClassifier:
        opened.append(folder)
        return held

    port = make(open_classifier=opener)
    said = await asyncio.gather(*(port.classify("m", text, SOON_S) for text in "abc"))
    assert [{"a": 1.0}, {"b": 1.0}, {"c": 1.0}] == said
    assert [Path("m")] == opened


async def test_a_folder_is_opened_apart_from_the_loop(make: Make) -> None:
    """Reading a model takes a second in which everybody else must be served."""
    threads: list[threading.Thread] = []

    def opener(folder: Path) -> HeldClassifier:
        threads.append(threading.current_thread())
        held = HeldClassifier()
        held.go.set()
        return held

    await make(open_classifier=opener).classify("m", "text", SOON_S)
    assert threading.current_thread() not in threads


async def test_who_cannot_wait_for_a_folder_goes_and_it_is_opened_all_the_same(make: Make) -> None:
    """The first request does without; the next finds the model open."""
    go = threading.Event()
    opened: list[Path] = []

    def opener(folder: Path) -> HeldClassifier:
        assert go.wait(SOON_S)
        opened.append(folder)
        held = HeldClassifier()
        held.go.set()
        return held

    port = make(open_classifier=opener)
    with pytest.raises(PortError, match=r"^m: not done in 5 ms$"):
        await port.classify("m", "text", 0.005)
    go.set()
    await port.opened()
    assert {"text": 1.0} == await port.classify("m", "text", SOON_S)
    assert [Path("m")] == opened


async def test_a_call_ends_at_its_deadline_and_its_run_is_stopped(make: Make) -> None:
    """The thread is free again at once, not when the model is done."""
    held = HeldClassifier()
    port = make(open_classifier=lambda _: held)
    with pytest.raises(PortError, match=r"^m: not done in 50 ms$"):
        await port.classify("m", "text", 0.05)
    await began(held)
    assert await asyncio.to_thread(held.stopped.wait, SOON_S)


async def test_a_call_whose_client_left_is_stopped(make: Make) -> None:
    """Nobody waits for its answer."""
    held = HeldClassifier()
    port = make(open_classifier=lambda _: held)
    call = asyncio.create_task(port.classify("m", "text", SOON_S))
    await began(held)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert held.stopped.is_set()


async def test_more_calls_than_may_wait_are_refused_at_once(make: Make) -> None:
    """One runs, one waits, the third is told."""
    held = HeldClassifier()
    port = make(open_classifier=lambda _: held, threads=1, most_waiting=1)
    first = asyncio.create_task(port.classify("m", "first", SOON_S))
    await began(held)
    second = asyncio.create_task(port.classify("m", "second", SOON_S))
    await asyncio.sleep(0)  # the folder is open: it takes its place in one step
    with pytest.raises(PortError, match=r"^m: expected at most 2 calls at a time, got another$"):
        await port.classify("m", "third", SOON_S)
    held.go.set()
    assert [{"first": 1.0}, {"second": 1.0}] == [await first, await second]
    assert {"fourth": 1.0} == await port.classify("m", "fourth", SOON_S)


async def test_a_folder_that_cannot_be_opened_is_tried_again_later(
    make: Make, clock: FakeClock
) -> None:
    """Not for every request, and not never: it may have been put right."""
    tried: list[Path] = []

    def opener(folder: Path) -> HeldClassifier:
        tried.append(folder)
        raise PortError("nothing there")

    port = make(open_classifier=opener)
    for _ in range(3):
        with pytest.raises(PortError, match=r"^m: nothing there$"):
            await port.classify("m", "text", SOON_S)
    assert 1 == len(tried)
    clock.advance(30)
    with pytest.raises(PortError, match=r"^m: nothing there$"):
        await port.classify("m", "text", SOON_S)
    assert 2 == len(tried)


async def test_so_many_models_are_open_and_the_longest_unused_makes_room(
    make: Make, clock: FakeClock
) -> None:
    """Memory is bounded; what is in use is not thrown out for what another profile names."""
    opened: list[str] = []

    def opener(folder: Path) -> HeldClassifier:
        opened.append(folder.name)
        held = HeldClassifier()
        held.go.set()
        return held

    port = make(open_classifier=opener)
    for name in "abcd":
        await port.classify(name, "text", SOON_S)
        clock.advance(10)
    with pytest.raises(PortError, match=r"^e: expected at most 4 models in use, got another$"):
        await port.classify("e", "text", SOON_S)
    clock.advance(21)  # the first was asked for 61 s ago
    for name in "ebcd":
        await port.classify(name, "text", SOON_S)
    assert list("abcde") == opened


async def test_whatever_a_library_raises_becomes_a_port_error_of_one_line(make: Make) -> None:
    """Its text may be a page."""

    class Broken:
        def classify(self, text: str, stop: Stop) -> Mapping[str, float]:
            raise RuntimeError("bad shape\nand a page of graph")

    port = make(open_classifier=lambda _: Broken())
    with pytest.raises(PortError) as raised:
        await port.classify("m", "text", SOON_S)
    assert "m: RuntimeError: bad shape" == str(raised.value)


async def test_a_missing_library_is_told_with_the_extra_that_brings_it(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an installation without extras."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "ext_proc.adapters.models_onnx", raising=False)
    port = make(open_classifier=models.open_classifier)
    with pytest.raises(PortError) as raised:
        await port.classify(str(tmp_path), "text", SOON_S)
    assert (
        f"{tmp_path}: onnxruntime is not installed; pip install 'forebay[onnx]' brings it"
        == str(raised.value)
    )


async def test_a_closed_port_answers_nobody(make: Make) -> None:
    """Calls during a stop go on without the model."""
    held = HeldClassifier()
    held.go.set()
    port = make(open_classifier=lambda _: held)
    await port.classify("m", "text", SOON_S)
    port.close()
    with pytest.raises(PortError, match=r"^m: closed$"):
        await port.classify("m", "text", SOON_S)


async def test_a_folder_whose_turn_comes_after_the_stop_is_not_opened(make: Make) -> None:
    """Who waits for it goes on without."""
    go, opened = threading.Event(), list[Path]()
    held = HeldClassifier()
    held.go.set()

    def opener(folder: Path) -> HeldClassifier:
        opened.append(folder)
        assert go.wait(SOON_S)
        return held

    port = make(open_classifier=opener)
    first, second = (asyncio.create_task(port.classify(name, "text", SOON_S)) for name in "ab")
    await asyncio.sleep(0)
    port.close()
    go.set()
    for call, name in ((first, "a"), (second, "b")):
        with pytest.raises(PortError, match=f"^{name}: closed$"):
            await call
    assert [Path("a")] == opened


async def test_a_stop_does_not_wait_for_what_runs(make: Make) -> None:
    """A summary may take seconds more."""
    held = HeldClassifier()
    port = make(open_classifier=lambda _: held)
    call = asyncio.create_task(port.classify("m", "text", SOON_S))
    await began(held)
    port.close()
    assert held.stopped.is_set()
    assert {"text": 1.0} == await call  # this one answers when it is ended


async def test_a_real_folder_is_asked_through_the_port(make: Make, tmp_path: Path) -> None:
    """From the opener to the answer, nothing replaced."""
    folder = str(tiny_models.classifier(tmp_path / "classifier"))
    port = make()
    said = await port.classify(folder, "shorten", SOON_S)
    assert "summarise" == max(said, key=lambda label: said[label])
    folder = str(tiny_models.summariser(tmp_path / "summariser"))
    assert "w1 w2" == await port.summarise(folder, "w1 w2 w3", 2, SOON_S)


@pytest.mark.slow
def test_a_server_imports_what_runs_models_with_the_first_model_only() -> None:
    """They take 0.15 s and 40 MB."""
    code = (
        "import sys, ext_proc.app\n"
        "print(sorted({'numpy', 'onnxruntime', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "[]\n" == done.stdout
