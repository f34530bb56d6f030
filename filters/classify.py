"""Tell what a request asks for and of which trade it is, and send it to the trade's expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from filters.api import CONTINUE, Config, Exchange, Filter, Role, Task, Text, Verdict
from filters.errors import PortError
from filters.intent_model import Guess, IntentModel, bundled_model
from filters.intent_rules import HIGH_RISK_DOMAINS, UNSURE, ruled
from filters.intent_text import edges, laid_out
from filters.scripts import is_chinese
from filters.templates import applied
from filters.transcript import without_summaries
from filters.units import Duration, PoolName, SomeTime

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
INTENT_HEADER: Final = "x-forebay-intent"

Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Experts(Config, frozen=True):
    """The pool of each trade that has one."""

    code: PoolName | None = None
    legal: PoolName | None = None
    medical: PoolName | None = None
    finance: PoolName | None = None


class ClassifyConfig(Config, frozen=True):
    """Who tells what a request asks for, and what follows from it."""

    threshold: Share = 0.5
    """What is less likely than this counts as not understood: intent `open`, full quality."""
    folder: str = ""
    """A sequence classifier in ONNX on this machine; empty: the model that comes with Forebay."""
    deadline: SomeTime = Duration("50ms")
    """How long the model in the folder may take; then the one that comes with Forebay decides."""
    experts: Experts = Experts()
    """The pools that requests of a trade go to."""
    templates: bool = False
    """Put what the user said last into a template made for its intent."""


class ClassifyFilter(Filter[ClassifyConfig]):
    """Rules first, then a model; an answer that neither is sure of is treated with full care."""

    name: ClassVar[str] = "classify"
    config_type: ClassVar[type[Config]] = ClassifyConfig
    bundled: ClassVar[Sequence[str]] = ("intents.msgpack", "templates")

    @classmethod
    def longest_wait_s(cls, config: ClassifyConfig) -> float:
        """Wait for the model in the folder."""
        return config.deadline if config.folder else 0.0

    @classmethod
    def prepare(cls, config: ClassifyConfig) -> Any:
        """Read the bundled model, which also stands in for the one in the folder."""
        return bundled_model()

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Set the task, tell client and operator, choose the expert and the template."""
        texts, in_hand = _asked(exchange)
        if not texts:
            return CONTINUE
        text = edges([without_summaries(text.value) or text.value for text in texts])
        model: IntentModel = self.prepared
        layout = laid_out(text)
        guess, why = model.guess(layout), "model"
        if intent := ruled(layout):
            guess, why = Guess(intent, 1.0, guess.domain, guess.domain_score), "rule"
        elif not any(map(str.isalnum, text)):  # marks alone say nothing
            guess = guess._replace(score=0.0)
        elif self.config.folder:
            guess, why = await self._ask_folder(exchange, text, guess)
        likeliest, score, domain, domain_score = guess
        threshold = self.config.threshold
        sure = score >= threshold
        intent = likeliest if sure else UNSURE
        pool = getattr(self.config.experts, domain, None) if domain_score >= threshold else None
        if pool is not None:
            exchange.pool = pool
            exchange.note("classify.pool", pool)
        expert = not sure or domain in HIGH_RISK_DOMAINS or pool is not None
        exchange.task = Task(intent, domain, score, expert)
        exchange.client_headers[INTENT_HEADER] = intent
        exchange.note("classify.intent", intent)
        exchange.note("classify.score", round(score, 3))
        exchange.note("classify.domain", domain)
        exchange.note("classify.why", why if sure else f"unsure: {likeliest}")
        if self.config.templates and sure and not in_hand:
            self._put_into_template(exchange, texts, intent, domain, chinese=is_chinese(text))
        return CONTINUE

    async def _ask_folder(self, exchange: Exchange, text: str, guess: Guess) -> tuple[Guess, str]:
        """Return what the model in the folder says, or `guess`; and which of the two it is."""
        try:
            labels = await self.ports.models.classify(
                self.config.folder, text, self.config.deadline
            )
        except PortError as error:
            exchange.note("classify.folder", str(error))
            return guess, "model"
        read = read_labels(labels, guess, self.prepared)
        if read is None:
            exchange.note("classify.folder", "none of its labels is an intent")
            return guess, "model"
        return read, "folder"

    def _put_into_template(
        self, exchange: Exchange, texts: list[Text], intent: str, domain: str, *, chinese: bool
    ) -> None:
        """Leave a request in several texts as it is: which of them is the document cannot be told.

        So is a completion, which is no request but a beginning.
        """
        if len(texts) != 1 or exchange.dialect.operation == "text_completion":
            return
        before = texts[0].value
        after = applied(before, intent, domain, "zh" if chinese else "en")
        if after == before:
            return
        texts[0].value = after
        estimate = self.ports.tokens.estimate
        exchange.cut("classify.template", estimate(before), estimate(after))


def read_labels(labels: Mapping[str, float], guess: Guess, model: IntentModel) -> Guess | None:
    """Read labels written `intent` or `intent/domain`; None when no intent is among them.

    Probabilities of one intent in several domains add up, and so do those of a domain. Where no
    label names a domain, that of `guess` stays.
    """
    intents = dict.fromkeys(model.intents, 0.0)
    domains = dict.fromkeys(model.domains, 0.0)
    for label, share in labels.items():
        intent, _, domain = label.lower().replace(" ", "_").replace("-", "_").partition("/")
        if intent in intents:
            intents[intent] += share
            if domain in domains:
                domains[domain] += share
    intent = max(intents, key=intents.__getitem__)
    if not intents[intent]:
        return None
    domain = max(domains, key=domains.__getitem__)
    if not domains[domain]:
        return guess._replace(intent=intent, score=intents[intent])
    return Guess(intent, intents[intent], domain, domains[domain])


def _asked(exchange: Exchange) -> tuple[list[Text], bool]:
    """Return what the user said last, and whether tools are at work on it.

    Nothing of an exchange that asks for no answer. A step of an agent sends what was said once more
    with calls and results beside or behind it: the task is the same, its words are read already.
    """
    in_hand = False
    if exchange.dialect.operation == "embeddings":
        return [], in_hand
    for turn in reversed(exchange.prompt.turns()):
        in_hand = in_hand or turn.has_tool
        if turn.role is _USER:
            texts = [text for text in turn.texts if text.role is _USER and text.value.strip()]
            if texts:
                return texts, in_hand
    return [], in_hand
