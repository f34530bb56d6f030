"""Measure paced streams by hand: gaps between frames, the first token's delay, CPU for each frame.

    python -m tests.measure.pace --streams 500 --chunks cut

Real Envoy and Forebay; upstream and clients are processes of their own, on the same clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.gateway import POOLS, SHIPPED, Gateway

PROFILE = "faq"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SENT = re.compile(rb'"id": ?"@([0-9.]+)')


def event(text: str, name: str = "c") -> bytes:
    chunk = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: %b\n\n" % json.dumps({**chunk, "choices": [choice]}).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def upstream(listening: socket.socket, rate: int, seconds: float, beat_s: float) -> None:
    """Answer each request with `rate` tokens a second, in a chunk each `beat_s`."""
    words = chunk(event(" word") * round(rate * beat_s))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: ([0-9]+)", head)
            await reader.readexactly(int(size[1]) if size else 0)
            writer.write(HEAD)
            await asyncio.sleep(1)
            writer.write(chunk(event("first", f"@{time.monotonic()}")))
            began = time.monotonic()
            for beat in range(1, round(seconds / beat_s)):
                await asyncio.sleep(max(0.0, began + beat * beat_s - time.monotonic()))
                writer.write(words)
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, sock=listening, backlog=4096)
        await server.serve_forever()

    asyncio.run(run())


def clients(port: int, streams: int, out: Any) -> None:
    """Ask, and tell when what came."""
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    )
    request = (
        f"POST /p/{PROFILE}/v1/chat/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def read(number: int) -> tuple[float, list[float], int]:
        await asyncio.sleep(number * 2 / streams)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        first, times, words = 0.0, [], 0
        while data := await reader.read(1 << 16):
            now = time.monotonic()
            if found := SENT.search(data):
                first = now - float(found[1])
            if count := data.count(b'"content": " word'):
                times.append(now)
                words += count
        writer.close()
        return first, times, words

    async def run() -> None:
        out.send(await asyncio.gather(*(read(number) for number in range(streams))))

    asyncio.run(run())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=int, default=100, help="tokens a second of the upstream")
    parser.add_argument("--pace", type=float, default=80, help="tokens a second of the client")
    parser.add_argument("--every", default="100ms")
    parser.add_argument("--beat", type=float, default=0.1, help="seconds between upstream chunks")
    parser.add_argument("--chunks", default="cut", choices=("cut", "whole", "watch"))
    asked = parser.parse_args()

    def edit(tree: dict[str, Any]) -> None:
        block = tree["node"]["metadata"]["forebay"]
        watches = {"cache": {"any_temperature": True, "ttl": "1s", "admit_after": 9}}
        paced: dict[str, Any] = {"adapt": False, "chunks": asked.chunks}
        paced |= {"rate": asked.pace, "every": asked.every}
        block["profiles"][PROFILE] = watches if asked.chunks == "watch" else {"pace": paced}
        block["server"] |= {"most_exchanges": 5_000}

    fork = multiprocessing.get_context("fork")
    with (
        socket.create_server(("127.0.0.1", 0), backlog=4096) as listening,
        tempfile.TemporaryDirectory(prefix="forebay-pace-") as folder,
    ):
        said = fork.Process(
            target=upstream, args=(listening, asked.rate, asked.seconds, asked.beat)
        )
        said.start()
        pools = {name: [listening.getsockname()[1]] for name in POOLS}
        gateway = Gateway(Path(folder), pools=pools, edit=edit, file=SHIPPED)
        try:
            server = gateway.start_server()
            gateway.start_envoy()
            here, there = fork.Pipe()
            reads = fork.Process(target=clients, args=(gateway.port, asked.streams, there))
            before = cpu_s(server.process.pid)
            reads.start()
            seen = here.recv()
            used = cpu_s(server.process.pid) - before
            reads.join()
            held = gateway.metrics().get("forebay_pace_streams")
        finally:
            gateway.stop()
            said.terminate()
    firsts = sorted(first for first, _, _ in seen)
    gaps = sorted(
        1000 * (b - a)
        for _, times, _ in seen
        for a, b in pairwise(times)
        if b < times[-1] - 0.35  # the tail hurries
    )
    frames = sum(len(times) for _, times, _ in seen)
    print(
        f"{asked.chunks}: {asked.streams} streams, {sum(words for *_, words in seen)} tokens, "
        f"{frames} frames; gap ms P50 {at(gaps, 0.5):.1f} P99 {at(gaps, 0.99):.1f}; "
        f"first token ms P50 {1000 * statistics.median(firsts):.1f} "
        f"P99 {1000 * at(firsts, 0.99):.1f}; "
        f"CPU {used:.2f} s, {1e6 * used / frames:.0f} us a frame; still held: {held}"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
