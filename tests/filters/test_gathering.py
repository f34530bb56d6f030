"""Several requests for one embedding as one request, and its reply as theirs."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.tools.simulated_apis import gemini_embed, openai_embeddings
from ext_proc.tools.simulated_model import tokens_of
from filters.document import Document, encode
from filters.gathering import GEMINI_WAY, OPENAI_WAY, Single, shares

PATH: Final = "/v1/embeddings"
DEEP: Final = b"[" * 600 + b"]" * 600
"""JSON that can be read and not be walked through."""
TEXTS: Final = st.text(min_size=1, max_size=40)
TOKENS: Final = st.lists(st.integers(0, 100_000), min_size=1, max_size=8)
SETTINGS: Final = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "text-embedding-3-small"])},
    optional={
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.integers(1, 16),
        "user": st.text(max_size=5),
    },
)


def apart(body: Any) -> Single | str:
    """Take a request apart, with tokens counted as the simulated model counts them."""
    return OPENAI_WAY.take_apart(PATH, Document(encode(body)), tokens_of)


def single(body: Any) -> Single:
    found = apart(body)
    assert isinstance(found, Single)
    return found


def answered(body: bytes) -> bytes:
    """Return what the simulated model server says."""
    return encode(openai_embeddings(json.loads(body))[1])


def listed(*vectors: Any, **more: Any) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    return encode({"object": "list", "data": data, **more})


@given(SETTINGS, st.lists(TEXTS, min_size=2, max_size=16), st.booleans())
def test_texts_get_what_each_would_have_got_alone(
    settings: dict[str, Any], texts: list[str], in_a_list: bool
) -> None:
    """Byte for byte, tokens used included where they are counted as the server counts them."""
    bodies = [{**settings, "input": [text] if in_a_list else text} for text in texts]
    singles = [single(body) for body in bodies]
    reply = answered(OPENAI_WAY.join(PATH, singles))
    split = OPENAI_WAY.split(PATH, reply, [one.weight for one in singles])
    assert [answered(encode(body)) for body in bodies] == split


@given(SETTINGS, st.lists(TOKENS, min_size=2, max_size=16), st.booleans())
def test_tokens_get_the_vectors_that_each_would_have_got_alone(
    settings: dict[str, Any], inputs: list[list[int]], in_a_list: bool
) -> None:
    """A text may come as the tokens that it is, and then its tokens are known exactly."""
    bodies = [{**settings, "input": [one] if in_a_list else one} for one in inputs]
    singles = [single(body) for body in bodies]
    reply = answered(OPENAI_WAY.join(PATH, singles))
    split = OPENAI_WAY.split(PATH, reply, [one.weight for one in singles])
    assert split is not None
    alone = [json.loads(answered(encode(body)))["data"] for body in bodies]
    assert alone == [json.loads(one)["data"] for one in split]


@given(st.integers(1, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=64))
def test_shares_add_up_to_the_whole(whole: int, weights: list[int]) -> None:
    """Nothing is lost or made up, and nobody pays nothing while there is enough for all."""
    parts = shares(whole, weights)
    assert whole == sum(parts)
    assert min(parts) >= (1 if whole >= len(weights) else 0)
    assert all(a <= b for a, b in zip(*_by_weight(weights, parts), strict=True))


def _by_weight(weights: list[int], parts: list[int]) -> tuple[list[int], list[int]]:
    """Return parts in the order of their weights, less the one that rounding may add."""
    ordered = [part for _, part in sorted(zip(weights, parts, strict=True))]
    return [part - 1 for part in ordered[:-1]], ordered[1:]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=64))
def test_weights_that_are_right_are_the_shares(weights: list[int]) -> None:
    """Where tokens were counted as the server counts them each pays its own."""
    assert weights == shares(sum(weights), weights)


def test_shares_follow_weights() -> None:
    """What rounding leaves goes to whoever lost most by it."""
    assert [1, 2, 7] == shares(10, [1, 2, 7])
    assert [51, 17, 32] == shares(100, [301, 100, 190])
    assert [1, 1, 0] == shares(2, [5, 5, 5])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "nothing"),
        ([], "nothing"),
        ([""], "nothing"),
        ([[]], "nothing"),
        (["one", "two"], "several"),
        ([[1, 2], [3]], "several"),
        ([{"text": "one"}], "several"),
        ([True], "several"),
        ([1.5, 2.5], "several"),
        ({"text": "one"}, "several"),
        (7, "several"),
    ],
)
def test_what_is_not_one_text_is_left_alone(value: Any, why: str) -> None:
    """Lists were gathered by their client, and a shape that nobody knows stays as it is."""
    assert why == apart({"model": "m", "input": value})


def test_requests_are_alike_but_for_their_texts() -> None:
    """Another model, another length of vectors, another user: no call can ask for both."""
    one = single({"model": "m", "input": "one"})
    assert one.rest == single({"input": "two", "model": "m"}).rest
    others: list[dict[str, Any]] = [
        {"model": "n"},
        {"model": "m", "dimensions": 8},
        {"model": "m", "user": "u"},
    ]
    for other in others:
        assert one.rest != single({**other, "input": "one"}).rest
    assert one.kind != single({"model": "m", "input": [1, 2]}).kind


def test_what_was_edited_is_what_is_asked() -> None:
    """Filters before may have changed a text."""
    document = Document(encode({"model": "m", "input": "a  b"}))
    document.set(("input",), "a b")
    found = OPENAI_WAY.take_apart(PATH, document, len)
    assert isinstance(found, Single)
    assert b'"a b"' == found.item


def test_numbers_and_escapes_keep_their_bytes() -> None:
    """A number beyond 64 bits, an escape and an unknown member reach the server as written."""
    raw = rb'{"model":"m","input":"\u00e9","seed":123456789012345678901234567890}'
    found = OPENAI_WAY.take_apart(PATH, Document(raw), len)
    assert isinstance(found, Single)
    joined = OPENAI_WAY.join(PATH, [found, found])
    assert (
        rb'{"model":"m","seed":123456789012345678901234567890,"input":["\u00e9","\u00e9"]}'
        == joined
    )


def test_order_is_that_of_the_index() -> None:
    """A server may answer in another order than it was asked in."""
    data = [{"index": 1, "embedding": [2.50]}, {"index": 0, "embedding": [1.0]}]
    split = OPENAI_WAY.split(PATH, encode({"data": data, "model": "m"}), [1, 1])
    assert split == [
        b'{"data":[{"index":0,"embedding":[1.0]}],"model":"m"}',
        b'{"data":[{"index":0,"embedding":[2.5]}],"model":"m"}',
    ]


def test_all_that_was_used_is_shared_out() -> None:
    """Details and prices as well; what is no number is everybody's."""
    used = {"prompt_tokens": 9, "cost": 3.0, "details": {"cached": 6, "audio": None}, "tier": "x"}
    split = OPENAI_WAY.split(PATH, listed([1], [2], usage=used), [1, 2])
    assert split is not None
    assert [json.loads(one)["usage"] for one in split] == [
        {"prompt_tokens": 3, "cost": 1.0, "details": {"cached": 2, "audio": None}, "tier": "x"},
        {"prompt_tokens": 6, "cost": 2.0, "details": {"cached": 4, "audio": None}, "tier": "x"},
    ]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b'{"data":7}',
        b'{"object":"list"}',
        listed([1]),
        listed([1], [2], [3]),
        encode({"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [2]}]}),
        encode({"data": [{"embedding": [1]}, {"embedding": [2]}]}),
        encode({"data": [{"index": 0, "embedding": [1]}, {"index": 1}]}),
        encode({"data": [{"index": 0, "embedding": [1]}, {"index": "1", "embedding": [2]}]}),
        encode({"error": {"message": "no"}}),
        listed([1], [2])[:-1] + b',"usage":%b}' % DEEP,
    ],
)
def test_a_reply_without_one_embedding_for_each_is_none(reply: bytes) -> None:
    """Nobody is given another one's vector."""
    assert OPENAI_WAY.split(PATH, reply, [1, 1]) is None


# --- Gemini's ------------------------------------------------------------------------------------

ONE: Final = "/v1beta/models/gemini-embedding-001:embedContent?key=k"
MANY: Final = "/v1beta/models/gemini-embedding-001:batchEmbedContents?key=k"
GEMINI_SETTINGS: Final = st.fixed_dictionaries(
    {},
    optional={
        "outputDimensionality": st.integers(1, 16),
        "taskType": st.sampled_from(["RETRIEVAL_QUERY", "CLUSTERING"]),
    },
)


def content(text: str) -> Any:
    return {"parts": [{"text": text}]}


@given(GEMINI_SETTINGS, st.lists(TEXTS, min_size=2, max_size=16), st.booleans())
def test_contents_get_what_each_would_have_got_alone(
    settings: dict[str, Any], texts: list[str], many: bool
) -> None:
    """By either method, in the form that it was asked in."""
    path = MANY if many else ONE
    bodies: list[Any] = [{**settings, "content": content(text)} for text in texts]
    if many:
        model = "models/gemini-embedding-001"
        bodies = [{"requests": [{"model": model, **body}]} for body in bodies]
    singles = []
    for body in bodies:
        single = GEMINI_WAY.take_apart(path, Document(encode(body)), tokens_of)
        assert isinstance(single, Single)
        singles.append(single)
    joined = json.loads(GEMINI_WAY.join(path, singles))
    assert {"models/gemini-embedding-001"} == {one["model"] for one in joined["requests"]}
    reply = encode(gemini_embed(joined, batch=True)[1])
    split = GEMINI_WAY.split(path, reply, [one.weight for one in singles])
    assert [encode(gemini_embed(body, batch=many)[1]) for body in bodies] == split


def test_several_contents_are_asked_for_at_the_method_that_takes_them() -> None:
    """The query stays: it may hold the key."""
    assert (MANY, MANY) == (GEMINI_WAY.path(ONE), GEMINI_WAY.path(MANY))


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (MANY, {"requests": [{"content": content("a")}, {"content": content("b")}]}, "several"),
        (MANY, {"requests": []}, "several"),
        (MANY, {"content": content("a")}, "several"),
        (MANY, {"requests": [{"content": content("a")}], "labels": {}}, "shape"),
        (MANY, {"requests": [7]}, "shape"),
        (ONE, {"content": {"parts": {"text": "a"}}}, "shape"),
        (ONE, {"content": "a"}, "shape"),
        (ONE.replace("models", "publishers/google/models"), {"content": content("a")}, "shape"),
        (ONE, {"content": {"parts": [{"text": "a"}, {"inlineData": {}}]}}, "media"),
        (ONE, {"content": {"parts": [7]}}, "media"),
        (ONE, {"content": content("")}, "nothing"),
        (ONE, {"content": {"parts": []}}, "nothing"),
    ],
)
def test_what_is_not_one_content_of_text_is_left_alone(path: str, body: Any, why: str) -> None:
    """Lists were gathered by their client, and Vertex AI has no method for several."""
    assert why == GEMINI_WAY.take_apart(path, Document(encode(body)), len)


def test_what_contents_used_is_shared_out() -> None:
    """By modality too."""
    used = {"promptTokenCount": 9, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}]}
    reply = encode({"embeddings": [{"values": [1]}, {"values": [2]}], "usageMetadata": used})
    split = GEMINI_WAY.split(ONE, reply, [1, 2])
    assert split is not None
    assert [json.loads(one) for one in split] == [
        {
            "embedding": {"values": [value]},
            "usageMetadata": {
                "promptTokenCount": count,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": count}],
            },
        }
        for value, count in ((1, 3), (2, 6))
    ]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"{}",
        encode({"embeddings": [{"values": [1]}]}),
        encode({"embeddings": [{"values": [1]}, {}]}),
        encode({"error": {"code": 400}}),
        b'{"embeddings":[{"values":[1]},{"values":[2]}],"usageMetadata":%b}' % DEEP,
    ],
)
def test_a_reply_without_values_for_each_is_none(reply: bytes) -> None:
    """Nobody is given another one's vector."""
    assert GEMINI_WAY.split(ONE, reply, [1, 1]) is None
