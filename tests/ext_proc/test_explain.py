"""`forebay explain`: what it shows is what the server does, and it never touches anything else.

The pages that it must print are in `tests/explained`.
"""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from rich.console import Console

from ext_proc import cli
from ext_proc.app import gateway_of
from ext_proc.codec import Body, Headers
from ext_proc.config import Settings, load
from ext_proc.conversation import Message
from ext_proc.session import Session
from ext_proc.tools import explain
from ext_proc.tools.explain import NotAsked, guess_path
from ext_proc.tools.explanation import Explanation, as_data
from ext_proc.tools.explanation_page import show
from ext_proc.tools.trace import Request, Trace, _Books, _Proxy, trace
from filters import BUILT_IN
from filters.api import CONTINUE, Answer, Config, Exchange, Filter, Parameter, Task, Verdict
from filters.dialects import DIALECTS
from filters.errors import ConfigError, FilterError, PortError
from tests.exchanges import WORDS
from tests.explained import docs
from tests.fakes import FakeTokens, drive, fake_ports

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "envoy" / "forebay.yaml"
PAGES = ROOT / "tests" / "explained"

# --- Filters with something to show --------------------------------------------------------------


class NoConfig(Config, frozen=True):
    """Nothing to set."""


class PolishFilter(Filter[NoConfig]):
    """Takes a word out of every text, and says so."""

    name: ClassVar[str] = "polish"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        for turn in exchange.prompt.turns():
            for text in turn.texts:
                before = text.value
                text.value = before.replace("very ", "")
                if text.value != before:
                    exchange.cut("polish.very", len(before.split()), len(text.value.split()))
        exchange.note("polish.pages", 1200)
        return CONTINUE


class JudgeFilter(Filter[NoConfig]):
    """Tells the task, chooses the pool, bounds a parameter and tells the client."""

    name: ClassVar[str] = "judge"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.task = Task("translate", "legal", 0.934)
        exchange.pool = "small"
        exchange.note("route.why", "low risk: translate")
        exchange.prompt.set_parameter(Parameter.TEMPERATURE, 0.3)
        exchange.client_headers["x-forebay-intent"] = "translate"
        return CONTINUE


class ClumsyFilter(Filter[NoConfig]):
    """Edits, and breaks."""

    name: ClassVar[str] = "clumsy"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        for turn in exchange.prompt.turns():
            for text in turn.texts:
                text.value = "gone"
        raise ValueError("dropped it")


class RefuseFilter(Filter[NoConfig]):
    """Refuses everything."""

    name: ClassVar[str] = "refuse"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        raise FilterError(429, "too many tokens today")


class AnswerFilter(Filter[NoConfig]):
    """Knows it already."""

    name: ClassVar[str] = "answer"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        return Answer(200, {"content-type": "application/json"}, b'{"known":true}')


class WonderFilter(Filter[NoConfig]):
    """Asks another model, and does without."""

    name: ClassVar[str] = "wonder"
    config_type: ClassVar[type[Config]] = NoConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        try:
            await self.ports.upstream.ask("light", "tiny", "why?", max_tokens=9, deadline_s=1)
        except PortError as error:
            exchange.note("wonder.failed", str(error))
        return CONTINUE


FILTERS: dict[str, type[Filter[Any]]] = {
    kind.name: kind
    for kind in (PolishFilter, JudgeFilter, ClumsyFilter, RefuseFilter, AnswerFilter, WonderFilter)
}
CONFIG = """
forebay:
  pools:
    full: {cluster: big_ones}
    small: {cluster: small_ones, quality: BEST_EFFORT}
  profiles:
    everything: {polish: {}, cache: {}, judge: {}, clumsy: {}, wonder: {}}
    polish: {polish: {}}
    refuse: {polish: {}, refuse: {}}
    answer: {answer: {}}
    raw: {}
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    path = tmp_path_factory.mktemp("explain") / "forebay.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    order = ("polish", "cache", "judge", "clumsy", "wonder", "refuse", "answer")
    kinds = BUILT_IN | FILTERS
    return load(path, {}, {name: kinds[name] for name in order})


CHAT = Request(
    "/v1/chat/completions",
    {},
    json.dumps(
        {
            "model": "m",
            "temperature": 0,
            "messages": [
                {"role": "system", "content": "Be very brief."},
                {
                    "role": "user",
                    "content": "A line that stays.\nA very, very long story.\nTranslate it.",
                },
            ],
        }
    ).encode(),
)
SHORT = Request("/v1/messages", {}, b'{"model":"m","messages":[{"role":"user","content":"Hi!"}]}')


def explained(
    settings: Settings, profile: str, request: Request = CHAT, guessed: str = ""
) -> Explanation:
    asked: list[tuple[str, str]] = []
    kept = drive(trace(request, settings, profile, fake_ports(upstream=NotAsked(asked))))
    kept.asked = asked
    count = FakeTokens().count
    return Explanation("request.json", profile, request, guessed, kept, count, settings, ())


def page(it: Explanation, *, full: bool = False, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=100, highlight=False, markup=False, emoji=False, force_terminal=colour
    )
    show(it, console, full=full)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


# --- The page ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "request_", "guessed"),
    [
        ("everything", CHAT, "it has `messages`"),
        ("polish", SHORT, ""),
        ("refuse", CHAT, ""),
        ("answer", SHORT, ""),
        ("raw", CHAT, ""),
    ],
)
def test_the_page_is_the_kept_one(
    name: str, request_: Request, guessed: str, settings: Settings
) -> None:
    """Every line of it: the clock of the test stands still."""
    expected = (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    assert expected == page(explained(settings, name, request_, guessed))


def test_the_page_without_colour_has_no_escape_codes(settings: Settings) -> None:
    """It can be put in a file or a mail."""
    it = explained(settings, "everything")
    assert "\x1b" not in page(it)
    assert "\x1b[" in page(it, colour=True)


def test_a_prompt_cannot_write_to_the_terminal(settings: Settings) -> None:
    """Escape codes in a text that others wrote are shown, not obeyed."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "very \x1b]0;owned\x07 \u202ehi"}],
    }
    request = Request("/v1/chat/completions", {}, json.dumps(body).encode())
    shown = page(explained(settings, "polish", request))
    assert "\x1b" not in shown
    assert "␛]0;owned␇" in shown


def test_what_has_no_width_is_shown_where_it_changed(settings: Settings) -> None:
    """Else both lines of a diff look alike."""
    body = {"model": "m", "messages": [{"role": "user", "content": "a \u200bvery \u200bgood one"}]}
    request = Request("/v1/chat/completions", {}, json.dumps(body).encode())
    shown = page(explained(settings, "polish", request))
    assert "-a <U+200B>very" in shown.replace("\u200b", "<U+200B>")


def test_a_long_diff_is_cut_unless_all_of_it_is_wanted(settings: Settings) -> None:
    """The page says how much is missing and how to get it."""
    lines = "\n".join(f"line {number} is very long " + "x" * 200 for number in range(60))
    body = {"model": "m", "messages": [{"role": "user", "content": lines}]}
    it = explained(
        settings, "polish", Request("/v1/chat/completions", {}, json.dumps(body).encode())
    )
    shown = page(it)
    assert "-… 50 more lines (--full)" in shown
    assert "+… 50 more lines (--full)" in shown
    assert "+line 59 is long" in shown  # the last one says how it ends
    assert "more characters" in shown
    assert "--full" not in page(it, full=True)
    assert "more characters" not in page(it, full=True)


def test_a_diff_of_many_places_is_cut_too(settings: Settings) -> None:
    """Behind 80 lines: a page is to be read."""
    lines = "\n".join(
        f"line {number}" + " is very long" * (number % 4 == 0) for number in range(99)
    )
    body = {"model": "m", "messages": [{"role": "user", "content": lines}]}
    it = explained(
        settings, "polish", Request("/v1/chat/completions", {}, json.dumps(body).encode())
    )
    assert "… and more (--full)" in page(it)
    assert "… and more" not in page(it, full=True)


# --- JSON ----------------------------------------------------------------------------------------


def test_the_json_form_is_the_kept_one(settings: Settings) -> None:
    """Names and nesting are a promise to programs."""
    expected = json.loads((PAGES / "everything.json").read_text(encoding="utf-8"))
    data = as_data(explained(settings, "everything", CHAT, "it has `messages`"))
    assert expected == json.loads(msgspec.json.encode(data))


def test_the_json_form_has_the_same_members_whatever_happened(settings: Settings) -> None:
    """A program need not ask whether one is there."""
    forms = [as_data(explained(settings, name)).keys() for name in settings.profiles]
    assert all(form == forms[0] for form in forms)


# --- What is explained is what is served ---------------------------------------------------------


def served(request: Request, settings: Settings, profile: str) -> Trace:
    """Send a request through a session whose filters nobody watches."""
    kept = Trace()
    gateway = gateway_of(settings, fake_ports(), _Books(kept))
    session = Session(gateway, _Proxy(kept), profile=profile, traceparent=None)
    headers = {":method": "POST", ":path": request.path, **request.headers}

    async def play() -> None:
        await session.receive(Headers(Message.REQUEST_HEADERS, headers, last=False))
        if kept.facts is None:
            await session.receive(Body(Message.REQUEST_BODY, request.body, last=True))
        await session.leave()

    drive(play())
    return kept


def body_of(dialect: str) -> Any:
    """Return a request that says by itself which provider it is for."""
    if dialect == "openai.embeddings":
        return {"model": "text-embedding-3-small", "input": DIRTY}
    if dialect == "gemini.embeddings":
        return {"content": {"parts": [{"text": DIRTY}]}}
    body = WORDS[dialect].ask(DIRTY)
    return {**body, "system": "Be brief."} if dialect == "anthropic.messages" else body


DIRTY = "<div>Please   translate <b>this</b> sentence.</div>\n\n\n\nThank you!"


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_what_is_explained_is_what_is_served(dialect: str) -> None:
    """The very commands that the proxy would get, in every profile of the shipped file."""
    shipped = load(SHIPPED, {})
    body = body_of(dialect)
    request = Request(guess_path(body)[0], {}, json.dumps(body).encode())
    for profile in shipped.profiles:
        kept = drive(trace(request, shipped, profile, fake_ports()))
        assert served(request, shipped, profile).commands == kept.commands


def test_every_filter_of_a_profile_is_shown_in_its_order() -> None:
    """Also those that this tool has never heard of."""
    shipped = load(SHIPPED, {})
    request = Request(
        "/v1/chat/completions", {}, json.dumps(WORDS["openai.chat"].ask(DIRTY)).encode()
    )
    for profile, chosen in shipped.profiles.items():
        kept = drive(trace(request, shipped, profile, fake_ports()))
        assert [kind.name for kind, _ in chosen.filters] == [step.name for step in kept.steps]


@pytest.mark.slow
@pytest.mark.parametrize(("page_", "words", "shown"), docs.examples())
def test_an_example_in_the_docs_is_what_it_prints(page_: str, words: str, shown: str) -> None:
    """Times apart; `make docs` writes the examples again."""
    assert docs.plain(docs.run(words)) == docs.plain(shown)


def test_the_docs_have_examples() -> None:
    """A search that finds nothing would pass in silence."""
    assert "explain.md" in {page_ for page_, _, _ in docs.examples()}


# --- The command ---------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def forebay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run `forebay explain` on the given body, by default as standard input."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "none"))

    def run(*words: str, body: bytes = b"") -> tuple[int, str, str]:
        stdin = io.TextIOWrapper(io.BytesIO(body))
        monkeypatch.setattr("sys.stdin", stdin)
        code = cli.main(["explain", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_the_dialect_is_guessed_from_the_body(dialect: str, forebay: Run) -> None:
    """Without --path; with the shipped file, and from standard input."""
    code, out, err = forebay("--json", body=json.dumps(body_of(dialect)).encode())
    data = json.loads(out)
    assert (0, "", dialect) == (code, err, data["dialect"])
    assert data["guessed"].startswith("it")


def test_a_file_is_explained_and_the_page_printed(forebay: Run, tmp_path: Path) -> None:
    """The everyday use; the shipped `default` cleans, so tokens are saved."""
    path = tmp_path / "request.json"
    path.write_bytes(json.dumps(WORDS["openai.chat"].ask(DIRTY)).encode())
    code, out, err = forebay(str(path))
    assert (0, "") == (code, err)
    assert out.startswith(f"{path} · profile default · openai.chat · m · POST /v1/chat/completions")
    assert "tokens saved" in out
    assert out == "".join(f"{line.rstrip()}\n" for line in out.splitlines())


def test_a_text_to_embed_goes_first_where_nobody_else_asks(forebay: Run) -> None:
    """One request alone waits for nobody, and a list was gathered by its client."""
    cases = ("calm", {"gather": "first"}), (["calm", "still"], {"gather.skip": "several"})
    for given, note in cases:
        body = json.dumps({"model": "text-embedding-3-small", "input": given}).encode()
        code, out, _ = forebay("--json", "--profile", "embeddings", body=body)
        (step,) = (one for one in json.loads(out)["filters"] if one["filter"] == "gather")
        assert (0, note) == (code, step["notes"])


def test_a_path_is_taken_as_given(forebay: Run) -> None:
    """No guess then."""
    code, out, _ = forebay("--json", "--path", "/p/x/v1/messages", body=SHORT.body)
    data = json.loads(out)
    assert (0, None, "anthropic.messages") == (code, data["guessed"], data["dialect"])


def test_headers_count(forebay: Run) -> None:
    """A client that wants no stored answer gets none."""
    code, out, _ = forebay("--json", "--header", "Cache-Control: no-store", body=CHAT.body)
    cache = json.loads(out)["cache"]
    assert (0, "bypass", "no-store") == (code, cache["state"], cache["why"])


def test_a_request_that_is_no_llm_call_is_found(forebay: Run) -> None:
    """It would pass as it came: exit code 1."""
    code, out, _ = forebay("--json", "--path", "/v1/files", body=CHAT.body)
    data = json.loads(out)
    assert (1, "passed", "no LLM call") == (code, data["outcome"], data["why_passed"])


def chat(content: str, more: str = "") -> bytes:
    return (
        f'{{"model": "m", "messages": [{{"role": "user", "content": {content}}}]{more}}}'.encode()
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model": "m", "messages": "hi"}', "shape not known"),
        (chat(r'"half \ud800"'), "not JSON"),
        (chat('"hi"', ', "seed": 1e400'), "not JSON"),
        (rb'{"model": "half \ud800", "contents": []}', "not JSON"),
    ],
    ids=["no array", "half a pair", "a huge number", "half a pair in the path"],
)
def test_a_body_that_the_gateway_lets_pass_is_explained(
    forebay: Run, body: bytes, why: str
) -> None:
    """It is a finding, exit code 1, and not a mistake in calling the command."""
    code, out, err = forebay(body=body)
    assert (1, "") == (code, err)
    assert f" as it came: {why}\n" in out
    code, out, _ = forebay("--json", body=body)
    assert (1, why) == (code, json.loads(out)["why_passed"])


def test_a_body_nested_too_deep_is_explained_where_its_path_is_known(forebay: Run) -> None:
    """What nobody can read tells no path."""
    deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    code, out, _ = forebay("--json", "--path", "/v1/messages", body=deep)
    assert (1, "not JSON") == (code, json.loads(out)["why_passed"])
    assert 2 == forebay(body=deep)[0]


ROUTED = """
forebay:
  pools:
    full: {cluster: big_ones}
    coders: {cluster: code_ones}
    best_effort: {cluster: small_ones, quality: BEST_EFFORT}
  profiles:
    default: {classify: {experts: {code: coders}}, route: {}}
    kept: {classify: {}, route: {downgrade: false}}
"""


@pytest.mark.parametrize(
    ("profile", "question", "pool", "why"),
    [
        (
            "default",
            "Write a Python function that reverses a string.",
            "coders",
            "expert for code",
        ),
        ("default", "List the planets.", "best_effort", "low risk: list"),
        ("default", "Why is the sky blue?", "full", "the profile's own"),
        ("kept", "List the planets.", "full", "the profile's own, for its downgrade is off"),
    ],
)
def test_the_page_says_why_a_pool_was_chosen(
    tmp_path: Path, profile: str, question: str, pool: str, why: str
) -> None:
    """An expert, a low risk, or neither; and whether a low risk counts at all."""
    path = tmp_path / "forebay.yaml"
    path.write_text(ROUTED, encoding="utf-8")
    body = json.dumps(WORDS["openai.chat"].ask(question)).encode()
    it = explained(load(path, {}), profile, Request("/v1/chat/completions", {}, body))
    assert (pool, why) == (it.pool.name, it.pool_why)
    assert f"): {why}\n" in page(it)


def test_the_page_names_the_pools_that_it_may_have_gone_to(tmp_path: Path) -> None:
    """With what speaks for each, or that its length does not fit; JSON has the same text."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        """
forebay:
  pools:
    full: {cluster: big_ones, context: 512}
    long: {cluster: long_ones, serves: {tokens: {above: 512}}}
    coders: {cluster: code_ones, serves: {domains: [code]}, context: 400}
    best_effort: {cluster: small_ones, quality: BEST_EFFORT}
  profiles: {default: {route: {}}}
""",
        encoding="utf-8",
    )
    body = json.dumps(WORDS["openai.chat"].ask("why? " * 500)).encode()
    it = explained(load(path, {}), "default", Request("/v1/chat/completions", {}, body))
    assert ("long", "length: 2K") == (it.pool.name, it.pool_why)
    assert "full (length does not fit)" == it.alternatives
    assert "or else   full (length does not fit)\n" in page(it)
    assert it.alternatives == as_data(it)["pool"]["alternatives"]


STAGED = """
forebay:
  pools:
    full: {cluster: old_ones, stage: {step: STEP, pool: coming, share: 0.6}}
    coming: {cluster: new_ones}
  profiles:
    plain: {clean: {}}
    routed: {clean: {}, route: {pool: full}}
"""


@pytest.mark.parametrize(
    ("profile", "step", "pool", "why"),
    [
        (
            "plain",
            "shadow",
            "full",
            "the profile's own; shadow: coming for full, 0.6 of the requests",
        ),
        ("plain", "canary", "coming", "canary: coming for full, 0.6 of the tenants"),
        ("plain", "full", "coming", "full: coming for full"),
        (
            "routed",
            "canary",
            "coming",
            "stage: in the place of full; canary: coming for full, 0.6 of the tenants",
        ),
        ("routed", "full", "coming", "stage: in the place of full; full: coming for full"),
    ],
)
def test_the_page_says_how_a_pool_comes_in(
    forebay: Run, tmp_path: Path, profile: str, step: str, pool: str, why: str
) -> None:
    """The pool is the one that would serve: who moves by lot does so where most do."""
    path = tmp_path / "forebay.yaml"
    path.write_text(STAGED.replace("STEP", step), encoding="utf-8")
    words = ("--json", "--config", str(path), "--profile", profile)
    code, out, _ = forebay(*words, body=json.dumps(WORDS["openai.chat"].ask("Why?")).encode())
    told = json.loads(out)["pool"]
    assert (0, pool, why) == (code, told["name"], told["why"])


def test_the_profile_raw_is_no_finding(forebay: Run) -> None:
    """It has no filters on purpose."""
    code, out, _ = forebay("--profile", "raw", body=CHAT.body)
    assert 0 == code
    assert "as it came: no filters" in out


def test_nobody_else_is_asked_without_being_told(settings: Settings) -> None:
    """The page and the JSON say whom a filter wanted to ask."""
    it = explained(settings, "everything")
    assert [{"cluster": "light", "model": "tiny"}] == as_data(it)["not_asked"]
    assert "tiny of cluster light (--ask asks it)" in page(it)


class Egress(http.server.BaseHTTPRequestHandler):
    """What Envoy's egress listener would say."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        text = "1. Flow is area times speed."
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_other_models_are_asked_when_that_is_wanted(forebay: Run, tmp_path: Path) -> None:
    """With --ask, by way of the address that the settings name; without, the page says whom."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Egress) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = tmp_path / "forebay.yaml"
        config.write_text(
            f"forebay:\n  server: {{egress: '127.0.0.1:{server.server_port}'}}\n"
            "  profiles:\n    default: {think: {cluster: light, model: tiny}}\n",
            encoding="utf-8",
        )
        body = json.dumps(WORDS["openai.chat"].ask("Why is the water slow?")).encode()
        _, without, _ = forebay("--json", "--config", str(config), body=body)
        _, asked, _ = forebay("--json", "--config", str(config), "--ask", body=body)
        server.shutdown()
    assert [{"cluster": "light", "model": "tiny"}] == json.loads(without)["not_asked"]
    assert [] == json.loads(asked)["not_asked"]
    assert "+1. Flow is area times speed." in json.loads(asked)["filters"][0]["diff"]


@pytest.mark.parametrize(
    ("words", "body", "message"),
    [
        (
            (),
            b'{"model": "m",\n "messages" []}',
            "standard input: expected JSON, at line 2 column 13: Expecting ':' delimiter",
        ),
        ((), b"", "standard input: expected JSON, at line 1 column 1: Expecting value"),
        ((), b"[1]", "standard input: expected JSON: expected an object, got list"),
        ((), b'{"prompt": NaN}', "standard input: expected JSON: "),
        ((), b'{"prompt": "\xff"}', "standard input: expected JSON: "),
        ((), b'{"model": "m"}', "--path: expected the request's path, for the body has none of "),
        (("--profile", "deflaut"), CHAT.body, "--profile: unknown profile, did you mean default?"),
        (("--config", "/no/such.yaml"), CHAT.body, "/no/such.yaml: "),
        (("--header", "nothing"), CHAT.body, '--header: expected "NAME: VALUE", got "nothing"'),
        (("/no/such.json",), b"", "/no/such.json: cannot be read: No such file or directory"),
    ],
    ids=[
        "cut",
        "empty",
        "a list",
        "NaN",
        "no text",
        "no prompt",
        "profile",
        "config",
        "header",
        "file",
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(
    words: Sequence[str], body: bytes, message: str, forebay: Run
) -> None:
    """Exit code 2, and nothing on standard output."""
    code, out, err = forebay(*words, body=body)
    assert (2, "") == (code, out)
    assert err.startswith(f"forebay explain: {message}")
    assert 1 == len(err.splitlines())


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forgets the file is told, instead of nothing happening."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    with pytest.raises(ConfigError, match="expected a request's body"):
        explain._read("-")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"contents": [], "model": "gemini-pro"}, "/v1beta/models/gemini-pro:generateContent"),
        ({"contents": []}, "/v1beta/models/gemini:generateContent"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"messages": [], "model": "claude-x"}, "/v1/messages"),
        ({"messages": [], "system": ""}, "/v1/messages"),
        ({"input": "", "model": "text-embedding-3"}, "/v1/embeddings"),
        ({"input": ""}, "/v1/responses"),
        ({"prompt": ""}, "/v1/completions"),
    ],
)
def test_a_path_is_guessed_by_what_a_body_has(body: Mapping[str, Any], path: str) -> None:
    """First the members that only one provider has."""
    assert path == guess_path(body)[0]
