"""Show what happened: one log line, one count and at most one span for each exchange."""

from ext_proc.telemetry.telemetry import Telemetry

__all__ = ["Telemetry"]
