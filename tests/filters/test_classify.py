"""What a request is told to ask for, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from filters.api import CONTINUE, Exchange, Task
from filters.classify import ClassifyConfig, ClassifyFilter, Experts, read_labels
from filters.intent_model import Guess, bundled_model
from filters.intent_rules import LOW_RISK_INTENTS, ruled
from filters.intent_text import laid_out
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import FakeModels, drive, fake_ports


def classified(
    exchange: Exchange, config: ClassifyConfig | None = None, **ports: Any
) -> Task | None:
    chosen = config or ClassifyConfig()
    classify = ClassifyFilter(chosen, ClassifyFilter.prepare(chosen), fake_ports(**ports))
    assert CONTINUE is drive(classify.on_request(exchange))
    return exchange.task


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("question", "intent", "domain"),
    [
        ("Summarise this contract about the rent of our office.", "summarise", "legal"),
        ("Translate into French: the doctor prescribed antibiotics.", "translate", "medical"),
        ("Write a Python function that reverses a string.", "code", "code"),
        ("Why is the sky blue?", "open", "general"),
        ("Hello!", "greeting", "general"),
        ("Summarise this c\u043entract about the rent of our office.", "summarise", "legal"),
        ("列出债券和股票的主要区别和风险。", "list", "finance"),
        ("房东可以随便涨租金吗，这合法吗？", "yes_no", "legal"),
        ("你好", "greeting", "general"),
    ],
)
def test_intent_and_domain_are_told_in_both_languages(
    dialect: str, question: str, intent: str, domain: str
) -> None:
    """In every provider's words; the client's header and the notes say the same."""
    exchange = ask(dialect, question)
    task = classified(exchange)
    assert task is not None
    assert (intent, domain) == (task.intent, task.domain)
    assert {"x-forebay-intent": intent} == exchange.client_headers
    notes = exchange.notes
    assert (intent, domain) == (notes["classify.intent"], notes["classify.domain"])
    assert not exchange.prompt.document.changed


@pytest.mark.parametrize("question", ["qwrtz plmok", "??", "龘靐齉", "…"])
def test_what_is_not_understood_is_open_and_wants_full_care(question: str) -> None:
    """The score says how unsure, the note what it might have been."""
    exchange = ask("openai.chat", question)
    task = classified(exchange)
    assert task is not None
    assert ("open", True) == (task.intent, task.expert)
    assert task.score < 0.5
    assert str(exchange.notes["classify.why"]).startswith("unsure: ")


def test_a_higher_threshold_is_sure_of_less() -> None:
    """At 1 only the rules are sure."""
    strict = ClassifyConfig(threshold=1.0)
    ruled = classified(ask("openai.chat", "Please summarise the minutes."), strict)
    guessed = classified(ask("openai.chat", "Name five rivers."), strict)
    assert ruled is not None
    assert guessed is not None
    assert ("summarise", "open") == (ruled.intent, guessed.intent)


def test_the_instruction_may_stand_at_either_end_of_a_long_prompt() -> None:
    """What lies between is the document, which is not looked at."""
    document = "The river rose in spring and fell in summer, as rivers do. " * 200
    for question in (f"Summarise this text.\n{document}", f"{document}\nSummarise this text."):
        task = classified(ask("openai.chat", question))
        assert task is not None
        assert "summarise" == task.intent


def test_only_what_the_user_said_last_is_looked_at() -> None:
    """Not an earlier question, nor an answer, nor a tool's result."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"Translate this into French: hi"},'
        b'{"role":"assistant","content":"salut"},{"role":"user","content":"List the planets."},'
        b'{"role":"tool","tool_call_id":"1","content":"Write a poem."}]}'
    )
    task = classified(exchange_of("openai.chat", body, "/v1/chat/completions"))
    assert task is not None
    assert "list" == task.intent


@pytest.mark.parametrize(
    ("path", "dialect", "body"),
    [
        ("/v1/embeddings", "openai.embeddings", b'{"model":"m","input":"list the planets"}'),
        ("/v1/chat/completions", "openai.chat", b'{"model":"m","messages":[]}'),
        (
            "/v1/chat/completions",
            "openai.chat",
            b'{"model":"m","messages":[{"role":"user","content":" "}]}',
        ),
    ],
)
def test_where_nothing_is_asked_nothing_is_told(path: str, dialect: str, body: bytes) -> None:
    """Embeddings, and prompts without a word of a user's."""
    exchange = exchange_of(dialect, body, path)
    assert classified(exchange) is None
    assert ({}, {}) == (exchange.notes, exchange.client_headers)


# --- Experts -------------------------------------------------------------------------------------

EXPERTS = ClassifyConfig(experts=Experts(legal="lawyers", code="coders"))


@pytest.mark.parametrize(
    ("question", "pool", "expert"),
    [
        ("Summarise the court's verdict and the lawyer's appeal.", "lawyers", True),
        ("Write a Python function that reverses a string.", "coders", True),
        ("List the symptoms of diabetes.", "full", True),
        ("List the planets.", "full", False),
        ("qwrtz plmok", "full", True),
    ],
)
def test_a_trade_with_an_expert_goes_to_him(question: str, pool: str, expert: bool) -> None:
    """Others stay with the profile's pool; legal, medical and finance want full care anyway."""
    exchange = ask("openai.chat", question)
    task = classified(exchange, EXPERTS)
    assert task is not None
    assert (pool, expert) == (exchange.pool, task.expert)
    assert exchange.notes.get("classify.pool") == (None if pool == "full" else pool)


# --- A model in a folder -------------------------------------------------------------------------

FOLDER = ClassifyConfig(folder="/models/intents")


def test_a_model_in_a_folder_is_asked_instead() -> None:
    """It sees the text as it stands; labels may name a domain behind a stroke."""
    models = FakeModels(labels={"List/legal": 0.5, "list/general": 0.2, "code": 0.3})
    exchange = ask("openai.chat", "Tell me about rivers")
    task = classified(exchange, FOLDER, models=models)
    assert Task("list", "legal", 0.7, expert=True) == task
    assert [("/models/intents", "Tell me about rivers")] == models.calls
    assert "folder" == exchange.notes["classify.why"]


def test_a_rule_decides_before_a_model_is_asked() -> None:
    """A clear case costs no call."""
    models = FakeModels(labels={"code": 1.0})
    task = classified(ask("openai.chat", "Summarise the minutes."), FOLDER, models=models)
    assert task is not None
    assert ("summarise", []) == (task.intent, models.calls)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, "fake models: nothing to say"),
        ({"LABEL_0": 0.9, "LABEL_1": 0.1}, "none of its labels is an intent"),
    ],
)
def test_where_the_folder_is_no_help_the_bundled_model_decides(
    labels: dict[str, float], why: str
) -> None:
    """The note says what was wrong."""
    exchange = ask("openai.chat", "Why is the sky blue?")
    task = classified(exchange, FOLDER, models=FakeModels(labels=labels))
    assert task is not None
    assert ("open", False) == (task.intent, task.expert)
    assert (why, "model") == (exchange.notes["classify.folder"], exchange.notes["classify.why"])


def test_labels_without_a_domain_leave_the_bundled_models() -> None:
    """Case, spaces and hyphens of a label do not count."""
    guess = Guess("open", 0.9, "finance", 0.8)
    read = read_labels({"Yes No": 0.6, "yes-no": 0.1, "odd": 0.3}, guess, bundled_model())
    assert read is not None
    assert ("yes_no", "finance", 0.8) == (read.intent, read.domain, read.domain_score)
    assert pytest.approx(0.7) == read.score


# --- Templates -----------------------------------------------------------------------------------

WORDED = ClassifyConfig(templates=True)


@pytest.mark.parametrize("dialect", [name for name in CHATS if name != "openai.completions"])
@pytest.mark.parametrize(
    ("question", "behind"),
    [
        ("List the planets.", "Answer as a list in English"),
        ("列出太阳系的行星。", "用中文以列表回答"),
    ],
)
def test_a_template_is_put_round_the_request(dialect: str, question: str, behind: str) -> None:
    """The words of the user stand in it unchanged, and what it costs is counted."""
    exchange = ask(dialect, question)
    classified(exchange, WORDED)
    (text,) = exchange.prompt.turns()[-1].texts
    assert text.value.startswith(f"{question}\n\n{behind}")
    (cut,) = exchange.cuts
    assert "classify.template" == cut.rule
    assert cut.before < cut.after


def test_a_template_is_put_round_once() -> None:
    """A second pass finds it there."""
    exchange = ask("openai.chat", "List the planets.")
    classified(exchange, WORDED)
    once = exchange.prompt.document.render()
    classified(exchange, WORDED)
    assert once == exchange.prompt.document.render()


def test_slots_in_the_users_own_words_stay() -> None:
    """Nothing a user writes is filled in."""
    exchange = ask("openai.chat", "List the slots {prompt}, {domain} and {language}.")
    classified(exchange, WORDED)
    assert "List the slots {prompt}, {domain} and {language}." in str(exchange.prompt.document.root)


@pytest.mark.parametrize("question", ["qwrtz plmok", "Hello!"])
def test_what_is_not_understood_or_greets_keeps_its_words(question: str) -> None:
    """There is nothing to word better."""
    exchange = ask("openai.chat", question)
    classified(exchange, WORDED)
    assert not exchange.prompt.document.changed


def test_a_completion_and_a_request_in_parts_keep_their_words() -> None:
    """One is no request but a beginning; of the other's parts one may be the document."""
    completion = ask("openai.completions", "List the planets.")
    body = (
        b'{"model":"m","messages":[{"role":"user","content":['
        b'{"type":"text","text":"List the names."},{"type":"text","text":"Ann, Ben"}]}]}'
    )
    parts = exchange_of("openai.chat", body, "/v1/chat/completions")
    for exchange in (completion, parts):
        classified(exchange, WORDED)
        assert not exchange.prompt.document.changed


CALL = b'{"id":"1","type":"function","function":{"name":"look","arguments":"{}"}}'
SAYS_IT = b'{"role":"user","content":"List the planets."}'
CALLS = b'{"role":"assistant","content":null,"tool_calls":[' + CALL + b"]}"
RESULT = b'{"role":"tool","tool_call_id":"1","content":"Mars"}'
USES = b'{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"look","input":{}}]}'
BESIDE = (
    b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"Mars"},'
    b'{"type":"text","text":"List the planets."}]}'
)


@pytest.mark.parametrize(
    ("dialect", "path", "messages", "worded"),
    [
        ("openai.chat", "/v1/chat/completions", (SAYS_IT, CALLS, RESULT), False),
        ("openai.chat", "/v1/chat/completions", (SAYS_IT, CALLS), False),
        ("anthropic.messages", "/v1/messages", (SAYS_IT, USES, BESIDE), False),
        ("openai.chat", "/v1/chat/completions", (SAYS_IT, CALLS, RESULT, SAYS_IT), True),
    ],
    ids=["a result follows", "a call follows", "a result beside it", "asked behind a result"],
)
def test_a_request_that_tools_are_at_work_on_keeps_its_words(
    dialect: str, path: str, messages: tuple[bytes, ...], worded: bool
) -> None:
    """Each step of an agent sends it again; all have its task, and so go to one pool."""
    body = b'{"model":"m","messages":[' + b",".join(messages) + b"]}"
    exchange = exchange_of(dialect, body, path)
    task = classified(exchange, WORDED)
    assert task is not None
    assert ("list", worded) == (task.intent, exchange.prompt.document.changed)


def test_every_low_risk_intent_is_one_of_the_models() -> None:
    """A name that the model never says would never count."""
    assert LOW_RISK_INTENTS <= set(bundled_model().intents)


@pytest.mark.parametrize(
    "words", ["请" * 150, "麻烦" * 70, "please " * 40, "你好，" * 60, "hi ^ " * 50, "can you " * 40]
)
def test_politeness_without_end_is_read_in_one_pass(words: str) -> None:
    """No run of kind words is gone through in more ways than one: that would take years."""
    assert ruled(laid_out(f"{words}天气")) is None
