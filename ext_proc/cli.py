"""Run one of Forebay's commands: `forebay COMMAND`, which is `python -m ext_proc COMMAND`.

A command is a module of `ext_proc.tools` with `add_arguments(parser)` and `run(arguments) -> int`,
imported only when it is the one asked for. Exit codes: 0 good, 1 it found something, 2 its input
cannot be used. What a person can put right is a `ConfigError` and ends as one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

GOOD: Final = 0
UNUSABLE: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it


class Command(NamedTuple):
    """What `--help` says of a command."""

    module: str
    summary: str
    example: str


COMMANDS: Final = {
    "up": Command(
        "up",
        "start a whole gateway on this machine",
        "forebay up\n  forebay up --upstream https://api.openai.com",
    ),
    "serve": Command(
        "serve",
        "run the ext_proc server alone, as a sidecar does",
        "forebay serve --config envoy/forebay.yaml",
    ),
    "simulate": Command(
        "simulate",
        "run simulated vLLM replicas",
        "forebay simulate --replicas 4 --port 9001 --rate 40\n"
        "  forebay simulate --replicas 8 --speed 10 --fault 'replica-1:crash,after=20s,for=10s'",
    ),
    "check": Command(
        "check",
        "find what is wrong in an Envoy configuration",
        "forebay check envoy/forebay.yaml",
    ),
    "explain": Command(
        "explain",
        "show what each filter would do to a request, and what that would save",
        "forebay explain --profile documents request.json",
    ),
    "cache": Command(
        "cache",
        "look into the cache, and clear it",
        "forebay cache stats\n  forebay cache purge --profile faq --dry-run",
    ),
    "report": Command(
        "report",
        "compare a new pool with the one that it is to replace",
        "forebay report stages\n  forebay report stages --slower 0.2 --errors 0.01 --json",
    ),
    "bench": Command(
        "bench",
        "measure what a request costs, side by side with the least it could",
        "forebay bench --quick",
    ),
    "soak": Command(
        "soak",
        "run a gateway for long, and see whether anything leaks",
        "forebay soak 100000",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's arguments) names; return the exit code.

    Raise `SystemExit` for `--help`, `--version` and arguments that cannot be used.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(next((word for word in words if not word.startswith("-")), ""))
    arguments, strange = parser.parse_known_args(words)
    if strange:  # `parse_args` would name the help of `forebay` alone
        refuse = parser.error if arguments.command is None else arguments.refuse
        refuse(f"unrecognized arguments: {' '.join(strange)}")
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return UNUSABLE
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has enough (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except Exception as error:
        from filters.errors import ConfigError

        if not isinstance(error, ConfigError):
            raise
        for line in str(error).splitlines():
            complain(f"forebay {arguments.command}", line)
        return UNUSABLE
    return code


def complain(where: str, text: str) -> None:
    """Write one line of error, in colour on a terminal."""
    if not sys.stderr.isatty():
        print(f"{where}: {text}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((f"{where}: ", "bold red"), text)
    Console(stderr=True).print(line, soft_wrap=True)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating every option."""

    def error(self, message: str) -> NoReturn:
        """See `argparse`."""
        complain(self.prog, f"{message} (see {self.prog} --help)")
        sys.exit(UNUSABLE)


class Version(argparse.Action):
    """Print the version of what is installed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """See `argparse`."""
        from importlib import metadata

        try:
            version = metadata.version("forebay")
        except metadata.PackageNotFoundError:
            version = "(a source tree that is not installed)"
        print(f"forebay {version}")
        parser.exit()


def add_command(
    commands: argparse._SubParsersAction[Any], name: str, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add a command with what its help says, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _parser(chosen: str) -> Parser:
    parser = Parser(
        prog="forebay",
        description="Makes calls to large language models faster and cheaper, beside Envoy.",
        epilog="example:\n  forebay up",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", nargs=0, action=Version, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        below = add_command(commands, name, command.summary, command.example)
        if name == chosen:
            module = importlib.import_module(f"ext_proc.tools.{command.module}")
            module.add_arguments(below)
            below.set_defaults(run=module.run, refuse=below.error)
    return parser
