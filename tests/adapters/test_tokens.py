"""Counting tokens with the encodings of this machine, and without."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from ext_proc.adapters.tokens import (
    CL100K,
    FILES,
    MOST_APART,
    MOST_EXACT_CHARS,
    O200K,
    TiktokenTokens,
    check_file,
    default_folder,
    encoding_of,
)
from filters.token_estimate import estimate_tokens
from tests.ext_proc.test_telemetry import Books
from tests.texts import TEXTS

WITHIN = 0.03


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return where `make tokens` puts encodings."""
    folder = default_folder(os.environ)
    try:
        for name in FILES:
            check_file(name, folder)
    except (OSError, ValueError) as error:
        if os.environ.get("CI"):  # there, a test that does not run would look like one that passed
            pytest.fail(f"{error}: make tokens")
        pytest.skip(f"{error}: make tokens")
    return folder


@pytest.fixture(scope="module")
def tokens(folder: Path) -> TiktokenTokens:
    """Return the adapter with both encodings loaded."""
    tokens = TiktokenTokens(folder, Books().telemetry.log)
    assert tokens.load()
    assert tokens.load("gpt-4")
    return tokens


@pytest.mark.parametrize("name", TEXTS)
def test_a_count_is_that_of_o200k(tokens: TiktokenTokens, name: str) -> None:
    """The numbers that the estimate is held against."""
    text, expected = TEXTS[name]
    assert expected == tokens.count(text)


def test_an_earlier_model_counts_by_its_own_encoding(tokens: TiktokenTokens) -> None:
    """cl100k makes half as many tokens again of Chinese."""
    text, o200k = TEXTS["chinese_news"]
    assert 320 == tokens.count(text, "gpt-4")
    assert o200k == tokens.count(text, "gpt-4o")


def test_no_text_is_taken_for_a_command(tokens: TiktokenTokens) -> None:
    """What ends a text for a model is seven tokens for a count."""
    assert 7 == tokens.count("<|endoftext|>")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_long_text_is_counted_from_samples(tokens: TiktokenTokens, seed: int) -> None:
    """Within 3 %, whatever it is mixed of."""
    mixed = random.Random(seed)
    root = Path(__file__).parents[2]
    sources = [text for text, _ in TEXTS.values()]
    sources += [path.read_text() for path in sorted((root / "docs").glob("*.md"))]
    sources += [path.read_text() for path in sorted((root / "tests").glob("*/*.py"))]
    text = ""
    while len(text) < 2 * MOST_EXACT_CHARS:
        source = mixed.choice(sources)
        start = mixed.randrange(len(source))
        text += source[start : start + mixed.choice((500, 3_000, 20_000))]
    exact = sum(
        tokens.count(text[at : at + MOST_EXACT_CHARS])
        for at in range(0, len(text), MOST_EXACT_CHARS)
    )
    assert pytest.approx(exact, rel=WITHIN) == tokens.count(text)


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("", O200K),
        ("gpt-4o-mini", O200K),
        ("gpt-4.1", O200K),
        ("gpt-5", O200K),
        ("o3", O200K),
        ("claude-sonnet", O200K),
        ("qwen2.5-7b", O200K),
        ("gpt-4", CL100K),
        ("gpt-4-turbo", CL100K),
        ("gpt-3.5-turbo", CL100K),
        ("gpt-35-turbo", CL100K),
        ("openai/gpt-4", CL100K),
        ("ft:gpt-4:me", CL100K),
        ("ft:gpt-4o:me", O200K),
        ("text-embedding-3-small", CL100K),
    ],
)
def test_a_model_has_its_encoding(model: str, encoding: str) -> None:
    """As in tiktoken's own table; whoever is not in it counts as o200k."""
    assert encoding == encoding_of(model)


async def test_what_is_counted_apart_is_what_is_counted(tokens: TiktokenTokens) -> None:
    """Each text for itself."""
    texts = [text for text, _ in TEXTS.values()]
    counted = await tokens.count_apart(texts, "gpt-4o", deadline_s=10.0)
    assert sum(expected for _, expected in TEXTS.values()) == counted


async def test_more_counts_at_once_than_may_wait_are_estimates(tokens: TiktokenTokens) -> None:
    """The thread takes one after the other; nobody waits long for a number."""
    text, exact = TEXTS["chinese_news"]
    before = tokens.estimated
    calls = [tokens.count_apart([text], "gpt-4o", deadline_s=10.0) for _ in range(MOST_APART + 2)]
    assert [exact] * MOST_APART + [estimate_tokens(text)] * 2 == await asyncio.gather(*calls)
    assert before + 2 == tokens.estimated


async def test_a_late_count_is_an_estimate(tokens: TiktokenTokens) -> None:
    """Late is also what waited for too long before."""
    text, _ = TEXTS["chinese_news"]
    assert estimate_tokens(text) == await tokens.count_apart([text], "gpt-4o", deadline_s=0.0)


async def test_without_files_what_is_counted_apart_is_an_estimate(tmp_path: Path) -> None:
    """As what is counted at once; the metric counts on."""
    tokens = TiktokenTokens(tmp_path, Books().telemetry.log)
    text, _ = TEXTS["english_letter"]
    assert estimate_tokens(text) == await tokens.count_apart([text], "", deadline_s=10.0)
    assert 1 == tokens.estimated


def test_without_files_the_estimate_answers(tmp_path: Path) -> None:
    """One warning says so, and how to get the files; the metric counts on."""
    books = Books()
    tokens = TiktokenTokens(tmp_path, books.telemetry.log)
    assert not tokens.load()
    text, _ = TEXTS["english_letter"]
    assert [estimate_tokens(text)] * 2 == [tokens.count(text), tokens.count(text)]
    assert 2 == tokens.estimated
    (warning,) = [line for line in books.lines if line["level"] == "warning"]
    assert ("tokens are estimated", "make tokens") == (warning["event"], warning["remedy"])


def test_a_broken_file_is_not_used(tmp_path: Path) -> None:
    """Nor replaced: nothing is fetched at run time."""
    broken = tmp_path / FILES[O200K][0]
    broken.write_bytes(b"IQ== 0\n")
    tokens = TiktokenTokens(tmp_path, Books().telemetry.log)
    assert not tokens.load()
    assert b"IQ== 0\n" == broken.read_bytes()


def test_nobody_waits_for_an_encoding(folder: Path, tmp_path: Path) -> None:
    """The first count begins to load it and is answered by the estimate."""
    name = FILES[CL100K][0]
    os.mkfifo(tmp_path / name)  # whoever reads it waits until somebody writes
    tokens = TiktokenTokens(tmp_path, Books().telemetry.log)
    text, _ = TEXTS["chinese_news"]
    assert estimate_tokens(text) == tokens.count(text, "gpt-4")
    with (tmp_path / name).open("wb") as pipe:
        shutil.copy(folder / name, tmp_path / "whole")
        (tmp_path / "whole").replace(tmp_path / name)  # what is read after the check
        pipe.write((folder / name).read_bytes())
    assert tokens.load("gpt-4")
    assert 320 == tokens.count(text, "gpt-4")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TIKTOKEN_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/forebay/tiktoken"),
        ({"HOME": "/c"}, "/c/.cache/forebay/tiktoken"),
        ({}, "/.cache/forebay/tiktoken"),
    ],
)
def test_the_folder_is_tiktokens_own_or_in_the_users_cache(
    environ: dict[str, str], expected: str
) -> None:
    """A container sets `TIKTOKEN_CACHE_DIR`; a desk needs to set nothing."""
    assert Path(expected) == default_folder(environ)
