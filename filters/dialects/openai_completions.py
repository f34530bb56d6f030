"""Read and write OpenAI's older text completions: `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from filters.api import Delta, Parameter, Prompt, Reply, Role, Stamp, Text, Turn, Usage
from filters.dialects import openai
from filters.dialects.base import (
    BodyPrompt,
    Shape,
    items,
    mapping,
    pieces,
    text,
)
from filters.dialects.splitting import Split
from filters.document import Document, Json, Path
from filters.errors import NotJson
from filters.framing import Event, Framer

_KIND: Final = "text_completion"  # of plain replies and of chunks alike


class OpenAICompletions:
    """The dialect of text completions. Every prompt in the request is a user's turn of its own.

    Prompts of token ids have no texts. Of several choices the first is read.
    """

    name = "openai.completions"
    provider = openai.PROVIDER
    operation = "text_completion"

    def read(self, document: Document, path: str) -> Prompt:
        """View a completion request; raise `NotJson` when it has no prompt."""
        root = document.root
        if not isinstance(root.get("prompt"), str | list):
            raise NotJson("expected a string or an array in prompt")
        return BodyPrompt(
            document,
            _SHAPE,
            model=openai.model(document, path),
            stream=root.get("stream") is True,
        )

    def read_reply(self, reply: Json) -> Reply:
        """Read a completion; it is unfinished while any of its choices is."""
        completion = mapping(reply)
        choices = [mapping(choice) for choice in items(completion.get("choices"))]
        finishes = [openai.finish(choice.get("finish_reason")) for choice in choices]
        return Reply(
            text=text(choices[0].get("text")) if choices else "",
            finish=finishes[0] if finishes and None not in finishes else None,
            usage=openai.usage(completion.get("usage")),
            model=text(completion.get("model")),
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a framer for server-sent events, else None."""
        return openai.framer(content_type)

    def read_event(self, event: Event) -> Delta:
        """Read one chunk; `[DONE]` ends the stream."""
        return openai.read_chunk(event, _said)

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the completion a stream stands for; None unless `[DONE]` came and all finished."""
        return openai.assemble(events, _Choice, _KIND)

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the completion as an event stream, or as it is when no stream was asked for."""
        return openai.replay(reply, prompt, _KIND, _told)

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return where a completion has its id and time."""
        return openai.stamps(reply, kept=False)

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a completion of one choice."""
        choice = {"index": 0, "text": reply.text, "logprobs": None, "finish_reason": "stop"}
        return {
            "id": f"cmpl-{name}",
            "object": _KIND,
            "created": at_s,
            "model": reply.model,
            "choices": [choice],
            "usage": openai.write_usage(reply.usage or Usage()),
        }

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each part of the text of one."""
        return _SPLIT(raw, parts)

    def error(self, status: int, text: str) -> bytes:
        """Return OpenAI's error object."""
        return openai.error(status, text)

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return the error object as an event."""
        return openai.broken(last, why)


def _turns(document: Document) -> list[Turn]:
    prompt = document.root.get("prompt")
    if isinstance(prompt, str):
        return [Turn(Role.USER, (Text(document, ("prompt",), Role.USER),), ("prompt",))]
    return [
        Turn(Role.USER, (Text(document, ("prompt", index), Role.USER),), ("prompt", index))
        for index, one in enumerate(items(prompt))
        if isinstance(one, str)
    ]


_SHAPE: Final = Shape(
    turns=_turns,
    parameters={
        Parameter.TEMPERATURE: (("temperature",),),
        Parameter.TOP_P: (("top_p",),),
        Parameter.MAX_TOKENS: (("max_tokens",),),
        Parameter.SEED: (("seed",),),
        Parameter.CHOICES: (("n",),),
        Parameter.STOP: (("stop",),),
    },
    transport=openai.TRANSPORT,
    tools=(),
)


class _Choice:
    """One choice of a streamed completion, put together piece by piece."""

    __slots__ = ("_members", "_parts")

    def __init__(self) -> None:
        self._members: dict[str, Json] = {}
        self._parts: list[str] = []

    def add(self, choice: dict[str, Json]) -> None:
        """Take a choice of a chunk; raise `Unfit` for what has no place."""
        for key, value in choice.items():
            if key == "text":
                self._parts.append(text(value))
            elif key == "logprobs":
                openai.add_logprobs(self._members, value)
            elif key != "index" and (value is not None or key not in self._members):
                self._members[key] = value

    def whole(self, index: int) -> dict[str, Json]:
        """Return the choice as a plain reply has it; raise `Unfit` when it has not finished."""
        if openai.finish(self._members.get("finish_reason")) is None:
            raise openai.Unfit
        return {"index": index, "text": "".join(self._parts), **self._members}


def _said(choice: dict[str, Json]) -> str:
    return text(choice.get("text"))


def _told(choice: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield what each chunk says of a choice: the text in pieces, and last what stands beside."""
    for piece in pieces(text(choice.get("text"))):
        yield {"text": piece, "finish_reason": None}
    yield {**choice, "text": ""}


_SPLIT: Final = Split(
    ("choices", 0, "text"),
    every=openai.OF_EVERY_CHUNK,
    instead={"finish_reason": None, "logprobs": None},
)

OPENAI_COMPLETIONS: Final = OpenAICompletions()
