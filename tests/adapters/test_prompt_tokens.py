"""Requests are cut into the tokens that their model reads."""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ext_proc.adapters.chat_template import ChatTemplate, Unreadable, Written
from ext_proc.adapters.prompt_tokens import PromptReader, TokenCutter
from filters.errors import PortError

CHATML = """\
{%- if tools %}
<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- call.function.name + call.function.arguments.city }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
PARTS = """\
{%- for message in messages %}{{ bos_token }}[{{ message.role }}]
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{{ part.text }}/{% endfor %}{% endif %}
{%- endfor %}"""
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
HELLO = {"messages": [{"role": "user", "content": "Hello you"}]}


def write_model(folder: Path, template: Any = CHATML, **settings: Any) -> Path:
    """Make a tokenizer of bytes, with marks as chat models have them."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {char: number for number, char in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(SPECIAL))
    first = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", first)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    whole = {"chat_template": template, "bos_token": {"content": "<s>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def tokens_of(ids: bytes | None) -> list[int]:
    assert ids is not None
    return array("I", ids).tolist()


def written(folder: Path, body: Mapping[str, Any]) -> str:
    return ChatTemplate(folder).write(body).text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


# --- Templates -----------------------------------------------------------------------------------


def test_a_chat_is_written_by_its_template(folder: Path) -> None:
    """The model is to go on as the assistant."""
    expected = "<|im_start|>user\nHello you<|im_end|>\n<|im_start|>assistant\n"
    assert expected == written(folder, HELLO)


def test_a_client_may_end_the_prompt_itself(folder: Path) -> None:
    """As vLLM lets it."""
    body = {**HELLO, "add_generation_prompt": False}
    assert "<|im_start|>user\nHello you<|im_end|>\n" == written(folder, body)


def test_parts_are_lines_where_the_template_takes_text(folder: Path) -> None:
    """So vLLM joins them."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert written(folder, body).startswith("<|im_start|>user\na\nb<|im_end|>")


def test_parts_stay_parts_where_the_template_takes_them(tmp_path: Path) -> None:
    """It says itself what stands between them."""
    folder = write_model(tmp_path / "model", PARTS)
    parts = [{"type": "text", "text": "a"}, "b"]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert "<s>[user]a/b/" == written(folder, body)


def test_tools_have_every_member(folder: Path) -> None:
    """Those that are missing are null, for vLLM."""
    tool = {"function": {"parameters": {}, "name": "weather"}, "type": "function"}
    line = (
        '{"type": "function", "function": '
        '{"name": "weather", "description": null, "parameters": {}}}'
    )
    text = written(folder, {**HELLO, "tools": [tool]})
    assert f"<|im_start|>tools\n{line}\n<|im_end|>" == text.partition("\n<|im_start|>user")[0]


def test_arguments_of_tool_calls_are_objects(folder: Path) -> None:
    """Clients send them as text."""
    call = {"id": "1", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert "<|im_start|>assistant\nweatherKöln<|im_end|>" in written(folder, body)


def test_a_template_may_have_a_file_of_its_own(folder: Path) -> None:
    """It goes before the one in the settings."""
    (folder / "chat_template.jinja").write_text("{{ messages | length }}{{ eos_token }}")
    assert "1" == written(folder, HELLO)


def test_there_may_be_a_template_for_tools(tmp_path: Path) -> None:
    """It serves requests with tools only."""
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    folder = write_model(tmp_path / "model", named)
    tools = [{"type": "function", "function": {"name": "x"}}]
    assert ("plain", "1 tools") == (
        written(folder, HELLO),
        written(folder, {**HELLO, "tools": tools}),
    )


def test_what_a_client_tells_the_template_counts(tmp_path: Path) -> None:
    """Such as whether the model is to think."""
    folder = write_model(tmp_path / "model", "{{ enable_thinking }}")
    body = {**HELLO, "chat_template_kwargs": {"enable_thinking": False}}
    assert "False" == written(folder, body)


def test_templates_for_training_are_read(tmp_path: Path) -> None:
    """What they mark for it is written as the rest."""
    folder = write_model(
        tmp_path / "model",
        "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%%') }}",
    )
    assert "Hello you%" == written(folder, HELLO)


def test_a_text_to_complete_is_no_chat(folder: Path) -> None:
    """The tokenizer begins it."""
    assert Written("Once", special=True) == ChatTemplate(folder).write({"prompt": "Once"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"messages": "hello"},
        {"messages": [1]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 1}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [1]}]},
        {**HELLO, "tools": [1]},
        {**HELLO, "tools": {"a": 1}},
        {**HELLO, "cache_salt": "mine"},
        {**HELLO, "chat_template": "{{ 1 }}"},
        {**HELLO, "documents": [{}]},
        {**HELLO, "continue_final_message": True},
        {**HELLO, "chat_template_kwargs": {"messages": 1}},
    ],
)
def test_what_cannot_be_known_is_not_read(folder: Path, body: Mapping[str, Any]) -> None:
    """A wrong guess would be worse than none."""
    with pytest.raises(Unreadable):
        ChatTemplate(folder).write(body)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
    ],
)
def test_templates_do_as_they_may(tmp_path: Path, template: str) -> None:
    """What refuses or breaks out is not read."""
    folder = write_model(tmp_path / "model", template)
    with pytest.raises(Unreadable):
        ChatTemplate(folder).write(HELLO)


def test_a_broken_template_is_said(tmp_path: Path) -> None:
    """With the folder."""
    folder = write_model(tmp_path / "model", "{% for")
    with pytest.raises(PortError, match=r"model: expected a chat template, found: "):
        ChatTemplate(folder)


def test_a_model_may_have_no_template(tmp_path: Path) -> None:
    """Texts to complete are read all the same."""
    template = ChatTemplate(write_model(tmp_path / "model", None))
    with pytest.raises(Unreadable):
        template.write(HELLO)
    assert "Once" == template.write({"prompt": "Once"}).text


# --- Tokens --------------------------------------------------------------------------------------


async def read(folder: Path, body: Any) -> bytes | None:
    reader = PromptReader(TokenCutter(folder), deadline_s=60.0)
    try:
        return await reader.read(body)
    finally:
        reader.close()


def expected_tokens(folder: Path, text: str, *, special: bool = False) -> list[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=special).ids)


@pytest.mark.parametrize("words", [3, 3_000])
async def test_a_chat_is_cut_as_its_tokenizer_does(folder: Path, words: int) -> None:
    """Short ones at once, long ones in a thread."""
    body = {"messages": [{"role": "user", "content": "wörd " * words}] * 3}
    expected = expected_tokens(folder, written(folder, body))
    assert expected == tokens_of(await read(folder, body))


async def test_a_text_to_complete_begins_with_the_tokenizer_s_own(folder: Path) -> None:
    """A long one too."""
    for text in ("Once", "Once " * 1_000):
        expected = expected_tokens(folder, text, special=True)
        assert expected == tokens_of(await read(folder, {"prompt": text}))


async def test_a_chat_that_grew_is_cut_where_it_grew(folder: Path) -> None:
    """What was said before is remembered."""
    cutter = TokenCutter(folder)
    reader = PromptReader(cutter, deadline_s=60.0)
    said = [{"role": "user", "content": f"{number} " * 1_000} for number in range(3)]
    await reader.read({"messages": said[:2]})
    pieces = cutter.pieces(cutter.template.write({"messages": said}))
    missing = cutter.missing(pieces)
    reader.close()
    assert ["<|im_start|>user\n" + said[2]["content"]] == missing


async def test_memory_of_pieces_is_bounded(folder: Path) -> None:
    """The oldest go; a piece that is too long is not kept at all."""
    cutter = TokenCutter(folder, cache_bytes=8_000)
    reader = PromptReader(cutter, deadline_s=60.0)
    texts = [f"{number} " * 100 for number in range(20)]
    for text in (*texts, "x" * 9_000):
        await reader.read({"messages": [{"role": "user", "content": text}]})
    pieces = [f"<|im_start|>user\n{text}" for text in (*texts, "x" * 9_000)]
    missing = cutter.missing(pieces)
    reader.close()
    assert (True, False, True) == (
        pieces[0] in missing,
        pieces[19] in missing,
        pieces[20] in missing,
    )


async def test_tokenizers_that_mark_the_start_get_the_whole_text(tmp_path: Path) -> None:
    """Pieces of it would each have a start."""
    folder = write_model(tmp_path / "model")
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save(str(path))
    cutter = TokenCutter(folder)
    told = cutter.template.write(HELLO)
    expected = expected_tokens(folder, told.text)
    assert expected == tokens_of(await read(folder, HELLO))


async def test_requests_that_cannot_be_read_are_counted(folder: Path) -> None:
    """They are picked for as without."""
    reader = PromptReader(TokenCutter(folder), deadline_s=60.0)
    found = [await reader.read(body) for body in (HELLO, {}, None, {"prompt": "\ud800"})]
    reader.close()
    assert [False, True, True, True] == [one is None for one in found]
    assert (1, 3, 0) == (
        reader.read_so_far.good,
        reader.read_so_far.unreadable,
        reader.read_so_far.late,
    )


async def test_who_is_late_is_counted_and_read_for_the_next_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on, and what it found is kept."""
    cutter = TokenCutter(folder)
    goes_on, cut = threading.Event(), cutter.cut

    def held_up(pieces: list[str]) -> dict[str, bytes]:
        goes_on.wait()
        return cut(pieces)

    monkeypatch.setattr(cutter, "cut", held_up)
    reader = PromptReader(cutter, deadline_s=0.001)
    body = {"messages": [{"role": "user", "content": "word " * 1_000}]}
    first = await reader.read(body)
    waiting = await asyncio.gather(*(reader.read({"prompt": "y" * 2_000}) for _ in range(20)))
    goes_on.set()
    reader.close()
    async with asyncio.timeout(60.0):
        while cutter.missing(cutter.pieces(cutter.template.write(body))):
            await asyncio.to_thread(lambda: None)
    again = await reader.read(body)
    assert (None, [None] * 20, 21) == (first, waiting, reader.read_so_far.late)
    assert again is not None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_folder_is_said(folder: Path, name: str) -> None:
    """With the file."""
    (folder / name).write_text("{")
    with pytest.raises(PortError, match=name):
        TokenCutter(folder)
