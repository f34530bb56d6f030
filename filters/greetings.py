"""Keep one greeting, one thank-you and one of each such kindness; drop the repetitions."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_EDGE_CHARS: Final = 600  # kind words stand at the beginning and the end of a message
_PART_CHARS: Final = 60  # a longer part of a sentence says something

# A part is what stands between two marks; what the marks were goes and stays with it.
_MARKS: Final = r"\s,.!?;:~…，。！？；：\uff5e、"
_PART: Final = re.compile(
    rf"[^{_MARKS}\n](?:[^,.!?;:~…，。！？；：\uff5e、\n]{{0,{_PART_CHARS}}}+)(?:[{_MARKS}]+|\Z)"
)
_NOT_LETTERS: Final = re.compile(r"[^\w' ]+")

_WHO: Final = (
    r"(?: (?:there|again|all|everyone|everybody|team|folks|guys|friend|friends|buddy|dear|my|sir"
    r"|madam|ma'am|assistant|ai|bot|chatbot|chatgpt|gpt|claude|gemini|copilot|deepseek|qwen|llama"
    r"|and|to you|you))*"
)
_WHOM: Final = (
    r"(?:呀|啊|哈|吖|呢|哦|的)?(?:亲爱的|小)?"
    r"(?:助手|朋友|朋友们|老师|同学|大家|ai|智能助手|客服|各位)?"
)
_KINDS: Final = {
    "greeting": re.compile(
        rf"(?:oh )?(?:dear |so )?(?:(?:hi+|hello+|hey+|hiya|howdy|greetings|salutations|yo|hallo)"
        rf"(?: (?:and )?(?:hi|hello|hey|welcome))*|good (?:morning|afternoon|evening|day)"
        rf"|(?:a )?(?:very )?warm greetings){_WHO}"
        rf"|(?:(?:大家|各位|老师|同学们|朋友们|亲爱的|嗨|嘿)*(?:你好|您好|你们好)+"
        rf"|哈喽|哈啰|嗨+|嘿|大家好|各位好|早上好|上午好|中午好|下午好|晚上好|早安|午安|晚安|早上好呀|hi|hello){_WHOM}"
    ),
    "presence": re.compile(
        r"(?:are you there|anyone there|anybody there|is anyone there|you there)"
        r"|(?:你|您)?在(?:吗|么|嘛|不在|不)|有人(?:在)?(?:吗|么)"
    ),
    "wellbeing": re.compile(
        r"(?:and )?(?:how are you(?: doing)?(?: today)?|how is it going|how's it going|what's up"
        r"|i (?:really )?hope (?:that )?(?:you are|you're|this (?:message|email|note) finds you"
        r"|all is|everything is)(?: all)?(?: doing)?(?: very)? (?:well|good|great|fine|okay|ok)"
        r"(?: today)?|hope (?:you are|you're|all is)(?: doing)? (?:well|good|great|fine)(?: today)?"
        r"|(?:i )?hope you(?: are|'re)? (?:having|have) a (?:nice|good|great|lovely|wonderful) day"
        r"|(?:have|wish you) a (?:nice|good|great|lovely|wonderful) (?:day|one|evening|weekend))"
        r"|(?:你|您)?最近(?:还)?好吗|(?:希望|祝)(?:你|您)(?:今天)?(?:一切(?:都)?(?:顺利|安好|好)"
        r"|(?:工作|生活)顺利|身体健康|开心|愉快|过得愉快|有(?:个)?(?:美好|愉快)的一天)"
    ),
    "thanks": re.compile(
        r"(?:(?:and|once again|again) )?(?:many |so many |a million |a thousand )?"
        r"(?:thanks+|thx|tysm|ty|thank you|thank u|cheers|much obliged|much appreciated"
        r"|(?:i|we) (?:really |truly |greatly )?appreciate (?:it|your (?:help|time|support))"
        r"|(?:your|any) help is (?:much |greatly |really |very )?appreciated"
        r"|i am (?:so |very |really )?grateful)"
        r"(?: (?:so|very|really|a lot|lots|a ton|a bunch|much|again|once again|in advance|kindly"
        r"|indeed|for|your|the|all|any|help|time|assistance|support|patience|kindness|effort"
        r"|attention|and|you|to you|dear|everyone|team|guys|friend|sir|madam))*"
        # Never given back: thanks can be read as pairs and singles in very many ways.
        r"|(?:非常|十分|万分|真的|太|多|真心|先)*+(?:感谢|谢|感激)++(?:了|啦|过|啊|呀|哦|哈)?"
        r"(?:你们|你|您|大家|各位|不尽|万分)*+的?(?:帮助|帮忙|支持|时间|耐心|解答|回答)?(?:了|啦|哦)?"
        r"|感激不尽|不胜感激|万分感谢"
    ),
    "trouble": re.compile(
        r"(?:i'm |i am )?(?:so |very |really )?sorry (?:to|for) (?:bother|bothering|trouble"
        r"|troubling|disturb|disturbing)(?: you)?(?: again)?(?: with this)?"
        r"|(?:不好意思)?(?:打扰|麻烦|劳烦|劳驾|辛苦)(?:你|您|大家)?(?:了|啦|一下)?|不好意思"
    ),
    "closing": re.compile(
        r"(?:with )?(?:best|kind|warm|warmest|kindest)(?: (?:regards|wishes))|regards|sincerely"
        r"|yours (?:sincerely|truly|faithfully)|bye+(?: bye)?|goodbye|see you(?: (?:soon|later))?"
        r"|此致|敬礼|祝好|再见|拜拜|祝您?你?(?:生活愉快|工作顺利)"
    ),
}
_AT_START: Final = frozenset({"greeting", "presence", "wellbeing", "thanks", "trouble"})
_AT_END: Final = frozenset({"thanks", "trouble", "closing", "wellbeing"})
_PARTS: Final = re.compile(r"[a-z']+|[^\x00-\x7f]")
_WORDS: Final = {kind: frozenset(_PARTS.findall(one.pattern)) for kind, one in _KINDS.items()}
_ANY_WORD: Final = frozenset().union(*_WORDS.values())
"""What kind words are made of, but for a last letter that is held; and Chinese characters."""
_LAST_WORD: Final = frozenset().union(*(_WORDS[kind] for kind in _AT_END))
_ADDRESS: Final = re.compile(
    r"(?:my )?(?:dear )?(?:assistant|friends?|sir|madam|sir or madam|team|all|everyone|ai"
    r"|chatgpt|claude|gemini)|亲爱的(?:助手|朋友)?|大家|各位|老师"
)
# Literals tell most texts apart without a pattern: what may stand in the first word or character,
# and in the last words.
_FIRST: Final = frozenset(
    [
        "oh", "dear", "so", "a", "hi", "hello", "hey", "hiya", "howdy", "greetings", "salutations",
        "yo", "hallo", "good", "very", "warm", "are", "anyone", "anybody", "is", "you", "and",
        "how", "what's", "i", "hope", "have", "wish", "many", "once", "again", "thanks", "thx",
        "tysm", "ty", "thank", "cheers", "much", "we", "your", "any", "i'm", "sorry",
    ]
)  # fmt: skip
_FIRST_CHARACTERS: Final = frozenset(
    "大各老同朋亲嗨嘿你您哈早上中下晚在有最希祝非十万真太多先感谢不打麻劳辛"
)
_FIRST_WORD: Final = re.compile(r"[\w'’]{0,12}")
_HELD: Final = ("he", "hi", "ho", "hy")  # the letters of a greeting may be, as in `hellooo`
_BEGINNINGS: Final = frozenset((*(word[:3] for word in _FIRST), *_HELD))
_LAST: Final = (
    "thank", "thx", "ty", "cheer", "obliged", "appreciate", "grateful", "regards", "wishes",
    "sincerely", "yours", "bye", "see you", "sorry", "well", "good", "great", "fine", "day",
    "evening", "weekend", "谢", "感激", "打扰", "麻烦", "劳", "辛苦", "不好意思", "此致",
    "敬礼", "祝", "再见", "拜拜", "顺利", "好吗", "安好", "愉快", "开心", "健康",
)  # fmt: skip
_LAST_CHARS: Final = 40
_STOPS: Final = ",.!?;:~…，。！？；：\uff5e、\n"
_ENDS: Final = f" \t\r{_STOPS}"
_SENTENCE_ENDS: Final = re.compile(r"[.!?;~…。！？；\uff5e\n]\s*\Z")


@dataclass(frozen=True, slots=True)
class _Part:
    kind: str
    start: int
    end: int


def drop_repeated_greetings(text: str, said: Collection[str] = ()) -> str:
    """Return `text` with one part of each kind at its beginning and its end, the first.

    Those of a kind in `said`, which an earlier message had, go as well. Where nothing else would
    be left, the first part of all stays.
    """
    parts = [*_leading(text), *_trailing(text)]
    if not parts or (len(parts) == 1 and not said):
        return text
    met = set(said)
    cut: list[_Part] = []
    for part in parts:
        if part.kind in met:
            cut.append(part)
        met.add(part.kind)
    if not cut:
        return text
    rest = _without(text, cut)
    if not _NOT_LETTERS.sub("", rest).strip():
        rest = _without(text, [part for part in cut if part is not parts[0]])
    return rest


def has_kind_words(text: str) -> bool:
    """Tell whether kind words stand at the beginning or the end of `text`."""
    return bool(_leading(text) or _trailing(text))


def kinds_in(text: str) -> set[str]:
    """Return the kinds of kind words at the beginning and the end of `text`."""
    return {part.kind for part in (*_leading(text), *_trailing(text))}


def _without(text: str, cut: list[_Part]) -> str:
    left = ""
    at = 0
    for part in cut:
        left += text[at : part.start]
        at = part.end
        said = text[part.start : at].rstrip()
        gap = text[part.start + len(said) : at]
        if "\n" in gap and left.rstrip(" ")[-1:] not in ("", "\n"):
            left = left.rstrip(" ") + gap  # what ended a line leaves its end to what was before
    if at == len(text):  # the last words went, and so does the space before them
        return left.rstrip()
    return left + text[at:]


def _leading(text: str) -> list[_Part]:
    at = 0 if text[:1].isalpha() else len(text) - len(text.lstrip())
    first = text[at : at + 1]
    if first.isascii():
        head = text[at : at + 3].lower()
        if head not in _BEGINNINGS and head[:2] not in _BEGINNINGS and head[1:2].isalpha():
            return []
        word = _FIRST_WORD.match(text, at)
        begins = word[0].lower().replace("’", "'").rstrip("'") if word else ""
        if begins not in _FIRST and begins.rstrip("oiy")[:4] not in ("h", "he", "hell"):
            return []
    elif first not in _FIRST_CHARACTERS:
        return []
    end = min(len(text), at + _EDGE_CHARS)
    found: list[_Part] = []
    while part := _PART.match(text, at, end):
        words = _words(part[0])
        if kind := _kind(words, _AT_START):
            found.append(_Part(kind, at, part.end()))
        elif found and found[-1].kind == "greeting" and _ADDRESS.fullmatch(words):
            found[-1] = _Part("greeting", found[-1].start, part.end())
        else:
            break
        at = part.end()
    return found


def _trailing(text: str) -> list[_Part]:
    last = text[-_LAST_CHARS:]
    if not _may_end_kindly(last):
        return []
    last = last.lower()
    for word in _LAST:
        if word in last:
            break
    else:
        return []
    begins = max(0, len(text) - _EDGE_CHARS)
    if not _is_last_part_kind(text, begins):
        return []
    found: list[_Part] = []
    for part in reversed(list(_PART.finditer(text, begins))):
        kind = _kind(_words(part[0]), _AT_END)
        if kind is None:
            break
        found.append(_Part(kind, part.start(), part.end()))
    found.reverse()
    # What does not begin a sentence ends one: "he said thanks, thank you" keeps its words.
    while found and not _SENTENCE_ENDS.search(text[max(0, found[0].start - 8) : found[0].start]):
        found.pop(0)
    led = _leading(text) if found else []
    return [part for part in found if not led or part.start >= led[-1].end]


def _may_end_kindly(last: str) -> bool:
    """Tell by its last word whether a text may end with kind words; most do not."""
    said = last.rstrip(_ENDS)
    character = said[-1:]
    if not character.isalnum():
        return True  # a bracket or an emoji may stand behind them
    if not character.isascii():
        return character.lower() in _LAST_WORD
    word = said.rpartition(" ")[2]
    if len(word) == len(said) or not word.isalnum() or not word.isascii():
        return True  # it may be part of a word, or several
    word = word.lower()
    return word in _LAST_WORD or _shorten(word) in _LAST_WORD


def _is_last_part_kind(text: str, begins: int) -> bool:
    """Tell it of the last part alone: no other counts where that one is not."""
    ends = len(text.rstrip(_ENDS))
    stop = max([text.rfind(mark, begins, ends) for mark in _STOPS])
    parts = [*_PART.finditer(text, max(stop, begins))]
    return not parts or _kind(_words(parts[-1][0]), _AT_END) is not None


def _words(part: str) -> str:
    return " ".join(_NOT_LETTERS.sub(" ", part.replace("’", "'")).lower().split())


def _shorten(word: str) -> str:
    """Return a word without what is held of its last letter: `hello` for `hellooo`."""
    return word.rstrip(word[-1]) + word[-1]


def _kind(words: str, kinds: Collection[str]) -> str | None:
    if words.isascii() and not _ANY_WORD.issuperset(map(_shorten, set(words.split()) - _ANY_WORD)):
        return None  # most parts: the patterns take twenty times as long
    for kind in kinds:
        if _KINDS[kind].fullmatch(words):
            return kind
    return None
