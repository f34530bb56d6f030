"""Which provider's endpoint a request speaks to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from filters.api import Dialect
from filters.dialects.anthropic import ANTHROPIC_MESSAGES
from filters.dialects.gemini import GEMINI
from filters.dialects.gemini_embeddings import GEMINI_EMBEDDINGS
from filters.dialects.openai_chat import OPENAI_CHAT
from filters.dialects.openai_completions import OPENAI_COMPLETIONS
from filters.dialects.openai_embeddings import OPENAI_EMBEDDINGS
from filters.dialects.openai_responses import OPENAI_RESPONSES

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        OPENAI_CHAT,
        OPENAI_COMPLETIONS,
        OPENAI_RESPONSES,
        OPENAI_EMBEDDINGS,
        GEMINI,
        GEMINI_EMBEDDINGS,
        ANTHROPIC_MESSAGES,
    )
}
"""Every dialect under its name."""

# What a path ends in, behind its last slash (Google: its last colon), whatever the prefix: a
# gateway's, a proxy's, or Azure's `/openai/deployments/NAME`.
_ENDPOINTS: Final[Mapping[str, Dialect]] = {
    "completions": OPENAI_COMPLETIONS,
    "responses": OPENAI_RESPONSES,
    "embeddings": OPENAI_EMBEDDINGS,
    "messages": ANTHROPIC_MESSAGES,
}
_METHODS: Final[Mapping[str, Dialect]] = {
    ":generateContent": GEMINI,
    ":streamGenerateContent": GEMINI,
    ":embedContent": GEMINI_EMBEDDINGS,
    ":batchEmbedContents": GEMINI_EMBEDDINGS,
}


def dialect_of(method: str, path: str) -> Dialect | None:
    """Return the dialect of a request, or None when it is no call to a model.

    The path may carry a prefix and a query; of the latter nothing counts.
    """
    if method != "POST":
        return None
    parent, _, last = path.partition("?")[0].rpartition("/")
    dialect = _ENDPOINTS.get(last)
    if dialect is OPENAI_COMPLETIONS:
        return OPENAI_CHAT if parent.endswith("/chat") else dialect
    if dialect is ANTHROPIC_MESSAGES:
        # OpenAI's threads have messages too: /v1/threads/ID/messages.
        return dialect if parent.endswith("/v1") else None
    return dialect or _METHODS.get(last[last.rfind(":") :])
