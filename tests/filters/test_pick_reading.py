"""Prompts are read as their model reads them where replicas say what they hold."""

from __future__ import annotations

import pytest

from filters.api import CONTINUE, Prompt
from filters.block_book import BlockBook, Chain, ids_of
from filters.pick import PickConfig, PickFilter
from filters.picking import Picker, ask_of
from filters.prefill_cost import PrefillCost
from filters.strategies import STRATEGIES
from tests.exchanges import WORDS, ask
from tests.fakes import FakeReplicas, PortWait, drive, fake_ports
from tests.kv_publisher import hash_of

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
TOKENS = list(range(640))
TEXT = b"word" * 640
CHAIN = Chain((1, 2), (64, 128), 150)


def picked_with(
    dialect: str, config: PickConfig, chain: Chain | None = CHAIN
) -> tuple[Chain | None, list[bool], int]:
    """Return with what a replica was picked, for whom the prompt was read, and the waits."""
    shared: list[bool] = []

    def read(prompt: Prompt, share: bool) -> Chain | None:
        shared.append(share)
        return chain

    replicas = FakeReplicas({"full": (A, B)}, reading=read)
    picker = PickFilter(config, None, fake_ports(replicas=replicas))
    waits: list[PortWait] = []
    assert CONTINUE is drive(picker.on_request(ask(dialect, "hi")), waits)
    (picked,) = replicas.picked
    return picked.chain, shared, len(waits)


@pytest.mark.parametrize("dialect", WORDS)
def test_a_prompt_is_read_where_its_template_is_known(dialect: str) -> None:
    """OpenAI's chats and completions are what vLLM gives its template."""
    read = dialect in ("openai.chat", "openai.completions")
    expected = (CHAIN, [False], 1) if read else (None, [], 0)
    assert expected == picked_with(dialect, PickConfig())


def test_tenants_may_share() -> None:
    """As the setting has it."""
    assert (CHAIN, [True], 1) == picked_with("openai.chat", PickConfig(across_tenants=True))


def test_a_prompt_that_cannot_be_read_is_picked_for_all_the_same() -> None:
    """By what was sent where."""
    assert (None, [False], 1) == picked_with("openai.chat", PickConfig(), chain=None)


def test_nothing_is_read_where_replicas_say_nothing() -> None:
    """And nobody waits."""
    replicas = FakeReplicas({"full": (A, B)})
    waits: list[PortWait] = []
    drive(
        PickFilter(PickConfig(), None, fake_ports(replicas=replicas)).on_request(
            ask("openai.chat", "hi")
        ),
        waits,
    )
    assert [] == waits


# --- By the book ---------------------------------------------------------------------------------


class Table:
    """Two replicas, A and B, that say what they hold."""

    def __init__(self) -> None:
        cost = PrefillCost()
        self.picker = Picker(STRATEGIES["expected"](cost), cost, explore=0.0, rng=lambda: 0.0)
        self.book = BlockBook()
        self.picker.add(A, 100_000)
        self.picker.listen(self.book)
        self.picker.add(B, 100_000)

    def store(self, address: str) -> None:
        number = self.picker.replicas[address].number
        hashes = [hash_of(TOKENS[:end], number) for end in range(16, 641, 16)]
        self.book.stored(number, hashes, None, ids_of(TOKENS), 16)

    def send(self, address: str, *, shared: bool = False, seed: str = "") -> int:
        """Send a prompt there; return how much of it the replica was taken to hold."""
        chain = self.book.chain(ids_of(TOKENS), shared=shared)
        pick = self.picker.pick(ask_of(TEXT, seed, chain=chain), 0.0, (address,))
        self.picker.started(pick, 0.0)
        self.picker.ended(pick, 0.0)
        return pick.held

    def best(self, *, shared: bool) -> str:
        chain = self.book.chain(ids_of(TOKENS), shared=shared)
        pick = self.picker.pick(ask_of(TEXT, "", chain=chain), 0.0)
        self.picker.ended(pick, 0.0, good=False)
        return pick.replica.address


def test_who_says_that_it_holds_a_prompt_gets_it() -> None:
    """Somebody else sent it there; those who share profit, the others do not know."""
    tables = Table(), Table()
    for table in tables:
        table.store(B)
    assert (B, A) == (tables[0].best(shared=True), tables[1].best(shared=False))


def test_who_says_that_it_holds_a_prompt_no_more_does_not_get_it() -> None:
    """Though it was sent there."""
    table = Table()
    table.store(B)
    table.send(B)
    before = table.best(shared=False)
    table.picker.cleared(B)
    assert (B, A) == (before, table.best(shared=False))


def test_prompts_at_replicas_that_came_later_are_known_too() -> None:
    """The book knows whom the picker knows."""
    table = Table()
    table.store(A)
    table.picker.remove(A)
    table.picker.add(A, 100_000)
    table.store(B)
    assert (0, 0, 640) == (
        table.send(A, shared=True),
        table.send(B, seed="other"),
        table.send(B, shared=True),
    )


def test_without_the_book_what_was_sent_counts() -> None:
    """The settings were changed."""
    table = Table()
    table.store(B)
    table.send(B)
    table.book.clear(1)
    table.picker.listen(None)
    assert 640 == table.send(B)
