"""The fuzz target itself: its seeds pass, and so do any bytes that Hypothesis makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.native_http2 import check, seeds


def test_every_seed_passes() -> None:
    """As it stands, and cut off anywhere."""
    for seed in seeds():
        for end in range(0, len(seed), 7):
            check(seed[:end])
        check(seed)


@given(st.binary(max_size=300), st.sampled_from(list(seeds())), st.integers(0, 400))
def test_any_bytes_pass(raw: bytes, seed: bytes, at: int) -> None:
    """Put into a conversation, too."""
    check(raw)
    check(seed[:at] + raw + seed[at:])
