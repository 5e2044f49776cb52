"""What is matched where an engine tells of its cache: its events and what was just sent, instead of history.

Each worker is matched in one of three ways, by its truth as `Fleet.judge` finds it: exactly (events, and for a moment what
they should confirm soon), by history (the model in the prefix index), or not at all. Prompts that are not keyed by tokens
are matched by history everywhere, as events know tokens only.
"""

from array import array
from typing import Final

from router.core.cache_delta import CacheDelta, CacheSnapshot
from router.core.cache_feed import CacheFeed
from router.core.calibration import token_scale
from router.core.cost import held_blocks, reusable_tokens
from router.core.event_index import EventIndex
from router.core.fleet import Fleet, Worker
from router.core.load import UNKNOWN, Lease
from router.core.prefix_index import PrefixIndex
from router.core.prefix_node import Level, Walk
from router.core.speculation import Speculation
from router.core.trust import Judge
from router.core.types import BLOCK_TOKENS, KeyForm, PromptKeys, Truth, WorkerId
from router.settings import CacheSettings

SWEEP_PLACES: Final = 2048  # of the event index at once: half a millisecond compiled, 1 ms at ten million blocks
TOKENS: Final = KeyForm.TOKENS
EXACT: Final = Truth.EXACT
NONE: Final = Truth.NONE


class CacheTruth:
    """State of all that. Placement passes the fleet's changes on; the other calls may come at any time."""

    def __init__(self, cache: CacheSettings, fleet: Fleet, index: PrefixIndex) -> None:
        self.events = EventIndex(cache.index_bytes // 4 * 3, fleet.max_workers)
        self.feed = CacheFeed(self.events, self)
        self.speculation = Speculation(index, cache.speculative_s)
        self.special = 0  # mask of the slots whose workers are not just matched by history; 0: nothing here is in use
        self._exact = 0  # those of them that are matched by events
        self.blind = 0  # and those that are not matched
        self._index = index
        self._fleet = fleet
        self._judge = Judge(cache)
        self._limit_bytes = cache.index_bytes

    # What sidecars say.

    def delta(self, delta: CacheDelta) -> bool:
        """False: a snapshot of the worker's cache is wanted."""
        follows = self.feed.delta(delta)
        self._share_bytes()
        return follows

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        """Takes in the first of it at once; `catch_up` the rest, if it is large."""
        self.feed.snapshot(snapshot)
        self._share_bytes()

    def lost(self, worker: str) -> None:
        """Nobody tells of this worker's cache any more."""
        self.feed.forget(WorkerId(worker))

    def wanted(self) -> list[WorkerId]:
        """Workers that a snapshot is wanted of."""
        return [
            worker_id
            for worker_id in self.feed.wanted()
            if (worker := self._fleet.get(worker_id)) is not None and worker.told_truth is EXACT
        ]

    def catch_up(self, now_s: float) -> bool:
        """Goes on with what waits, for 1 ms or two; see `Placement.catch_up`."""
        self.speculation.expire(now_s)
        is_busy = self.feed.step()
        if self.feed.is_stuck():
            self.events.sweep(SWEEP_PLACES)
        self._share_bytes()
        return is_busy

    # What a choice asks.

    def levels(self, by_history: list[Level], prompt: PromptKeys) -> list[Level]:
        """Who holds how much of the prompt, from what the prefix index says of it."""
        if self.blind:
            by_history = without(by_history, self.blind)
        if self._exact and prompt.form is TOKENS:
            return united(by_history, self.events.levels(prompt.keys, self._exact))
        return by_history

    def is_held(self, key: int) -> bool:
        """Whether the events of any worker have this block."""
        return self._exact != 0 and self.events.is_held(key, self._exact)

    def blocks_of(self, worker: Worker) -> int:
        """Blocks that the worker is thought to have cached."""
        return self.events.blocks_of(worker.slot) if worker.truth is EXACT else self._index.blocks_of(worker.slot)

    def is_exact(self, lease: Lease) -> bool:
        """Whether the worker is matched exactly, as far as this prompt is concerned."""
        return lease.worker.truth is EXACT and lease.prompt.form is TOKENS

    def note_predictions(self, lease: Lease, walk: Walk, slot_blocks: int, now_s: float) -> None:
        """What each source said of a request to a special worker, before its own blocks are entered.

        `slot_blocks`: what a model of its slots says, in place of the prefix index; UNKNOWN where it has none.
        """
        worker, prompt = lease.worker, lease.prompt
        predicted, matched, trust = lease.decision.predicted_cached_tokens, lease.matched_blocks, worker.trust
        if self.is_exact(lease):
            if not matched or self.events.holds(worker.slot, prompt.keys[matched - 1]):
                lease.by_events = predicted
            return
        if not trust.history.doubt:
            lease.by_history = predicted
        elif trust.history.is_wanted(now_s):
            held = held_blocks(worker, self._index.levels(walk), 0) if slot_blocks == UNKNOWN else slot_blocks
            lease.matched_blocks = held
            lease.by_history = reusable_tokens(lease.matched_blocks, prompt.prompt_tokens, worker.reuse_tokens)
        if worker.told_truth is EXACT and worker.in_sync and prompt.form is TOKENS and trust.events.is_wanted(now_s):
            blocks = self.events.depth(worker.slot, prompt.keys)
            lease.by_events = reusable_tokens(blocks, prompt.prompt_tokens, worker.reuse_tokens)

    def believe(self, lease: Lease, walk: Walk | None, now_s: float) -> None:
        """Enters the blocks of a prompt that an exactly matched worker is about to compute, unless its events have them."""
        worker, keys = lease.worker, lease.prompt.keys
        engine_block = worker.block_tokens // BLOCK_TOKENS
        last = len(keys) - len(keys) % engine_block if engine_block > 1 else len(keys)
        if last and not self.events.holds(worker.slot, keys[last - 1]):
            self._index.insert(worker.slot, keys, now_s, walk)
            lease.inserted_s = now_s
            self.speculation.believe(lease, keys[last - 1], now_s)

    def compare(self, lease: Lease, actual_tokens: int, prompt_tokens: int | None, now_s: float) -> None:
        """What the engine says of one request's hit and length, against what was predicted by what."""
        worker, trust, prompt = lease.worker, lease.worker.trust, lease.prompt
        scale = token_scale(prompt, prompt_tokens)
        total = prompt_tokens or prompt.prompt_tokens
        if scale is None or lease.life != worker.life or not 0 <= actual_tokens <= total or not total:
            return
        slack = worker.block_tokens if worker.block_tokens > BLOCK_TOKENS else BLOCK_TOKENS
        changed = False
        if lease.by_events != UNKNOWN and prompt.exact_tokens:
            trust.events.note(lease.by_events, actual_tokens, total, slack)
            changed = self._judge.on_events(trust, now_s)
        if lease.by_history != UNKNOWN and lease.confirmed:
            trust.history.note(int(lease.by_history * scale), actual_tokens, total, slack)
            changed = self._judge.on_history(trust, now_s) or changed
        if changed:
            self._fleet.judge(worker)
            self.retold(worker)

    # Changes of the fleet, and of the feed (FeedWatcher).

    def joined(self, worker: Worker) -> None:
        self.feed.joined(worker)

    def left(self, worker: Worker) -> None:
        self.feed.left(worker)
        self.speculation.forget(worker.slot)
        self.special &= ~worker.bit
        self._exact &= ~worker.bit
        self.blind &= ~worker.bit

    def restarted(self, worker: Worker) -> None:
        """Its model is emptied by others."""
        self.speculation.forget(worker.slot)
        self.retold(worker)

    def retold(self, worker: Worker) -> None:
        """Its truth may be another one, or its first generation is known."""
        self.feed.reported(worker)
        bit, slot, trust = worker.bit, worker.slot, worker.trust
        is_exact = worker.truth is EXACT
        if is_exact != (self._exact & bit != 0):
            self._exact ^= bit
            self.speculation.forget(slot)
            if is_exact:
                self._index.forget(slot)  # a history: it was not confirmed by events
        is_blind = trust.history.doubt != "" and not is_exact and worker.truth is not NONE
        self.blind = self.blind | bit if is_blind else self.blind & ~bit
        is_special = is_exact or is_blind or trust.events.doubt != ""
        self.special = self.special | bit if is_special else self.special & ~bit

    def synced(self, worker: Worker, in_sync: bool) -> None:
        worker.in_sync = in_sync
        self._fleet.judge(worker)

    def stored(self, slot: int, keys: "array[int]") -> None:
        self.speculation.stored(slot, keys)

    def _share_bytes(self) -> None:
        """Both indexes together stay within `index_bytes`: the models make room for what events tell."""
        self._index.set_limit(self._limit_bytes - self.events.bytes)


def united(some: list[Level], others: list[Level]) -> list[Level]:
    """Both lists as one; each is deepest first with masks that grow."""
    if not some or not others:
        return some or others
    found: list[Level] = []
    one = two = mask = 0
    while one < len(some) or two < len(others):
        blocks = some[one].blocks if one < len(some) else 0
        if two < len(others) and others[two].blocks > blocks:
            blocks = others[two].blocks
        grown = mask
        if one < len(some) and some[one].blocks == blocks:
            grown |= some[one].mask
            one += 1
        if two < len(others) and others[two].blocks == blocks:
            grown |= others[two].mask
            two += 1
        if grown != mask:
            mask = grown
            found.append(Level(blocks, mask))
    return found


def without(levels: list[Level], slots: int) -> list[Level]:
    """The levels as if these slots held nothing."""
    found: list[Level] = []
    mask = 0
    for level in levels:
        left = level.mask & ~slots
        if left != mask:
            mask = left
            found.append(Level(level.blocks, mask))
    return found
