"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "forebay",
    # A busy machine is slow, and what an example does is no more wrong for it.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # In CI a change fails for what it changed; chance finds more on the machines of people.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("forebay")
