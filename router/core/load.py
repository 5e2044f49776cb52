"""What each worker has to do: leases from the moment of choice, prefill still ahead, arrival rates, reports.

Own counts move at selection and are never reset. Other routers' counts are added (`SharedLoad` writes them), and what a
worker reports adds only what neither explains (unknown is not zero, an old report is no report).
"""

import math
from typing import TYPE_CHECKING, Final

from router.core.types import Decision, PromptKeys

if TYPE_CHECKING:
    from router.core.fleet import Worker

UNKNOWN: Final = -1
INFINITE: Final = math.inf
NEVER_S: Final = -math.inf
REBASE_AT: Final = 200.0  # e-folds until weights are brought back to 1; a float has room for 700
REBASE_WEIGHT: Final = math.exp(REBASE_AT)


class Lease:
    """One request on one worker, from its choice to its end. Only `Load` and `Placement` write it."""

    __slots__ = (
        "ahead_tokens",
        "alone",
        "awaited_key",
        "awaited_life",
        "by_events",
        "by_history",
        "coldest_s",
        "computed",
        "confirmed",
        "crowded",
        "decision",
        "inserted_s",
        "life",
        "matched_blocks",
        "prefill_s",
        "prompt",
        "released",
        "sent_s",
        "stream",
        "uncached_tokens",
        "worker",
    )

    def __init__(self, worker: "Worker", decision: Decision, prompt: PromptKeys, uncached_tokens: int, sent_s: float) -> None:
        self.worker = worker
        self.life = worker.life  # results of an earlier life never touch the state of a later one
        self.decision = decision
        self.prompt = prompt
        self.uncached_tokens = uncached_tokens
        self.sent_s = sent_s
        self.matched_blocks = 0
        self.coldest_s = INFINITE  # when the coldest of the matched blocks was last used before this request
        self.alone = True  # no prefill was ahead of it when it was sent
        self.crowded = False  # prefill of other routers was: when its own began is not known
        self.confirmed = True  # False: the matched blocks may still have been being computed
        self.prefill_s: float | None = None  # how long its prefill took, where its first token tells
        self.inserted_s: float | None = None  # when its blocks entered the worker's cache model
        self.stream = True  # its first byte tells when its prefill was done
        self.computed = False  # the worker's cache events have all of it
        self.ahead_tokens: int | None = None  # of a whole answer: prefill ahead of it, if nothing else delays it
        self.awaited_key: int | None = None  # its last block, while the worker's cache events are to confirm it
        self.awaited_life = 0  # of the worker, when they began to be awaited
        self.by_events = UNKNOWN  # cached tokens that the events predicted; UNKNOWN: they did not, or not they alone
        self.by_history = UNKNOWN  # and that the model of the worker's cache did
        self.released = False


class Load:
    """One worker's requests. Rates are in weighted units, see `FleetLoad`."""

    __slots__ = (
        "arrivals",
        "busy_s",
        "head",
        "head_since_s",
        "in_flight",
        "other_requests",
        "other_running",
        "other_since_s",
        "other_tokens",
        "pending",
        "pending_tokens",
        "report_until_s",
        "reported_waiting",
        "reported_waiting_tokens",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        self.pending: dict[Lease, None] = {}  # before their first token, in order of sending
        self.pending_tokens = 0  # their uncached tokens
        self.head: Lease | None = None  # the first of them: the one whose prefill is thought to run
        self.head_since_s = 0.0
        self.other_requests = 0  # of other routers, before their end
        self.other_tokens = 0  # their uncached tokens, before their first token
        self.other_running = 0  # of them, those whose prefill may have gone on
        self.other_since_s = NEVER_S  # since then
        self.arrivals = 0.0
        self.busy_s = 0.0
        self.report_until_s = NEVER_S
        self.reported_waiting = UNKNOWN
        self.reported_waiting_tokens = UNKNOWN

    def hear_others(self, requests: int, tokens: int, now_s: float, s_per_token: float) -> None:
        """Adds to what other routers have there, or takes off. With fewer tokens a prefill is over and the next has begun;
        so it has where all that ran should be over, and of that nothing is left in what is told."""
        self.other_requests += requests
        self.other_tokens += tokens
        if tokens < 0 or now_s - self.other_since_s >= float(self.other_running) * s_per_token:
            self.other_since_s = now_s
            self.other_running = self.other_tokens

    def take(self, lease: Lease) -> None:
        self.in_flight += 1
        if self.head is None:
            self.head = lease
            self.head_since_s = lease.sent_s
        self.pending[lease] = None
        self.pending_tokens += lease.uncached_tokens

    def first_token(self, lease: Lease, now_s: float) -> float | None:
        """Its prefill is done. Returns how long that took if nothing was ahead of it, else None; None the second time."""
        if lease not in self.pending:
            return None
        took_s = now_s - self.head_since_s if lease is self.head else None
        self._leave(lease)
        self.head_since_s = now_s  # the next one cannot have been prefilled before
        return took_s

    def computed(self, lease: Lease) -> None:
        """The worker has stored the whole prompt. Where the answer streams, its first token will tell that too, and when."""
        if lease.stream or not lease.prompt.complete or lease not in self.pending:
            return
        if lease is self.head:
            lease.computed = True
        else:
            self._leave(lease)

    def advance(self, now_s: float, s_per_token: float) -> None:
        """Requests at the head whose answers do not stream leave when their prefill is known to be done, or should be."""
        while (head := self.head) is not None and not head.stream:
            done_s = self.head_since_s + head.uncached_tokens * s_per_token
            if done_s > now_s:
                if not head.computed:
                    return
                done_s = now_s
            self._leave(head)
            self.head_since_s = done_s if self.head is None else max(done_s, self.head.sent_s)

    def release(self, lease: Lease, now_s: float) -> bool:
        """Ends the lease, in whatever state; False and no change if it has ended before."""
        if lease.released:
            return False
        lease.released = True
        self.in_flight -= 1
        if lease in self.pending:
            was_head = lease is self.head
            self._leave(lease)
            if was_head:
                self.head_since_s = now_s
        return True

    def reprice(self, lease: Lease, uncached_tokens: int) -> None:
        """The prompt turned out longer or shorter than thought."""
        if lease in self.pending:
            self.pending_tokens += uncached_tokens - lease.uncached_tokens
        lease.uncached_tokens = uncached_tokens

    def report(self, waiting: int | None, waiting_tokens: int | None, until_s: float) -> None:
        """What the worker itself says, valid until then."""
        self.report_until_s = until_s
        self.reported_waiting = UNKNOWN if waiting is None else waiting
        self.reported_waiting_tokens = UNKNOWN if waiting_tokens is None else waiting_tokens

    def requests(self) -> int:
        """In flight, of all routers."""
        return self.in_flight + self.other_requests

    def waiting_at(self, now_s: float) -> int:
        """Requests before their first token: the larger of own count and a fresh report."""
        own = len(self.pending)
        return max(own, self.reported_waiting) if now_s <= self.report_until_s else own

    def serves_at_once(self, now_s: float, alone: bool) -> bool:
        """Whether a request that is slow waits for work, not for its turn: none waits, says a fresh report, or without one,
        it is `alone`."""
        if now_s <= self.report_until_s and self.reported_waiting != UNKNOWN:
            return self.reported_waiting == 0
        return alone

    def unexplained_tokens(self, now_s: float, mean_uncached_tokens: float) -> float:
        """Uncached tokens waiting there that no router is known to have sent."""
        if now_s > self.report_until_s:
            return 0.0
        if self.reported_waiting_tokens != UNKNOWN:
            tokens = float(self.reported_waiting_tokens - self.pending_tokens - self.other_tokens)
        else:
            tokens = (self.reported_waiting - len(self.pending)) * mean_uncached_tokens - float(self.other_tokens)
        return tokens if tokens > 0.0 else 0.0

    def other_backlog_s(self, now_s: float, s_per_token: float) -> float:
        """Prefill that other routers have there. It goes on while none of this router's does: whole answers are told of
        only when they end."""
        backlog_s = float(self.other_tokens) * s_per_token
        if self.head is None:
            since_s = self.other_since_s if self.other_since_s > self.head_since_s else self.head_since_s
            done_s, running_s = now_s - since_s, float(self.other_running) * s_per_token
            backlog_s -= done_s if done_s < running_s else running_s
        return backlog_s if backlog_s > 0.0 else 0.0

    def backlog_tokens(self, now_s: float, s_per_token: float, mean_uncached_tokens: float) -> float:
        """Uncached tokens ahead of a request that arrives now."""
        own = float(self.pending_tokens)
        if self.head is not None:
            own -= min(float(self.head.uncached_tokens), max(0.0, (now_s - self.head_since_s) / s_per_token))
        others = self.other_backlog_s(now_s, s_per_token) / s_per_token
        return own + others + self.unexplained_tokens(now_s, mean_uncached_tokens)

    def _leave(self, lease: Lease) -> None:
        del self.pending[lease]
        self.pending_tokens -= lease.uncached_tokens
        if lease is self.head:
            self.head = next(iter(self.pending), None)


class FleetLoad:
    """Sums over the fleet, and the clock of all decayed rates.

    An arrival at time t counts exp(k·(t − t0)), so that nothing has to be decayed as time goes by: a rate now is the sum
    times k·exp(−k·(now − t0)), one exponential for the whole fleet.
    """

    __slots__ = ("_k", "_t0_s", "arrivals", "busy_s", "in_flight", "other_requests", "other_routers", "tokens")

    def __init__(self, half_life_s: float) -> None:
        self._k = math.log(2) / half_life_s
        self._t0_s = NEVER_S
        self.arrivals = 0.0
        self.busy_s = 0.0  # prefill seconds sent out
        self.tokens = 0.0  # uncached tokens sent out
        self.in_flight = 0
        self.other_requests = 0  # in flight, of other routers
        self.other_routers = 0

    def weight(self, now_s: float) -> float:
        """What an arrival at `now_s` counts."""
        if self._t0_s == NEVER_S:
            self._t0_s = now_s
        folds = self._k * (now_s - self._t0_s)
        return math.exp(folds if folds < REBASE_AT * 2 else REBASE_AT * 2)

    def per_s(self, weight: float) -> float:
        """Factor from sums to rates per second, at the time whose weight this is."""
        return self._k / weight

    def fleet_share(self) -> float:
        """The fleet's requests in flight per own one, at most as if every other router were as busy: what own rates are
        multiplied by (policy-lab §1, S). 1.0 alone."""
        if not self.other_requests:
            return 1.0
        others = float(self.other_requests) / float(self.in_flight if self.in_flight else 1)
        return 1.0 + (others if others < self.other_routers else float(self.other_routers))

    def needs_rebase(self, weight: float) -> bool:
        return weight > REBASE_WEIGHT

    def rebase(self, now_s: float, loads: "list[Load]") -> None:
        """Scales all sums so that an arrival now counts 1."""
        shrink = 1.0 / self.weight(now_s)
        self._t0_s = now_s
        self.arrivals *= shrink
        self.busy_s *= shrink
        for load in loads:
            load.arrivals *= shrink
            load.busy_s *= shrink
        self.tokens *= shrink

    def mean_uncached_tokens(self) -> float:
        """Of a request lately sent; 0 before the first."""
        return self.tokens / self.arrivals if self.arrivals else 0.0
