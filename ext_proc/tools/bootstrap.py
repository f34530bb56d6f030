"""See in an Envoy bootstrap what concerns Forebay: its ext_proc filter, the routes, the clusters.

The filter's own messages are read through `envoy-data-plane`, which knows their defaults, enums and
types. Everything around them is read as it stands in the YAML: a typed reading of the whole file
takes two seconds, and no longer knows what was written and what was left out.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExtProcPerRoute,
    ProcessingMode,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeBodySendMode as BodyMode,
)

from ext_proc.yaml_file import Place, Problem, YamlFile

PROFILE_KEY: Final = "x-forebay-profile"
_HTTP: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_EXT_PROC: Final = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_PER_ROUTE: Final = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"

MessageT = TypeVar("MessageT", ExternalProcessor, ExtProcPerRoute)


@dataclass(frozen=True, slots=True)
class Part:
    """A value in the file, and where it stands. What is not there is a part without a value."""

    file: YamlFile
    place: Place
    value: Any

    def get(self, *names: str) -> Part:
        """Go down by field names, which protobuf also lets one write in camel case."""
        part = self
        for name in names:
            first, *rest = name.split("_")
            camel = first + "".join(word.capitalize() for word in rest)
            fields = part.value if isinstance(part.value, dict) else {}
            key = camel if camel in fields and name not in fields else name
            part = Part(part.file, (*part.place, key), fields.get(key))
        return part

    def named(self) -> Iterator[tuple[str, Part]]:
        """Go through a mapping."""
        for key, value in self.value.items() if isinstance(self.value, dict) else ():
            yield key, Part(self.file, (*self.place, key), value)

    def __iter__(self) -> Iterator[Part]:
        """Go through a list; whatever is none has no items."""
        for index, value in enumerate(self.value if isinstance(self.value, list) else ()):
            yield Part(self.file, (*self.place, index), value)

    def __bool__(self) -> bool:
        return self.value is not None

    @property
    def text(self) -> str:
        """The value as text; empty when it is none."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def type(self) -> str:
        """The name of the message that a typed config holds."""
        return self.get("@type").text.rpartition("/")[2]

    @property
    def line(self) -> int:
        """The line it stands on, or the nearest thing around it."""
        return self.file.line(self.place)

    def problem(self, path: str, message: str, *, warning: bool = False) -> Problem:
        """Return a problem with this part."""
        return self.file.problem(self.place, path, message, warning=warning)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of `static_resources`."""

    part: Part
    name: str

    def addresses(self) -> list[str | tuple[str, int]]:
        """Return where its endpoints are: a socket's path, or host and port."""
        return [
            address
            for locality in self.part.get("load_assignment", "endpoints")
            for endpoint in locality.get("lb_endpoints")
            if (address := _address(endpoint.get("endpoint", "address")))
        ]


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of `static_resources`."""

    part: Part
    name: str
    managers: tuple[Part, ...]
    """Its HTTP connection managers."""

    @property
    def address(self) -> str | tuple[str, int] | None:
        """Where it listens: a socket's path, or host and port."""
        return _address(self.part.get("address"))

    def ext_procs(self) -> list[Part]:
        """Return its ext_proc filters, whomever they call."""
        return [
            http_filter
            for manager in self.managers
            for http_filter in manager.get("http_filters")
            if http_filter.get("typed_config").type == _EXT_PROC
        ]

    def routes(self) -> list[tuple[str, tuple[Part, ...]]]:
        """Return each route's path in messages, and its configuration, virtual host and itself."""
        return [each for manager in self.managers for each in _route_levels(self.name, manager)]


@dataclass(frozen=True, slots=True)
class Mode:
    """The processing modes in force for a route, and the part that states them."""

    part: Part
    path: str
    value: ProcessingMode
    replaces: bool
    """It is a route's own and replaces the filter's as a whole."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route through the ext_proc filter, its overrides and its virtual host's applied."""

    part: Part
    path: str
    levels: tuple[Part, ...]
    """Route configuration, virtual host, route."""
    profile: str
    """The profile that it names; empty: none."""
    disabled: bool
    mode: Mode
    namespaces: frozenset[str]
    picker: bool = False
    """It names no profile, and has the one of such gateways as have replicas picked."""

    @property
    def duplex(self) -> bool:
        """Whether requests come in full duplex: Envoy waits and holds nothing then."""
        return self.mode.value.request_body_mode == BodyMode.FULL_DUPLEX_STREAMED

    @property
    def chosen(self) -> bool:
        """Whether it is for requests whose cluster Forebay chose."""
        return any(
            header.get("name").text == "x-forebay-cluster"
            for header in self.part.get("match", "headers")
        )

    def match(self) -> dict[str, Any]:
        """Return what it matches, the header of `chosen` apart."""
        written = self.part.get("match").value
        match = dict(written) if isinstance(written, dict) else {}
        headers = [
            header.value
            for header in self.part.get("match", "headers")
            if header.get("name").text != "x-forebay-cluster"
        ]
        match.pop("headers", None)
        return {**match, "headers": headers} if headers else match


@dataclass(frozen=True, slots=True)
class Gateway:
    """An HTTP connection manager with an ext_proc filter that calls Forebay."""

    name: str
    listener: Part
    manager: Part
    filter: Part
    message: ExternalProcessor
    routes: tuple[Route, ...]

    @property
    def cluster(self) -> str:
        """The cluster that the filter calls."""
        service = self.message.grpc_service
        return service.envoy_grpc.cluster_name if service and service.envoy_grpc else ""


@dataclass(slots=True)
class Bootstrap:
    """What was seen in one file."""

    root: Part
    clusters: dict[str, Cluster] = field(default_factory=dict)
    listeners: list[Listener] = field(default_factory=list)
    gateways: list[Gateway] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)
    """What could not be read as the message it should be."""
    misnamed: list[Problem] = field(default_factory=list)
    """Overrides for a filter that is not there: Envoy takes them without a word."""


def read_bootstrap(file: YamlFile) -> Bootstrap:
    """Read what concerns Forebay out of an Envoy bootstrap."""
    seen = Bootstrap(Part(file, (), file.value))
    for part in seen.root.get("static_resources", "clusters"):
        name = part.get("name").text
        seen.clusters[name] = Cluster(part, name)
    for listener in seen.root.get("static_resources", "listeners"):
        chains = [*listener.get("filter_chains"), listener.get("default_filter_chain")]
        managers = tuple(
            manager
            for chain in chains
            for network_filter in chain.get("filters")
            if (manager := network_filter.get("typed_config")).type == _HTTP
        )
        name = listener.get("name").text or "listener"
        seen.listeners.append(Listener(listener, name, managers))
        for manager in managers:
            _read_manager(seen, name, listener, manager)
    return seen


def _address(part: Part) -> str | tuple[str, int] | None:
    socket = part.get("socket_address")
    if pipe := part.get("pipe", "path").text:
        return pipe
    if host := socket.get("address").text:
        port = socket.get("port_value").value
        return host, port if isinstance(port, int) else 0
    return None


def _read_manager(seen: Bootstrap, name: str, listener: Part, manager: Part) -> None:
    http_filters = list(manager.get("http_filters"))
    for http_filter in http_filters:
        config = http_filter.get("typed_config")
        if config.type != _EXT_PROC:
            continue
        message = _typed(ExternalProcessor, config, f"{name}.ext_proc", seen.unread)
        if message is None:
            continue
        filter_name = http_filter.get("name").text
        routes = _read_routes(seen, name, manager, filter_name, config, message)
        seen.gateways.append(Gateway(name, listener, manager, config, message, tuple(routes)))
    if any(http_filter.get("typed_config").type == _EXT_PROC for http_filter in http_filters):
        known = {http_filter.get("name").text for http_filter in http_filters}
        _find_misnamed(seen, name, manager, known)


def _read_routes(
    seen: Bootstrap,
    name: str,
    manager: Part,
    filter_name: str,
    config: Part,
    message: ExternalProcessor,
) -> Iterator[Route]:
    service = message.grpc_service
    everywhere = (
        {header.key: header.value for header in service.initial_metadata} if service else {}
    )
    mode = Mode(
        config.get("processing_mode"),
        f"{name}.ext_proc.processing_mode",
        message.processing_mode or ProcessingMode(),
        replaces=False,
    )
    for path, levels in _route_levels(name, manager):
        metadata = dict(everywhere)
        in_force = mode
        namespaces = _namespaces(message.metadata_options)
        disabled = False
        for level in levels:
            config_here = level.get("typed_per_filter_config").get(filter_name)
            if config_here.type == "envoy.config.route.v3.FilterConfig":
                disabled = bool(config_here.get("disabled").value)
                config_here = config_here.get("config")
            if config_here.type != _PER_ROUTE:
                continue
            override = _typed(ExtProcPerRoute, config_here, f"{path}.ext_proc", seen.unread)
            if override is None:
                continue
            disabled = bool(override.disabled)
            if override.overrides is None:
                continue
            overrides = override.overrides
            metadata.update(
                {header.key: header.value for header in overrides.grpc_initial_metadata}
            )
            if overrides.processing_mode is not None:
                part = config_here.get("overrides", "processing_mode")
                in_force = Mode(
                    part, f"{path}.processing_mode", overrides.processing_mode, replaces=True
                )
            if overrides.metadata_options is not None:
                namespaces = _namespaces(overrides.metadata_options)
        yield Route(
            levels[-1],
            path,
            levels,
            "" if disabled else metadata.get(PROFILE_KEY, ""),
            disabled,
            in_force,
            namespaces,
        )


def _route_levels(name: str, manager: Part) -> Iterator[tuple[str, tuple[Part, ...]]]:
    config = manager.get("route_config")
    for host in config.get("virtual_hosts"):
        for index, route in enumerate(host.get("routes")):
            own = route.get("name").text
            path = f'{name}.routes["{own}"]' if own else f"{name}.routes[{index}]"
            yield path, (config, host, route)


def _find_misnamed(seen: Bootstrap, name: str, manager: Part, known: set[str]) -> None:
    looked_at: set[int] = set()  # values: an alias is the same problem as its anchor
    for path, levels in _route_levels(name, manager):
        for level in levels:
            for filter_name, config in level.get("typed_per_filter_config").named():
                if config.type != _PER_ROUTE or id(config.value) in looked_at:
                    continue
                looked_at.add(id(config.value))
                if filter_name not in known:
                    message = f'expected the name of an ext_proc filter, got "{filter_name}"'
                    problem = config.problem(f"{path}.typed_per_filter_config", message)
                    seen.misnamed.append(problem)


def _namespaces(options: Any) -> frozenset[str]:
    receiving = options.receiving_namespaces if options else None
    return frozenset(receiving.untyped) if receiving else frozenset()


def _typed(kind: type[MessageT], part: Part, path: str, problems: list[Problem]) -> MessageT | None:
    """Read a part as a message; note why it cannot be read as one."""
    _import_types(part.value)
    fields = {key: value for key, value in part.value.items() if key != "@type"}
    try:
        return kind.from_dict(fields)
    except KeyError as error:
        why = str(error.args[0]).rstrip(".")
        why = why[:1].lower() + why[1:]
    except ValueError as error:
        why = str(error)
        why = why[:1].lower() + why[1:]
    except (TypeError, AttributeError):
        why = "a value of another type"
    message = f"expected an {kind.__name__}, got: {why}"
    if not any((problem.line, problem.message) == (part.line, message) for problem in problems):
        problems.append(part.problem(path, message))
    return None


def _import_types(value: Any) -> None:
    """Import the modules of the messages inside: what is not imported cannot be read."""
    if isinstance(value, Mapping):
        name = str(value.get("@type", "")).rpartition("/")[2]
        if name:
            with contextlib.suppress(ImportError):
                importlib.import_module(f"envoy_data_plane.{name.rpartition('.')[0]}")
        for below in value.values():
            _import_types(below)
    elif isinstance(value, list):
        for below in value:
            _import_types(below)
