"""Have a light model draft the reasoning behind a question, and put the draft beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from filters.api import Role, Text, Turn
from filters.scripts import is_chinese

MOST_QUESTION_CHARS: Final = 12_000  # a light model reads 3,000 tokens in a good part of a second
MOST_BEFORE_CHARS: Final = 4_000  # of what was said before the question, its end


_SPEAKERS: Final = {
    False: {Role.USER: "User", Role.ASSISTANT: "Assistant"},
    True: {Role.USER: "用户", Role.ASSISTANT: "助手"},
}
_PROMPTS: Final = {
    False: (
        "Another assistant is going to answer the question at the end of this message. Do not"
        " answer it yourself. Write down the reasoning that leads to the answer: what exactly is"
        " asked, which facts and rules count, what to work out in which order, where one easily"
        " goes wrong. At most eight short numbered lines, in the language of the question.\n\n"
        "{before}The question:\n{question}"
    ),
    True: (
        "本条消息末尾的问题将由另一个助手回答，你不要作答，只写出得到答案的推理过程："
        "到底在问什么，要用到哪些事实和规则，先推算什么、后推算什么，哪里容易出错。"
        "最多八行，每行简短并编号，使用提问所用的语言。\n\n{before}问题：\n{question}"
    ),
}
_BEFORE: Final = {
    False: "What was said before it:\n{said}\n\n",
    True: "在此之前的对话：\n{said}\n\n",
}
_DRAFTS: Final = {
    False: (
        "[Draft of the reasoning, may be wrong]:\n{draft}\n"
        "[End of the draft; answer the question above]"
    ),
    True: "[推理草稿，可能有误]：\n{draft}\n[草稿结束，请回答上面的问题]",
}


def question_in(turn: Turn) -> list[Text]:
    """Return what the user asks in a turn, without the documents that came with it.

    Those stand deeper in the body, in blocks of their own.
    """
    said = [text for text in turn.texts if text.role is Role.USER and text.value.strip()]
    shallow = min((len(text.path) for text in said), default=0)
    return [text for text in said if len(text.path) == shallow]


def draft_prompt(before: Sequence[Turn], turn: Turn) -> str:
    """Return what to ask the light model about the last turn; system prompts stay at home."""
    question = "\n\n".join(text.value for text in turn.texts if text.role is Role.USER)
    chinese = is_chinese(question)
    said = _tail(before, _SPEAKERS[chinese])
    context = _BEFORE[chinese].format(said=said) if said else ""
    return _PROMPTS[chinese].format(before=context, question=question)


def with_draft(question: str, draft: str) -> str:
    """Return a question with the draft behind it, marked as what it is."""
    return f"{question}\n\n{_DRAFTS[is_chinese(question)].format(draft=draft)}"


def _tail(turns: Sequence[Turn], speakers: dict[Role, str]) -> str:
    """Return the end of a conversation, as far as it has room."""
    lines: list[str] = []
    room = MOST_BEFORE_CHARS
    for turn in reversed(turns):
        if turn.role in speakers and room > 0:
            text = "\n".join(each.value for each in turn.texts).strip()
            if text:
                lines.insert(0, f"{speakers[turn.role]}: {text[-room:]}")
                room -= len(text)
    return "\n".join(lines)
