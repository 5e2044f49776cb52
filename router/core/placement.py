"""Where a request goes, and what is learned from how it went: glues index, ring, load, speed, price and policy.

Every method is synchronous and pure; the caller passes the time. A lease counts from `choose` on and ends with exactly
one of `finish` and `fail`, whichever comes first; the other is then without effect.
"""

from array import array
from collections.abc import Sequence
from typing import Final, Protocol

from router.core.cache_truth import CacheTruth, united, without
from router.core.calibration import Calibration
from router.core.cost import WORK_PRICE, Steer, held_blocks, mean_rates, note_matches, price
from router.core.decision_log import DecisionLog
from router.core.elsewhere import SentElsewhere
from router.core.fleet import Fleet, Worker
from router.core.load import UNKNOWN, FleetLoad, Lease
from router.core.policy import FleetView, Pool, Question, Random, make_policy, shortlist
from router.core.prefix_index import PrefixIndex
from router.core.prefix_node import Walk
from router.core.ring import Ring
from router.core.sessions import Sessions
from router.core.shared_load import SharedLoad
from router.core.slot_workers import SlotWorkers
from router.core.speed import FleetSpeed
from router.core.stats import Stats
from router.core.types import BLOCK_TOKENS, Decision, Priced, PromptKeys, Truth, Usage, WorkerId
from router.settings import CacheSettings, RoutingSettings

MAX_POOLS: Final = 256
ENDED: Final = -1  # life of a lease whose results count no more
NO_CACHE: Final = Truth.NONE
NOTHING_LOST: Final[list[tuple[int, int]]] = []

__all__ = ["Lease", "Placement"]


class LoadBoard(Protocol):
    """Where a router tells others what it has in flight."""

    def touch(self, worker: WorkerId) -> None:
        """The worker's load changed. Called with every request, so it only makes a note."""

    def mark(self, worker: WorkerId, keys: "array[int]", known_blocks: int) -> None:
        """A prompt was sent to the worker. Others may send the next that begins alike before any event tells of this one;
        of the first `known_blocks` they know."""


class Placement:
    """State of all choices. Follows the fleet by itself: joins, restarts and leaves need no call here."""

    def __init__(self, routing: RoutingSettings, cache: CacheSettings, fleet: Fleet, stats: Stats, rng: Random) -> None:
        self.index = PrefixIndex(cache.index_bytes)
        self.load = FleetLoad(routing.rate_half_life_s)
        self.speed = FleetSpeed(routing.prefill_tokens_per_s)
        self.sessions = Sessions(routing.max_sessions)
        self.log = DecisionLog(routing.decision_log_size)
        self._steer = Steer(routing)
        self._policy_name = routing.policy
        self._ring_blocks = routing.ring_blocks
        self._session_credit_s = routing.session_credit_s
        self._max_candidates = routing.max_candidates
        self._adapter_load_s = float(routing.adapter_load_s)
        self.cache_truth = CacheTruth(cache, fleet, self.index)
        self._calibration = Calibration(self.index, cache.default_capacity_tokens)
        self._slots = SlotWorkers(cache.default_capacity_tokens)
        self._fleet = fleet
        self._stats = stats
        self._ring = Ring(routing.ring_points)
        self._policy = make_policy(routing.policy)
        self._view = FleetView(fleet.slots, self.load, routing.ring_load_factor, rng)
        self._pools: dict[int, Pool] = {}  # by id() of the tuple, which the pool keeps alive
        self._pool_last: Pool | None = None
        self._pools_epoch = -1
        self._now_s = 0.0  # the latest seen
        self.elsewhere = SentElsewhere(fleet, cache.speculative_s, cache.max_heard_marks)
        self.shared_load = SharedLoad(fleet, self.load, self.speed, self.elsewhere)
        self._board: LoadBoard | None = None
        fleet.watch(self)

    # The life of a request.

    def choose(
        self,
        request_id: str,
        model: str | None,
        prompt: PromptKeys,
        workers: Sequence[Worker],
        *,
        session: str | None = None,
        tried: tuple[WorkerId, ...] = (),
        now_s: float,
        wall_s: float,
        stream: bool = True,
    ) -> Lease:
        """One of `workers` (at least one), with its load and its cache model already moved.

        `stream`: the first byte of the answer tells when its prefill was done; otherwise that is estimated.
        """
        if now_s < self._now_s:
            now_s = self._now_s
        self._now_s = now_s
        keys, index, truth = prompt.keys, self.index, self.cache_truth
        blocks = len(keys)
        if truth.special:
            truth.speculation.expire(now_s)
        walk = index.walk(keys, blocks)
        levels = index.levels(walk)
        if truth.special:
            levels = truth.levels(levels, prompt)
        own_levels = levels
        if len(self.elsewhere):
            sent = self.elsewhere.levels(keys, now_s)
            levels = united(levels, without(sent, truth.blind) if truth.blind else sent)
        ring_key = keys[min(blocks, self._ring_blocks) - 1] if blocks else None
        loaded = self._fleet.adapters.get(model) if model is not None and self._fleet.adapters else None
        if loaded is None or (blocks and self._policy_name == "warm"):
            pool = self._pool(workers, not tried)
        else:  # nothing that a load time could be added to decides
            pool = self._pool(tuple([worker for worker in workers if loaded & worker.bit]) or workers, False)
        hint = None if session is None else self._hinted(session, pool)
        q = Question(pool, levels, ring_key, hint, now_s)
        q.nominee = self._policy.nominate(q, self._view)
        weight = self._weight(now_s)
        self._price(q, prompt, weight, loaded)
        place, reason = self._policy.pick(q, self._view)
        if tried:
            reason = "retry"
        elif len(pool.workers) == 1:
            reason = "only_candidate"
        decision = self._decide(request_id, model, prompt, q, q.priced[place], reason, session, tried, wall_s)
        worker = q.candidates[place]
        lease = self._send(decision, worker, q.priced[place], walk, prompt, session, weight, now_s, stream)
        if levels is not own_levels and (own_blocks := held_blocks(worker, own_levels, 0)) < lease.matched_blocks:
            lease.matched_blocks = own_blocks  # what only marks say is no history, to be kept when the request fails
            lease.confirmed = False
        return lease

    def first_token(self, lease: Lease, now_s: float) -> None:
        """The answer's first byte; of a streamed one it tells that the prefill is done. Later calls change nothing."""
        if lease.decision.ttft_s is not None or lease.released:
            return
        lease.decision.ttft_s = now_s - lease.sent_s
        if self._board is not None:
            self._board.touch(lease.worker.id)
        took_s = lease.worker.load.first_token(lease, now_s)
        if lease.stream and not lease.crowded:
            lease.prefill_s = took_s

    def extend(self, lease: Lease, prompt: PromptKeys) -> None:
        """The whole chain of a prompt that was chosen for with a leading part of it; its end may have come already."""
        before, lease.prompt = lease.prompt, prompt
        decision = lease.decision
        decision.prompt_tokens = prompt.prompt_tokens
        uncached = max(1, prompt.prompt_tokens - decision.predicted_cached_tokens)
        lease.worker.load.reprice(lease, uncached)
        if self._board is not None:
            self._board.touch(lease.worker.id)
            if lease.worker.truth is not NO_CACHE:
                self._board.mark(lease.worker.id, prompt.keys, len(before.keys))
        self._insert(lease, None)

    def finish(self, lease: Lease, now_s: float, usage: Usage | None, outcome: str, status: int | None) -> None:
        """The request is over. A status of 400 or more means that its prompt was not computed."""
        if not self._end(lease, now_s, outcome):
            return
        lease.decision.status = status
        if status is not None and status >= 400:
            self._undo(lease)
            return
        decision = lease.decision
        told_tokens = cached_tokens = completion_tokens = None
        if usage is not None:
            told_tokens, cached_tokens, completion_tokens = usage
            if told_tokens is not None and lease.prompt.tally is not None:
                lease.prompt.tally.note(lease.worker.id, lease.prompt.prompt_tokens, told_tokens)
        prompt_tokens = told_tokens or decision.prompt_tokens
        decision.actual_cached_tokens = cached_tokens
        self._count(decision.predicted_cached_tokens, prompt_tokens, cached_tokens, completion_tokens, usage is not None)
        if lease.life == lease.worker.life:
            self._time(lease, None if cached_tokens is None else prompt_tokens - cached_tokens, completion_tokens, now_s)
        if cached_tokens is not None:
            self._calibration.compare(lease, cached_tokens, told_tokens)
            self.cache_truth.compare(lease, cached_tokens, told_tokens, self._now_s)
        self._slots.finished(lease, usage)

    def fail(self, lease: Lease, now_s: float, outcome: str, status: int | None = None) -> None:
        """Nothing ran there: the blocks that were expected to be cached are taken back."""
        if self._end(lease, now_s, outcome):
            lease.decision.status = status
            self._undo(lease)

    # What sidecars and other routers tell.

    def share_load(self, board: LoadBoard) -> None:
        """From now on the board hears of every worker whose load from here moves."""
        self._board = board

    def own_load(self, worker_id: WorkerId, now_s: float) -> tuple[int, int]:
        """(requests in flight, uncached tokens before their first token) that this router has on a worker."""
        worker = self._fleet.get(worker_id)
        if worker is None:
            return 0, 0
        load = worker.load
        load.advance(now_s, self.speed.of(worker.speed))
        return load.in_flight, load.pending_tokens

    def catch_up(self, now_s: float) -> bool:
        """To be called every 20 ms or so: does what is due, and 1 ms or two of what waits. True: call again at once."""
        self.elsewhere.expire(now_s)
        return self.cache_truth.catch_up(now_s)

    # Questions.

    def is_held(self, keys: "array[int]") -> bool:
        """Whether some worker holds all of these leading blocks, as far as is known, so that more of them may matter."""
        if self.index.deepest(keys) == len(keys) or self.cache_truth.is_held(keys[-1]):
            return True
        return len(self.elsewhere) > 0 and self.elsewhere.is_held(keys, self._now_s)

    def decision(self, request_id: str) -> Decision | None:
        return self.log.get(request_id)

    def latest_decisions(self, limit: int) -> list[Decision]:
        """Newest first."""
        return self.log.latest(limit)

    @property
    def decisions_kept(self) -> int:
        return len(self.log)

    @property
    def sessions_kept(self) -> int:
        return len(self.sessions)

    def blocks_held(self, worker: Worker) -> int:
        """Blocks that the worker is thought to have cached."""
        return self.cache_truth.blocks_of(worker)

    def capacity_tokens(self, worker: Worker) -> int:
        """Tokens that its cache is thought to have room for, after corrections."""
        return self.index.capacity_of(worker.slot) * BLOCK_TOKENS

    def rates(self, worker: Worker, now_s: float) -> tuple[float, float]:
        """(requests per second, share of time spent on prefill) lately sent to the worker by this router."""
        per_s = self.load.per_s(self._weight(max(now_s, self._now_s)))
        return worker.load.arrivals * per_s, worker.load.busy_s * per_s

    def prefill_tokens_per_s(self, worker: Worker) -> float:
        """As learned."""
        return 1.0 / self.speed.of(worker.speed)

    def backlog_s(self, worker: Worker, now_s: float) -> float:
        """Prefill ahead of a request that would be sent to the worker now."""
        s_per_token = self.speed.of(worker.speed)
        return worker.load.backlog_tokens(now_s, s_per_token, self.load.mean_uncached_tokens()) * s_per_token

    # The fleet's changes (FleetWatcher).

    def joined(self, worker: Worker) -> None:
        self._ring.add(worker.slot, worker.id, worker.weight)
        self.speed.workers.append(worker.speed)
        self._calibration.joined(worker)
        self.cache_truth.joined(worker)
        self._slots.joined(worker)

    def left(self, worker: Worker) -> None:
        self._ring.remove(worker.slot)
        self.speed.workers.remove(worker.speed)
        self.cache_truth.left(worker)
        self.elsewhere.forget(worker)
        self._calibration.left(worker)
        self._slots.left(worker)
        self._stats.forget_worker(worker.id)

    def restarted(self, worker: Worker) -> None:
        self._calibration.restarted(worker)
        self.cache_truth.restarted(worker)
        self.elsewhere.forget(worker)
        self._slots.restarted(worker)

    def reloaded(self, worker: Worker) -> None:
        self.index.forget(worker.slot)
        self.cache_truth.speculation.forget(worker.slot)
        self.elsewhere.forget(worker)
        self._slots.restarted(worker)

    def retold(self, worker: Worker) -> None:
        self._calibration.retold(worker)
        self.cache_truth.retold(worker)

    def forget(self, worker: Worker) -> None:
        """Its cache is empty, says somebody who knows. Requests in flight will not fill the model either."""
        worker.life += 1
        self.restarted(worker)

    # Parts of the above.

    def _pool(self, workers: Sequence[Worker], lasting: bool) -> Pool:
        """What is derived from a candidate set; kept, and given its own ring if that pays, when the set will come again."""
        last = self._pool_last
        if last is not None and last.asked is workers and self._pools_epoch == self._fleet.epoch:
            return last
        if not lasting:
            return Pool(workers, self._ring)
        if self._pools_epoch != self._fleet.epoch or len(self._pools) >= MAX_POOLS:
            self._pools_epoch = self._fleet.epoch
            self._pools.clear()
        pool = self._pools.get(id(workers))
        if pool is None or pool.asked is not workers:
            few = len(workers) * 2 < len(self._ring)  # else skipping strangers on the whole ring is cheap
            ring = self._ring.only(worker.slot for worker in workers) if few else self._ring
            pool = self._pools[id(workers)] = Pool(workers, ring)
        self._pool_last = pool
        return pool

    def _hinted(self, session: str, pool: Pool) -> Worker | None:
        worker_id = self.sessions.worker_of(session)
        worker = None if worker_id is None else self._fleet.get(worker_id)
        return worker if worker is not None and pool.mask & worker.bit else None

    def _price(self, q: Question, prompt: PromptKeys, weight: float, loaded: int | None) -> None:
        """Fills in the candidates and what each would cost. `loaded`: the slots that have the LoRA adapter asked for."""
        workers, load = q.pool.workers, self.load
        if len(workers) <= self._max_candidates:
            note_matches(workers, q.levels)
            peers = mean_rates(workers)
        else:
            size = float(len(self._fleet))
            peers = load.arrivals / size, load.busy_s / size
            q.candidates = shortlist(q, self._view, self._max_candidates, loaded or 0)
            nominee = q.nominee
            if nominee is not None and nominee not in q.candidates:
                nominee.matched_blocks = held_blocks(nominee, q.levels, 0)
                q.candidates.append(nominee)
        lost = NOTHING_LOST
        if self._slots.any:
            lost = self._slots.note_matches(q.candidates, prompt, self.cache_truth.blind)
        q.priced = price(q.candidates, prompt.prompt_tokens, load, self.speed, peers, weight, self._steer, q.now_s)
        if loaded is not None:
            for worker, row in zip(q.candidates, q.priced, strict=True):
                if not loaded & worker.bit:
                    row.cost_s += self._adapter_load_s
                    row.bid_s += self._adapter_load_s
        for place, tokens in lost:  # who needs them next pays for computing them again
            q.priced[place].bid_s += WORK_PRICE * tokens * self.speed.of(q.candidates[place].speed)
        if q.hint is not None:
            q.priced[q.candidates.index(q.hint)].bid_s -= self._session_credit_s

    def _weight(self, now_s: float) -> float:
        weight = self.load.weight(now_s)
        if self.load.needs_rebase(weight):
            self.load.rebase(now_s, [worker.load for worker in self._fleet.workers])
            weight = self.load.weight(now_s)
        return weight

    def _decide(
        self, request_id: str, model: str | None, prompt: PromptKeys, q: Question, row: Priced, reason: str,
        session: str | None, tried: tuple[WorkerId, ...], wall_s: float,
    ) -> Decision:  # fmt: skip
        decision = Decision(
            request_id, wall_s, self._policy_name, reason, row.worker, model or "", prompt.prompt_tokens, prompt.form,
            prompt.unkeyed_reason, row.matched_tokens, (), session, tried,
        )  # fmt: skip
        decision.priced = q.priced
        if q.homes:
            decision.homes = tuple([worker.id for worker in q.homes])
        if q.hint is not None:
            decision.hinted = q.hint.id
        self.log.add(decision)
        self._stats.decisions[self._policy_name, reason] += 1
        return decision

    def _send(
        self, decision: Decision, worker: Worker, row: Priced, walk: Walk, prompt: PromptKeys,
        session: str | None, weight: float, now_s: float, stream: bool,
    ) -> Lease:  # fmt: skip
        """Counts the request in, everywhere, before anything can be awaited."""
        uncached = prompt.prompt_tokens - decision.predicted_cached_tokens
        if uncached < 1:
            uncached = 1
        lease = Lease(worker, decision, prompt, uncached, now_s)
        lease.matched_blocks = worker.matched_blocks
        load, fleet_load, truth = worker.load, self.load, self.cache_truth
        head = load.head
        if truth.special and truth.special & worker.bit:
            own_blocks = self._slots.blocks_held(worker, prompt) if self._slots.any else UNKNOWN
            truth.note_predictions(lease, walk, own_blocks, now_s)
        else:
            lease.by_history = decision.predicted_cached_tokens
        self._insert(lease, walk)
        if load.other_tokens and load.other_backlog_s(now_s, self.speed.of(worker.speed)) > 0.0:
            lease.crowded = True
            lease.alone = False
        if head is not None:
            lease.alone = False
            lease.confirmed = lease.coldest_s < head.sent_s
        lease.stream = stream
        if not stream and load.serves_at_once(now_s, lease.alone):
            lease.ahead_tokens = int(row.backlog_s / self.speed.of(worker.speed))
        if self._slots.any:
            self._slots.sent(lease)
        load.take(lease)
        load.arrivals += weight
        load.busy_s += weight * row.prefill_s
        fleet_load.arrivals += weight
        fleet_load.busy_s += weight * row.prefill_s
        fleet_load.tokens += weight * uncached
        fleet_load.in_flight += 1
        if self._board is not None:
            self._board.touch(worker.id)
            if worker.truth is not NO_CACHE:
                self._board.mark(worker.id, prompt.keys, lease.matched_blocks)
        if session is not None:
            self.sessions.note(session, worker.id)
        return lease

    def _insert(self, lease: Lease, walk: Walk | None) -> None:
        """The worker's model holds the whole prompt now, though the engine still has to compute it."""
        worker, keys = lease.worker, lease.prompt.keys
        if keys and lease.life == worker.life and worker.truth is not NO_CACHE:
            if self.cache_truth.special and self.cache_truth.is_exact(lease):
                self.cache_truth.believe(lease, walk, self._now_s)
                return
            coldest_s = self.index.insert(worker.slot, keys, self._now_s, walk)
            if lease.inserted_s is None:
                lease.coldest_s = coldest_s
            lease.inserted_s = self._now_s

    def _end(self, lease: Lease, now_s: float, outcome: str) -> bool:
        if now_s < self._now_s:
            now_s = self._now_s
        self._now_s = now_s
        if not lease.worker.load.release(lease, now_s):
            return False
        self.load.in_flight -= 1
        if self._board is not None:
            self._board.touch(lease.worker.id)
        lease.decision.outcome = outcome
        lease.decision.duration_s = now_s - lease.sent_s
        return True

    def _time(self, lease: Lease, uncached_tokens: int | None, completion_tokens: int | None, now_s: float) -> None:
        """Learns the worker's speed from the first token or, where the answer came in one piece, from all of it.

        `uncached_tokens`: as the engine told, None if it did not.
        """
        worker = lease.worker
        uncached = lease.uncached_tokens if uncached_tokens is None else uncached_tokens
        if lease.prefill_s is not None:
            self.speed.observe(worker.speed, uncached, lease.prefill_s)
        elif completion_tokens and not lease.stream:
            took_s, ahead_tokens = now_s - lease.sent_s, lease.ahead_tokens
            is_known = (
                ahead_tokens is not None
                and worker.load.serves_at_once(now_s, lease.alone)
                and self.speed.observe_whole(worker.speed, ahead_tokens + uncached, completion_tokens, took_s)
            )
            if not is_known and uncached_tokens is not None:
                self.speed.observe_most(worker.speed, uncached_tokens, took_s)

    def _count(
        self, predicted_tokens: int, prompt_tokens: int, cached_tokens: int | None, completion_tokens: int | None, told: bool
    ) -> None:  # fmt: skip
        stats = self._stats
        if not told:
            stats.usage_unknown += 1
        elif completion_tokens is not None:
            stats.completion_tokens += completion_tokens
        stats.prompt_tokens += prompt_tokens
        stats.predicted_cached_tokens += predicted_tokens
        if cached_tokens is not None:
            stats.actual_cached_tokens += cached_tokens
            stats.actual_known_prompt_tokens += prompt_tokens

    def _undo(self, lease: Lease) -> None:
        self._slots.undone(lease)
        if lease.inserted_s is not None and lease.life == lease.worker.life:
            self.index.drop(lease.worker.slot, lease.prompt.keys, lease.matched_blocks, lease.inserted_s)
        lease.life = ENDED
