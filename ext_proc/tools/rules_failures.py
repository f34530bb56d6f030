"""What an Envoy bootstrap must look like for failures of models to be borne.

Each rule yields the problems it finds; Envoy's behaviour behind a rule was measured on 1.40.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ext_proc.config import Settings
from ext_proc.tools.bootstrap import Bootstrap, Cluster, Part
from ext_proc.yaml_file import Problem, found

ENVOYS_IDLE_S: Final = 300.0  # where no stream_idle_timeout is set
LEAST_TRY_S: Final = 1.0  # a first token is not late before that
SAFE: Final = (
    "connect-failure",
    "refused-stream",
    "reset-before-request",
    "retriable-status-codes",
)
"""Conditions under which no model has begun to work on a prompt."""
SAFE_STATUSES: Final = (429, 503)
ENVOYS_EJECTION: Final = 10  # percent
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)s")


def replies_have_time(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look for limits that cut whole answers, and for those that do nothing."""
    for gateway in seen.gateways:
        for route in gateway.routes:
            action = route.part.get("route")
            if route.profile not in settings.profiles or not action:
                continue
            timeout = action.get("timeout")
            if not timeout:
                message = "expected one, 0s for none: Envoy ends every reply after 15 s, got none"
                yield action.problem(f"{route.path}.timeout", message)
                continue
            most_s = _seconds(timeout)
            idle = action.get("idle_timeout") or gateway.manager.get("stream_idle_timeout")
            idle_s = _seconds(idle, ENVOYS_IDLE_S)
            if 0 < idle_s < most_s:
                got = f'"{idle.text}"' if idle else "none (300s by default)"
                message = (
                    f"expected no less than timeout, {timeout.text}: until a whole answer comes "
                    f"there is silence, got {got}"
                )
                yield (idle or action).problem(f"{route.path}.idle_timeout", message, warning=True)
            yield from _tries_have_time(action.get("retry_policy"), most_s, route.path)


def _tries_have_time(policy: Part, most_s: float, path: str) -> Iterator[Problem]:
    for name in ("per_try_timeout", "per_try_idle_timeout"):
        limit = policy.get(name)
        if not limit:
            continue
        where = f"{path}.retry_policy.{name}"
        if 0 < most_s <= _seconds(limit):
            message = f'expected less than timeout, or it does nothing, got "{limit.text}"'
            yield limit.problem(where, message)
        elif _seconds(limit) < LEAST_TRY_S:
            message = f'expected at least 1s, or prompts of some length fail, got "{limit.text}"'
            yield limit.problem(where, message, warning=True)


def retries_are_safe(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look for retries of what a model may have worked on, and for those that are not made."""
    for gateway in seen.gateways:
        for route in gateway.routes:
            action = route.part.get("route")
            policy = action.get("retry_policy")
            if route.profile not in settings.profiles or not policy:
                continue
            path = f"{route.path}.retry_policy"
            conditions = policy.get("retry_on")
            named = [word.strip() for word in conditions.text.split(",") if word.strip()]
            if unsafe := [word for word in named if word not in SAFE]:
                message = (
                    f"expected some of {', '.join(SAFE)}: what a model has begun to work on is "
                    f"paid for twice, got {', '.join(unsafe)}"
                )
                yield conditions.problem(f"{path}.retry_on", message)
            statuses = policy.get("retriable_status_codes")
            for status in statuses if "retriable-status-codes" in named else ():
                if status.value not in SAFE_STATUSES:
                    message = f"expected 429 or 503, for the same reason, got {found(status.value)}"
                    yield status.problem(f"{path}.retriable_status_codes", message)
            if named and policy.get("num_retries").value != 0:
                yield from _retries_are_made(seen, settings, action)


def _retries_are_made(seen: Bootstrap, settings: Settings, action: Part) -> Iterator[Problem]:
    name = action.get("cluster").text
    for each in [name] if name else sorted(pool.cluster for pool in settings.pools.values()):
        cluster = seen.clusters.get(each)
        if cluster is None:
            continue
        breakers = cluster.part.get("circuit_breakers")
        limits = [*breakers.get("thresholds")]
        if not any(limit.get("retry_budget") or limit.get("max_retries") for limit in limits):
            path = f"clusters.{each}.circuit_breakers"
            message = (
                "expected retry_budget or max_retries, for routes try again and Envoy allows "
                "three at once, got neither"
            )
            yield (breakers or cluster.part).problem(path, message, warning=True)


def ejection_does_good(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look for outlier detection that ejects nobody, or those who are well."""
    for name in sorted(settings.clusters & seen.clusters.keys()):
        detection = seen.clusters[name].part.get("outlier_detection")
        if detection:
            yield from _good_ejection(seen.clusters[name], detection)


def _good_ejection(cluster: Cluster, detection: Part) -> Iterator[Problem]:
    path = f"clusters.{cluster.name}.outlier_detection"
    hosts = len(cluster.addresses())
    share = detection.get("max_ejection_percent")
    percent = share.value if isinstance(share.value, int) else ENVOYS_EJECTION
    one = detection.get("always_eject_one_host").value is True
    fixed = cluster.part.get("type").text in ("", "STATIC")
    if fixed and hosts == 1:
        message = "expected several addresses, for the only one is asked in any case, got 1"
        yield detection.problem(path, message, warning=True)
    elif fixed and hosts * percent < 100 and not one:
        got = "nothing (10 by default)" if not share else found(share.value)
        message = (
            f"expected at least {-(-100 // max(1, hosts))}, one of {hosts} addresses, got {got}"
        )
        yield (share or detection).problem(f"{path}.max_ejection_percent", message, warning=True)
    enforced = detection.get("enforcing_consecutive_5xx")
    if enforced.value != 0:
        got = "nothing (100 by default)" if not enforced else found(enforced.value)
        message = f"expected 0, for a 5xx often speaks of a prompt, got {got}"
        yield (enforced or detection).problem(
            f"{path}.enforcing_consecutive_5xx", message, warning=True
        )


def _seconds(part: Part, otherwise: float = 0.0) -> float:
    match = _SECONDS.fullmatch(part.text)
    return float(match[1]) if match else otherwise


FAILURE_RULES: Final = (replies_have_time, retries_are_safe, ejection_does_good)
