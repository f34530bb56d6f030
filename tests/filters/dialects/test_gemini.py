"""The dialect of Gemini's generation endpoints."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from google import genai
from google.genai import errors, types
from google.genai.types import GenerateContentResponse, HttpOptions
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Delta, Finish, Parameter, Prompt, Reply, Role
from filters.dialects.gemini import GEMINI
from filters.document import Document, encode
from filters.errors import NotJson
from filters.framing import Event, JsonArrayFramer, SseFramer
from tests import golden_cases as golden
from tests.odd_json import ANY_JSON, odd_json

NAME = GEMINI.name
PLAIN_PATH = "/v1beta/models/gemini-2.5-flash:generateContent"
ARRAY_PATH = "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
SSE_PATH = f"{ARRAY_PATH}?alt=sse"

ODD = odd_json(
    *(
        "contents",
        "parts",
        "text",
        "role",
        "user",
        "model",
        "thought",
        "inlineData",
        "functionCall",
    ),
    *("functionResponse", "response", "systemInstruction", "generationConfig", "temperature"),
    *("tools", "functionDeclarations", "candidates", "content", "finishReason", "STOP", "index"),
    *("usageMetadata", "promptTokenCount", "promptFeedback", "blockReason", "modelVersion"),
    *("citationMetadata", "logprobsResult", "chosenCandidates", "error"),
)


def prompt(body: dict[str, Any], path: str = PLAIN_PATH) -> Prompt:
    return GEMINI.read(Document(encode(body)), path)


def prompt_at(path: str) -> Prompt:
    return prompt({"contents": []}, path)


def events(*datas: dict[str, Any]) -> list[Event]:
    return golden.frame_sse(b"".join(b"data: %b\r\n\r\n" % encode(data) for data in datas))


def frame(prompt: Prompt, content_type: str, body: bytes) -> list[Event]:
    framer = GEMINI.framer(content_type, prompt)
    assert framer is not None
    return framer.feed(body) + framer.close()


def chunk(*parts: dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    content = {"content": {"parts": list(parts), "role": "model"}}
    return {"candidates": [{**content, "index": index, **more}]}


def assembled(*chunks: dict[str, Any]) -> Any:
    return json.loads(GEMINI.assemble(events(*chunks)) or b"null")


# --- Golden cases --------------------------------------------------------------------------------


def path_of(folder: Path) -> str:
    path: str = golden.load(folder / "request.view.json")["path"]
    return path


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_a_request_is_seen_as_the_golden_view_says(folder: Path) -> None:
    """Model and stream from the path; turns with their texts, tools, parameters and state."""
    seen = golden.prompt_view(golden.read_request(GEMINI, folder), path_of(folder))
    assert golden.load(folder / "request.view.json") == seen


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_a_request_nobody_edits_goes_out_byte_for_byte(folder: Path) -> None:
    """Reading, with odd formatting, escapes and unknown fields in it, changes nothing."""
    read = golden.read_request(GEMINI, folder)
    golden.prompt_view(read, path_of(folder))
    assert (folder / "request.json").read_bytes() == read.document.render()


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_an_edited_text_is_the_only_change(folder: Path) -> None:
    """Each text of each case: every other value keeps its place and its number format."""
    for expected, edited in golden.edits(GEMINI, folder):
        assert expected == edited


@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
def test_a_reply_is_read_as_the_golden_view_says(folder: Path) -> None:
    """Text without thoughts, finish, usage, model and tools."""
    reply = GEMINI.read_reply(golden.load(folder / "reply.json"))
    assert golden.load(folder / "reply.view.json") == golden.reply_view(reply)


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_stream_is_read_as_the_golden_view_says(folder: Path) -> None:
    """One delta per event; comments and the array's brackets say nothing."""
    deltas = [GEMINI.read_event(event) for event in golden.read_stream(folder)]
    assert golden.load(folder / "stream.view.json")["deltas"] == golden.delta_views(deltas)
    (file,) = (*folder.glob("stream.sse"), *folder.glob("stream.json"))
    assert file.read_bytes() == b"".join(delta.raw for delta in deltas)


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_whole_stream_assembles_to_the_plain_response(folder: Path) -> None:
    """Which Google's own types accept, and which has the text that was streamed."""
    stream = golden.read_stream(folder)
    body = GEMINI.assemble(stream)
    assert body is not None
    assert golden.load(folder / "stream.view.json")["assembled"] == json.loads(body)
    GenerateContentResponse.model_validate(json.loads(body))
    streamed = "".join(GEMINI.read_event(event).text for event in stream)
    assert streamed == GEMINI.read_reply(json.loads(body)).text


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_stream_cut_short_assembles_to_nothing(folder: Path) -> None:
    """Complete is what holds the event that finishes the candidate."""
    stream = golden.read_stream(folder)
    last = next(place for place, event in enumerate(stream) if GEMINI.read_event(event).done)
    assert {None} == {GEMINI.assemble(stream[:end]) for end in range(last + 1)}
    assert GEMINI.assemble(stream[: last + 1]) is not None


# --- The path ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
        ("/v1/models/gemini-2.5-pro:streamGenerateContent?alt=sse&key=k", "gemini-2.5-pro"),
        ("/p/faq/v1beta/models/gemini-2.5-pro:generateContent/", "gemini-2.5-pro"),
        ("/v1beta/models/gemini-2.5-pro%3AgenerateContent", "gemini-2.5-pro"),
        ("/v1beta/tunedModels/mine-1:generateContent", "tunedModels/mine-1"),
        ("/v1/publishers/google/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
        ("/v1/projects/p/locations/l/publishers/google/models/g-2:generateContent?a=b:c", "g-2"),
        ("/v1/projects/p/locations/l/endpoints/12:generateContent", "endpoints/12"),
        ("gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
        ("/", ""),
        ("", ""),
    ],
)
def test_the_path_names_the_model(path: str, model: str) -> None:
    """At Google AI and at Vertex AI, with whatever prefix; other collections keep their name."""
    assert model == prompt_at(path).model


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        (PLAIN_PATH, None),
        (f"{PLAIN_PATH}?alt=sse", None),
        (SSE_PATH, "text/event-stream"),
        (f"{ARRAY_PATH}?key=k&$alt=sse", "text/event-stream"),
        (f"{ARRAY_PATH}?%24alt=sse", "text/event-stream"),
        (ARRAY_PATH, "application/json"),
        (f"{ARRAY_PATH}?alt=json", "application/json"),
        (f"{ARRAY_PATH}?key=alt=sse", "application/json"),
    ],
)
def test_method_and_query_choose_the_form_of_the_stream(
    path: str, content_type: str | None
) -> None:
    """`streamGenerateContent` gives one JSON array, or events with `alt=sse`."""
    asked = prompt_at(path)
    assert (content_type is not None) == asked.stream
    given_type, body = GEMINI.replay({"candidates": []}, asked)
    assert (content_type or "application/json") == given_type
    assert {"text/event-stream": b"d", "application/json": b"["}.get(content_type or "", b"{") == (
        body[:1]
    )


@pytest.mark.parametrize(
    ("path", "content_type", "framer"),
    [
        (SSE_PATH, "text/event-stream", SseFramer),
        (ARRAY_PATH, "application/json; charset=UTF-8", JsonArrayFramer),
        (ARRAY_PATH, "Application/JSON", JsonArrayFramer),
        (PLAIN_PATH, "application/json; charset=UTF-8", None),
        (ARRAY_PATH, "application/x-protobuf", None),
        (SSE_PATH, "", None),
    ],
)
def test_only_a_request_for_a_stream_makes_json_a_stream(
    path: str, content_type: str, framer: type | None
) -> None:
    """The same content type is a whole reply to `generateContent`."""
    found = GEMINI.framer(content_type, prompt_at(path))
    assert (framer or type(None)) is type(found)


# --- The request ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"contents": "Hi"},
        {"contents": None},
        {"contents": [], "generationConfig": []},
        {"contents": [], "generation_config": "hot"},
    ],
)
def test_a_body_that_is_no_request_is_refused(body: dict[str, Any]) -> None:
    """Contents are an array or one object, the configuration an object."""
    with pytest.raises(NotJson, match=r"expected an (array|object) in"):
        prompt(body)


@pytest.mark.parametrize(
    ("stateful", "more"),
    [
        (False, {}),
        (False, {"tools": []}),
        (False, {"tools": [{"functionDeclarations": []}, {"computer_use": {}}]}),
        (False, {"tools": {"function_declarations": []}}),
        (True, {"tools": [{"functionDeclarations": []}, {"googleSearch": {}}]}),
        (True, {"tools": {"url_context": {}}}),
        (True, {"tools": [{"codeExecution": {}}]}),
        (True, {"tools": [{"aToolOfTomorrow": {}}]}),
        (True, {"cachedContent": "cachedContents/1"}),
        (True, {"cached_content": "cachedContents/1"}),
        (True, {"continuationToken": "dG9rZW4="}),
    ],
)
def test_state_at_the_provider_makes_a_request_stateful(
    stateful: bool, more: dict[str, Any]
) -> None:
    """Cached content, or a tool that runs there; one not known counts as one."""
    assert stateful == prompt({"contents": [], **more}).stateful


VALUES: dict[Parameter, Any] = {
    Parameter.TEMPERATURE: 0,
    Parameter.TOP_P: 0.5,
    Parameter.MAX_TOKENS: 128,
    Parameter.SEED: 7,
    Parameter.CHOICES: 1,
    Parameter.STOP: ["END"],
}
CAMEL = {
    "temperature": 0,
    "topP": 0.5,
    "maxOutputTokens": 128,
    "seed": 7,
    "candidateCount": 1,
    "stopSequences": ["END"],
}
SNAKE = {
    "temperature": 0,
    "top_p": 0.5,
    "max_output_tokens": 128,
    "seed": 7,
    "candidate_count": 1,
    "stop_sequences": ["END"],
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"generationConfig": CAMEL}),
        ({"generationConfig": None}, {"generationConfig": CAMEL}),
        ({"generationConfig": {"topK": 1}}, {"generationConfig": {"topK": 1, **CAMEL}}),
        ({"generation_config": {}}, {"generation_config": CAMEL}),
        (
            {"generation_config": dict.fromkeys(SNAKE, 3)},
            {"generation_config": SNAKE},
        ),
    ],
)
def test_a_parameter_is_set_where_the_request_keeps_its_configuration(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Never a second object or a second spelling: the provider would refuse both at once."""
    asked = prompt({"contents": [], **before})
    for name, value in VALUES.items():
        asked.set_parameter(name, value)
        assert value == asked.parameter(name)
    assert {"contents": [], **after} == json.loads(asked.document.render())


def test_a_thought_is_not_shown_as_text() -> None:
    """Thoughts are signed: they go back to the model as they came."""
    parts = [{"text": "Hm.", "thought": True}, {"text": "Yes.", "thought": False}]
    (turn,) = prompt({"contents": [{"role": "model", "parts": parts}]}).turns()
    assert (Role.ASSISTANT, ["Yes."]) == (turn.role, [text.value for text in turn.texts])


# --- The reply -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", Finish.STOP),
        ("MAX_TOKENS", Finish.LENGTH),
        ("SAFETY", Finish.FILTERED),
        ("RECITATION", Finish.FILTERED),
        ("PROHIBITED_CONTENT", Finish.FILTERED),
        ("MALFORMED_FUNCTION_CALL", Finish.OTHER),
        ("A_REASON_OF_TOMORROW", Finish.OTHER),
        ("FINISH_REASON_UNSPECIFIED", None),
        ("", None),
        (None, None),
        (1, None),
    ],
)
def test_a_finish_reason_has_a_neutral_name(reason: Any, finish: Finish | None) -> None:
    """The unspecified reason is proto JSON for none at all."""
    assert finish == GEMINI.read_reply({"candidates": [{"finishReason": reason}]}).finish


def test_a_reply_of_several_candidates_reads_as_its_first() -> None:
    """The candidate of index 0, wherever it stands; an index left out is 0."""
    one = {"content": {"parts": [{"text": "one"}]}, "finishReason": "SAFETY", "index": 1}
    nought = {"content": {"parts": [{"text": "nought"}]}, "finishReason": "STOP"}
    reply = GEMINI.read_reply({"candidates": [one, nought]})
    assert ("nought", Finish.STOP) == (reply.text, reply.finish)


# --- Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        b'{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}',
        b'{"candidates":[{"content":{"parts":[{"text":"cut',
        b"[]",
        encode(chunk({"functionCall": {"name": "f", "willContinue": True}})),
        encode(chunk({"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "b"}]}})),
    ],
)
def test_a_stream_with_a_hole_assembles_to_nothing(odd: bytes) -> None:
    """Half a response must not pass for a whole one, though its candidate finishes."""
    head, tail = events(chunk({"text": "a"}), chunk({"text": "b"}, finishReason="STOP"))
    assert GEMINI.assemble([head, tail]) is not None
    assert GEMINI.assemble([head, Event(odd, "", odd), tail]) is None


def test_an_error_that_is_null_is_none() -> None:
    """Some servers write every member they know."""
    whole = {"error": None, **chunk({"text": "a"}, finishReason="STOP")}
    (event,) = events(whole)
    delta = GEMINI.read_event(event)
    assert ("a", True, False) == (delta.text, delta.done, delta.failed)
    assert "a" == assembled(whole)["candidates"][0]["content"]["parts"][0]["text"]


def test_every_candidate_must_finish() -> None:
    """Of two candidates one may still be under way."""
    one = chunk({"text": "a"}, finishReason="STOP")
    other = chunk({"text": "b"}, index=1)
    assert GEMINI.assemble(events(one, other)) is None
    end = chunk({"text": "c"}, index=1, finishReason="STOP")
    texts = [
        [part["text"] for part in candidate["content"]["parts"]]
        for candidate in assembled(other, one, end)["candidates"]
    ]
    assert [["a"], ["bc"]] == texts


def test_what_one_chunk_says_need_not_be_repeated() -> None:
    """The role of the first chunk and the counts of any stand in the assembled response."""
    first = {**chunk({"text": "a"}), "usageMetadata": {"promptTokenCount": 1}}
    last = {
        "candidates": [{"content": {"parts": [{"text": "b"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"candidatesTokenCount": 2},
    }
    late = {"usageMetadata": {"totalTokenCount": 3}}
    whole = assembled(first, last, late)
    assert {"role": "model", "parts": [{"text": "ab"}]} == whole["candidates"][0]["content"]
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3}
    assert usage == whole["usageMetadata"]


def test_signed_text_is_not_joined_with_its_neighbours() -> None:
    """A thought's signature belongs to the part that it came in."""
    signed = {"text": "b", "thoughtSignature": "c2ln"}
    whole = assembled(
        chunk({"text": "a"}, signed, {"text": "c"}), chunk({"text": "d"}, finishReason="STOP")
    )
    parts = whole["candidates"][0]["content"]["parts"]
    assert [{"text": "a"}, signed, {"text": "cd"}] == parts


def test_citations_and_log_probabilities_of_all_chunks_are_kept() -> None:
    """Each chunk brings those of its own text."""

    def cited(place: int) -> dict[str, Any]:
        return {
            "citationMetadata": {"citationSources": [{"startIndex": place}]},
            "logprobsResult": {
                "chosenCandidates": [{"tokenId": place}],
                "logProbabilitySum": place,
            },
        }

    whole = assembled(
        chunk({"text": "a"}, **cited(1)), chunk({"text": "b"}, **cited(2), finishReason="STOP")
    )
    (candidate,) = whole["candidates"]
    assert [{"startIndex": 1}, {"startIndex": 2}] == candidate["citationMetadata"][
        "citationSources"
    ]
    expected = {"chosenCandidates": [{"tokenId": 1}, {"tokenId": 2}], "logProbabilitySum": 2}
    assert expected == candidate["logprobsResult"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120)
CALL = st.builds(
    lambda args: {"functionCall": {"name": "f", "args": args}},
    st.dictionaries(TEXT, ANY_JSON, max_size=3),
)
PART = st.one_of(
    st.builds(lambda text: {"text": text}, TEXT),
    st.builds(lambda text: {"text": text, "thought": True}, TEXT),
    st.builds(lambda text: {"text": text, "thoughtSignature": "c2ln"}, TEXT),
    CALL,
)


def joins(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two parts are text that a stream cannot tell from one longer text."""
    return before.keys() == after.keys() and before.keys() <= {"text", "thought"}


CANDIDATE = st.builds(
    lambda parts: {
        "content": {
            "parts": [
                part
                for place, part in enumerate(parts)
                if not place or not joins(parts[place - 1], part)
            ],
            "role": "model",
        },
        "finishReason": "STOP",
        "safetyRatings": [{"probability": "LOW"}],
    },
    st.lists(PART, min_size=1, max_size=5),
)


@pytest.mark.slow
@pytest.mark.parametrize("path", [SSE_PATH, ARRAY_PATH])
@given(candidates=st.lists(CANDIDATE, min_size=1, max_size=3))
def test_a_replayed_response_assembles_to_itself(
    path: str, candidates: list[dict[str, Any]]
) -> None:
    """In both forms of a stream, with any parts and several candidates."""
    response = {
        "candidates": [{**one, "index": index} for index, one in enumerate(candidates)],
        "promptFeedback": {"safetyRatings": []},
        "usageMetadata": {"promptTokenCount": 3},
        "modelVersion": "gemini-2.5-flash",
    }
    asked = prompt_at(path)
    stream = frame(asked, *GEMINI.replay(response, asked))
    assert response == json.loads(GEMINI.assemble(stream) or b"null")
    assert GEMINI.read_reply(response).text == "".join(
        GEMINI.read_event(event).text for event in stream
    )


@pytest.mark.parametrize("path", [SSE_PATH, ARRAY_PATH])
@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
def test_each_replayed_chunk_is_a_response_of_its_own(path: str, folder: Path) -> None:
    """Google's own types accept it; only the last finishes the stream."""
    asked = prompt_at(path)
    stream = frame(asked, *GEMINI.replay(golden.load(folder / "reply.json"), asked))
    chunks = [event for event in stream if event.data]
    for event in chunks:
        GenerateContentResponse.model_validate(json.loads(event.data))
    done = [GEMINI.read_event(event).done for event in chunks]
    assert [*[False] * (len(done) - 1), True] == done


def test_a_plain_request_gets_the_response_as_it_is() -> None:
    """No stream asked for, none given."""
    response = chunk({"text": "Hi"}, finishReason="STOP")
    content_type, body = GEMINI.replay(response, prompt_at(PLAIN_PATH))
    assert ("application/json", response) == (content_type, json.loads(body))


# --- Odd shapes ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.one_of(ANY_JSON, ODD))
def test_no_reply_is_too_odd_to_read(reply: Any) -> None:
    """Replies of any shape read as some reply, and replay as some stream."""
    assert isinstance(GEMINI.read_reply(reply), Reply)
    for path in (SSE_PATH, ARRAY_PATH):
        asked = prompt_at(path)
        assert frame(asked, *GEMINI.replay(reply, asked))


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=20), st.one_of(ANY_JSON, ODD).map(encode)))
def test_no_event_is_too_odd_to_read(data: bytes) -> None:
    """An event not understood carries its bytes."""
    delta = GEMINI.read_event(Event(b"raw", "", data))
    assert isinstance(delta, Delta)
    assert b"raw" == delta.raw


@pytest.mark.slow
@given(st.lists(ODD.map(encode), max_size=4))
def test_no_stream_is_too_odd_to_assemble(datas: list[bytes]) -> None:
    """It assembles to a JSON object or to nothing."""
    end = encode(chunk({"text": "a"}, finishReason="STOP"))
    assembled = GEMINI.assemble([Event(data, "", data) for data in (*datas, end)])
    assert assembled is None or isinstance(json.loads(assembled), dict)


TOP = ("contents", "systemInstruction", "system_instruction", "generationConfig", "tools")


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(TOP), ODD),
    st.one_of(st.text(max_size=20), st.sampled_from([PLAIN_PATH, SSE_PATH])),
)
def test_no_request_is_too_odd_to_refuse(body: dict[str, Any], path: str) -> None:
    """`NotJson` or a view; and whatever text is shown can be edited."""
    try:
        asked = prompt(body, path)
    except NotJson:
        return
    golden.prompt_view(asked, path)
    for turn in asked.turns():
        for text in turn.texts:
            text.value = f"<{text.value}>"
            assert text.value == golden.value_at(json.loads(asked.document.render()), text.path)
    for name, value in VALUES.items():
        asked.set_parameter(name, value)
        assert value == asked.parameter(name)


# --- The official client -------------------------------------------------------------------------


# google-genai 3.6 derives from a class of aiohttp that asks not to be derived from.
google_warns = pytest.mark.filterwarnings(
    "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
)


@asynccontextmanager
async def client_of(
    status: int, content_type: str, body: bytes, seen: list[tuple[str, bytes]] | None = None
) -> AsyncIterator[genai.Client]:
    """Yield the official client of a server that always gives this answer.

    `seen` receives path and body of each request.
    """

    async def answer(request: web.Request) -> web.Response:
        if seen is not None:
            seen.append((request.raw_path, await request.read()))
        return web.Response(status=status, body=body, headers={"content-type": content_type})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        options = HttpOptions(base_url=str(server.make_url("/")))
        client = genai.Client(api_key="k", vertexai=False, http_options=options)
        try:
            yield client
        finally:
            await client.aio.aclose()
            client.close()


async def stream_of(client: genai.Client) -> Sequence[GenerateContentResponse]:
    stream = await client.aio.models.generate_content_stream(model="m", contents="Hi")
    return [chunk async for chunk in stream]


async def plain_of(client: genai.Client) -> Sequence[GenerateContentResponse]:
    return [await client.aio.models.generate_content(model="m", contents="Hi")]


@google_warns
async def test_what_the_official_client_sends_is_read() -> None:
    """System instruction, image, tool, parameters and stream, as the client writes them."""
    seen: list[tuple[str, bytes]] = []
    answer = GEMINI.replay(chunk({"text": "Hi"}, finishReason="STOP"), prompt_at(SSE_PATH))
    config = types.GenerateContentConfig(
        system_instruction="You are terse.",
        temperature=0,
        max_output_tokens=5,
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="look")])],
    )
    image = types.Part.from_bytes(data=b"png", mime_type="image/png")
    async with client_of(200, *answer, seen) as client:
        stream = await client.aio.models.generate_content_stream(
            model="gemini-2.5-flash", contents=["What is this?", image], config=config
        )
        assert ["Hi"] == [chunk.text async for chunk in stream]
    ((path, body),) = seen
    asked = GEMINI.read(Document(body), path)
    assert ("gemini-2.5-flash", True, False) == (asked.model, asked.stream, asked.stateful)
    assert (5, 0) == (
        asked.parameter(Parameter.MAX_TOKENS),
        asked.parameter(Parameter.TEMPERATURE),
    )
    assert [(Role.SYSTEM, "You are terse."), (Role.USER, "What is this?")] == [
        (text.role, text.value) for turn in asked.turns() for text in turn.texts
    ]
    assert [False, True] == [turn.has_media for turn in asked.turns()]
    assert ["look"] == [tool["functionDeclarations"][0]["name"] for tool in asked.tools()]
    assert "text/event-stream" == GEMINI.replay({}, asked)[0]


@google_warns
@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
async def test_the_official_client_reads_a_replayed_stream(folder: Path) -> None:
    """Text, function calls, finish reason and usage: what the plain reply says."""
    response = golden.load(folder / "reply.json")
    async with client_of(200, *GEMINI.replay(response, prompt_at(SSE_PATH))) as client:
        chunks = await stream_of(client)
    reply = GEMINI.read_reply(response)
    assert reply.text == "".join(chunk.text or "" for chunk in chunks)
    whole = GenerateContentResponse.model_validate(response)
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    assert list(whole.function_calls or ()) == calls
    last = chunks[-1]
    assert whole.usage_metadata == last.usage_metadata
    assert [one.finish_reason for one in whole.candidates or ()] == [
        one.finish_reason for one in last.candidates or ()
    ]


@google_warns
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (409, "ABORTED"),
        (413, "INVALID_ARGUMENT"),
        (418, "FAILED_PRECONDITION"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
        (529, "INTERNAL"),
    ],
)
async def test_the_official_client_reads_our_errors(status: int, name: str, stream: bool) -> None:
    """The status picks the `google.rpc` name, and the text reaches the caller, streaming or not."""
    body = GEMINI.error(status, 'no "pool" is free')
    async with client_of(status, "application/json", body) as client:
        call = stream_of(client) if stream else plain_of(client)
        with pytest.raises(errors.APIError) as raised:
            await call
    error = raised.value
    assert (status, name, 'no "pool" is free') == (error.code, error.status, error.message)
