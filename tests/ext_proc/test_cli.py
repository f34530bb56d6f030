"""The command line is quick, tells what is wrong in one line, and has three exit codes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable

import pytest
import uvloop

from ext_proc import app, cli
from filters.errors import ConfigError


def forebay(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ext_proc", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Let `forebay serve` do what a test gives."""

    def put(action: Callable[[], int]) -> None:
        from ext_proc.tools import serve

        def run(_: Namespace) -> int:
            return action()

        monkeypatch.setattr(serve, "run", run)

    return put


def test_help_lists_every_command_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """What `--help` lists is what there is."""
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"\n    {name} " in shown for name in cli.COMMANDS)
    assert "example:\n  forebay up" in shown


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command can be imported and has an example of itself."""
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert f"example:\n  forebay {name}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """The list of commands costs no library: a shell completion may ask for it at every key."""
    code = (
        "import sys\n"
        "from ext_proc import cli\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "except SystemExit:\n"
        "    print(sorted({'aiohttp', 'asyncio', 'msgspec', 'rich', 'yaml'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert done.stdout.endswith("\n[]\n")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` needs no command."""
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("forebay ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fly"], "forebay: argument COMMAND: invalid choice: 'fly'"),
        (["simulate", "--port", "x"], 'expected a port from 0 to 65535, got "x"'),
        (["simulate", "--ttft", "5"], 'expected a duration such as "10m", got "5"'),
        (["simulate", "--rate", "-1"], 'expected a number from 0 on, got "-1"'),
        (["simulate", "--replicas", "0"], 'expected a whole number from 1 on, got "0"'),
        (["simulate", "--speed", "0"], 'expected a number from 0.01 to 1000, got "0"'),
        (
            ["simulate", "--fault", "slow"],
            'expected something like "replica-0:slow,for=10s", got "slow"',
        ),
        (["up", "--upstream"], "expected one argument (see forebay up --help)"),
        (["up", "--bogus"], "forebay up: unrecognized arguments: --bogus (see forebay up --help)"),
        (["--bogus"], "forebay: unrecognized arguments: --bogus (see forebay --help)"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what was expected; the usage is not repeated."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    shown = capsys.readouterr().err
    assert end.value.code == 2
    assert expected in shown
    assert shown.count("\n") == 1


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It is no success, either."""
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_commands_exit_code_is_the_programs(
    code: int, command: Callable[[Callable[[], int]], None]
) -> None:
    """What `run` returns is handed on."""
    command(lambda: code)
    assert cli.main(["serve"]) == code


def test_a_config_error_is_one_line_and_exit_code_2(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A person reads place and message, and no traceback."""

    def fail() -> int:
        raise ConfigError("--port", "8001 is in use")

    command(fail)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == "forebay serve: --port: 8001 is in use\n"


def test_a_bug_keeps_its_traceback(command: Callable[[Callable[[], int]], None]) -> None:
    """What is not the user's fault is not made to look like it."""

    def fail() -> int:
        raise ZeroDivisionError

    command(fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["serve"])


def test_the_server_runs_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the lighter loop."""
    loops = []

    async def serve(_: str) -> int:
        loops.append(asyncio.get_running_loop())
        return 0

    monkeypatch.setattr(app, "serve", serve)
    assert 0 == cli.main(["serve"])
    assert [uvloop.Loop] == list(map(type, loops))


def test_ctrl_c_is_no_error(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that is interrupted ends as shells expect, without a word."""

    def interrupt() -> int:
        raise KeyboardInterrupt

    command(interrupt)
    assert cli.main(["serve"]) == 130
    assert capsys.readouterr().err == ""


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    """`python -m ext_proc` is `forebay`; what the system refuses is told without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = forebay("simulate", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"forebay simulate: --port: {port} ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`forebay ... | head` ends quietly and with success."""
    code = (
        "import sys\n"
        "from ext_proc import cli\n"
        "from ext_proc.tools import serve\n"
        "serve.run = lambda arguments: print('line\\n' * 100_000) or 0\n"
        "sys.exit(cli.main(['serve']))\n"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == 0
