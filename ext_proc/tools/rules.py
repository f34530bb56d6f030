"""What an Envoy bootstrap must look like for the profiles in it to work.

Each rule yields the problems it finds; Envoy's behaviour behind a rule was measured on 1.40.0.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessorRouteCacheAction as RouteCacheAction,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeBodySendMode as BodyMode,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeHeaderSendMode as HeaderMode,
)

from ext_proc.codec import ENDPOINTS_KEY, LB_NAMESPACE
from ext_proc.config import (
    ProfileSettings,
    Settings,
    is_loopback,
    parse_host_port,
    parse_listen,
    pools_of,
)
from ext_proc.session import CREDENTIALS as WHO_ASKS
from ext_proc.settings_reader import clusters_in, not_among
from ext_proc.tools.bootstrap import Bootstrap, Gateway, Listener, Mode, Part, Route
from ext_proc.tools.rules_failures import FAILURE_RULES
from ext_proc.yaml_file import Problem, found
from filters.admit import AdmitConfig
from filters.api import Filter
from filters.cache_rules import VARIANT_HEADERS
from filters.classify import ClassifyFilter
from filters.gather import GatherFilter
from filters.pick import PickFilter
from filters.pipeline import SPARE_S, patience_s, waits_s
from filters.route import RouteFilter
from filters.units import Duration, Size

LEAST_REQUESTS: Final = 10_000  # with the default, 1,024, 1,500 slow replies gave 476 errors
LEAST_BODY: Final = Size("8MiB")  # images travel inside the JSON
DEFAULT_BODY: Final = Size("1MiB")  # Envoy's
ENVOYS_TIMEOUT: Final = datetime.timedelta(milliseconds=200)  # where none is set
LEAST_TIMEOUT: Final = Duration("50ms")  # less than a busy moment of the server
MOST_TIMEOUT: Final = Duration("10s")  # what a stuck server then costs each request

CLUSTER_HEADER: Final = "x-forebay-cluster"
# Headers that Forebay sets and Envoy acts on or shows: a client may not.
INTERNAL_HEADERS: Final = (
    CLUSTER_HEADER,
    "x-forebay-profile",
    "x-forebay-intent",
    "x-forebay-shards",
    "x-forebay-review",
    "x-model-quality",
    "x-cache",
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
)
TOLD_HEADERS: Final = (
    "x-cache",
    "cache-status",
    "age",
    "x-model-quality",
    "x-forebay-profile",
    "server-timing",
)
CREDENTIALS: Final = ("authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie")
# What Forebay reads: without the path it does nothing, without who asks all would be one tenant.
READ_HEADERS: Final = (
    *(":method", ":path", ":status", "content-type", "content-encoding", "cache-control"),
    *WHO_ASKS,
    *VARIANT_HEADERS,
)
_OVERRIDE_HOST: Final = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_WITH_QUERY: Final = re.compile(r"%PATH(?:\((?!NQ)[^)]*\))?(?::\d+)?%")
_OPERATOR: Final = re.compile(r"%(?:REQ|REQUEST_HEADER)\(([^)]*)\)(?::\d+)?%")
_CLOSED: Final = ", which works and does not fail open"
_NO_QUERY: Final = "expected the path as %PATH(NQ)%, for a query may hold keys"

Rule = Callable[[Bootstrap, Settings], Iterator[Problem]]


def find_problems(bootstrap: Bootstrap, settings: Settings) -> list[Problem]:
    """Return what every rule finds, each problem once."""
    bootstrap = _with_picker(_without_strangers(bootstrap, settings), settings)
    found_once: dict[Problem, None] = dict.fromkeys(bootstrap.misnamed)
    for rule in RULES:
        found_once.update(dict.fromkeys(rule(bootstrap, settings)))
    return list(found_once)


def _without_strangers(seen: Bootstrap, settings: Settings) -> Bootstrap:
    """Leave out ext_proc filters that call somebody else, as long as one calls Forebay."""
    listen = parse_listen(settings.server.listen)
    ours = [
        gateway
        for gateway in seen.gateways
        if any(route.profile for route in gateway.routes)
        or (
            gateway.cluster in seen.clusters
            and any(_same_address(listen, at) for at in seen.clusters[gateway.cluster].addresses())
        )
    ]
    return replace(seen, gateways=ours or seen.gateways)


def _with_picker(seen: Bootstrap, settings: Settings) -> Bootstrap:
    """Give routes that name no profile the one that Forebay has for them."""
    profile = settings.picker.profile
    if not profile:
        return seen
    gateways = [
        replace(
            gateway,
            routes=tuple(
                route
                if route.profile or route.disabled
                else replace(route, profile=profile, picker=True)
                for route in gateway.routes
            ),
        )
        for gateway in seen.gateways
    ]
    return replace(seen, gateways=gateways)


def count_routes(bootstrap: Bootstrap) -> int:
    """Return how many routes were looked at."""
    return sum(len(gateway.routes) for gateway in bootstrap.gateways)


# --- Names ---------------------------------------------------------------------------------------


def _pools_have_clusters(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for name, pool in settings.pools.items():
        if pool.cluster not in seen.clusters:
            place = _block(seen).get("pools", name, "cluster")
            message = not_among("a cluster", pool.cluster, seen.clusters)
            yield place.problem(f"forebay.pools.{name}.cluster", message)


def _pools_are_chosen(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look whether some profile chooses pools by what they serve, and knows what that is."""
    kinds = [{kind.name for kind, _ in one.filters} for one in settings.profiles.values()]
    for name, pool in settings.pools.items():
        if pool.serves is None:
            continue
        needed = {RouteFilter.name}
        if pool.serves.intents or pool.serves.domains:
            needed.add(ClassifyFilter.name)
        if not any(needed <= filters for filters in kinds):
            place = _block(seen).get("pools", name, "serves")
            message = f"expected a profile with {' and '.join(sorted(needed))}, got none"
            yield place.problem(f"forebay.pools.{name}.serves", message, warning=True)


def _picks_are_heard(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look whether Envoy goes where `pick` sends a request; by default it would not."""
    picking = [
        profile
        for profile in settings.profiles.values()
        if any(kind is PickFilter for kind, _ in profile.filters)
    ]
    reached: set[str] = set()
    for profile in picking:
        pools = pools_of(profile, settings.pools)
        reached |= pools
        # An inherited filter is the base's to say.
        place = _block(seen).get("profiles", profile.name, PickFilter.name)
        if place and all(settings.pools[name].replicas is None for name in pools):
            message = f"expected `replicas` of pool {profile.pool}, or Envoy picks, got none"
            path = f"forebay.profiles.{profile.name}.{PickFilter.name}"
            yield place.problem(path, message, warning=True)
    for name, pool in settings.pools.items():
        cluster = seen.clusters.get(pool.cluster)
        if pool.replicas is None or name not in reached or cluster is None or not seen.gateways:
            continue  # another gateway has a file of its own
        policies = cluster.part.get("load_balancing_policy", "policies")
        configs = [each.get("typed_extension_config", "typed_config") for each in policies]
        path = f"clusters.{pool.cluster}.load_balancing_policy"
        place = cluster.part.get("load_balancing_policy")
        first = next(iter(configs), None)
        if first is None or first.type != _OVERRIDE_HOST:
            got = "nothing" if first is None else first.type.rpartition(".")[2]
            message = f"expected OverrideHost for the replicas of pool {name}, got {got}"
            yield place.problem(path, message)
        elif not any(_reads_picks(source) for source in first.get("override_host_sources")):
            message = f'expected metadata "{LB_NAMESPACE}" and path "{ENDPOINTS_KEY}", got others'
            sources = first.get("override_host_sources")
            yield sources.problem(f"{path}.override_host_sources", message)


def _reads_picks(source: Part) -> bool:
    metadata = source.get("metadata")
    path = [step.get("key").text for step in metadata.get("path")]
    return metadata.get("key").text == LB_NAMESPACE and path == [ENDPOINTS_KEY]


def _profiles_have_routes(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    named = {route.profile for gateway in seen.gateways for route in gateway.routes}
    if not seen.gateways:
        return
    for name in settings.profiles:
        if name not in named:
            place = _block(seen).get("profiles", name)
            message = "expected a route that names it, got none"
            yield place.problem(f"forebay.profiles.{name}", message, warning=True)


def _routes_have_profiles(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for gateway in seen.gateways:
        for route in gateway.routes:
            if route.profile and route.profile not in settings.profiles:
                message = not_among("a profile", route.profile, settings.profiles)
                yield route.part.problem(f"{route.path}.x-forebay-profile", message)


# --- The way to Forebay --------------------------------------------------------------------------


def _envoy_calls_forebay(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    if not seen.gateways:
        if not seen.unread and not settings.picker.profile:  # which is another gateway's
            place = seen.root.get("static_resources", "listeners")
            message = "expected an ext_proc filter that calls Forebay, got none"
            yield place.problem("static_resources.listeners", message)
        return
    for gateway in seen.gateways:
        service = gateway.filter.get("grpc_service")
        path = f"{gateway.name}.ext_proc.grpc_service"
        if gateway.cluster not in seen.clusters:
            message = not_among("a cluster", gateway.cluster, seen.clusters)
            yield service.problem(path, message)
        if (timeout := service.get("timeout")) and gateway.message.grpc_service:
            message = "expected none, for it would end an exchange whose reply still runs"
            yield timeout.problem(f"{path}.timeout", f"{message}, got {found(timeout.value)}")
    for name in {gateway.cluster: None for gateway in seen.gateways}:
        if name in seen.clusters:
            yield from _good_cluster(seen, settings, name)


def _good_cluster(seen: Bootstrap, settings: Settings, name: str) -> Iterator[Problem]:
    cluster = seen.clusters[name]
    path = f"clusters.{name}"
    listen = parse_listen(settings.server.listen)
    if not any(_same_address(listen, address) for address in cluster.addresses()):
        got = ", ".join(f'"{_written(address)}"' for address in cluster.addresses()) or "none"
        message = (
            f'expected the address in forebay.server.listen, "{settings.server.listen}", got {got}'
        )
        yield cluster.part.get("load_assignment").problem(f"{path}.load_assignment", message)
    socket = cluster.part.get("transport_socket")
    tls = socket.get("typed_config").type == _TLS
    if tls != (settings.server.tls is not None):
        wanted, got = ("TLS", "none") if not tls else ("none", "TLS")
        message = f"expected {wanted}, as forebay.server.tls has it, got {got}"
        yield socket.problem(f"{path}.transport_socket", message)
    options = cluster.part.get("typed_extension_protocol_options").get(_HTTP_OPTIONS)
    plain = options.get("explicit_http_config", "http2_protocol_options")
    if not plain and not cluster.part.get("http2_protocol_options"):
        message = "expected http2_protocol_options, which gRPC needs, got none"
        yield options.problem(f"{path}.typed_extension_protocol_options", message)
    thresholds = list(cluster.part.get("circuit_breakers", "thresholds"))
    default = [part for part in thresholds if part.get("priority").value in (None, "DEFAULT", 0)]
    breakers = default[0] if default else cluster.part.get("circuit_breakers")
    for limit in ("max_requests", "max_pending_requests"):
        value = breakers.get(limit).value
        if not isinstance(value, int) or value < LEAST_REQUESTS:
            got = "nothing (1024 by default)" if value is None else found(value)
            message = f"expected at least {LEAST_REQUESTS}, got {got}"
            yield breakers.get(limit).problem(f"{path}.circuit_breakers.{limit}", message)


def _admin_agrees(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    cluster = seen.clusters.get("forebay_admin")
    if cluster is None:
        return
    admin = parse_host_port(settings.server.admin)
    if not any(_same_address(admin, address) for address in cluster.addresses()):
        got = ", ".join(f'"{_written(address)}"' for address in cluster.addresses()) or "none"
        message = (
            f'expected the address in forebay.server.admin, "{settings.server.admin}", got {got}'
        )
        yield cluster.part.get("load_assignment").problem(
            "clusters.forebay_admin.load_assignment", message
        )


# --- The filter ----------------------------------------------------------------------------------


def _filter_is_able(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    del settings
    for gateway in seen.gateways:
        message, part = gateway.message, gateway.filter
        path = f"{gateway.name}.ext_proc"
        if not message.allow_mode_override and not _all_in_duplex(gateway):
            place = part.get("allow_mode_override")
            yield place.problem(f"{path}.allow_mode_override", "expected true, got false")
        for name in (
            "disable_immediate_response",
            "observability_mode",
            "disable_clear_route_cache",
        ):
            if getattr(message, name):
                yield part.get(name).problem(f"{path}.{name}", "expected false, got true")
        if message.route_cache_action == RouteCacheAction.RETAIN:
            place = part.get("route_cache_action")
            yield place.problem(f"{path}.route_cache_action", "expected DEFAULT, got RETAIN")
        if message.allowed_override_modes:
            place = part.get("allowed_override_modes")
            wanted = "expected none, for they would refuse what Forebay asks for"
            yield place.problem(f"{path}.allowed_override_modes", f"{wanted}, got some")
        if not part.get("failure_mode_allow"):
            wanted = "expected true (without Forebay, requests pass) or false (they fail)"
            yield part.get("failure_mode_allow").problem(
                f"{path}.failure_mode_allow", f"{wanted}, got nothing"
            )
        yield from _good_timeouts(gateway)


def _all_in_duplex(gateway: Gateway) -> bool:
    """Tell whether every body comes in full duplex, where Forebay has no say in how it does."""
    modes = [route.mode.value for route in gateway.routes if route.profile]
    return bool(modes) and all(
        mode.request_body_mode == mode.response_body_mode == BodyMode.FULL_DUPLEX_STREAMED
        for mode in modes
    )


def _good_timeouts(gateway: Gateway) -> Iterator[Problem]:
    message, part, path = gateway.message, gateway.filter, f"{gateway.name}.ext_proc"
    timeout = message.message_timeout
    if timeout is not None:
        seconds = Duration(timeout.total_seconds())
        if not LEAST_TIMEOUT <= seconds <= MOST_TIMEOUT:
            text = f"expected from {LEAST_TIMEOUT} to {MOST_TIMEOUT}, got {seconds}"
            yield part.get("message_timeout").problem(f"{path}.message_timeout", text, warning=True)
    most = message.max_message_timeout
    if most is not None and most < (timeout or ENVOYS_TIMEOUT):
        text = f"expected no less than message_timeout, got {Duration(most.total_seconds())}"
        yield part.get("max_message_timeout").problem(f"{path}.max_message_timeout", text)


def _waits_are_allowed(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Hold the filters' waits against what Envoy lets Forebay ask for."""
    for gateway in seen.gateways:
        named = {
            route.profile: None
            for route in gateway.routes
            if route.profile and not route.duplex  # in full duplex Envoy waits without end
        }
        waiting = [settings.profiles[name] for name in named if name in settings.profiles]
        if not waiting:
            continue
        longest = max(waiting, key=lambda profile: waits_s(profile.filters))
        message, part = gateway.message, gateway.filter
        least, name = patience_s(longest.filters), "max_message_timeout"
        of = f"the waits of profile {longest.name} and {Duration(SPARE_S)}"
        allowed = message.max_message_timeout
        if not least:  # too short to ask for more than every message has
            least, name = waits_s(longest.filters), "message_timeout"
            of = f"the waits of profile {longest.name}"
            allowed = message.message_timeout or ENVOYS_TIMEOUT
        if least > (allowed.total_seconds() if allowed else 0):
            got = Duration(allowed.total_seconds()) if allowed else "nothing"
            text = f"expected at least {Duration(least)}, {of}, got {got}"
            yield part.get(name).problem(f"{gateway.name}.ext_proc.{name}", text)


def _headers_arrive(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Hold what Envoy keeps from Forebay against what Forebay reads."""
    profiles = settings.profiles.values()
    configs = [config for profile in profiles for _, config in profile.filters]
    named = {config.header for config in configs if isinstance(config, AdmitConfig)}
    wanted = (*READ_HEADERS, *sorted((named | {settings.tenant.header}) - {""}))
    for gateway in seen.gateways:
        rules = gateway.filter.get("forward_rules")
        for name, keeps in (("allowed_headers", False), ("disallowed_headers", True)):
            listed = rules.get(name)
            if not listed:
                continue
            patterns = [*listed.get("patterns")]
            missing = [
                header
                for header in wanted
                if any(_matches(pattern, header) for pattern in patterns) is keeps
            ]
            if missing:
                path = f"{gateway.name}.ext_proc.forward_rules.{name}"
                message = f"expected Forebay to be told {', '.join(missing)}, which this keeps away"
                yield listed.problem(path, message)


def _metadata_arrives(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for gateway in seen.gateways:
        for route in gateway.routes:
            wanted = {"envoy.lb"} if route.picker else {"envoy.lb", "forebay"}
            missing = wanted - route.namespaces
            profile = settings.profiles.get(route.profile)
            if missing and profile and profile.filters:
                place = gateway.filter.get("metadata_options")
                both = " and ".join(sorted(wanted))
                message = f"expected {both}, got no {' and no '.join(sorted(missing))}"
                path = f"{gateway.name}.ext_proc.metadata_options.receiving_namespaces.untyped"
                yield place.problem(path, message)


def _modes_fit(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Collect what the routes of all profiles need, so that one wrong mode is one problem."""
    needed: dict[tuple[int | str, str, str, str, bool], list[str]] = {}
    modes: dict[int | str, Mode] = {}
    for gateway in seen.gateways:
        for route in gateway.routes:
            profile = settings.profiles.get(route.profile)
            if profile is None or not profile.filters:
                continue
            for name, expected, got, warning in _wrong_modes(route, profile):
                mode = route.mode
                left_out = mode.replaces and not mode.part.get(name)
                why = ", for a route's processing_mode replaces the filter's as a whole"
                # An alias has the very value of its anchor, and is the same problem.
                where = id(mode.part.value) if mode.part else mode.path
                modes.setdefault(where, mode)
                what = (where, name, expected, got + why if left_out else got, warning)
                profiles = needed.setdefault(what, [])
                if route.profile not in profiles:
                    profiles.append(route.profile)
    for (where, name, expected, got, warning), profiles in needed.items():
        whose = f"profile{'s' if len(profiles) > 1 else ''} {', '.join(profiles)}"
        message = f"expected {expected} for {whose}, got {got}"
        path = f"{modes[where].path}.{name}"
        yield modes[where].part.get(name).problem(path, message, warning=warning)


def _wrong_modes(route: Route, profile: ProfileSettings) -> Iterator[tuple[str, str, str, bool]]:
    """Yield mode, what was expected, what was found, and whether it works all the same."""
    mode = route.mode.value
    kinds = [kind for kind, _ in profile.filters]
    if mode.request_header_mode == HeaderMode.SKIP:
        yield "request_header_mode", "SEND", "SKIP", False
    # In full duplex nothing fails open, which gateways that have replicas picked put up with.
    if mode.request_body_mode != BodyMode.BUFFERED and not (route.picker and route.duplex):
        got = _name(mode.request_body_mode) + (_CLOSED if route.duplex else "")
        yield "request_body_mode", "BUFFERED", got, route.duplex
    hooks = ("on_response", "on_delta", "on_finish")
    wants_reply = any(
        getattr(kind, hook) is not getattr(Filter, hook) for kind in kinds for hook in hooks
    )
    if wants_reply and mode.response_header_mode == HeaderMode.SKIP:
        yield "response_header_mode", "SEND", "SKIP", False
    # Forebay asks for bodies as the reply begins, also where a filter edits them. What Envoy sends
    # by itself in full duplex is given back piece by piece, wanted or not.
    if mode.response_body_mode != BodyMode.NONE:
        duplex = mode.response_body_mode == BodyMode.FULL_DUPLEX_STREAMED
        if not (route.picker and duplex):
            got = _name(mode.response_body_mode) + (_CLOSED if duplex else "")
            yield "response_body_mode", "NONE", got, duplex


# --- Routes --------------------------------------------------------------------------------------


def _pools_have_ways(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Hold each profile's plain route against its pool, and look for the one before it."""
    for gateway in seen.gateways:
        for index, route in enumerate(gateway.routes):
            profile = settings.profiles.get(route.profile)
            if profile is None:
                continue
            if route.chosen:
                yield from _good_chosen(gateway, index)
                continue
            cluster = settings.pools[profile.pool].cluster
            if cluster in seen.clusters:  # else the pool is wrong, and every route would be
                yield from _good_plain(route, cluster, profile)
            if not route.picker and len(pools_of(profile, settings.pools)) > 1:
                yield from _chosen_before(gateway, index)


def _good_plain(route: Route, cluster: str, profile: ProfileSettings) -> Iterator[Problem]:
    action = route.part.get("route")
    weighted = action.get("weighted_clusters", "clusters")
    clusters = [action.get("cluster").text, *(part.get("name").text for part in weighted)]
    if cluster not in clusters:
        got = ", ".join(f'"{name}"' for name in clusters if name) or "none"
        message = f'expected "{cluster}", the cluster of pool {profile.pool}, got {got}'
        yield action.get("cluster").problem(f"{route.path}.route.cluster", message)


def _good_chosen(gateway: Gateway, index: int) -> Iterator[Problem]:
    route = gateway.routes[index]
    header = route.part.get("route", "cluster_header")
    if header.text != CLUSTER_HEADER:
        message = f'expected "{CLUSTER_HEADER}", got {found(header.value)}'
        yield header.problem(f"{route.path}.route.cluster_header", message)
    yield from _header_removed(route.path, route.levels)


def _header_removed(path: str, levels: Sequence[Part]) -> Iterator[Problem]:
    removed = [
        name
        for level in levels
        for part in level.get("request_headers_to_remove")
        if (name := part.text.lower())
    ]
    if CLUSTER_HEADER not in removed:
        message = f'expected "{CLUSTER_HEADER}", or the upstream sees it, got none'
        yield levels[-1].problem(f"{path}.request_headers_to_remove", message)


def _chosen_before(gateway: Gateway, index: int) -> Iterator[Problem]:
    route = gateway.routes[index]
    twins = [
        other
        for other, candidate in enumerate(gateway.routes)
        if candidate.chosen
        and candidate.levels[:-1] == route.levels[:-1]
        and candidate.match() == route.match()
    ]
    if not twins:
        message = "expected a route before it, matched on x-forebay-cluster as well, got none"
        yield route.part.problem(route.path, message)
        return
    twin = gateway.routes[twins[0]]
    if twins[0] > index:
        message = f"expected it before {route.path}, which takes its requests, got it behind"
        yield twin.part.problem(twin.path, message)
    if twin.profile != route.profile:
        got = f'"{twin.profile}"' if twin.profile else "none"
        message = f'expected "{route.profile}", as in {route.path}, got {got}'
        yield twin.part.problem(f"{twin.path}.x-forebay-profile", message)


def _no_route_is_shadowed(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for gateway in seen.gateways:
        for index, route in enumerate(gateway.routes):
            profile = route.profile in settings.profiles
            prefix = route.part.get("match", "prefix").text or route.part.get("match", "path").text
            if not profile or not prefix or route.chosen:
                continue
            for before in gateway.routes[:index]:
                match = before.part.get("match").value
                same_host = before.levels[:-1] == route.levels[:-1]
                if same_host and isinstance(match, dict) and match.keys() == {"prefix"}:
                    taken = str(match["prefix"])
                    if prefix.startswith(taken):
                        message = (
                            f'expected it before {before.path}, whose prefix "{taken}" takes its '
                            f"requests, got it behind"
                        )
                        yield route.part.problem(route.path, message)
                        break


# --- Forebay's own questions ---------------------------------------------------------------------


def _asked_clusters_exist(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for profile in settings.profiles.values():
        for kind, config in profile.filters:
            for key, cluster in clusters_in(config):
                # An inherited setting is the base's to say.
                place = _block(seen).get("profiles", profile.name, kind.name, *key.split("."))
                if place and cluster not in seen.clusters:
                    path = f"forebay.profiles.{profile.name}.{kind.name}.{key}"
                    yield place.problem(path, not_among("a cluster", cluster, seen.clusters))


def _egress_is_there(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look for the way by which Forebay asks models, where some filter does."""
    asking = [
        f"profiles.{profile.name}.{kind.name}"
        for profile in settings.profiles.values()
        for kind, config in profile.filters
        if clusters_in(config)
    ]
    # What these ask is what clients ask.
    again = [f"pools.{name}.stage" for name, pool in settings.pools.items() if pool.stage]
    again += [
        f"profiles.{profile.name}.{kind.name}"
        for profile in settings.profiles.values()
        for kind, _ in profile.filters
        if kind is GatherFilter
    ]
    asking += again
    if not asking:
        return
    egress = parse_listen(settings.server.egress)
    found_here = [
        listener
        for listener in seen.listeners
        if listener.address is not None and _same_address(listener.address, egress)
    ]
    if not found_here:
        place = seen.root.get("static_resources", "listeners")
        message = (
            f'expected one at the address in forebay.server.egress, "{settings.server.egress}", '
            f"by which {asking[0]} asks, got none"
        )
        yield place.problem("static_resources.listeners", message)
    for listener in found_here:
        yield from _good_egress(listener)
        if again:
            yield from _egress_takes_all(listener, again[0])


def _egress_takes_all(listener: Listener, who: str) -> Iterator[Problem]:
    """Look for a route that takes whatever clients ask, for `who` asks the same."""
    routes = [
        (path, levels[-1])
        for path, levels in listener.routes()
        if levels[-1].get("route", "cluster_header").text == CLUSTER_HEADER
    ]
    if routes and all(part.get("match", "prefix").text != "/" for _, part in routes):
        path, part = routes[-1]
        message = f'expected prefix "/", for {who} asks what clients ask, got another match'
        yield part.get("match").problem(f"{path}.match", message)


def _egress_is_private(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    """Look for listeners on which any caller may name the cluster, whether a filter asks or not."""
    del settings
    for listener in seen.listeners:
        at = listener.address
        if not _ours(seen, listener) or not isinstance(at, tuple) or is_loopback(at[0]):
            continue
        stripped = all(_strips(manager, CLUSTER_HEADER) for manager in listener.managers)
        if not stripped and not listener.ext_procs():
            message = "expected a socket or a loopback address, for who calls may name any cluster"
            place = listener.part.get("address")
            yield place.problem(f"{listener.name}.address", f'{message}, got "{_written(at)}"')


def _good_egress(listener: Listener) -> Iterator[Problem]:
    for ext_proc in listener.ext_procs():
        message = "expected no ext_proc filter, for Forebay would be asked what it asks, got one"
        yield ext_proc.problem(f"{listener.name}.http_filters", message)
    for manager in listener.managers:
        if _strips(manager, CLUSTER_HEADER):
            extensions = manager.get("early_header_mutation_extensions")
            path = f"{listener.name}.early_header_mutation_extensions"
            message = f"expected {CLUSTER_HEADER} to reach the routes, got its removal"
            yield extensions.problem(path, message)
    routes = [
        (path, levels)
        for path, levels in listener.routes()
        if levels[-1].get("route", "cluster_header").text == CLUSTER_HEADER
    ]
    if not routes:
        message = f"expected one with cluster_header: {CLUSTER_HEADER}, got none"
        yield listener.part.problem(f"{listener.name}.routes", message)
    for path, levels in routes:
        yield from _header_removed(path, levels)


# --- Trust ---------------------------------------------------------------------------------------


def _internal_headers_are_stripped(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    for gateway in seen.gateways:
        extensions = gateway.manager.get("early_header_mutation_extensions")
        path = f"{gateway.name}.early_header_mutation_extensions"
        removers = [
            mutation
            for extension in extensions
            for mutation in extension.get("typed_config", "mutations")
        ]
        kept = [
            name
            for name in INTERNAL_HEADERS
            if not any(_removes(mutation, name) for mutation in removers)
        ]
        if kept:
            message = f"expected every internal header removed, got no removal of {', '.join(kept)}"
            yield extensions.problem(path, message)
        tenant = settings.tenant.header
        if tenant and any(_removes(mutation, tenant) for mutation in removers):
            place = _block(seen).get("tenant", "header")
            message = f'expected a header that reaches Forebay, got "{tenant}", removed by {path}'
            yield place.problem("forebay.tenant.header", message)


def _strips(manager: Part, name: str) -> bool:
    """Tell whether a header is taken off every request before routes are looked at."""
    extensions = manager.get("early_header_mutation_extensions")
    mutations = (one for each in extensions for one in each.get("typed_config", "mutations"))
    return any(_removes(mutation, name) for mutation in mutations)


def _removes(mutation: Part, name: str) -> bool:
    if mutation.get("remove").text.lower() == name:
        return True
    return _matches(mutation.get("remove_on_match", "key_matcher"), name)


def _matches(matcher: Part, name: str) -> bool:
    """Tell whether an Envoy StringMatcher takes a header's name."""
    value = matcher.value if isinstance(matcher.value, dict) else {}
    tests: dict[str, Callable[[str], bool]] = {
        "exact": lambda text: name == text,
        "prefix": name.startswith,
        "suffix": name.endswith,
        "contains": lambda text: text in name,
    }
    if any(key in value and test(str(value[key]).lower()) for key, test in tests.items()):
        return True
    regex = matcher.get("safe_regex", "regex").text
    try:
        return bool(regex) and re.fullmatch(regex, name) is not None
    except re.error:  # RE2 knows forms that this engine does not
        return False


def _nothing_is_exposed(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    del settings
    address = seen.root.get("admin", "address", "socket_address", "address")
    if address and not is_loopback(address.text):
        message = f"expected a loopback address, for it can stop Envoy, got {found(address.value)}"
        yield address.problem("admin.address", message)
    for listener in seen.listeners:
        if not _ours(seen, listener):
            continue
        logs = [log for manager in listener.managers for log in manager.get("access_log")]
        for log in (*logs, *listener.part.get("access_log")):
            yield from _discreet(log.get("typed_config"), f"{listener.name}.access_log")


def _ours(seen: Bootstrap, listener: Listener) -> bool:
    """Tell a listener that calls Forebay, or that Forebay may call, from all others."""
    if any(gateway.listener.place == listener.part.place for gateway in seen.gateways):
        return True
    headers = (levels[-1].get("route", "cluster_header") for _, levels in listener.routes())
    return any(header.text == CLUSTER_HEADER for header in headers)


def _discreet(config: Part, path: str) -> Iterator[Problem]:
    texts = list(_texts(config))
    formats = [part for part in texts if "%" in part.text]
    if not formats and config.type.endswith(
        ("StdoutAccessLog", "StderrAccessLog", "FileAccessLog")
    ):
        yield config.problem(f"{path}.log_format", f"{_NO_QUERY}, got Envoy's own format")
    for part in formats:
        if path_operator := _WITH_QUERY.search(part.text):
            yield part.problem(path, f"{_NO_QUERY}, got {path_operator[0]}")
        for operator in _OPERATOR.finditer(part.text):
            names = [name.lower() for name in operator[1].split("?")]
            if secret := next((name for name in names if name in CREDENTIALS), None):
                yield part.problem(path, f"expected no credential, got {operator[0]} ({secret})")
            if any(name in (":path", "x-envoy-original-path") for name in names):
                yield part.problem(path, f"{_NO_QUERY}, got {operator[0]}")


def _texts(part: Part) -> Iterator[Part]:
    if part.text:
        yield part
    for _, below in part.named():
        yield from _texts(below)
    for below in part:
        yield from _texts(below)


# --- Sizes and replies ---------------------------------------------------------------------------


def _bodies_fit(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    most = settings.server.max_message
    for gateway in seen.gateways:
        for route in gateway.routes:
            profile = settings.profiles.get(route.profile)
            if profile is None or not profile.filters or route.duplex:
                continue
            limit, path, size = _body_limit(gateway, route)
            if size > most:
                message = f"expected no more than forebay.server.max_message, {most}"
                yield limit.problem(path, f"{message}, got {size}")
            elif size < LEAST_BODY:
                message = (
                    f"expected at least {LEAST_BODY}, as images travel inside the JSON, got {size}"
                )
                yield limit.problem(path, message, warning=True)


def _body_limit(gateway: Gateway, route: Route) -> tuple[Part, str, Size]:
    """Return what bounds a request's body, the most specific first."""
    for level in reversed(route.levels):
        for name in ("request_body_buffer_limit", "per_request_buffer_limit_bytes"):
            limit = level.get(name)
            if isinstance(limit.value, int):
                place = route.path if level is route.part else f"{gateway.name}.virtual_hosts"
                return limit, f"{place}.{name}", Size(limit.value)
    limit = gateway.listener.get("per_connection_buffer_limit_bytes")
    size = Size(limit.value) if isinstance(limit.value, int) else DEFAULT_BODY
    return limit, f"{gateway.name}.per_connection_buffer_limit_bytes", size


def _clients_are_told(seen: Bootstrap, settings: Settings) -> Iterator[Problem]:
    del settings
    for gateway in seen.gateways:
        if gateway.routes and all(route.picker or route.disabled for route in gateway.routes):
            continue
        config = gateway.manager.get("route_config")
        levels = {level.place: level for route in gateway.routes for level in route.levels}
        added = [
            part.get("header", "value").text
            for level in levels.values()
            for part in level.get("response_headers_to_add")
        ]
        missing = [
            name
            for name in TOLD_HEADERS
            if not any(f"%DYNAMIC_METADATA(forebay:{name})%" in value for value in added)
        ]
        if missing:
            message = (
                f"expected %DYNAMIC_METADATA(forebay:NAME)% for {', '.join(missing)}, got none"
            )
            path = f"{gateway.name}.response_headers_to_add"
            yield config.problem(path, message, warning=True)


RULES: Final[tuple[Rule, ...]] = (
    _pools_have_clusters,
    _pools_are_chosen,
    _picks_are_heard,
    _routes_have_profiles,
    _profiles_have_routes,
    _envoy_calls_forebay,
    _admin_agrees,
    _filter_is_able,
    _waits_are_allowed,
    _headers_arrive,
    _metadata_arrives,
    _modes_fit,
    _pools_have_ways,
    _no_route_is_shadowed,
    _asked_clusters_exist,
    _egress_is_there,
    _egress_is_private,
    _internal_headers_are_stripped,
    _nothing_is_exposed,
    _bodies_fit,
    _clients_are_told,
    *FAILURE_RULES,
)


def _block(seen: Bootstrap) -> Part:
    return seen.root.get("node", "metadata", "forebay")


def _name(mode: Any) -> str:
    return str(mode.name)


def _written(address: str | tuple[str, int]) -> str:
    return f"unix:{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _same_address(listen: str | tuple[str, int], address: str | tuple[str, int]) -> bool:
    """Tell whether who connects to `address` reaches who listens on `listen`."""
    if isinstance(listen, str) or isinstance(address, str):
        return listen == address
    hosts = {"localhost" if is_loopback(host) else host for host in (listen[0], address[0])}
    everywhere = listen[0] in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return listen[1] == address[1] and (everywhere or len(hosts) == 1)
