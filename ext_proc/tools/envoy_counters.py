"""Read an Envoy's counters from its admin port."""

from __future__ import annotations

import asyncio

from ext_proc.tools.place import LOOPBACK


async def counted(admin_port: int, stats: str) -> int:
    """Return the sum of an Envoy's counters whose names a regular expression finds."""
    reader, writer = await asyncio.open_connection(LOOPBACK, admin_port)
    writer.write(
        f"GET /stats?filter={stats}$ HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n".encode()
    )
    reply = (await reader.read()).decode()
    writer.close()
    # One "NAME: VALUE" a line, behind a head and between the lengths of its chunks.
    lines = reply.partition("\r\n\r\n")[2].splitlines()
    return sum(int(line.rpartition(": ")[2]) for line in lines if ": " in line)
