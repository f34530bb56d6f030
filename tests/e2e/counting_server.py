"""The server as it is, and on SIGUSR1 a line that says how much it holds in memory."""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from ext_proc.cli import main

EVENT: Final = '"event":"held"'
OURS: Final = ("ext_proc", "filters")


class Mallinfo2(ctypes.Structure):
    """What `mallinfo2` of the C library returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def held() -> dict[str, object]:
    """Count what is reachable, and what the process wrote to, after all that can be freed is."""
    gc.collect()
    there = gc.get_objects()
    named = ((type(one).__module__, type(one).__qualname__) for one in there)
    ours = Counter(f"{module}.{name}" for module, name in named if module.startswith(OURS))
    count, blocks = len(there), sys.getallocatedblocks()
    del there
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Mallinfo2
    library.malloc_trim(0)
    info = library.mallinfo2()
    taken = info.uordblks + info.hblkhd
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(size) for name, size, *_ in (line.split() for line in lines)}
    anonymous = kib["Anonymous:"] * 1024
    found = {"objects": count, "blocks": blocks, "taken": taken, "anonymous": anonymous}
    return {**found, "ours": ours}


def tell(*_: object) -> None:
    """Write the line."""
    line = json.dumps({"event": "held", **held()}, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
