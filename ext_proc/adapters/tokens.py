"""Count tokens as OpenAI's models do, from files on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structlog.typing import FilteringBoundLogger

from filters.token_estimate import estimate_tokens
from filters.token_samples import about_tokens, exact_tokens

if TYPE_CHECKING:
    from tiktoken import Encoding

O200K: Final = "o200k_base"
CL100K: Final = "cl100k_base"
FILES: Final = {
    # Encoding: the name that tiktoken looks for (SHA-1 of the file's URL) and the file's SHA-256,
    # both as in tiktoken_ext.openai_public.
    O200K: (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    CL100K: (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
# As in tiktoken.model. Models of other makers are counted as o200k, which is near enough.
_LATER: Final = ("gpt-4o", "gpt-4.1", "gpt-4.5")
_EARLIER: Final = ("gpt-4", "gpt-3.5", "gpt-35", "text-embedding-", "davinci-002", "babbage-002")

MOST_EXACT_CHARS: Final = 65_536  # 5 to 10 ms
MOST_APART: Final = 16  # at one time: the last of them waits some 0.2 s
SAMPLES: Final = 48  # within 3 % on 200 texts mixed of prose and code, for 6 ms
SAMPLE_CHARS: Final = 1_024


def encoding_of(model: str) -> str:
    """Return the name of the encoding that counts for `model`, whoever resells or tuned it."""
    name = model.rpartition("/")[2].removeprefix("ft:")
    if name.startswith(_EARLIER) and not name.startswith(_LATER):
        return CL100K
    return O200K


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return where encodings lie: `TIKTOKEN_CACHE_DIR`, or a folder in the user's cache."""
    if folder := environ.get("TIKTOKEN_CACHE_DIR"):
        return Path(folder)
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache"
    return Path(cache) / "forebay" / "tiktoken"


class TiktokenTokens:
    """The `Tokens` of a server.

    An encoding takes half a second and 80 MB: a thread loads it when it is first asked for, and
    the estimate answers until it is there, or for ever where there is no file. Nothing is fetched.
    """

    def __init__(self, folder: Path, log: FilteringBoundLogger) -> None:
        self.estimated = 0
        """Counts that the estimate answered."""
        self._folder: Final = folder
        self._log: Final = log
        self._loading: Final[dict[str, _Loading]] = {}
        self._counting: Final = ThreadPoolExecutor(1, "tokens")  # tiktoken lets go of the GIL
        self._apart = 0

    def estimate(self, text: str) -> int:
        """Return about how many tokens `text` is."""
        return estimate_tokens(text)

    def count(self, text: str, model: str = "") -> int:
        """Return how many tokens `text` is for `model`; over 65,536 characters, from samples."""
        encoding = self._encoding(encoding_of(model))
        return self._estimated([text]) if encoding is None else _counted(encoding, text)

    async def count_apart(self, texts: Sequence[str], model: str, *, deadline_s: float) -> int:
        """Return how many tokens `texts` are in all, counted in a thread; at worst an estimate."""
        encoding = self._encoding(encoding_of(model))
        if encoding is None or self._apart >= MOST_APART:
            return self._estimated(texts)
        run = asyncio.get_running_loop().run_in_executor
        self._apart += 1
        try:
            async with asyncio.timeout(deadline_s):
                count = partial(_counted, encoding)
                return await run(self._counting, exact_tokens, texts, count)
        except TimeoutError:
            return self._estimated(texts)
        finally:
            self._apart -= 1

    def _estimated(self, texts: Sequence[str]) -> int:
        self.estimated += 1
        return about_tokens(texts, estimate_tokens)

    def load(self, model: str = "", wait_s: float | None = None) -> bool:
        """Begin to load the encoding of `model`; return whether it is there after `wait_s`."""
        name = encoding_of(model)
        if self._encoding(name) is None:
            self._loading[name].thread.join(wait_s)
        return self._encoding(name) is not None

    def _encoding(self, name: str) -> Encoding | None:
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = _Loading(name, self._folder)
            loading.thread.start()
        if loading.problem and not loading.told:
            loading.told = True
            self._log.warning(
                "tokens are estimated", encoding=name, problem=loading.problem, remedy="make tokens"
            )
        return loading.encoding


class _Loading:
    """One encoding on its way: `encoding` or `problem` is set when the thread ends."""

    def __init__(self, name: str, folder: Path) -> None:
        self.encoding: Encoding | None = None
        self.problem = ""
        self.told = False
        self.thread: Final = threading.Thread(
            target=self._load, args=(name, folder), name=f"load {name}", daemon=True
        )

    def _load(self, name: str, folder: Path) -> None:
        try:
            check_file(name, folder)
            os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)  # the only way to tell tiktoken
            import tiktoken  # 20 ms that not all need

            self.encoding = tiktoken.get_encoding(name)
        except (OSError, ValueError, ImportError) as error:
            self.problem = str(error)


def check_file(name: str, folder: Path) -> None:
    """Raise `OSError` or `ValueError` unless the encoding's file is in `folder` and whole."""
    file, expected = FILES[name]
    found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(f"{folder / file}: expected SHA-256 {expected}, got {found}")


def _counted(encoding: Encoding, text: str) -> int:
    if len(text) <= MOST_EXACT_CHARS:
        return len(encoding.encode_ordinary(text))
    samples = _samples(text)
    counted = sum(len(encoding.encode_ordinary(sample)) for sample in samples)
    # The estimate sees all of the text, the samples say how far it is off for such a text.
    return round(estimate_tokens(text) * counted / sum(map(estimate_tokens, samples)))


def _samples(text: str) -> list[str]:
    """Return pieces of `text` from all over it, at the same distance from each other."""
    step = (len(text) - SAMPLE_CHARS) / (SAMPLES - 1)
    starts = [round(step * index) for index in range(SAMPLES)]
    return [text[start : start + SAMPLE_CHARS] for start in starts]
