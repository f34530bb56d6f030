"""Read and make the requests on which the bundled classifier is trained and tried.

Held-out and development requests are written by hand. Those trained on are phrases whose slots are
filled by chance, the same every time; no phrase of one split stands in another.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

DOMAINS: Final = ("general", "legal", "medical", "finance", "code")
LANGUAGES: Final = ("en", "zh")
PER_CELL: Final = 260
"""Requests made for each intent, domain and language."""
UNKNOWN: Final = 0.5
"""Share of the words in general requests that are made up."""
STORIES: Final = 0.25
"""Share of the requests that stand among sentences which ask for nothing."""
ROLES: Final = 0.05
"""Share of the requests that open with what an operator tells the model."""
SEED: Final = 20_240_607

_LEXICON: Final = ("word", "term", "items", "about")
_NAMING: Final = ("word", "term")
_SYLLABLES: Final = tuple(
    first + vowel + last
    for first in ("b", "d", "f", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "w")
    for vowel in "aeiou"
    for last in ("", "l", "n", "r", "s", "t", "ck", "m")
)
_SLOT: Final = re.compile(r"\{(\w+)\}")
_GAPS: Final = (" ", " ", "\n", "\n\n")
_ONLY_GENERAL: Final = frozenset({"greeting"})
_ONLY_CODE: Final = frozenset({"code"})
_OPENINGS: Final = {
    "en": ("Hi, ", "Hello! ", "Hey, ", "Good morning. ", "Quick question: ", "OK, ", "So, "),
    "zh": ("你好，", "您好！", "嗨，", "早上好，", "请问，", "好的，", "那么，"),
}
_REQUESTS: Final = {
    "en": ("Please ", "Can you ", "Could you ", "Would you please ", "I want you to ", "Kindly ",
           "I'd like you to ", "Could you please help me and ", "You should "),
    "zh": ("请", "请你", "帮我", "麻烦你", "能不能帮我", "请帮忙", "可以", "我想让你", "劳驾"),
}  # fmt: skip
_CLOSINGS: Final = {
    "en": (" Thanks!", " Thank you.", " please", ", please.", " Be brief.", " Be precise."),
    "zh": ("谢谢！", "谢谢。", "，谢谢", "，麻烦了。", "，简单点。", "，要准确。"),
}
_NO_REQUEST: Final = re.compile(
    r"(what|which|how|why|who|is|are|was|do|does|did|can|could|has|have|will|should|would|where"
    r"|when|must|may|am|i|my|in|to|the|a|an|top|ten|yes|true|{|tl|number|here|let)\b"
    r"|[{什哪怎谁有是为我这那太上一主常能该请帮替给属]",
    re.IGNORECASE,
)


class Request(NamedTuple):
    """A request and what it is known to be."""

    intent: str
    domain: str
    language: str
    text: str


def read_split(folder: Path, split: str) -> list[Request]:
    """Return the hand-written requests of `split`, both languages."""
    found = []
    for language in LANGUAGES:
        for intent, line in _sections(folder / f"{split}.{language}.txt"):
            domain, _, text = line.partition(": ")
            if domain not in DOMAINS:
                raise ValueError(f"{split}.{language}.txt: {line}")
            found.append(Request(intent, domain, language, text.replace("\\n", "\n")))
    return found


def make_requests(folder: Path, per_cell: int = PER_CELL) -> list[Request]:
    """Return requests to train on: equally many of each intent, domain and language.

    Those without an intent are words of a trade and no more.
    """
    found: list[Request] = []
    for language in LANGUAGES:
        phrases = _Phrases(folder, language)
        found += phrases.make(per_cell)
        found += phrases.words()
    return found


class _Phrases:
    def __init__(self, folder: Path, language: str) -> None:
        self.language: Final = language
        self.slots: Final = _read_slots(folder / f"slots.{language}.txt")
        words = "".join(word for slot in self.slots.values() for word in slot.get("general", ()))
        self.characters: Final = "".join(sorted(set(re.findall("[\u4e00-\u9fff]", words))))
        self.phrases: Final[dict[str, list[tuple[str | None, str]]]] = defaultdict(list)
        for intent, line in _sections(folder / f"phrases.{language}.txt"):
            domain, _, rest = line.partition(": ")
            limited = domain in DOMAINS
            self.phrases[intent].append((domain, rest) if limited else (None, line))

    def make(self, per_cell: int) -> Iterable[Request]:
        for intent, phrases in self.phrases.items():
            for domain in _domains_of(intent):
                chance = random.Random(f"{SEED} {self.language} {intent} {domain}")  # noqa: S311 - training data, no secret
                fitting = [text for only, text in phrases if self._fits(only, text, domain, intent)]
                count = per_cell * (3 if intent in _ONLY_CODE | _ONLY_GENERAL else 1)
                for number in range(count):
                    # Every phrase is used before one is used again.
                    if number % len(fitting) == 0:
                        chance.shuffle(fitting)
                    phrase = fitting[number % len(fitting)]
                    text = self._dressed(phrase, self._filled(phrase, domain, chance), chance)
                    if intent not in _ONLY_GENERAL:
                        text = self._told(text, domain, chance)
                    yield Request(intent, domain, self.language, text)

    def words(self) -> Iterable[Request]:
        """Yield every word of every trade, three times and with others beside it."""
        for domain in DOMAINS:
            chance = random.Random(f"{SEED} {self.language} {domain}")  # noqa: S311 - as above
            words = [word for slot in _LEXICON for word in self.slots[slot][domain]]
            for size in (1, 2, 3):
                chance.shuffle(words)
                for start in range(0, len(words), size):
                    text = ", ".join(words[start : start + size])
                    yield Request("", domain, self.language, text)

    def _fits(self, only: str | None, text: str, domain: str, intent: str) -> bool:
        if only is not None:
            return only == domain
        slots = [name.rstrip("2") for name in _SLOT.findall(text)]
        tied = [name for name in slots if "any" not in self.slots[name]]
        if not tied:  # it says nothing of a domain
            return domain == "general" or intent in _ONLY_CODE
        return all(domain in self.slots[name] for name in tied)

    def _filled(self, phrase: str, domain: str, chance: random.Random) -> str:
        def fill(match: re.Match[str]) -> str:
            values = self.slots[match[1].rstrip("2")]
            value = chance.choice(values.get(domain) or values["any"])
            if domain == "general" and match[1][:4] in _NAMING and chance.random() < UNKNOWN:
                value = self._unknown(chance)
            if match[1] == "passage":
                more = chance.choice((0, 0, 0, 1, 3))
                value = " ".join([value, *(chance.choice(values[domain]) for _ in range(more))])
            return value

        return _SLOT.sub(fill, phrase).replace("\\n", "\n")

    def _unknown(self, chance: random.Random) -> str:
        """Make up a word: what no trade is known to say is general."""
        if self.language == "zh":
            return "".join(chance.choice(self.characters) for _ in range(chance.choice((2, 2, 3))))
        return "".join(chance.choice(_SYLLABLES) for _ in range(chance.choice((1, 2, 3))))

    def _told(self, text: str, domain: str, chance: random.Random) -> str:
        """Put what people tell about themselves beside it, or what an operator says in front."""
        if chance.random() < STORIES:
            stories = self.slots["story"][domain]
            story = " ".join(chance.choice(stories) for _ in range(chance.choice((1, 2, 3, 5))))
            text = (
                f"{text}{chance.choice(_GAPS)}{story}"
                if chance.random() < 0.3
                else (f"{story}{chance.choice(_GAPS)}{text}")
            )
        if chance.random() < ROLES:
            text = f"{chance.choice(self.slots['role']['any'])}{chance.choice(_GAPS)}{text}"
        return text

    def _dressed(self, phrase: str, text: str, chance: random.Random) -> str:
        """Put the words of politeness round it that people put there."""
        asks = not _NO_REQUEST.match(phrase)
        if asks and chance.random() < 0.3:
            opening = chance.choice(_REQUESTS[self.language])
            text = opening + (text[0].lower() + text[1:])
        if chance.random() < 0.12:
            text = chance.choice(_OPENINGS[self.language]) + text
        if chance.random() < 0.12 and "\\n" not in phrase:
            text = text.rstrip(".。") + chance.choice(_CLOSINGS[self.language])
        return text


def _domains_of(intent: str) -> tuple[str, ...]:
    if intent in _ONLY_GENERAL:
        return ("general",)
    return ("code",) if intent in _ONLY_CODE else DOMAINS


def _sections(file: Path) -> Iterable[tuple[str, str]]:
    """Yield the lines of a file, each with the heading above it."""
    heading = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            heading = line[1:-1]
        elif line and not line.startswith("#"):
            yield heading, line


def _read_slots(file: Path) -> Mapping[str, Mapping[str, list[str]]]:
    slots: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, line in _sections(file):
        domain, _, values = line.partition(": ")
        slots[name][domain] += values.split(" | ")
    return slots
