"""Which dialect a request speaks, by its path."""

from __future__ import annotations

import pytest

from filters.dialects import DIALECTS, dialect_of

CHAT, COMPLETIONS = "openai.chat", "openai.completions"
RESPONSES, EMBEDDINGS = "openai.responses", "openai.embeddings"
GEMINI, ANTHROPIC = "gemini.generate", "anthropic.messages"
GEMINI_EMBEDDINGS = "gemini.embeddings"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (CHAT, "/v1/chat/completions"),
        (CHAT, "/p/faq/v1/chat/completions?x=/v1/embeddings"),
        (CHAT, "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"),
        (CHAT, "/v1beta/openai/chat/completions"),
        (COMPLETIONS, "/v1/completions"),
        (COMPLETIONS, "/openai/deployments/x/completions"),
        (RESPONSES, "/v1/responses"),
        (RESPONSES, "/openai/v1/responses?api-version=preview"),
        (EMBEDDINGS, "/v1/embeddings"),
        (GEMINI, "/v1beta/models/gemini-2.5-flash:generateContent"),
        (GEMINI_EMBEDDINGS, "/v1beta/models/gemini-embedding-001:embedContent?key=k"),
        (GEMINI_EMBEDDINGS, "/v1beta/models/gemini-embedding-001:batchEmbedContents"),
        (GEMINI, "/v1/models/gemini-2.5-flash:generateContent?key=k"),
        (GEMINI, "/p/faq/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"),
        (GEMINI, "/v1/projects/p/locations/l/publishers/google/models/m:generateContent"),
        (ANTHROPIC, "/v1/messages"),
        (ANTHROPIC, "/p/chat/v1/messages?beta=true"),
    ],
)
def test_a_path_names_its_dialect_whatever_the_prefix(name: str, path: str) -> None:
    """Profiles, proxies and clouds put things before an endpoint, and queries behind it."""
    found = dialect_of("POST", path)
    assert found is not None
    assert name == found.name


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/v1/chat/completions/",
        "/v1/chat/completions/chatcmpl-1",
        "/v1/responses/resp_1/cancel",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/threads/thread_1/messages",
        "/v1/models",
        "/v1beta/models/m:countTokens",
        "/v1beta/models/generateContent",
        "/x?/v1/chat/completions",
        "/v1/chatcompletions",
    ],
)
def test_other_paths_are_no_calls_to_a_model(path: str) -> None:
    """Neighbours of an endpoint, and paths that only mention one, pass untouched."""
    assert dialect_of("POST", path) is None


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "post", ""])
def test_only_post_asks_a_model(method: str) -> None:
    """A GET on the same path lists what was stored."""
    assert dialect_of(method, "/v1/chat/completions") is None


def test_every_dialect_stands_under_its_name() -> None:
    """Metric labels and config words are the names."""
    openai = [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS]
    assert [*openai, GEMINI, GEMINI_EMBEDDINGS, ANTHROPIC] == list(DIALECTS)
    assert list(DIALECTS) == [dialect.name for dialect in DIALECTS.values()]
