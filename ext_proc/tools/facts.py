"""Make documents and chats with facts in them, and the questions that ask for one of the facts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ext_proc.tools.facts_words import Attribute, Kind, Language

SUBJECTS: Final = (6, 11)  # of one document: all but one are there to be mistaken for it
FACTS_OF_ONE: Final = (3, 5)
FILLERS_OF_ONE: Final = (3, 6)
MEANT_SHARE: Final = 0.4  # of the facts of a section: they stand behind "it", not behind the name
ROUNDS: Final = (24, 40)
LAST_ROUNDS: Final = 3  # a chat keeps these anyway: nothing is asked that was said there


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence that says something about a subject, and a question that asks for it."""

    subject: str
    sentence: str
    question: str
    names_subject: bool


@dataclass(frozen=True, slots=True)
class Case:
    """What a client asks, and the fact without which no model can answer."""

    kind: str
    """How the prompt is laid out."""
    messages: tuple[dict[str, Any], ...]
    fact: Fact
    others: tuple[str, ...]
    """The other subjects."""


def is_kept(case: Case, prompt: str) -> bool:
    """Tell whether `prompt` still says the fact, and of whom.

    Where the sentence does not name its subject, the name must stand before it, and no other
    subject's name between.
    """
    lower = prompt.lower()
    sentence = case.fact.sentence.lower()
    at = lower.find(sentence)
    while at >= 0:
        name = lower.rfind(case.fact.subject.lower(), 0, at)
        others = (lower.rfind(other.lower(), 0, at) for other in case.others)
        if case.fact.names_subject or name > max(others, default=-1):
            return True
        at = lower.find(sentence, at + 1)  # of another subject the same may be true
    return False


def made_cases(language: Language, seed: int, documents: int, each: int) -> list[Case]:
    """Return questions about `documents` documents, `each` about one."""
    rng = random.Random(seed)  # noqa: S311 - the same documents on every machine
    cases: list[Case] = []
    for number in range(documents):
        kind = language.kinds[number % len(language.kinds)]
        told, subjects = _told(kind, rng)
        in_sections = number // len(language.kinds) % 2 == 0
        text = (
            _sections(language, kind, told, rng)
            if in_sections
            else _mixed(language, kind, told, rng)
        )
        facts = [fact for one in told.values() for fact in one if fact.sentence in text]
        for fact in rng.sample(facts, min(each, len(facts))):
            layout = _LAYOUTS[len(cases) % len(_LAYOUTS)]
            others = tuple(subject for subject in subjects if subject != fact.subject)
            messages = _laid_out(layout, language, text, fact.question, rng)
            cases.append(Case(layout, messages, fact, others))
    return cases


def made_chats(language: Language, seed: int, chats: int, each: int) -> list[Case]:
    """Return questions at the end of `chats` long chats, `each` at the end of one."""
    rng = random.Random(seed)  # noqa: S311 - likewise
    cases: list[Case] = []
    for number in range(chats):
        kind = language.kinds[number % len(language.kinds)]
        told, subjects = _told(kind, rng)
        rounds: list[tuple[str, str]] = []
        for subject, facts in told.items():
            said = [fact.sentence for fact in facts] + _fillers(kind, subject, rng)
            rng.shuffle(said)
            lead = _filled(rng.choice(language.lead), subject)
            rounds.append((language.space.join([lead, *said]), rng.choice(language.told)))
        talk = list(language.small_talk)
        for _ in range(rng.randint(*ROUNDS) - len(rounds)):
            rounds.insert(rng.randrange(len(rounds) + 1), rng.choice(talk))
        rounds += rng.sample(talk, LAST_ROUNDS)
        messages: list[dict[str, Any]] = []
        for asked, answered in rounds:
            messages += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answered},
            ]
        facts = [fact for one in told.values() for fact in one]
        for fact in rng.sample(facts, min(each, len(facts))):
            others = tuple(subject for subject in subjects if subject != fact.subject)
            question = {"role": "user", "content": fact.question}
            cases.append(Case("chat", (*messages, question), fact, others))
    return cases


def _told(kind: Kind, rng: random.Random) -> tuple[dict[str, list[Fact]], list[str]]:
    """Return what is told about each of some subjects, all in sentences that name it."""
    subjects = rng.sample(kind.subjects, min(rng.randint(*SUBJECTS), len(kind.subjects)))
    used: set[tuple[int, str]] = set()
    told: dict[str, list[Fact]] = {}
    for subject in subjects:
        numbers = rng.sample(
            range(len(kind.attributes)), min(rng.randint(*FACTS_OF_ONE), len(kind.attributes))
        )
        told[subject] = [
            _fact(
                subject,
                kind.attributes[number],
                _value(number, kind.attributes[number], used, rng),
                rng,
            )
            for number in numbers
        ]
    return told, subjects


def _value(
    number: int, attribute: Attribute, used: set[tuple[int, str]], rng: random.Random
) -> str:
    """Return a value that no other subject has, as long as there is one."""
    value = ""
    for _ in range(50):
        value = rng.choice(attribute.values)
        low, dash, high = value.partition("-")
        if dash and low.isdigit() and high.isdigit():
            value = str(rng.randint(int(low), int(high)))
        if (number, value) not in used:
            break
    used.add((number, value))
    return value


def _fact(subject: str, attribute: Attribute, value: str, rng: random.Random) -> Fact:
    names = rng.random() >= MEANT_SHARE
    wording = rng.choice(attribute.named if names else attribute.meant)
    return Fact(
        subject,
        _filled(wording, subject, value),
        _filled(rng.choice(attribute.asked), subject),
        names_subject=names,
    )


def _fillers(kind: Kind, subject: str, rng: random.Random) -> list[str]:
    wordings = rng.sample(kind.filler, min(rng.randint(*FILLERS_OF_ONE), len(kind.filler)))
    return [_filled(wording, subject) for wording in wordings]


def _filled(wording: str, subject: str, value: str = "") -> str:
    text = wording.replace("{s}", subject).replace("{v}", value)
    return text[:1].upper() + text[1:]


def _sections(
    language: Language, kind: Kind, told: dict[str, list[Fact]], rng: random.Random
) -> str:
    """Return a document with a paragraph for each subject, half of the time under its name."""
    headed = rng.random() < 0.5
    paragraphs = [language.space.join(rng.sample(language.general, 3))]
    for subject, facts in told.items():
        body = [fact.sentence for fact in facts] + _fillers(kind, subject, rng)
        rng.shuffle(body)
        paragraph = language.space.join([_filled(rng.choice(kind.opening), subject), *body])
        paragraphs.append(f"{_filled('{s}', subject)}\n\n{paragraph}" if headed else paragraph)
        if rng.random() < 0.4:
            paragraphs.append(language.space.join(rng.sample(language.general, 2)))
    return "\n\n".join(paragraphs)


def _mixed(language: Language, kind: Kind, told: dict[str, list[Fact]], rng: random.Random) -> str:
    """Return a document in which sentences about all subjects stand in any order."""
    pieces: list[str] = []
    for subject, facts in told.items():
        pieces += [fact.sentence for fact in facts if fact.names_subject]
        pieces += [filler for filler in _fillers(kind, subject, rng) if subject in filler]
        # What does not name its subject goes with a sentence that does.
        for fact in facts:
            if not fact.names_subject:
                opening = _filled(rng.choice(kind.opening), subject)
                pieces.append(f"{opening}{language.space}{fact.sentence}")
    pieces += list(language.general)
    rng.shuffle(pieces)
    paragraphs = []
    while pieces:
        size = rng.randint(4, 7)
        paragraphs.append(language.space.join(pieces[:size]))
        del pieces[:size]
    return "\n\n".join(paragraphs)


_LAYOUTS: Final = ("tags", "markers", "paragraphs", "question first", "parts", "system")


def _laid_out(
    layout: str, language: Language, text: str, question: str, rng: random.Random
) -> tuple[dict[str, Any], ...]:
    """Return the messages in which a client would send a document and a question."""
    instruction = rng.choice(language.instruction)
    document, asks = language.markers
    match layout:
        case "tags":
            content: Any = f"{instruction}\n<document>\n{text}\n</document>\n{question}"
        case "markers":
            content = f"{instruction}\n\n{document}\n{text}\n\n{asks} {question}"
        case "paragraphs":
            content = f"{instruction}\n\n{text}\n\n{question}"
        case "question first":
            content = f"{question}\n\n{text}"
        case "parts":
            content = [{"type": "text", "text": text}, {"type": "text", "text": question}]
        case _:
            system = {"role": "system", "content": instruction}
            return system, {"role": "user", "content": f"{text}\n\n{question}"}
    return ({"role": "user", "content": content},)


def texts_of(messages: Sequence[dict[str, Any]]) -> str:
    """Return all that is said in messages, a line for each text."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part["text"] for part in content]
    return "\n".join(texts)
