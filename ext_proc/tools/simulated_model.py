"""Say something readable about a prompt without a model: the same words for the same prompt."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from filters.api import Finish
from filters.document import Json, encode

BYTES_PER_TOKEN: Final = 4  # the rule of thumb for English; a Chinese character is 3 bytes in UTF-8
QUOTE_CHARACTERS: Final = 60  # enough to recognise a prompt, short enough for a cacheable answer
RESULT_CHARACTERS: Final = 400  # of a tool's result in the answer, for the same reason
BODY_SENTENCES: Final = (2, 5)  # fewest and most after the first: 40 to 120 tokens
EMBEDDING_DIMENSIONS: Final = 256  # the shortest that text-embedding-3 models offer
MAX_DEPTH: Final = 6  # of values made from a schema, which may refer to itself

_PIECE: Final = re.compile(r" ?[A-Za-z0-9_'’-]{1,12}|\s+|.", re.DOTALL)
_CHINESE: Final = re.compile(r"[\u3400-\u9fff]")
_NAME: Final = re.compile(r"(?<=\S )[A-Z][\w-]*(?: [A-Z][\w-]*)*")

_ENGLISH: Final = (
    "No model ran for this; the words come from a fixed list, picked by a hash of the prompt.",
    "Water that has come to rest carries less sand into the turbine.",
    "A question asked twice deserves the same answer, so you will read this one again.",
    "A screen catches branches before they reach the blades.",
    "Short prompts leave room for long thoughts.",
    "The basin fills overnight and empties in the morning, as the demand does.",
    "Whoever waits in a queue would like to know how long it is.",
    "What was computed once can be kept until it is no longer true.",
    "A steady stream is easier to read than one that stops and rushes.",
    "If you expected real knowledge here, start the gateway with a real upstream.",
)
_MANDARIN: Final = (
    "没有任何模型参与计算，这些句子由提示词的哈希从固定列表中选出。",
    "静下来的水带进水轮机的泥沙更少。",
    "同样的问题问两次，得到的回答也应当一样。",
    "拦污栅在叶片之前挡住树枝。",
    "提示词短一些，思考的余地就大一些。",
    "前池夜里蓄水，早晨放水，正如需求的起落。",
    "排队的人总想知道队伍有多长。",
    "算过一次的结果，在失效之前都可以保留。",
    "平稳的水流比时断时续的水流更容易读懂。",
    "如果需要真实的知识，请为网关配置真实的上游。",
)
_TOPICS: Final = ("weather", "天气")  # a question about these calls a tool whatever it is named


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the request declares; `schema` is the JSON schema of its arguments."""

    name: str
    schema: Json


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks, whichever provider's JSON said it."""

    model: str
    prompt: str
    """Everything the model reads, in its order: what prefill and prefix cache work on."""
    turn: str = ""
    """What stands before an answer, behind the prompt, when the conversation goes on."""
    question: str = ""
    """The text of the last user message."""
    result: str | None = None
    """The tool's result when that is the last message."""
    tools: tuple[Tool, ...] = ()
    call: str | None = None
    """The tool that must be called; empty for any, None to let the question decide."""
    schema: Json = None
    """The JSON schema the answer must follow."""
    max_tokens: int | None = None
    min_tokens: int = 0
    choices: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """One answer, cut into tokens; `tool` names the tool that it calls instead of speaking."""

    pieces: tuple[str, ...]
    finish: Finish
    tool: str = ""

    @property
    def text(self) -> str:
        """The whole answer, or the tool's arguments as JSON."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of a request and its answers."""

    input: int
    output: int


def tokens_of(text: str) -> int:
    """Estimate the tokens of a text."""
    return math.ceil(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)


def digest_of(*parts: str, size: int = 12) -> str:
    """Return `size` bytes of hash in hex: the ids of replies are made of it."""
    whole = "\0".join(parts).encode(errors="replace")
    return hashlib.blake2b(whole, digest_size=size).hexdigest()


def say(ask: Ask, choice: int = 0, tokens: int | None = None) -> Said:
    """Answer `ask`; `choice` tells the answers of one request apart.

    `tokens` is the exact length to reach, whatever the request says.
    """
    tool = _tool_for(ask)
    if tool is not None and tokens is None:
        schema = {"type": "object", **tool.schema}  # a tool without arguments may have none
        arguments = encode(value_for(schema, ask.question)).decode()
        return Said(tuple(_PIECE.findall(arguments)), Finish.TOOL, tool.name)
    if ask.schema is not None and tokens is None:
        text = encode(value_for(ask.schema, ask.question)).decode()
        return _within(ask, _PIECE.findall(text))
    least = max(ask.min_tokens, tokens or 0)
    pieces: list[str] = []
    for sentence in _sentences(ask, choice, least > 0):
        pieces += _PIECE.findall(sentence)
        if least and len(pieces) >= least:
            break
    if tokens is not None:
        return Said(tuple(pieces[:tokens]), Finish.STOP)
    return _within(ask, pieces[:least] if least else pieces)


def embed(text: str, dimensions: int) -> list[float]:
    """Return a unit vector that depends on the text alone."""
    raw = hashlib.shake_128(text.encode(errors="replace")).digest(dimensions * 2)
    numbers = struct.unpack(f"<{dimensions}h", raw)
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def pack(vector: list[float]) -> str:
    """Encode a vector as little-endian 32-bit floats in Base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def value_for(schema: Json, question: str) -> Json:
    """Make a value that a JSON schema accepts; texts are taken from the question if they can be.

    Understands what tools use: type, properties, required, items, enum, const, default, anyOf,
    oneOf, allOf, `$ref` into the same schema, minimum, minItems; also Gemini's upper-case types.
    """
    return _value(schema, schema, question, 0)


def _value(schema: Json, root: Json, question: str, depth: int) -> Json:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if isinstance(schema.get("$ref"), str):
        return _value(_resolve(root, schema["$ref"]), root, question, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    options = [o for key in ("anyOf", "oneOf", "allOf") for o in schema.get(key) or ()]
    for option in options:
        if str(option.get("type")).lower() != "null":
            return _value(option, root, question, depth + 1)
    return _typed(schema, root, question, depth)


def _typed(schema: Json, root: Json, question: str, depth: int) -> Json:
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = kinds if isinstance(kinds, str) else next((k for k in kinds if k != "null"), "null")
    match kind.lower():
        case "object":
            properties = schema.get("properties") or {}
            names = schema.get("required") or list(properties)
            return {
                name: _value(properties.get(name, {"type": "string"}), root, question, depth + 1)
                for name in names
            }
        case "array":
            item = _value(schema.get("items", {"type": "string"}), root, question, depth + 1)
            return [item] * max(1, int(schema.get("minItems", 1)))
        case "integer":
            return math.ceil(schema.get("minimum", 1))
        case "number":
            return schema.get("minimum", 1.5)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _subject(question)


def _resolve(root: Json, reference: str) -> Json:
    node = root
    for step in reference.removeprefix("#").split("/")[1:]:
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _subject(question: str) -> str:
    """Return the last name in the question (`Paris`), or the question itself, shortened."""
    names = _NAME.findall(question)
    return names[-1] if names else _quote(question)


def _quote(text: str) -> str:
    flat = " ".join(text[: 4 * QUOTE_CHARACTERS].split())
    return flat if len(flat) <= QUOTE_CHARACTERS else flat[: QUOTE_CHARACTERS - 1] + "…"


def _tool_for(ask: Ask) -> Tool | None:
    if not ask.tools or ask.result is not None:
        return None
    named = [tool for tool in ask.tools if _names(ask.question, tool.name)]
    if ask.call:
        return next((tool for tool in ask.tools if tool.name == ask.call), None)
    if named:
        return named[0]
    topical = any(topic in ask.question.lower() for topic in _TOPICS)
    return ask.tools[0] if topical or ask.call == "" else None


def _names(question: str, tool: str) -> bool:
    """Tell whether the question holds the tool's name, or all its longer words in any order."""
    low = question.lower()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool)
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if len(word) > 3]
    return tool.lower() in low or (bool(words) and all(word in low for word in words))


def _sentences(ask: Ask, choice: int, endless: bool) -> Iterator[str]:
    text = (ask.question or ask.result or "")[:1_000]  # enough to tell the language
    chinese = 3 * len(_CHINESE.findall(text)) > len(text)
    body, gap = (_MANDARIN, "") if chinese else (_ENGLISH, " ")
    model, quote = ask.model or "a model without a name", _quote(ask.question)
    if ask.result is not None:
        result = ask.result.strip()[:RESULT_CHARACTERS]
        yield f"工具返回：{result}。" if chinese else f"The tool returned: {result}."
    if chinese:
        yield f"这是 {model} 对“{quote}”的模拟回答。"
    else:
        yield f"{gap if ask.result is not None else ''}This is a simulated answer from {model}"
        yield f" to “{quote}”." if quote else "."
    picks = bytes.fromhex(digest_of(ask.prompt, str(choice), size=32))
    fewest, most = BODY_SENTENCES
    count = fewest + picks[0] % (most - fewest + 1)
    start, stride = picks[1] % len(body), (1, 3, 7, 9)[picks[2] % 4]  # coprime to ten: no repeats
    index = 0
    while endless or index < count:
        yield gap + body[(start + index * stride) % len(body)]
        index += 1


def _within(ask: Ask, pieces: list[str]) -> Said:
    """Apply the request's stop sequences and its limit."""
    text = "".join(pieces)
    cuts = [text.find(stop) for stop in ask.stop if stop and stop in text]
    if cuts:
        pieces = _PIECE.findall(text[: min(cuts)])
    if ask.max_tokens is not None and len(pieces) > ask.max_tokens:
        return Said(tuple(pieces[: ask.max_tokens]), Finish.LENGTH)
    return Said(tuple(pieces), Finish.STOP)
