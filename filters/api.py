"""What a filter sees, what it may ask for, and what it may answer.

A filter works on an `Exchange`: one HTTP request and its reply, seen through a `Dialect` that
hides which provider's JSON it is. It awaits nothing but the ports it was given.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from filters.block_book import Chain
from filters.document import Document, Json, Path
from filters.framing import Event, Framer
from filters.gathering import Single, Way
from filters.pools import Pools
from filters.queue_order import Shed, Wish

T = TypeVar("T")

# --- The prompt ----------------------------------------------------------------------------------


class Role(enum.StrEnum):
    """Who speaks in a turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Parameter(enum.StrEnum):
    """Sampling parameters every dialect knows under a name of its own."""

    TEMPERATURE = "temperature"
    TOP_P = "top_p"
    MAX_TOKENS = "max_tokens"
    SEED = "seed"
    CHOICES = "choices"
    STOP = "stop"


class Effort(enum.StrEnum):
    """How much a model thinks before it answers, least first."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class Thinking(msgspec.Struct, frozen=True):
    """How much a model may think: the effort for models told in words, tokens for the others."""

    effort: Effort
    budget: int
    always: bool = False
    """Also where the request leaves it to the provider, for models known to think."""


class Text:
    """One piece of text in the prompt, read and replaced in place."""

    __slots__ = ("_read", "_version", "document", "path", "role")

    def __init__(self, document: Document, path: Path, role: Role) -> None:
        self.document = document
        self.path: Final = path
        self.role: Final = role
        self._read = ""
        self._version = -1

    @property
    def value(self) -> str:
        """The text as it would go upstream; looked up again only after an edit."""
        version = self.document.version
        if self._version != version:
            self._read = self.document.get(self.path, "")
            self._version = version
        return self._read

    @value.setter
    def value(self, text: str) -> None:
        self.document.set(self.path, text)


class Turn(msgspec.Struct, frozen=True):  # every message makes one: 0.1 us, a dataclass 0.9 us
    """One message of the conversation: who speaks, its texts, and whether tools are in it."""

    role: Role
    texts: tuple[Text, ...]
    path: Path
    """Where the message stands in the document."""
    has_tool: bool = False
    """It calls a tool or carries a tool's result: neither may be cut from the other."""
    has_media: bool = False
    """It carries an image, a sound or a file beside its texts."""


class Prompt(Protocol):
    """A provider's request body seen as model, turns and parameters; the JSON stays the truth."""

    document: Document
    model: str
    """The model asked for, empty when the request names none."""
    stream: bool
    """The client asked for an event stream."""
    stateful: bool
    """The answer depends on what the provider remembers, such as a previous response's id."""

    def turns(self) -> Sequence[Turn]:
        """Return the turns in the order the model reads them, system prompts included."""

    def texts(self) -> Sequence[Text]:
        """Return the texts of all turns, in their order."""

    def said(self) -> Sequence[str]:
        """Return what these texts say, as they would go upstream; not to be changed."""

    def tools(self) -> Sequence[Json]:
        """Return the declared tools, as they stand in the body."""

    def parameter(self, name: Parameter) -> Json:
        """Return a sampling parameter, or None when the request leaves it to the provider."""

    def set_parameter(self, name: Parameter, value: Json) -> None:
        """Set a sampling parameter; raise `KeyError` when this dialect has no such parameter."""

    def takes_temperature(self) -> bool:
        """Tell whether the provider takes a temperature with this request; some models refuse."""

    def limit_thinking(self, most: Thinking) -> bool:
        """Let the model think at most so much, in the provider's own field; return if that changed.

        Thinking is lowered or switched off, never raised.
        """

    def instruct(self, text: str) -> bool:
        """Add to the instructions, behind what stands there; return False where there are none."""

    def transport_members(self) -> set[str]:
        """Return the members present that say how to deliver the answer, not what it says."""


# --- The reply -----------------------------------------------------------------------------------


class Finish(enum.StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    TOOL = "tool"
    FILTERED = "filtered"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them; its prefix cache held `cached` of the `input` ones."""

    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer, read neutrally; `finish` is None when it does not say that it ended."""

    text: str = ""
    finish: Finish | None = None
    usage: Usage | None = None
    model: str = ""
    has_tool: bool = False


class Stamp(enum.StrEnum):
    """What no two replies of a provider share."""

    ID = "id"
    SECONDS = "seconds"
    """Unix time, a number."""
    MOMENT = "moment"
    """A time as RFC 3339 writes it."""


class Delta(msgspec.Struct, gc=False):  # every event makes one: 0.1 us, a dataclass 0.5 us
    """One event of a streamed answer.

    `raw` is the event as it came, its terminator included: what a filter passes on unchanged
    reaches the client byte for byte. `done` marks the event that ends a complete stream, `failed`
    one by which the provider says that there will be no complete one.
    """

    raw: bytes
    text: str = ""
    finish: Finish | None = None
    usage: Usage | None = None
    done: bool = False
    failed: bool = False


# --- The dialect ---------------------------------------------------------------------------------


class Dialect(Protocol):
    """How one provider's endpoint writes requests, replies, streams and errors. Stateless."""

    name: str
    """Metric label and config word, such as `openai.chat`."""
    provider: str
    """`gen_ai.provider.name` of the OpenTelemetry GenAI conventions, such as `anthropic`."""
    operation: str
    """`gen_ai.operation.name` of the same, such as `chat` or `embeddings`."""

    def read(self, document: Document, path: str) -> Prompt:
        """View a request body; `path` is the request's path with its query.

        Raise `NotJson` when the body cannot be this provider's request.
        """

    def read_reply(self, reply: Json) -> Reply:
        """Read a whole JSON reply; a body of another shape reads as an unfinished `Reply`."""

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a new framer when a reply of `content_type` streams the answer, else None.

        `prompt` tells a plain JSON reply from a stream that is one JSON array.
        """

    def read_event(self, event: Event) -> Delta:
        """Read one event; what is not understood becomes a delta that only carries its bytes."""

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the plain JSON reply a whole stream stands for, or None if it is not complete."""

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return content type and body that deliver a plain reply as the stream `prompt` asked."""

    def stamps(self, reply: Json, prompt: Prompt) -> Mapping[Path, Stamp]:
        """Return where a plain reply says who it is and when it was made.

        The id of a reply that the provider keeps under it, as `prompt` asked, is not among them.
        """

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a plain reply that says `reply.text` and ended by itself; None: none is a text.

        `name` is what its ids are made of, `at_s` Unix time.
        """

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each of `parts`, which join to the text of the event `raw`.

        All have its ids, the last alone its finish and usage. None where that cannot be done.
        """

    def error(self, status: int, text: str) -> bytes:
        """Return an error body in the provider's own shape."""

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return name and data of the event that says that a stream broke off, and why.

        `last` is the last event with data that came before, None when none did. None as well where
        that is no event of this dialect: who ends such a stream, and how, is not known here.
        """


# --- The ports -----------------------------------------------------------------------------------


class Store(Protocol):
    """Where answers are kept. Every method raises `PortError` when late or broken."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds; a store may drop it earlier."""

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; return how many fell in the last `window_s` seconds.

        This one is among them, and no more than `most` are looked for. A store without room may
        return fewer than there were, never more.
        """


class Boarding(enum.StrEnum):
    """How an exchange stands to a flight, which is one call of the model that may serve several."""

    WAITING = "waiting"
    """Another exchange asks the model."""
    LEADS = "leads"
    """It asks the model; others may wait for what it is told."""
    SHARED = "shared"
    """It has what another one was told."""
    LATE = "late"
    """It waited as long as it may, and goes alone."""
    FULL = "full"
    """There is no room to wait in; it goes alone."""
    ALONE = "alone"
    """The answer cannot be shared; it goes alone."""
    OVER = "over"
    """It left."""


class Seat(Protocol):
    """One exchange's place in a flight. `leave` is to be called in the end, whatever happened."""

    boarding: Boarding
    waited: bool
    """It had to wait for another one, here or elsewhere."""

    async def answer(self, wait_s: float) -> bytes | None:
        """Return what another exchange was told; None when this one has to ask, or goes alone.

        Waits for `wait_s` at most. A caller that is cancelled has left.
        """

    async def watched(self) -> bool:
        """Tell whoever leads whether others wait, here or elsewhere."""

    def land(self, value: bytes) -> None:
        """Give all who wait `value`; returns at once. Means nothing where this one does not lead.

        It is handed over, not kept: who comes later leads a flight of its own.
        """

    def leave(self, *, again: bool = True) -> None:
        """Let go of the place; returns at once and may be called again.

        Of those who wait for one that leads, the first to come leads next; without `again` all go
        alone at once.
        """


class Flights(Protocol):
    """Lets one exchange ask the model for all who ask the same at the same time."""

    def board(self, key: bytes, *, room: int, size: int = 0) -> Seat:
        """Take a place in the flight of `key`, beginning one where there is none; never fails.

        At most `room` wait in a flight; `size` is about how many bytes this one holds meanwhile.
        Nothing is awaited: what has to be asked elsewhere is on its way, and `Seat.answer` waits
        for it.
        """


class Part(msgspec.Struct, frozen=True):  # every text to embed makes one
    """A request for one embedding that may be asked together with others."""

    way: Way
    single: Single
    pool: str
    path: str
    headers: Mapping[str, str]
    """What goes upstream, credentials included."""
    tenant: str
    traceparent: str = ""

    @property
    def alike(self) -> Hashable:
        """What is equal for those that may be asked together: all but the text itself."""
        single, headers = self.single, frozenset(self.headers.items())
        return self.tenant, self.pool, self.path, headers, single.kind, single.rest


class Berth(Protocol):
    """One request's place among those alike. `leave` is to be called in the end, in any case."""

    leads: bool
    """It goes by itself and at once; others wait until it is answered, or wait no longer."""
    size: int
    """How many were asked with it, itself among them; 0: none was."""
    why: str
    """Why it goes by itself after it was to go with others; empty where it was not."""

    async def answer(self) -> Answer | None:
        """Return what the upstream says of it; None: it goes by itself.

        A caller that is cancelled has left.
        """

    def leave(self) -> None:
        """Let go of the place; returns at once and may be called again."""


class Batches(Protocol):
    """Asks for several embeddings in one call. Waits for nothing itself, never fails."""

    def take(self, part: Part, *, most: int, wait_s: float, deadline_s: float) -> Berth:
        """Take a place among those alike; nobody waits where none of them is under way.

        A batch goes when it has `most`, when nothing like it is under way any more, or `wait_s`
        after its first came. `deadline_s` is how long its answer is waited for.
        """


class NoBatches:
    """A `Batches` that has everybody go by themselves."""

    def take(self, part: Part, *, most: int, wait_s: float, deadline_s: float) -> Berth:
        """Have it go by itself."""
        return _Apart()


class _Apart:
    """The place of one that goes by itself, and that nobody waits for."""

    leads = False
    size = 0
    why = ""

    async def answer(self) -> Answer | None:
        """Return None."""
        return None

    def leave(self) -> None:
        """Do nothing."""


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def now(self) -> float:
        """Return Unix time in seconds."""

    def monotonic_ns(self) -> int:
        """Return a time in nanoseconds that never goes back."""


class Random(Protocol):
    """Dice that nobody can foresee, such as `os.urandom`."""

    def __call__(self, size: int, /) -> bytes:
        """Return so many random bytes."""


class Tokens(Protocol):
    """Counts tokens, as the model asked for does or nearly so."""

    def estimate(self, text: str) -> int:
        """Return about how many tokens `text` is; costs a small part of `count`."""

    def count(self, text: str, model: str = "") -> int:
        """Return how many tokens `text` is for `model`; a long text is estimated from samples."""

    async def count_apart(self, texts: Sequence[str], model: str, *, deadline_s: float) -> int:
        """Return how many tokens `texts` are in all, counted while others are served.

        What is late, or finds too many before it, is estimated.
        """


class Workers(Protocol):
    """Runs what takes milliseconds apart from the loop that serves everybody."""

    async def run(self, work: Callable[..., T], *arguments: Any, deadline_s: float) -> T:
        """Return `work(*arguments)`; both must be picklable, `work` a function of a module.

        Raise `PortError` when the pool is full, `deadline_s` passes, or `work` raises.
        """


class Models(Protocol):
    """Asks small models that lie in a folder of this machine. Raises `PortError` when it cannot."""

    async def classify(self, folder: str, text: str, deadline_s: float) -> Mapping[str, float]:
        """Return the probability of each label of the sequence classifier in `folder`."""

    async def summarise(self, folder: str, text: str, max_tokens: int, deadline_s: float) -> str:
        """Return what the sequence-to-sequence model in `folder` makes of `text`."""


class Upstream(Protocol):
    """Asks another model than the client did, by way of the proxy."""

    async def ask(
        self,
        cluster: str,
        model: str,
        prompt: str,
        *,
        max_tokens: int,
        deadline_s: float,
        whole: bool = True,
        traceparent: str = "",
    ) -> str:
        """Return the answer of `model` at the proxy's `cluster`, as OpenAI chat completions.

        The temperature is 0. `whole` refuses an answer that `max_tokens` cut, as a summary must not
        be; `traceparent` is the exchange's. Raise `PortError` when it is late, empty, unfinished or
        refused, or too many others are being asked.
        """


class Picked(Protocol):
    """A request that counts at a replica, until `ended` is called, whatever became of it."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where to send it, as "ip:port": there, or else there."""

    @property
    def why(self) -> str:
        """What decided, in a few words."""

    @property
    def held(self) -> int:
        """How many tokens of the prompt the replica should have in its cache."""

    @property
    def expected_s(self) -> float:
        """When its first token is expected, in seconds from the pick."""

    def served(self, address: str) -> None:
        """Say that it went to another address than the first; that one is avoided for a while."""

    def started(self) -> None:
        """Say that the first of the answer came."""

    def ended(self, *, good: bool = True, ill: bool = False) -> None:
        """Say that it is over, and whether the replica has read the prompt. May be called again.

        `ill`: it said that it cannot serve. One that says nothing else is avoided.
        """


class Replicas(Protocol):
    """Knows the replicas of each pool, and chooses among them. Only `read` waits; nothing fails."""

    def has(self, pool: str) -> bool:
        """Tell whether there is any choice for `pool`; without, its prompts need not be shown."""

    def reads(self, pool: str) -> bool:
        """Tell whether the replicas of `pool` say which tokens they hold, and prompts are read."""

    async def read(self, pool: str, prompt: Prompt, *, shared: bool) -> Chain | None:
        """Cut a prompt as its model does, for `pick`; None if that cannot be done, or not in time.

        `shared` lets it profit from what others asked.
        """

    def pick(
        self,
        pool: str,
        prompt: bytes,
        seed: str,
        *,
        tokens: int = 0,
        watched: bool = True,
        subset: Collection[str] | None = None,
        chain: Chain | None = None,
    ) -> Picked | None:
        """Choose a replica for a prompt; None where there is none, or none of `subset`.

        Prompts are compared from their beginnings on, apart for each `seed`. Of one not given
        whole, `tokens` says its length. `watched` promises that `started` is called with the first
        token, not only with the whole answer. `chain` is what `read` returned for it.
        """

    def full_s(self, pool: str, subset: Collection[str] | None = None) -> float:
        """Return in how many seconds a client should ask again; 0: the replicas have room for it.

        A pool that sets no bound always has.
        """

    def gpu_usage(self, pool: str, address: str) -> float | None:
        """Return for what part of its time a replica's GPU works, 0 to 1; None: not known.

        Of an `address` that is not known, the mean of those of the pool that tell.
        """


class NoReplicas:
    """A `Replicas` that knows none: the proxy chooses."""

    def has(self, pool: str) -> bool:
        """Tell that there is no choice."""
        return False

    def reads(self, pool: str) -> bool:
        """Read nothing."""
        return False

    async def read(self, pool: str, prompt: Prompt, *, shared: bool) -> Chain | None:
        """Read nothing."""
        return None

    def pick(
        self,
        pool: str,
        prompt: bytes,
        seed: str,
        *,
        tokens: int = 0,
        watched: bool = True,
        subset: Collection[str] | None = None,
        chain: Chain | None = None,
    ) -> Picked | None:
        """Choose nobody."""
        return None

    def full_s(self, pool: str, subset: Collection[str] | None = None) -> float:
        """Refuse nobody."""
        return 0.0

    def gpu_usage(self, pool: str, address: str) -> float | None:
        """Know of none."""
        return None


class Lease(Protocol):
    """A place in a pool, until `release` is called, whatever became of the exchange."""

    def release(self) -> None:
        """Give the place back; returns at once, never fails, and may be called again."""


class _Unlimited:
    """A place where there is room for all."""

    def release(self) -> None:
        """Do nothing."""


UNLIMITED: Final[Lease] = _Unlimited()
"""The lease of every pool without limits: nobody needs to see the end of its exchanges."""


class Limits(Protocol):
    """Counts who is in a pool that takes only so many. Never fails."""

    async def take(self, pool: str) -> Lease | None:
        """Take a place; None when the pool is full or takes no more for the moment.

        A pool without limits gives `UNLIMITED`, without waiting.
        """


class NoLimits:
    """A `Limits` without any."""

    async def take(self, pool: str) -> Lease | None:
        """Let everybody in."""
        return UNLIMITED


class Slot(Lease, Protocol):
    """A slot of a pool that has work wait in queues; a lease of it."""

    @property
    def waited_s(self) -> float:
        """How long it was waited for."""

    def begun(self) -> None:
        """Say that the answer has begun, once that is known; it may be said again."""


@dataclass(frozen=True, slots=True)
class SentAway:
    """What somebody is told who gets no slot."""

    why: Shed
    retry_s: float
    """In how many seconds there should be room, as fast as the queue drains."""


class Queues(Protocol):
    """Has exchanges wait for a pool until it can take them. Never fails."""

    def bulk_from(self, pool: str) -> int | None:
        """Return from how many tokens on a prompt is bulk work; None: the pool has no queue."""

    async def enter(self, pool: str, wish: Wish) -> Slot | SentAway:
        """Wait for a slot, `wish.wait_s` at most. A caller that is cancelled has left."""


class NoQueues:
    """A `Queues` without any."""

    def bulk_from(self, pool: str) -> int | None:
        """Have nobody wait."""
        return None

    async def enter(self, pool: str, wish: Wish) -> Slot | SentAway:
        """Let everybody in."""
        return _UNQUEUED


class _Unqueued(_Unlimited):
    waited_s = 0.0

    def begun(self) -> None:
        pass


_UNQUEUED: Final = _Unqueued()


class Breakers(Protocol):
    """Keeps exchanges from pools that answer with errors. Waits for nothing, never fails."""

    def watches(self, pool: str) -> bool:
        """Tell whether the pool has a breaker; without, nobody needs to see its replies."""

    def admits(self, pool: str) -> bool:
        """Tell whether an exchange may go there: not while it is open, apart from probes.

        Whoever was admitted calls `ended` in the end.
        """

    def ended(self, pool: str, began_ns: int, *, good: bool | None) -> None:
        """Say how an exchange ended that was admitted at `began_ns`.

        `good` is None where the pool had no say in it.
        """

    def broke(self, pool: str, began_ns: int, well_ns: int) -> None:
        """Say that an answer came to nothing which was told at `well_ns` to have `ended` well."""


class NoBreakers:
    """A `Breakers` without any."""

    def watches(self, pool: str) -> bool:
        """Tell that there is none."""
        return False

    def admits(self, pool: str) -> bool:
        """Let everybody pass."""
        return True

    def ended(self, pool: str, began_ns: int, *, good: bool | None) -> None:
        """Keep nothing."""

    def broke(self, pool: str, began_ns: int, well_ns: int) -> None:
        """Keep nothing."""


class Step(enum.StrEnum):
    """How far a pool is on its way in, in the stead of another."""

    SHADOW = "shadow"
    """It is asked what the other one was, and nobody gets its answers."""
    CANARY = "canary"
    """It serves a share of the tenants."""
    FULL = "full"
    """It serves all."""


class Trial(msgspec.Struct, frozen=True):
    """A pool that is compared with the one whose place it is to take."""

    old: str
    new: str
    step: Step


@dataclass(frozen=True, slots=True)
class Staged:
    """Where an exchange runs while its pool is on the way in."""

    pool: str
    """The pool that answers the client."""
    shadow: str = ""
    """The pool that is asked too, and compared; none if empty."""
    trial: Trial | None = None
    """What its answer is evidence for; None: nobody need look at it."""


class Ending(enum.StrEnum):
    """How a pool dealt with a request."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """By a status of 4xx: the request's own fault."""
    FAILED = "failed"
    """A status of 429 or 5xx, no answer at all, or not the whole of it."""
    LATE = "late"
    """It did not end in time."""
    LEFT = "left"
    """The client did not wait for its end."""


class Heard(msgspec.Struct, frozen=True):
    """What is compared of an answer. Its text is for that alone: it is neither kept nor shown."""

    ending: Ending
    took_ns: int
    """From the request's leaving to its end."""
    first_ns: int = 0
    """To the first piece of a streamed answer; 0 where it did not come as a stream."""
    text: str = ""
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A request to be asked once more, of another pool."""

    dialect: Dialect
    prompt: Prompt
    path: str
    headers: Mapping[str, str]
    """What goes upstream, credentials included."""
    body: bytes
    traceparent: str = ""


class Stages(Protocol):
    """Knows which pools are on their way in, and how far. Waits for nothing, never fails."""

    def choose(self, pool: str, tenant: str) -> Staged:
        """Return where an exchange of `tenant` that is meant for `pool` runs.

        Always the same pool for the same tenant, as long as the stage is the same.
        """

    def shaped_by(self, profile: str, tenant: str) -> str:
        """Return what `Exchange.shaped_by` is for a tenant whom a canary serves, empty for others.

        Wherever an exchange goes: it is asked before its pool is chosen.
        """

    def heard(self, staged: Staged, heard: Heard, question: Question | None = None) -> None:
        """Take the answer of an exchange whose `staged` has a trial; returns at once.

        `question` is for the shadow, if there is one and it may be asked.
        """

    def skipped(self, staged: Staged, why: str) -> None:
        """Say that an exchange with a trial is no evidence; `why` is one of a few words."""


class NoStages:
    """A `Stages` where every pool serves all that is meant for it."""

    def choose(self, pool: str, tenant: str) -> Staged:
        """Stay with the pool."""
        return Staged(pool)

    def shaped_by(self, profile: str, tenant: str) -> str:
        """Tell no tenant from others."""
        return ""

    def heard(self, staged: Staged, heard: Heard, question: Question | None = None) -> None:
        """Compare nothing."""

    def skipped(self, staged: Staged, why: str) -> None:
        """Count nothing."""


class Alarm(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Forget it, and all that it would have reached; may be called again, and afterwards."""


class Wheel(Protocol):
    """Calls back later. One timer serves all who wait, so that one that waits costs no task."""

    def at(self, when_ns: int, call: Callable[[], None]) -> Alarm:
        """Call when `Clock.monotonic_ns` says `when_ns`, or some milliseconds later.

        What lies behind is called soon, and not before this returned.
        """


class _Never:
    """A call that never comes."""

    def cancel(self) -> None:
        """Do nothing."""


class NoWheel:
    """A `Wheel` that stands still."""

    def at(self, when_ns: int, call: Callable[[], None]) -> Alarm:
        """Forget it."""
        return _Never()


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that a filter may ask."""

    store: Store
    flights: Flights
    clock: Clock
    upstream: Upstream
    tokens: Tokens
    workers: Workers
    models: Models
    random: Random = os.urandom
    replicas: Replicas = field(default_factory=NoReplicas)
    limits: Limits = field(default_factory=NoLimits)
    queues: Queues = field(default_factory=NoQueues)
    breakers: Breakers = field(default_factory=NoBreakers)
    stages: Stages = field(default_factory=NoStages)
    batches: Batches = field(default_factory=NoBatches)
    wheel: Wheel = field(default_factory=NoWheel)
    pools: Pools = field(default_factory=Pools)
    """What the settings say of pools; replaced with them."""


# --- The exchange --------------------------------------------------------------------------------


class Quality(enum.StrEnum):
    """What the client is promised; SLAs are counted apart."""

    FULL = "FULL"
    BEST_EFFORT = "BEST_EFFORT"


class Need(enum.IntFlag):
    """What a filter must see after the request; the proxy is asked for what all need together."""

    NOTHING = 0
    """The proxy goes on alone; `on_finish` runs as soon as the request was handed over."""
    END = 1
    """When the exchange ends; whether it ended well is not seen without its reply."""
    REPLY = 2
    """The reply's head and body."""
    HEAD = 4
    """The reply's head; who sees it may ask for `REPLY` then, or for nothing more."""


class Outcome(enum.StrEnum):
    """How an exchange ended."""

    FORWARDED = "forwarded"
    """Handed to the proxy: nobody needed its end, or nobody can tell how it ended."""
    ANSWERED = "answered"
    """A filter answered in the upstream's stead."""
    COMPLETE = "complete"
    """The last byte of the reply was seen."""
    GONE = "gone"
    """Client, upstream or proxy left before the reply began, or while it was read."""
    PASSED = "passed"
    """No filter saw it: no LLM call, no filters, or a body that cannot be read."""
    REFUSED = "refused"
    """The route names a profile that does not exist, or too many exchanges were open."""
    FAILED = "failed"
    """Something in Forebay broke; the original request went on."""


class RequestHead(msgspec.Struct, frozen=True):  # every exchange makes one: 0.1 us
    """The request line and headers; names are lower case, repeated values joined by commas."""

    method: str
    path: str
    headers: Mapping[str, str]


class ReplyHead(msgspec.Struct, frozen=True):
    """The reply's status and headers; names are lower case."""

    status: int
    headers: Mapping[str, str]
    served: str = ""
    """The replica that answers, as "ip:port"; empty where the proxy does not tell."""


Note: TypeAlias = str | int | float | bool


class Task(msgspec.Struct, frozen=True):  # as cheap as a turn, for every classified request
    """What a request asks for, as far as it could be told."""

    intent: str
    """One word of the classifier's labels; `open` when it is not sure."""
    domain: str
    """`general`, `code`, `legal`, `medical`, `finance`."""
    score: float
    """How sure the classifier is of the intent, 0 to 1."""
    expert: bool = False
    """It wants an expert or full care: no later filter gives it to a lesser pool."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rule took out of a prompt, in tokens of the text that it worked on."""

    rule: str
    """Filter and rule, such as `clean.html`: a metric's label."""
    before: int
    after: int


class Exchange(msgspec.Struct):  # 0.3 us, a dataclass 1.8 us
    """One request and its reply on their way through the filters of a profile."""

    profile: str
    tenant: str
    """Whose request it is, hashed: part of every key under which anything is shared."""
    head: RequestHead
    dialect: Dialect
    prompt: Prompt
    pool: str
    """Name of the pool that serves it; the profile's own unless a filter chooses another."""
    endpoints: tuple[str, ...] = ()
    """Replicas of that pool, as "ip:port", the first choice first; none: the proxy chooses."""
    subset: tuple[str, ...] | None = None
    """Those that the proxy leaves to choose from, as it wrote them; None: all."""
    must_pick: bool = False
    """The proxy is a gateway that does not choose by itself: without endpoints it is an error."""
    needs: Need = Need.NOTHING
    upstream_headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers set on the request that goes upstream."""
    client_headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers set on the reply, from those that the shipped YAML lets through."""
    notes: dict[str, Note] = msgspec.field(default_factory=dict)
    cuts: list[Cut] = msgspec.field(default_factory=list)
    """What was taken out of the prompt, in the order it went."""
    task: Task | None = None
    """What is asked for; None when no filter looked."""
    staged: Staged | None = None
    """Where `Ports.stages` put it; None when no filter asked."""
    slot: Slot | None = None
    """What it holds of a pool that has queues: whoever sees its answer begin says so there."""
    reply_head: ReplyHead | None = None
    broke_off: bool = False
    """Its streamed answer was read, and came not to be whole by the upstream's doing. Known in the
    end."""
    traceparent: str = ""
    """W3C header of the proxy's span: what a port asks for this exchange is traced under it."""
    shaped_by: str = ""
    """A hash of all settings of its profile that may change prompt or answer."""

    def note(self, key: str, value: Note) -> None:
        """Say something about this exchange in the log line and the span."""
        self.notes[key] = value

    def cut(self, rule: str, before: int, after: int) -> None:
        """Say that `rule` made a text of `before` tokens one of `after`."""
        self.cuts.append(Cut(rule, before, after))

    def need(self, need: Need) -> None:
        """Ask to see this of what comes after the request."""
        self.needs |= need


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole reply given in the upstream's stead."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    relayed: bool = False
    """The upstream said it, asked by another way: it passes the filters before as a reply does."""


class Continue(enum.Enum):
    """The verdict of a filter that lets the exchange go on."""

    CONTINUE = enum.auto()


CONTINUE: Final = Continue.CONTINUE
Verdict: TypeAlias = Continue | Answer

# --- The filter ----------------------------------------------------------------------------------


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a filter's settings: immutable, unknown keys refused, defaults in the class."""


ConfigT = TypeVar("ConfigT", bound=Config)


class Holding(enum.IntEnum):
    """Whether a filter has pieces of a stream wait; a plain reply never does."""

    NOTHING = 0
    WHOLE = 1
    """As they came: what waits can still reach the client should this process die."""
    CUT = 2
    """It also puts others in their place, as one that `edits_stream`."""


class Filter(Generic[ConfigT]):
    """One step of a profile. One instance serves one exchange, so its state is plain attributes.

    Override only the hooks that are needed: a phase nobody listens to costs nothing.
    """

    name: ClassVar[str]
    """Config key, metric label and stage name; the same word as the module."""
    config_type: ClassVar[type[Config]]
    edits_stream: ClassVar[bool] = False
    """It changes what the client receives, plain replies too, instead of only watching it."""
    counts_tokens: ClassVar[bool] = False
    """It asks `ports.tokens.count`, for which an encoding is loaded early."""
    bundled: ClassVar[Sequence[str]] = ()
    """Files and folders in `filters/data` that it works from: others make other prompts."""

    def __init__(self, config: ConfigT, prepared: Any, ports: Ports) -> None:
        self.config: Final = config
        self.prepared: Final = prepared
        self.ports: Final = ports

    @classmethod
    def prepare(cls, config: ConfigT) -> Any:
        """Compute what every exchange of a profile shares, such as a word automaton; once."""
        return None

    @classmethod
    def shaping(cls, config: ConfigT) -> Any:
        """Return what of the settings may change prompt or answer: all, unless a filter knows.

        Anything that `msgspec` encodes. Answers given under other ones are not given again.
        """
        return config

    @classmethod
    def longest_wait_s(cls, config: ConfigT) -> float:
        """Return how long `on_request` may wait for ports, in seconds: the sum of its deadlines.

        The proxy is asked for as much time as the filters of a profile may take together.
        """
        return 0.0

    @classmethod
    def holding(cls, config: ConfigT) -> Holding:
        """Tell whether it has a stream wait: then `wake_ns` says when `on_time` is to be called."""
        return Holding.NOTHING

    async def on_request(self, exchange: Exchange) -> Verdict:
        """See the whole request; change it, answer it, or let it go on."""
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """See the reply's head in `exchange.reply_head`."""

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """See one piece of the reply, a plain JSON reply being one; return what takes its place."""
        return (delta,)

    def on_end(self, exchange: Exchange) -> Iterable[Delta]:
        """See that the upstream's reply is over, its last piece seen; return what is due.

        What is not, goes with `on_time`: until nothing waits the client's reply is not over. An
        upstream that breaks off ends the exchange by `on_finish` alone.
        """
        return ()

    def wake_ns(self) -> int | None:
        """Return when `on_time` is to be called, by `Clock.monotonic_ns`; None: nothing waits."""
        return None

    def on_time(self, exchange: Exchange) -> Iterable[Delta]:
        """Return what is due, to be sent in one; called again while `wake_ns` lies behind.

        It may be called before that: nothing is due then.
        """
        return ()

    def let_go(self) -> Iterable[Delta]:
        """Return all that waits, in its order: the filter failed, and the client needs it.

        The piece that it failed at goes on behind that, whether it is among it or not.
        """
        return ()

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Let go of everything held. Runs exactly once for every filter that saw the request."""
