"""h2spec, the conformance tests for HTTP/2 servers, against the native transport."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.gateway import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("h2spec")]

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / ".ci" / "h2spec"
BINARY: Final = ROOT / ".tools" / "h2spec"
TIMEOUT_S: Final = 120.0
SERVING: Final = "tests.protocol.h2spec_server"


@pytest.fixture
def port() -> Iterator[int]:
    """Serve as h2spec needs it; the value is the port."""
    number = free_port()
    words = (sys.executable, "-m", SERVING, str(number))
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"serving\n" == process.stdout.readline()
            yield number
        finally:
            process.kill()


def test_all_of_h2spec_passes(port: int) -> None:
    """Its strict tests included: generic, HTTP/2 (RFC 7540) and HPACK (RFC 7541)."""
    if not BINARY.exists() and shutil.which("go") is None:
        missing = f"{BINARY} is not there, and neither is Go to build it"
        if os.environ.get("CI"):  # there, a test that does not run would look like one that passed
            pytest.fail(missing)
        pytest.skip(missing)
    subprocess.run([BUILD], check=True)
    words = (BINARY, "--strict", "--timeout", "5", "--port", str(port))
    report = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    ).stdout
    assert (0, ["146 tests, 146 passed, 0 skipped, 0 failed"]) == (
        report.count("×"),
        re.findall(r"\d+ tests, .*", report),
    ), report
