"""Values that the parts of core exchange: block keys, prompts as keys, worker facts, decisions."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, NewType

from router.core.token_tally import TokenTally

WorkerId = NewType("WorkerId", str)
BLOCK_TOKENS: Final = 16  # canonical block; an engine's block is a multiple (design: keys)
TEXT_BLOCK_BYTES: Final = 64  # one block of text keys, about 16 tokens of English

Keys = array  # typecode 'Q': one chained 64-bit key per block, first block first


class KeyForm(StrEnum):
    """What a chain was hashed from. Chains of different forms never compare equal: the form is in the namespace."""

    TOKENS = "tokens"
    TEXT = "text"
    RAW = "raw"  # first bytes of a body too large to be parsed
    NONE = "none"


class Truth(StrEnum):
    """How the router knows what a worker has cached."""

    EXACT = "exact"
    MODELLED = "modelled"
    UNTRUSTED = "untrusted"
    NONE = "none"


class Lifecycle(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


@dataclass(init=False, slots=True)
class PromptKeys:
    """A prompt as the chain of its block keys.

    `keys` may be a leading part of the whole chain while `complete` is False; what is missing is not held by any
    worker or is being computed. `prompt_tokens` counts the whole prompt, estimated where `exact_tokens` is False.
    `unkeyed_reason` says why they are not from the tokens that the tokenizer here makes.
    `tally` compares that count with the engine's; None where it is no count of a tokenizer.
    """

    keys: "array[int]"
    prompt_tokens: int
    form: KeyForm
    complete: bool
    exact_tokens: bool
    unkeyed_reason: str | None
    tally: TokenTally | None

    # Written out, here and in Decision: one that dataclass makes stays interpreted, and these are made for each request.
    def __init__(
        self, keys: "array[int]", prompt_tokens: int, form: KeyForm = KeyForm.TOKENS, complete: bool = True,
        exact_tokens: bool = True, unkeyed_reason: str | None = None, tally: TokenTally | None = None,
    ) -> None:  # fmt: skip
        self.keys = keys
        self.prompt_tokens = prompt_tokens
        self.form = form
        self.complete = complete
        self.exact_tokens = exact_tokens
        self.unkeyed_reason = unkeyed_reason
        self.tally = tally


class Usage(NamedTuple):
    """What an engine reported about one request; None where it did not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(slots=True, frozen=True)
class CandidateCost:
    """One worker's numbers in one decision. Seconds, tokens and requests as named."""

    worker: WorkerId
    matched_tokens: int
    uncached_tokens: int
    prefill_s: float  # x: this prompt's uncached tokens over the worker's speed
    backlog_s: float  # u: prefill work ahead of it
    price: float  # q: what a second of work costs later arrivals
    cost_s: float
    in_flight: int  # requests of this router and of others that tell of theirs
    truth: Truth
    home: bool  # one of the prompt's homes on the ring; looked up only where nobody holds its first block
    session: bool  # the worker of the session hint


class Priced:
    """One candidate as it is kept until somebody asks, see CandidateCost for the names."""

    __slots__ = ("backlog_s", "bid_s", "cost_s", "in_flight", "matched_tokens", "prefill_s", "price", "truth", "worker")

    def __init__(
        self, worker: WorkerId, matched_tokens: int, prefill_s: float, backlog_s: float, price: float, cost_s: float,
        in_flight: int, truth: Truth,
    ) -> None:  # fmt: skip
        self.worker = worker
        self.matched_tokens = matched_tokens
        self.prefill_s = prefill_s
        self.backlog_s = backlog_s
        self.price = price
        self.cost_s = cost_s
        self.bid_s = cost_s  # less the session credit: what candidates are compared by
        self.in_flight = in_flight
        self.truth = truth


@dataclass(init=False, slots=True)
class Decision:
    """Why a request went where it went. Kept in the decision log, filled in as the request goes on."""

    request_id: str
    at_s: float  # wall clock, seconds since the epoch
    policy: str
    # warm_prefix (holds most), holder_busy (another is cheaper), ring_home and least_cost (nobody holds it), session,
    # least_queue, round_robin, random, only_candidate, retry
    reason: str
    worker: WorkerId
    model: str
    prompt_tokens: int
    key_form: KeyForm
    unkeyed_reason: str | None
    predicted_cached_tokens: int
    candidates: tuple[CandidateCost, ...]  # made from `priced` when the decision log is asked
    session: str | None
    tried: tuple[WorkerId, ...]
    actual_cached_tokens: int | None
    ttft_s: float | None
    duration_s: float | None
    status: int | None
    outcome: str | None  # ok, client_gone, or the reason of an error
    priced: Sequence[Priced]
    homes: tuple[WorkerId, ...]
    hinted: WorkerId | None  # the worker of the session hint

    def __init__(
        self, request_id: str, at_s: float, policy: str, reason: str, worker: WorkerId, model: str, prompt_tokens: int,
        key_form: KeyForm, unkeyed_reason: str | None, predicted_cached_tokens: int,
        candidates: tuple[CandidateCost, ...] = (), session: str | None = None, tried: tuple[WorkerId, ...] = (),
        actual_cached_tokens: int | None = None, ttft_s: float | None = None, duration_s: float | None = None,
        status: int | None = None, outcome: str | None = None, priced: Sequence[Priced] = (),
        homes: tuple[WorkerId, ...] = (), hinted: WorkerId | None = None,
    ) -> None:  # fmt: skip
        self.request_id = request_id
        self.at_s = at_s
        self.policy = policy
        self.reason = reason
        self.worker = worker
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.key_form = key_form
        self.unkeyed_reason = unkeyed_reason
        self.predicted_cached_tokens = predicted_cached_tokens
        self.candidates = candidates
        self.session = session
        self.tried = tried
        self.actual_cached_tokens = actual_cached_tokens
        self.ttft_s = ttft_s
        self.duration_s = duration_s
        self.status = status
        self.outcome = outcome
        self.priced = priced
        self.homes = homes
        self.hinted = hinted


@dataclass(slots=True)
class WorkerReport:
    """What a sidecar says of one worker (design: state contract). None is unknown, never 0."""

    worker: WorkerId
    kind: str
    url: str
    generation: str
    lifecycle: Lifecycle
    reported_at_s: float  # monotonic clock of the router
    models: tuple[str, ...] | None = None
    # LoRA adapters among the models: NAME, or NAME@VERSION where other weights can come under the same name. The text is
    # what chains of their prompts are rooted in, behind the base model's name, on both sides.
    adapters: tuple[str, ...] | None = None
    loaded_adapters: tuple[str, ...] | None = None  # names of those in the engine's memory now
    block_tokens: int | None = None
    capacity_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    kv_used_ratio: float | None = None
    truth: Truth = Truth.MODELLED
    truth_reason: str = ""
    detail: str = ""  # why it is down or loading, for people
    extra: dict[str, float] = field(default_factory=dict)
