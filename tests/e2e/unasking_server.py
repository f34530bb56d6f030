"""`forebay`, but it asks replicas for nothing: it learns of one that is gone by requests alone."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from ext_proc.adapters.replicas import FollowedReplicas
from ext_proc.cli import main

NEVER_S = 3_600.0

if __name__ == "__main__":
    unasking = partial(FollowedReplicas, period_s=NEVER_S, probing_s=NEVER_S)
    with patch("ext_proc.app.FollowedReplicas", unasking):
        sys.exit(main())
