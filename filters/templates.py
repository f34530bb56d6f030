"""Put a request into the words that its kind of task is best asked in."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

_PROMPT: Final = "{prompt}"
_NAMES: Final = {
    "en": {"general": "general", "legal": "legal", "medical": "medical", "finance": "financial",
           "code": "programming"},
    "zh": {"general": "通用", "legal": "法律", "medical": "医学", "finance": "金融",
           "code": "编程"},
}  # fmt: skip
_LANGUAGES: Final = {"en": "English", "zh": "中文"}


@cache
def template(intent: str, language: str) -> str | None:
    """Return the text of `data/templates/INTENT.LANGUAGE.txt`, or None when there is none.

    Its slots are `{prompt}`, `{domain}` and `{language}`.
    """
    file = resources.files("filters") / "data" / "templates" / f"{intent}.{language}.txt"
    return file.read_text("utf-8").rstrip("\n") if file.is_file() else None


def applied(prompt: str, intent: str, domain: str, language: str) -> str:
    """Return `prompt` in its template; one that is in it already, or has none, stays as it is."""
    text = template(intent, language)
    if text is None:
        return prompt
    text = text.replace("{domain}", _NAMES[language][domain])
    text = text.replace("{language}", _LANGUAGES[language])
    before, _, after = text.partition(_PROMPT)  # what users write is no place for slots
    if prompt.startswith(before) and prompt.endswith(after):
        return prompt
    return f"{before}{prompt}{after}"
