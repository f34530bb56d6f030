"""Golden cases: real requests, replies and streams beside the view a dialect must have of them.

`tests/golden/DIALECT/CASE/` holds, each part optional:
`request.json` and `request.view.json`, `reply.json` and `reply.view.json`, `stream.sse` or
`stream.json` (one JSON array) and `stream.view.json`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path as File
from typing import Any

import msgspec
import pytest

from filters.api import Delta, Dialect, Parameter, Prompt, Reply
from filters.document import Document, Path
from filters.framing import Event, JsonArrayFramer, SseFramer

GOLDEN = File(__file__).parent / "golden"


def folders(dialect: str, part: str) -> list[Any]:
    """Return a parameter for every case of `dialect` that has the file `part`."""
    found = sorted((GOLDEN / dialect).glob(f"*/{part}"))
    assert found, f"no {part} in {GOLDEN / dialect}"
    return [pytest.param(file.parent, id=file.parent.name) for file in found]


def load(file: File) -> Any:
    return json.loads(file.read_bytes())


def read_request(dialect: Dialect, folder: File) -> Prompt:
    path = load(folder / "request.view.json")["path"]
    return dialect.read(Document((folder / "request.json").read_bytes()), path)


def read_stream(folder: File) -> list[Event]:
    if (folder / "stream.sse").exists():
        return frame_sse((folder / "stream.sse").read_bytes())
    framer = JsonArrayFramer()
    return framer.feed((folder / "stream.json").read_bytes()) + framer.close()


def frame_sse(body: bytes) -> list[Event]:
    framer = SseFramer()
    return framer.feed(body) + framer.close()


def edits(dialect: Dialect, folder: File) -> Iterator[tuple[Any, Any]]:
    """Yield, for every text of a case, the body expected after an edit and the body rendered.

    Numbers are compared as they are written.
    """
    raw = (folder / "request.json").read_bytes()
    count = sum(len(turn.texts) for turn in read_request(dialect, folder).turns())
    assert count
    for place in range(count):
        prompt = read_request(dialect, folder)
        text = [text for turn in prompt.turns() for text in turn.texts][place]
        text.value = edited = f'{text.value} — "edited"\n'
        assert edited == text.value
        expected = written(raw)
        value_at(expected, text.path[:-1])[text.path[-1]] = edited
        yield expected, written(prompt.document.render())


def value_at(node: Any, path: Path) -> Any:
    for step in path:
        node = node[step]
    return node


def written(raw: bytes) -> Any:
    """Decode JSON, numbers as the text they are written in."""
    return json.loads(raw, parse_float=str, parse_int=str)


def prompt_view(prompt: Prompt, path: str) -> dict[str, Any]:
    """Describe a prompt as a `request.view.json` does."""
    parameters = {name.value: prompt.parameter(name) for name in Parameter}
    return {
        "path": path,
        "model": prompt.model,
        "stream": prompt.stream,
        "stateful": prompt.stateful,
        "turns": [
            {
                "role": turn.role.value,
                "path": list(turn.path),
                "has_tool": turn.has_tool,
                "has_media": turn.has_media,
                "texts": [[text.role.value, list(text.path), text.value] for text in turn.texts],
            }
            for turn in prompt.turns()
        ],
        "tools": list(prompt.tools()),
        "parameters": {name: value for name, value in parameters.items() if value is not None},
        "transport_members": sorted(prompt.transport_members()),
    }


def reply_view(reply: Reply) -> dict[str, Any]:
    """Describe a reply as a `reply.view.json` does."""
    return dataclasses.asdict(reply)


def delta_views(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """Describe what each delta says, leaving out what it does not."""
    views = []
    for delta in deltas:
        view = msgspec.structs.asdict(delta)
        del view["raw"]
        if delta.usage is not None:
            view["usage"] = dataclasses.asdict(delta.usage)
        views.append({name: value for name, value in view.items() if value})
    return views
