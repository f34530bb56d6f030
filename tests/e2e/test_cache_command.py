"""`forebay cache` finds in a running gateway what clients got, and a purge has the model asked."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

import pytest

from tests.calls import Caller, ask_for
from tests.gateway import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"


async def forebay(gateway: Gateway, *words: str, said: str = "") -> str:
    """Run a command of `forebay` on the gateway's own file; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ext_proc", *words, "--config", str(gateway.config)),
        env={**os.environ, "FOREBAY_REDIS_URL": ""},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, told = await process.communicate(said.encode())
    assert b"" == told
    return printed.decode()


async def test_what_clients_got_is_found_and_cleared(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Figures by profile, one answer without its text, and a purge of one tenant."""
    asked = ask_for(CHAT, question)
    before = json.loads(await forebay(gateway, "cache", "stats", "--json"))["server"]
    with gateway.watch() as seen:
        await call(asked, "faq")
    stored = seen.notes["cache.stored"]
    key = str(seen.notes["cache.key"])
    with gateway.watch():
        assert "HIT" == (await call(asked, "faq")).headers["x-cache"]

    after = json.loads(await forebay(gateway, "cache", "stats", "--json"))["server"]
    was, now = before["profiles"]["faq"], after["profiles"]["faq"]
    assert (1, 1) == tuple(now[name] - was[name] for name in ("hit", "miss"))
    assert 1 == now["admissions"]["stored"] - was["admissions"].get("stored", 0)
    assert 0 < now["saved_output_tokens"] - was["saved_output_tokens"]

    found: dict[str, Any] = json.loads(await forebay(gateway, "cache", "get", key, "--json"))
    (entry,) = found["entries"]
    assert (CHAT, "memory", None, stored) == tuple(
        entry[name] for name in ("dialect", "place", "body", "body_bytes")
    )

    line = f"authorization: Bearer {call.key}\n"
    purged = await forebay(
        gateway, "cache", "purge", "--tenant", "-", "--profile", "faq", said=line
    )
    assert purged.startswith("memory         gone: 1 answer, at 127.0.0.1:")
    assert f"{key}: nothing is kept\n" == await forebay(gateway, "cache", "get", key)
    with gateway.watch():
        assert "MISS" == (await call(asked, "faq")).headers["x-cache"]


async def test_the_key_of_a_request_can_be_foretold(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """`forebay explain` says it, told path, host and credential, and it finds the answer."""
    asked = ask_for(CHAT, question)
    with gateway.watch() as seen:
        await call(asked, "faq")
    path = ("--path", f"/p/faq{asked.path}", "--header", f"Host: 127.0.0.1:{gateway.port}")
    tenant = ("--header", f"Authorization: Bearer {call.key}")
    words = ("explain", "--json", "--profile", "faq", *path, *tenant)
    explained = json.loads(await forebay(gateway, *words, said=asked.body.decode()))
    assert seen.notes["cache.key"] == explained["cache"]["key"]
