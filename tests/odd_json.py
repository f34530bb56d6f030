"""Any JSON, and JSON that nearly has the shape a dialect knows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)

ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        st.lists(below, max_size=4), st.dictionaries(st.text(max_size=6), below, max_size=4)
    ),
    max_leaves=12,
)


def odd_json(*words: str) -> st.SearchStrategy[Any]:
    """Return a strategy of values whose keys and strings are mostly `words`, in any arrangement."""
    word = st.sampled_from(words)
    return st.recursive(
        st.one_of(SCALARS, word),
        lambda below: st.one_of(
            st.lists(below, max_size=4), st.dictionaries(word, below, max_size=6)
        ),
        max_leaves=20,
    )
