"""The terms by which sentences are compared: English stems and pairs of Chinese characters."""

from __future__ import annotations

import re
from typing import Final

# Pairs of characters do what a dictionary of words would: a name or a word that sentence and
# question share has its pairs in both, and pairs that straddle two words match nothing.
_TOKEN: Final = re.compile(
    r"(?P<code>[A-Za-z]{1,6}[-_.]?\d[A-Za-z\d]*(?:[-_.]\d[A-Za-z\d]*)*)"
    r"|(?P<number>\d+(?:[.,:/-]\d+)*)"
    r"|(?P<han>[\u3400-\u9fff]+)"
    r"|[^\W\d_\u3400-\u9fff]+(?:['’][a-z]+)?"
)
# A word with a capital is no name at the beginning of a sentence.
_NAME: Final = re.compile(r"(?<![.?!:]\s)(?<!\A)\b[A-Z][^\W\d_]+|\b[A-Za-z]{0,6}[-_.]?\d[\w.-]*")
_DASHES: Final = re.compile("[-_]")
_COMMAS: Final = re.compile(r"(?<=\d),(?=\d{3})")
_STOP_HAN: Final = re.compile(
    "一个|一种|我们|你们|他们|她们|它们|什么|怎么|怎样|如何|哪些|哪个|哪里|哪儿|哪年|哪天|哪一|多少|几个"
    "|因为|所以|但是|如果|虽然|以及|或者|并且|而且|然后|可以|可能|应该|需要|已经|正在|没有|不是|这个|那个"
    "|这些|那些|请问|告诉|根据|关于|对于|其中|之后|之前|时候|以后|以前|还是|就是|[的了是在和与或及而也就都被把"
    "对于从到由其之这那有为吗呢吧啊谁请您你我他她它们呀么]"
)
_STOPS: Final = (
    "a an the and or but if then else of to in on at by for with from as into onto over under than "
    "that this these those there here about it its he him his she her hers they them their theirs "
    "we us our ours you your yours i me my mine is are was were be been being am do does did done "
    "doing has have had having can could will would shall should may might must not no nor so too "
    "very just only also any some each every all both few more most other such own same what which "
    "who whom whose when where why how please tell say says said give given according whether "
    "while during after before again once up down out off between through because until against "
    "much many one ones s t re ve ll d m"
)
STOP_WORDS: Final = frozenset(_STOPS.split())
_SUFFIXES: Final = (
    "ments", "ment", "ings", "ing", "edly", "ers", "ors", "ed", "er", "or", "ly", "es", "s", "e"
)  # fmt: skip


def terms_of(text: str) -> list[str]:
    """Return the terms of `text` in their order, those that say nothing left out."""
    terms: list[str] = []
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind is None:
            word = token[0].lower()
            if word not in STOP_WORDS:
                terms.append(stem(word))
        elif kind == "han":
            for run in _STOP_HAN.split(token[0]):
                if len(run) == 1:
                    terms.append(run)
                else:
                    terms += [run[at : at + 2] for at in range(len(run) - 1)]
        elif kind == "code":  # a part or an order has one: P-204, p204
            terms.append(_DASHES.sub("", token[0]).lower())
        else:
            terms.append(_COMMAS.sub("", token[0]))
    return terms


def names_in(question: str) -> set[str]:
    """Return the terms of what is written like a name or a number: capitals and digits."""
    return {term for name in _NAME.finditer(question) for term in terms_of(name[0])}


def stem(word: str) -> str:
    """Return `word`, in lower case, without its usual endings: `carries`, `carried` -> `carri`."""
    if len(word) > 3 and word[-2:] in ("'s", "’s"):
        word = word[:-2]
    if len(word) <= 4 or not word.isascii():
        return word[:-1] if len(word) == 4 and word[-1] in "se" and word[-2] != "s" else word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return f"{word[:-1]}i" if word[-1] == "y" else word
