"""Decide the clear cases without a model, and say which tasks are safe with a lesser one."""

from __future__ import annotations

import re
from typing import Final

UNSURE: Final = "open"
"""The intent of what is not understood; open questions share it, for both want a full answer."""
LOW_RISK_INTENTS: Final = frozenset({"summarise", "list", "yes_no", "count", "extract", "classify"})
"""The answer is short, or stands in the prompt: half precision seldom harms it."""
HIGH_RISK_DOMAINS: Final = frozenset({"legal", "medical", "finance"})
"""A wrong answer costs health, rights or money."""

_POLITE: Final = (
    "(?:(?:please|kindly|can you|could you|would you|hi|hello) ++(?:\\^ ++)?+"
    "|(?:你好 ++\\^ ++)?[请你帮我麻烦]++)*"  # a run is taken whole: backing out of it doubles
)
_SOME: Final = "(?:the|all|every|some|any|out|me|0+|two|three|four|five|six|seven|eight|nine|ten)"
# A word decides where a clause opens with it: who asks how to summarise wants no summary.
_OPENINGS: Final = {
    "summarise": "summari[sz]e |sum up |tl ?(?:\\^ )?dr |tldr |总结|概括|归纳|摘要",
    "list": f"list {_SOME} |make a list |enumerate |列出|列举|罗列",
    "count": "how many |count (?:the|all|how) |数一数",
    "translate": "translate (?:into|to) |翻译成|译成",
    "greeting": "(?:hi|hello|hey|thanks|thank you|bye|good morning|你好|您好|谢谢|再见)[ ^]++$",
}
_RULES: Final = re.compile(
    f"[ ^]++{_POLITE}(?:"
    + "|".join(f"(?P<{name}>{words})" for name, words in _OPENINGS.items())
    + ")"
)
_YES_NO: Final = ("yes or no ", "yes + no ", "true or false ")
_YES_NO_CHINESE: Final = ("是还是否 ", "是或否 ", "对还是错 ", "是或不是 ")


def ruled(layout: str) -> str | None:
    """Return the intent that the words of a layout leave no doubt of, or None.

    Only the clause that the text opens with is looked at, and for a yes or no the whole.
    """
    if found := _RULES.match(layout):
        return found.lastgroup
    # A third of what one expression for all of them takes.
    for words in _YES_NO if layout.isascii() else _YES_NO + _YES_NO_CHINESE:
        if words in layout:
            return "yes_no"
    return None
