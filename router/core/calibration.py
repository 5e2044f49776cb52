"""The size of each worker's cache model: what it is told, corrected by what engines report as cached.

LRU is assumed. A miss on blocks that the model held proves that the engine keeps less than what was used since; a hit on
blocks that the model had evicted proves that it keeps more (a host tier, say). In simulation a model twice too small
cost ten times the TTFT until it grew, one eight times too large a half more: growing is as important as shrinking.
"""

from typing import Final

from router.core.fleet import Worker
from router.core.load import UNKNOWN, Lease
from router.core.prefix_index import PrefixIndex
from router.core.types import BLOCK_TOKENS, KeyForm, PromptKeys, Truth
from router.kinds import KINDS

SLACK_SHARE: Final = 0.1  # predicted and actual hits are the same within this and one block
CAPACITY_SPREAD: Final = 16  # corrections keep a worker's capacity within this factor of what it or the settings say
GROWTH_SHARE: Final = 8  # a proof that it is too small lets it grow by one part in this many at most
TOKENS: Final = KeyForm.TOKENS
TEXT: Final = KeyForm.TEXT
NO_CACHE: Final = Truth.NONE


class Calibration:
    """Writes capacities into the index; the operator's word (`capacity_tokens=`) is never corrected."""

    def __init__(self, index: PrefixIndex, default_capacity_tokens: int) -> None:
        self._index = index
        self._default_capacity_tokens = default_capacity_tokens
        self._nominal: dict[int, int] = {}  # slot → blocks that the worker's cache should have
        self._modelled_elsewhere: set[int] = set()  # what llama.cpp's slots reuse: here only what they hold at most

    def joined(self, worker: Worker) -> None:
        if KINDS[worker.kind].has_slots:
            self._modelled_elsewhere.add(worker.slot)
        self._nominal[worker.slot] = self._nominal_blocks(worker)
        self._index.add_worker(worker.slot, self._nominal[worker.slot])
        self._index.watch_evicted(worker.slot, worker.spec.capacity_tokens is None)

    def left(self, worker: Worker) -> None:
        self._index.remove_worker(worker.slot)
        self._modelled_elsewhere.discard(worker.slot)
        del self._nominal[worker.slot]

    def restarted(self, worker: Worker) -> None:
        """Empty, and as large as it should be: corrections belong to the life that ended."""
        self._index.forget(worker.slot)
        self._index.set_capacity(worker.slot, self._nominal[worker.slot])

    def retold(self, worker: Worker) -> None:
        """A new size replaces corrections of the old one; a worker without a cache holds nothing."""
        if worker.truth is Truth.NONE:
            self._index.forget(worker.slot)
        nominal = self._nominal_blocks(worker)
        if nominal != self._nominal[worker.slot]:
            self._nominal[worker.slot] = nominal
            self._index.set_capacity(worker.slot, nominal)

    def compare(self, lease: Lease, actual_tokens: int, prompt_tokens: int | None) -> None:
        """What the engine says of one request's hit and length, against what was predicted of it."""
        worker = lease.worker
        scale = token_scale(lease.prompt, prompt_tokens)
        if scale is None:
            return
        worker.note_prediction(lease.decision.predicted_cached_tokens * scale, actual_tokens)
        if lease.life != worker.life or worker.truth is NO_CACHE or lease.by_history == UNKNOWN:
            return
        if worker.slot in self._modelled_elsewhere:
            return
        predicted = lease.by_history * scale
        block_tokens = worker.block_tokens if worker.block_tokens > BLOCK_TOKENS else BLOCK_TOKENS
        actual = float(actual_tokens)
        slack = block_tokens + SLACK_SHARE * (predicted if predicted > actual else actual)
        if predicted - actual > slack:
            if lease.confirmed:
                self._shrink(worker, lease.coldest_s)
        elif actual - predicted > slack and self._had_evicted_next(lease):
            self._grow(worker, int(actual - predicted) // BLOCK_TOKENS)

    def _had_evicted_next(self, lease: Lease) -> bool:
        """Whether the block right behind the predicted hit had been known and evicted: not merely new."""
        keys, matched = lease.prompt.keys, lease.matched_blocks
        return matched < len(keys) and self._index.was_evicted(lease.worker.slot, keys[matched])

    def _shrink(self, worker: Worker, coldest_s: float) -> None:
        """Blocks last used at `coldest_s` were gone, so colder ones are too, and the cache is no larger than the rest."""
        self._index.evict_older(worker.slot, coldest_s)
        if worker.spec.capacity_tokens is not None:
            return
        capacity = self._index.capacity_of(worker.slot)
        left = max(self._index.blocks_of(worker.slot), self._nominal[worker.slot] // CAPACITY_SPREAD)
        self._index.set_capacity(worker.slot, capacity - max(0, capacity - left) // 2)

    def _grow(self, worker: Worker, surplus_blocks: int) -> None:
        capacity = self._index.capacity_of(worker.slot)
        more = min(surplus_blocks, max(1, capacity // GROWTH_SHARE))
        self._index.set_capacity(worker.slot, min(self._nominal[worker.slot] * CAPACITY_SPREAD, capacity + more))

    def _nominal_blocks(self, worker: Worker) -> int:
        tokens = worker.capacity_tokens or self._default_capacity_tokens
        if worker.slot in self._modelled_elsewhere:
            known = worker.spec.ram_tokens
            tokens += self._default_capacity_tokens if known is None else known
        return max(1, tokens // BLOCK_TOKENS)


def token_scale(prompt: PromptKeys, reported_tokens: int | None) -> float | None:
    """Engine tokens per token as counted here; None where the two cannot be compared."""
    form = prompt.form
    if form is TOKENS and prompt.exact_tokens:
        return 1.0
    if (form is TOKENS or form is TEXT) and reported_tokens and prompt.prompt_tokens:
        return reported_tokens / prompt.prompt_tokens
    return None
