"""Ask a model of the operator's for Forebay's own sake, by way of Envoy's egress listener.

Envoy knows the clusters and owns TLS, names and load balancing. It is told which one by a header,
and has no ext_proc on this way: a question asked here is not prepared, kept or routed again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from ext_proc.telemetry.traceparent import parse_traceparent
from filters.api import Clock
from filters.errors import PortError

PATH: Final = "/v1/chat/completions"
MOST_CALLS: Final = 64
"""At once. A light model that has fallen behind gets no queue of drafts that nobody waits for."""
MOST_ANSWER_BYTES: Final = 256 * 1024  # 200 tokens are 1 KiB; logprobs and usage come beside them
IDLE_S: Final = 15.0  # a connection that nobody used; Envoy keeps its end for an hour
# A socket on this machine answers at once or not at all, but a loop that has much to do sees late
# that it did. Who asks has a deadline.
CONNECT_S: Final = 5.0


class UpstreamWatch(Protocol):
    """Who is told how each call went."""

    def upstream_asked(self, cluster: str, outcome: str, seconds: float) -> None:
        """Count a call: `answered`, or why it raised; `left` when its asker did not wait."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_DECODER: Final = msgspec.json.Decoder(_Completion)
_ENCODER: Final = msgspec.json.Encoder()


class _Failed(Exception):
    """A call came to nothing: an outcome for the books, and a few words for the note."""

    def __init__(self, outcome: str, words: str) -> None:
        super().__init__(words)
        self.outcome: Final = outcome


class EgressUpstream:
    """An `Upstream` over HTTP/1.1 to the listener at `egress`: a socket's path or host and port.

    A call over `most_calls` is refused at once. The client's credentials do not go along: they are
    another provider's. Where the cluster wants one, Envoy adds it.
    """

    def __init__(
        self,
        egress: str | tuple[str, int],
        clock: Clock,
        watch: UpstreamWatch,
        *,
        most_calls: int = MOST_CALLS,
    ) -> None:
        """Connect to nothing yet."""
        self._egress: Final = egress
        self._clock: Final = clock
        self._watch: Final = watch
        self._most_calls: Final = most_calls
        self._http: aiohttp.ClientSession | None = None
        self.calls = 0
        """How many are waiting for an answer."""

    async def ask(
        self,
        cluster: str,
        model: str,
        prompt: str,
        *,
        max_tokens: int,
        deadline_s: float,
        whole: bool = True,
        traceparent: str = "",
    ) -> str:
        """Return the answer of `model` at `cluster`; see `filters.api.Upstream`."""
        headers = {"content-type": "application/json", "x-forebay-cluster": cluster}
        if parse_traceparent(traceparent):
            headers["traceparent"] = traceparent
        body = _ENCODER.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "temperature": 0,
                "max_tokens": max_tokens,
                "stream": False,
            }
        )
        started_ns = self._clock.monotonic_ns()
        outcome = "left"
        try:
            if self.calls >= self._most_calls:
                raise _Failed("full", f"{self._most_calls} calls are open")
            answer = await self._post(headers, body, deadline_s)
            text = _read(answer, whole=whole)
            outcome = "answered"
        except _Failed as error:
            outcome = error.outcome
            raise PortError(f"{cluster}: {error}") from None
        finally:
            elapsed_s = (self._clock.monotonic_ns() - started_ns) / 1e9
            self._watch.upstream_asked(cluster, outcome, elapsed_s)
        return text

    async def close(self) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.close()

    async def _post(self, headers: dict[str, str], body: bytes, deadline_s: float) -> bytes:
        """Return the body of a 200; a call that is late or cancelled takes its connection along.

        Envoy sees that, and breaks off the call to the model.
        """
        self.calls += 1
        try:
            async with asyncio.timeout(deadline_s):
                async with self._session().post(PATH, data=body, headers=headers) as reply:
                    if reply.status != 200:
                        raise _Failed("refused", f"status {reply.status}")
                    return await _bounded(reply.content)
        except (
            aiohttp.ClientError
        ) as error:  # one that cannot connect in time is a TimeoutError too
            raise _Failed("broken", type(error).__name__) from None
        except TimeoutError:
            raise _Failed("late", f"no answer in {deadline_s:g} s") from None
        except OSError as error:
            raise _Failed("broken", type(error).__name__) from None
        finally:
            self.calls -= 1

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = open_egress(self._egress)
        return self._http


def open_egress(egress: str | tuple[str, int]) -> aiohttp.ClientSession:
    """Return what asks by way of the listener at `egress`; it connects when it is first used."""
    connector: aiohttp.BaseConnector
    options: Any = {"limit": 0, "keepalive_timeout": IDLE_S}  # whoever asks has a bound
    if isinstance(egress, str):
        path = f"\0{egress[1:]}" if egress.startswith("@") else egress
        connector = aiohttp.UnixConnector(path, **options)
        base = "http://forebay"
    else:
        connector = aiohttp.TCPConnector(**options)
        host, port = egress
        base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return aiohttp.ClientSession(
        base,
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # an answer must not mark the next question
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
        skip_auto_headers=("user-agent", "accept", "accept-encoding"),
    )


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    answer = bytearray()
    async for piece in content.iter_any():
        answer += piece
        if len(answer) > MOST_ANSWER_BYTES:
            raise _Failed("broken", f"an answer of more than {MOST_ANSWER_BYTES} bytes")
    return bytes(answer)


def _read(answer: bytes, *, whole: bool) -> str:
    """Return the text of a completion."""
    try:
        completion = _DECODER.decode(answer)
    except (ValueError, RecursionError):
        raise _Failed("broken", "no chat completion") from None
    choice = completion.choices[0] if completion.choices else _Choice(_Message())
    if choice.finish_reason not in (("stop",) if whole else ("stop", "length")):
        raise _Failed("unfinished", f"it ended with {_word(choice.finish_reason)}")
    text = (choice.message.content or "").strip()
    if not text:
        raise _Failed("unfinished", "an empty answer")
    return text


def _word(reason: str | None) -> str:
    """Name a reason of the known ones; another may be anything."""
    known = ("length", "tool_calls", "content_filter")
    return reason if reason in known else "another reason"
