"""Write a request as its model reads it: with the chat template that lies beside the tokenizer.

Templates are Jinja, in the surroundings of
https://huggingface.co/docs/transformers/chat_templating_writing; requests become what vLLM makes of
them before it calls the template. Of a request with more than text, nothing can be said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ext_proc.adapters.models_folder import read_settings, read_text
from filters.errors import PortError

MOST_CHARS: Final = 1 << 21
"""Of a written prompt: a template that writes more of a request is broken."""
_TEXT: Final = ("text", "input_text")
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_PROBE: Final = "FOREBAY\u2063PROBE"


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt as a model reads it."""

    text: str
    special: bool
    """The tokenizer adds its own first tokens: no template wrote them."""


class Unreadable(Exception):
    """A request has more than text, or its template refuses it."""


class ChatTemplate:
    """The chat template in a model's folder, if it has one."""

    def __init__(self, folder: Path) -> None:
        """Read it; raise `PortError` for one that is none."""
        settings = read_settings(folder, "tokenizer_config.json")
        self._names: Final = {
            name: text for name in _SPECIAL if (text := _special(settings.get(name))) is not None
        }
        self._templates: Final = {
            name: _compile(folder, source) for name, source in _sources(folder, settings).items()
        }
        self._takes_parts: Final = self._probe()

    def write(self, body: Mapping[str, Any]) -> Written:
        """Write the request of OpenAI's chat or completions; raise `Unreadable`."""
        if body.get("cache_salt"):
            raise Unreadable("its blocks have names of their own")
        if "messages" not in body:
            prompt = body.get("prompt")
            if not isinstance(prompt, str) or body.get("add_special_tokens") is False:
                raise Unreadable("no prompt of text")
            return Written(prompt, special=True)
        tools = body.get("tools")
        template = self._templates.get("tool_use" if tools else "default")
        template = template or self._templates.get("default")
        if template is None:
            raise Unreadable("no template")
        more = body.get("chat_template_kwargs")
        goes_on = body.get("continue_final_message") is True
        if body.get("chat_template") or body.get("documents") or goes_on:
            raise Unreadable("a template of its own")
        values = {
            "messages": [self._message(one) for one in _list(body["messages"])],
            "tools": [_tool(one) for one in _list(tools)] if tools else None,
            "documents": None,
            "add_generation_prompt": body.get("add_generation_prompt") is not False,
            **(more if isinstance(more, dict) else {}),
        }
        return Written(self._render(template, values), special=False)

    def _render(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        try:
            text = template.render({**self._names, **values})
        except Exception as error:  # noqa: BLE001 - whatever a template does, the prompt is unread
            raise Unreadable(f"{type(error).__name__} in its template") from None
        if len(text) > MOST_CHARS:
            raise Unreadable("too long")
        return text

    def _message(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Unreadable("no message")
        made: dict[str, Any] = {"role": message["role"]}
        content = message.get("content")
        if isinstance(content, list):
            texts = [_text(part) for part in content]
            made["content"] = (
                [{"type": "text", "text": text} for text in texts]
                if self._takes_parts
                else "\n".join(texts)
            )
        elif content is None or isinstance(content, str):
            made["content"] = content or ""
        else:
            raise Unreadable("content of another kind")
        for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            if isinstance(message.get(name), str):
                made[name] = message[name]
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in _list(calls)]
        return made

    def _probe(self) -> bool:
        """Tell whether the template reads content that comes in parts."""
        template = self._templates.get("default")
        if template is None:
            return False
        message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        values = {"messages": [message], "tools": None, "add_generation_prompt": True}
        try:
            text = self._render(template, values)
        except Unreadable:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _compile(folder: Path, source: str) -> jinja2.Template:
    try:
        return _ENVIRONMENT.from_string(source)
    except jinja2.TemplateError as error:
        raise PortError(f"{folder}: expected a chat template, found: {error}") from None


def _sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name; the usual one is `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {"default": read_text(path)}
    found = settings.get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    return {
        one["name"]: one["template"]
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("template"), str)
    }


def _special(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Unreadable("no list")
    return value


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Unreadable("more than text")


def _tool(tool: Any) -> dict[str, Any]:
    """Return a tool with the members that vLLM gives it, in that order."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise Unreadable("a tool of another kind")
    whole = {"name": None, "description": None, "parameters": None, **function}
    return {"type": tool.get("type", "function"), "function": whole}


def _call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Unreadable("a tool call of another kind")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments else {}
        except (ValueError, RecursionError):
            raise Unreadable("arguments that are no JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}


# --- What templates find around them -------------------------------------------------------------


class _Generation(Extension):
    """Marks what the model wrote, for training; nothing of it is seen here."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Take what stands between the tags as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,  # with a space by default, as models were trained
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime(form: str) -> str:
    return time.strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(  # it writes prompts, no pages: nothing is escaped
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _strftime
    return made


_ENVIRONMENT: Final = _environment()
