"""Children are started together, started again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ext_proc.tools import supervisor as module
from ext_proc.tools.supervisor import Child, Supervisor, answers
from filters.errors import ConfigError

pytestmark = pytest.mark.slow
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def child(code: str, mark: Path, **others: object) -> Child:
    """Return a child that makes the file `mark`, which says that it is ready, after `code`."""

    async def ready() -> bool:
        return mark.exists()  # noqa: ASYNC240  # nothing else runs in a test

    text = f"{code}\nopen({str(mark)!r}, 'w').close()\nimport time\ntime.sleep(600)"
    return Child("child", [sys.executable, "-c", text], ready, **others)  # type: ignore[arg-type]  # a test's own


@asynccontextmanager
async def running(one: Child) -> AsyncIterator[asyncio.Queue[str]]:
    said: asyncio.Queue[str] = asyncio.Queue()
    supervisor = Supervisor([one], said.put_nowait)
    try:
        await supervisor.start(lambda _name: None)
        yield said
    finally:
        await supervisor.stop()


def pid(one: Child) -> int:
    assert one.process is not None
    return one.process.pid


async def test_a_child_that_was_killed_is_started_again(tmp_path: Path) -> None:
    """It is told in two sentences: that it ended, and that it is back."""
    one = child("", tmp_path / "ready")
    async with asyncio.timeout(60), running(one) as said:
        first = pid(one)
        os.kill(first, signal.SIGKILL)
        assert await said.get() == "child ended by SIGKILL; again in 0.2 s"
        assert (await said.get()).startswith("child is back after ")
        assert first != pid(one)


async def test_pauses_grow_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that keeps falling does not keep the machine busy."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.5)
    real = asyncio.sleep

    async def sleep(_seconds: float) -> None:
        await real(0)

    mark = tmp_path / "ready"
    one = child(f"import os, sys\nif os.path.exists({str(mark)!r}): sys.exit(3)", mark)
    ends: list[str] = []
    async with asyncio.timeout(60), running(one) as said:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        os.kill(pid(one), signal.SIGKILL)
        while len(ends) < 4:
            text = await said.get()
            ends += [text] if "ended" in text else []
    assert ends == [
        "child ended by SIGKILL; again in 0.2 s",
        "child ended with code 3; again in 0.4 s",
        "child ended with code 3; again in 0.5 s",
        "child ended with code 3; again in 0.5 s",
    ]


async def test_a_child_that_never_was_ready_is_an_error(tmp_path: Path) -> None:
    """Its last words say why."""
    one = child(
        "import sys; print('error: no such file', file=sys.stderr); sys.exit(2)", tmp_path / "r"
    )
    with pytest.raises(ConfigError, match="child: ended with code 2: error: no such file"):
        async with running(one):
            pass


async def test_who_sends_work_to_another_is_started_once_that_one_is_ready(tmp_path: Path) -> None:
    """A port that is open before somebody serves behind it gives its first clients errors."""
    looks: list[bool] = []

    async def ready() -> bool:
        looks.append(front.process is None)
        return len(looks) == 3

    behind = Child("behind", [sys.executable, "-c", "import time; time.sleep(600)"], ready)
    front = child("", tmp_path / "ready", behind=[behind])
    started: list[str] = []
    supervisor = Supervisor([front, behind], lambda _text: None)
    try:
        async with asyncio.timeout(60):
            await supervisor.start(started.append)
    finally:
        await supervisor.stop()
    assert ([True] * 3, ["behind", "child"]) == (looks, started)


async def test_who_waits_for_one_that_is_never_ready_is_not_started(tmp_path: Path) -> None:
    """What is told is why that one ended."""
    behind = child("import sys; sys.exit(2)", tmp_path / "behind")
    front = child("", tmp_path / "front", behind=[behind])
    supervisor = Supervisor([front, behind], lambda _text: None)
    try:
        with pytest.raises(ConfigError, match="child: ended with code 2"):
            await supervisor.start(lambda _name: None)
    finally:
        await supervisor.stop()
    assert front.process is None


async def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Being asked is not enough for every program."""
    monkeypatch.setattr(module, "STOP_S", 0.05)
    one = child(STUBBORN, tmp_path / "ready")
    async with running(one):
        pass
    assert one.process is not None
    assert one.process.returncode == -signal.SIGKILL


async def test_what_a_child_writes_is_handed_on_line_by_line(tmp_path: Path) -> None:
    """Both outputs, decoded, without their line ends.

    Between fork and exec gRPC, which other tests have loaded, may write a line of its own.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr, flush=True)"
    one = child(code, tmp_path / "ready", on_line=lines.put_nowait)
    async with asyncio.timeout(60), running(one):
        awaited = {"out", "err"}
        while awaited:
            awaited.discard(await lines.get())


async def test_an_empty_variable_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the parent has in its environment need not reach the child."""
    monkeypatch.setenv("FOREBAY_TEST", "parent")
    lines: asyncio.Queue[str] = asyncio.Queue()
    code = "import os; print(os.environ.get('FOREBAY_TEST'), flush=True)"
    one = child(code, tmp_path / "ready", on_line=lines.put_nowait, env={"FOREBAY_TEST": ""})
    async with asyncio.timeout(60), running(one):
        assert await lines.get() == "None"


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    """Even when it is killed and can do nothing about it."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from ext_proc.tools.supervisor import Child, Supervisor
async def ready(): return True
async def main():
    child = Child("child", ["sleep", "600"], ready)
    await Supervisor([child], print).start(lambda name: None)
    print(child.process.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    # Readable once the process is gone, and no poll of our own.
    watched = os.pidfd_open(grandchild)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(watched)


def gone(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


async def test_a_probe_wants_200() -> None:
    """Nobody there, or another status, means not ready."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        status = b"200 OK" if b"/ready " in line else b"503 Unavailable"
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await answers(port, "/ready")
        assert not await answers(port, "/other")
    assert not await answers(port, "/ready")
