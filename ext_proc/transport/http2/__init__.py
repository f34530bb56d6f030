"""HTTP/2 and gRPC as the ext_proc server needs them, without I/O: bytes in, events and bytes out.

`Connection` is the machine, and its rules stand at the top of `connection`. `frames` knows how
frames look, `fields` how header blocks do, `request` what a call asks for, `stream` how messages
travel, `faults` what may be wrong and how much of what is lawful but useless is too much.
"""

from __future__ import annotations

from ext_proc.transport.http2.connection import Connection, End, Event, Limits
from ext_proc.transport.http2.faults import Reason
from ext_proc.transport.http2.request import Call, Status
from ext_proc.transport.http2.stream import Stream

__all__ = ["Call", "Connection", "End", "Event", "Limits", "Reason", "Status", "Stream"]
