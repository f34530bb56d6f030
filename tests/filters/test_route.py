"""Which work goes to the quantised pool."""

import pytest

from filters.api import CONTINUE, Exchange, Task
from filters.bounds import MOST_CHARS
from filters.route import RouteConfig, RouteFilter
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import drive, fake_ports


def routed(exchange: Exchange, config: RouteConfig | None = None) -> str:
    route = RouteFilter(config or RouteConfig(), None, fake_ports())
    assert CONTINUE is drive(route.on_request(exchange))
    return exchange.pool


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("question", "pool"),
    [
        ("请总结下面的文章", "best_effort"),
        ("列出三个例子", "best_effort"),
        ("水是否会结冰", "best_effort"),
        ("一年有几个月", "best_effort"),
        ("Summarise this text.", "best_effort"),
        ("Please LIST ALL the names", "best_effort"),
        ("yes or no: is water wet?", "best_effort"),
        ("How many legs has a spider?", "best_effort"),
        ("总结这份法律意见", "full"),
        ("列出医疗诊断的步骤", "full"),
        ("总结财务建议", "full"),
        ("Summarise this legal advice", "full"),
        ("Summarise this l\u0435gal advice", "full"),
        ("List the steps of a diagnosis", "full"),
        ("How many shares? I need financial advice", "full"),
        ("Write a poem about rivers", "full"),
        ("Listen to this assumption", "full"),
        ("", "full"),
    ],
)
def test_low_risk_words_without_high_risk_ones_downgrade(
    dialect: str, question: str, pool: str
) -> None:
    """Summaries, lists, yes or no and counts are low risk, unless law, health or money is in it."""
    assert pool == routed(ask(dialect, question))


@pytest.mark.parametrize("dialect", [name for name in CHATS if name != "openai.completions"])
def test_what_a_system_prompt_says_counts_if_the_profile_says_so(dialect: str) -> None:
    """It is the same for every question; completions have none."""

    def asked() -> Exchange:
        return ask(dialect, "总结这篇文章", system="You never give legal advice.")

    assert "best_effort" == routed(asked())
    assert "full" == routed(asked(), RouteConfig(system_words=True))


def test_texts_to_embed_ask_for_nothing() -> None:
    """Vectors of two models cannot be compared."""
    body = b'{"model": "e", "input": "List the rivers"}'
    assert "full" == routed(exchange_of("openai.embeddings", body, "/v1/embeddings"))


def test_only_the_last_question_is_a_task() -> None:
    """An earlier request for a list does not make the next question low risk."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"list the planets"},'
        b'{"role":"assistant","content":"..."},{"role":"user","content":"why is Mars red?"}]}'
    )
    assert "full" == routed(exchange_of("openai.chat", body, "/v1/chat/completions"))


def test_a_profile_can_forbid_it() -> None:
    """`downgrade: false` sends everything to the profile's own pool."""
    assert "full" == routed(ask("openai.chat", "总结"), RouteConfig(downgrade=False))


def test_a_profile_can_name_another_pool() -> None:
    """The pool is a setting."""
    assert "awq" == routed(ask("openai.chat", "总结"), RouteConfig(pool="awq"))


def test_the_word_that_decided_is_noted() -> None:
    """Whoever wonders about a pool finds the word in the log line."""
    exchange = ask("openai.chat", "Summarise the diagnosis")
    routed(exchange)
    assert "high risk: diagnosis" == exchange.notes["route.why"]


def test_what_is_too_long_to_be_looked_through_is_not_low_risk() -> None:
    """Others wait while words are looked for, and a risk that nobody saw is still one."""
    long = "x" * (MOST_CHARS - 20)
    config = RouteConfig(system_words=True)
    exchange = ask("openai.chat", "summarise", system=long)
    assert "best_effort" == routed(exchange, config)
    exchange = ask("openai.chat", "summarise", system=long + "and the rest of it")
    assert "full" == routed(exchange, config)
    assert "too long to look for high risk" == exchange.notes["route.why"]
    assert "full" == routed(ask("openai.chat", "summarise" + "x" * MOST_CHARS))


# --- With a task ---------------------------------------------------------------------------------


def routed_with(task: Task, question: str = "What is this?") -> Exchange:
    exchange = ask("openai.chat", question)
    exchange.task = task
    routed(exchange)
    return exchange


@pytest.mark.parametrize(
    ("intent", "pool"),
    [
        ("summarise", "best_effort"),
        ("list", "best_effort"),
        ("yes_no", "best_effort"),
        ("count", "best_effort"),
        ("extract", "best_effort"),
        ("classify", "best_effort"),
        ("translate", "full"),
        ("code", "full"),
        ("reasoning", "full"),
        ("calculate", "full"),
        ("rewrite", "full"),
        ("write", "full"),
        ("greeting", "full"),
        ("open", "full"),
    ],
)
def test_the_intent_decides_where_one_was_told(intent: str, pool: str) -> None:
    """Short answers, and those that stand in the prompt, are low risk; no word is needed."""
    exchange = routed_with(Task(intent, "general", 0.9))
    assert pool == exchange.pool
    why = f"low risk: {intent}" if pool == "best_effort" else None
    assert why == exchange.notes.get("route.why")


def test_words_do_not_outvote_a_task() -> None:
    """The classifier saw the whole request, the word list one word of it."""
    exchange = routed_with(Task("reasoning", "general", 0.9), "How many weighings are needed, why?")
    assert "full" == exchange.pool


@pytest.mark.parametrize("intent", ["summarise", "list"])
def test_a_task_for_an_expert_stays_where_it_is(intent: str) -> None:
    """With the pool that `classify` chose, or the profile's own where nothing was understood."""
    exchange = ask("openai.chat", "List them.")
    exchange.task = Task(intent, "legal", 0.9, expert=True)
    exchange.pool = "lawyers"
    assert "lawyers" == routed(exchange)


def test_a_high_risk_word_outweighs_the_task() -> None:
    """The classifier may miss it among others."""
    task = Task("list", "general", 0.99)
    exchange = routed_with(task, "List what to ask for as legal advice.")
    assert ("full", "high risk: legal advice") == (exchange.pool, exchange.notes["route.why"])


@pytest.mark.parametrize("turns", ["1 turn", "12 turns"])
def test_what_stands_for_older_turns_asks_for_nothing(turns: str) -> None:
    """The words "summary of" are Forebay's own there; what the user says behind them counts."""
    mark = f"[Summary of prior {turns}]: They asked to list the tools."
    assert "full" == routed(ask("openai.chat", f"{mark}\n\nWrite a poem."))
    assert "best_effort" == routed(ask("openai.chat", f"{mark}\n\nList the tools again."))
    risky = f"[Summary of prior {turns}]: They want legal advice.\n\nList the tools."
    assert "full" == routed(ask("openai.chat", risky))
