"""A derived bootstrap is the given one at other addresses, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ext_proc.adapters.membership import Fixed
from ext_proc.config import Settings, read_settings
from ext_proc.tools.derivation import (
    MESSAGE_TIMEOUT,
    Local,
    Target,
    derive,
    derive_measured,
    parse_target,
    rewrites,
)
from ext_proc.yaml_file import YamlFile, parse_yaml, read_yaml
from filters.api import Quality
from filters.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "envoy" / "forebay.yaml"
LOCAL = Local(
    listen=("127.0.0.1", 18001),
    admin_port=18002,
    metrics_port=18003,
    socket=Path("/tmp/forebay-1/s"),
    replicas={"full": [18004, 18005], "best_effort": [18006]},
)


def settings_of(file: YamlFile) -> Settings:
    settings, problems = read_settings(file, {})
    assert settings is not None, problems
    return settings


def derived(local: Local = LOCAL, file: YamlFile | None = None) -> dict[str, Any]:
    file = file or read_yaml(SHIPPED)
    return derive(file, settings_of(file), local)


def cluster(tree: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in tree["static_resources"]["clusters"] if one["name"] == name
    )
    return found


def ports(cluster: dict[str, Any]) -> list[int]:
    return [
        endpoint["endpoint"]["address"]["socket_address"]["port_value"]
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]


def manager(tree: dict[str, Any]) -> dict[str, Any]:
    filters = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    config: dict[str, Any] = filters[0]["typed_config"]
    return config


def actions(tree: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for host in manager(tree)["route_config"]["virtual_hosts"]:
        yield from (
            (route["match"], route["route"]) for route in host["routes"] if "route" in route
        )


def test_everything_is_where_it_was_told_to_be() -> None:
    """Gateway, admin, metrics, socket and pools have the addresses asked for."""
    tree = derived()
    block = tree["node"]["metadata"]["forebay"]
    pipe = cluster(tree, "forebay")["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    assert tree["static_resources"]["listeners"][0]["address"] == {
        "socket_address": {"address": "127.0.0.1", "port_value": 18001}
    }
    assert tree["admin"]["address"]["socket_address"]["port_value"] == 18002
    assert ports(cluster(tree, "forebay_admin")) == [18003]
    assert block["server"]["admin"] == "127.0.0.1:18003"
    assert block["server"]["listen"] == "unix:/tmp/forebay-1/s"
    assert pipe["endpoint"]["address"] == {"pipe": {"path": "/tmp/forebay-1/s"}}
    assert ports(cluster(tree, "full")) == [18004, 18005]
    assert ports(cluster(tree, "best_effort")) == [18006]


def egress(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in tree["static_resources"]["listeners"] if one["name"] == "egress"
    )
    return found


def egress_manager(tree: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = egress(tree)["filter_chains"][0]["filters"][0]["typed_config"]
    return config


def test_forebays_own_questions_go_by_a_socket_beside_its_own() -> None:
    """Envoy listens where Forebay asks, for this user and group as in the file."""
    tree = derived()
    path = "/tmp/forebay-1/e"
    assert {"pipe": {"path": path, "mode": 0o660}} == egress(tree)["address"]
    assert f"unix:{path}" == tree["node"]["metadata"]["forebay"]["server"]["egress"]


def test_an_egress_on_loopback_becomes_a_socket() -> None:
    """Nobody else of this machine is to ask by way of it."""
    raw = SHIPPED.read_text().replace(
        "pipe: {path: /run/forebay/egress.sock, mode: 432}",
        "socket_address: {address: 127.0.0.1, port_value: 8002}",
    )
    tree = derived(file=parse_yaml("given", raw))
    assert {"pipe": {"path": "/tmp/forebay-1/e", "mode": 0o660}} == egress(tree)["address"]


def test_without_an_egress_listener_nothing_is_said_of_it() -> None:
    """A file in which no filter asks need not have one."""
    raw = SHIPPED.read_text().replace("- name: egress\n    #", "- name: other\n    #")
    tree = derived(file=parse_yaml("given", raw))
    given = read_yaml(SHIPPED).value["node"]["metadata"]["forebay"]["server"]["egress"]
    assert given == tree["node"]["metadata"]["forebay"]["server"]["egress"]


def test_an_upstream_answers_forebays_own_questions_too() -> None:
    """By its own name, below its own path."""
    target = Target("a.test", 443, tls=True, path="/b")
    tree = derived(replace(LOCAL, upstream=target))
    (host,) = egress_manager(tree)["route_config"]["virtual_hosts"]
    (route,) = host["routes"]
    assert {
        "cluster_header": "x-forebay-cluster",
        "timeout": "0s",
        "host_rewrite_literal": "a.test",
        "regex_rewrite": {"pattern": {"regex": "^(/p/[^/]+)?/"}, "substitution": "/b/"},
    } == route["route"]


def test_the_given_tree_stays_as_it_was() -> None:
    """The file may be derived from again."""
    file = read_yaml(SHIPPED)
    before = json.dumps(file.value)
    derived(replace(LOCAL, upstream=Target("example.test", 443, tls=True)), file)
    assert before == json.dumps(file.value)


def test_the_derived_settings_can_be_read() -> None:
    """Forebay reads the JSON as it reads YAML, with the same profiles and pools."""
    again = settings_of(parse_yaml("derived", json.dumps(derived())))
    first = settings_of(read_yaml(SHIPPED))
    assert first.profiles == again.profiles
    assert first.pools == again.pools
    assert again.tracing.endpoint == ""


def test_words_that_yaml_takes_for_booleans_stay_words() -> None:
    """A profile named `y` survives, as it is in quotes in the file and in its copy."""
    raw = SHIPPED.read_text().replace("profiles:\n", 'profiles:\n        "y": {base: raw}\n', 1)
    tree = json.dumps(derived(file=parse_yaml("given", raw)))
    assert "y" in settings_of(parse_yaml("derived", tree)).profiles


def test_no_receiver_no_traces() -> None:
    """Envoy does not try to send spans that nobody asked for."""
    assert "tracing" not in manager(derived())
    assert "tracing" not in egress_manager(derived())


def test_with_a_receiver_every_request_is_traced() -> None:
    """Both send there, and sampling is all."""
    tree = derived(replace(LOCAL, otlp="http://127.0.0.1:14317"))
    assert ports(cluster(tree, "otel")) == [14317]
    assert tree["node"]["metadata"]["forebay"]["tracing"] == {"endpoint": "http://127.0.0.1:14317"}
    assert tree["layered_runtime"]["layers"][0]["static_layer"]["tracing.random_sampling"] == 100
    for each in (manager(tree), egress_manager(tree)):
        sampler = each["tracing"]["provider"]["typed_config"]["sampler"]
        assert sampler["typed_config"]["wrapped_sampler"]["name"].endswith(".always_on")


def test_an_upstream_serves_every_pool() -> None:
    """Its name is looked up, its certificate checked, and it is called by its own name."""
    tree = derived(replace(LOCAL, upstream=parse_target("--upstream", "https://api.example.test")))
    for name in ("full", "best_effort"):
        pool = cluster(tree, name)
        tls = pool["transport_socket"]["typed_config"]
        assert ports(pool) == [443]
        assert pool["type"] == "LOGICAL_DNS"
        assert tls["sni"] == "api.example.test"
        names = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
        assert names == [{"san_type": "DNS", "matcher": {"exact": "api.example.test"}}]
    for _, action in actions(tree):
        to_pool = action.get("cluster") != "forebay_admin"
        assert (action.get("host_rewrite_literal") == "api.example.test") is to_pool


def test_an_upstream_is_no_less_for_one_pool_than_for_another() -> None:
    """One server serves them all: no reply may say that it came from a lesser one."""
    tree = derived(replace(LOCAL, upstream=Target("a.test", 443, tls=True)))
    pools = settings_of(parse_yaml("derived", json.dumps(tree))).pools
    assert {"full": Quality.FULL, "best_effort": Quality.FULL} == {
        name: pool.quality for name, pool in pools.items()
    }


def test_an_upstream_is_not_asked_for_figures() -> None:
    """It is one server, and may be somebody else's; simulated replicas are picked among."""
    picked = read_yaml(SHIPPED.parent / "examples" / "replicas.yaml")
    away = derived(replace(LOCAL, upstream=Target("a.test", 443, tls=True)), picked)
    assert {} == dict(settings_of(parse_yaml("derived", json.dumps(away))).members)
    here = derived(LOCAL, picked)
    members = settings_of(parse_yaml("derived", json.dumps(here))).members
    assert {"full": Fixed(("127.0.0.1:18004", "127.0.0.1:18005"))} == dict(members)


@pytest.mark.parametrize("name", ["forebay.yaml", "examples/replicas.yaml"])
def test_a_measured_gateway_is_the_derived_one_with_more_patience(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user's shell says does not reach it."""
    monkeypatch.setenv("FOREBAY_REDIS_URL", "of another kind")
    file = read_yaml(SHIPPED.parent / name)
    pools = dict.fromkeys(settings_of(file).clusters, (18004,))
    expected = derived(replace(LOCAL, replicas=pools), file)
    (patient,) = (
        one["typed_config"]
        for one in manager(expected)["http_filters"]
        if one["name"] == "envoy.filters.http.ext_proc"
    )
    assert MESSAGE_TIMEOUT != patient["message_timeout"]
    patient["message_timeout"] = MESSAGE_TIMEOUT
    tree, settings = derive_measured(file, (18001, 18002, 18003), LOCAL.socket, [18004])
    assert (expected, settings_of(file)) == (tree, settings)


def test_rewritten_paths_are_known_by_their_routes() -> None:
    """What was asked for can be told of what went upstream."""
    tree = derived(replace(LOCAL, upstream=Target("a.test", 443, tls=True, path="/b")))
    assert [("/v1/", "/b/v1/"), ("/v1beta/", "/b/v1beta/")] == rewrites(tree)["default"]
    assert [("/p/faq/", "/")] == rewrites(derived())["faq.chosen"]


def test_an_upstreams_path_comes_before_the_requests() -> None:
    """With and without a profile's prefix, the provider sees its own path."""
    tree = derived(
        replace(LOCAL, upstream=parse_target("--upstream", "https://example.test/openai/v1/"))
    )
    rewrites = {
        match["prefix"]: action["prefix_rewrite"]
        for match, action in actions(tree)
        if "prefix" in match
    }
    assert rewrites["/v1/"] == "/openai/v1/"
    assert rewrites["/p/faq/"] == "/openai/"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9", Target("127.0.0.1", 9)),
        ("https://a.test", Target("a.test", 443, tls=True)),
        ("https://a.test/v1", Target("a.test", 443, tls=True)),
        ("https://a.test:8443/b/v1/", Target("a.test", 8443, tls=True, path="/b")),
        ("http://[::1]:8080", Target("::1", 8080)),
    ],
)
def test_a_url_names_a_server(url: str, expected: Target) -> None:
    """The version at the end of the path is left to the client."""
    assert expected == parse_target("--upstream", url)


@pytest.mark.parametrize("url", ["", "a.test", "ftp://a.test", "https://", "http://a:99999"])
def test_what_names_no_server_is_refused(url: str) -> None:
    """The message has the option, an example and what was found."""
    with pytest.raises(ConfigError, match=r"--upstream: expected a URL such as .*, got"):
        parse_target("--upstream", url)


def test_a_credential_in_a_url_is_refused_and_not_shown() -> None:
    """It would be sent to nobody."""
    with pytest.raises(ConfigError, match="expected a URL without a credential") as no:
        parse_target("--upstream", "https://user:secret@a.test")
    assert "secret" not in str(no.value)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("a.test", 443, tls=True), "a.test"),
        (Target("a.test", 8443, tls=True), "a.test:8443"),
        (Target("::1", 8080), "[::1]:8080"),
        (Target("::1", 80), "[::1]"),
    ],
)
def test_the_host_header_has_the_port_when_it_is_not_the_schemes(
    target: Target, expected: str
) -> None:
    """RFC 9110, 7.2: the default port is left out."""
    assert expected == target.authority


def test_a_file_without_the_parts_is_refused() -> None:
    """The message says which part was expected where."""
    file = read_yaml(SHIPPED)
    raw = SHIPPED.read_text().replace("- name: ingress\n    address", "- name: other\n    address")
    other = parse_yaml("given", raw)
    with pytest.raises(
        ConfigError, match=r'static_resources\.listeners: expected one named "ingress", got none'
    ):
        derive(other, settings_of(file), LOCAL)


def test_settings_alone_are_no_bootstrap() -> None:
    """A mesh's file has no listener that could be started."""
    file = parse_yaml("given", "forebay: {pools: {full: {cluster: full}}, profiles: {raw: {}}}")
    with pytest.raises(ConfigError, match="expected an Envoy bootstrap, got Forebay's settings"):
        derive(file, settings_of(file), LOCAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "local",
    [
        LOCAL,
        replace(LOCAL, otlp="http://127.0.0.1:14317"),
        replace(LOCAL, otlp="https://collector.example.test"),
        replace(LOCAL, upstream=Target("127.0.0.1", 443, tls=True)),
        replace(LOCAL, upstream=Target("a.test", 443, tls=True, path="/openai")),
        replace(LOCAL, upstream=Target("a.test", 80)),
    ],
)
def test_envoy_takes_what_was_derived(local: Local, tmp_path: Path) -> None:
    """Envoy's own validation finds nothing wrong."""
    envoy = shutil.which("envoy")
    assert envoy is not None
    path = tmp_path / "forebay.yaml"
    path.write_text(json.dumps(derived(local)))
    done = subprocess.run(
        [envoy, "--mode", "validate", "-l", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
