"""The slot models of the workers that keep their cache in slots, and which turn of them belongs to which request."""

from collections.abc import Sequence
from typing import Final

from router.core.calibration import token_scale
from router.core.fleet import Worker
from router.core.load import UNKNOWN, Lease
from router.core.slot_model import SlotModel, Turn
from router.core.types import BLOCK_TOKENS, KeyForm, PromptKeys, Usage
from router.kinds import KINDS

SLOTS: Final = "slots"  # of a report's `extra`: how many
UNIFIED: Final = "unified_kv"  # of a report's `extra`: above 0 where all slots share one KV cache
MAX_SLOTS: Final = 256
NO_KEYS: Final = KeyForm.NONE


class SlotWorkers:
    """A model comes with the first report that tells of slots; before it a worker is modelled like any other.

    `default_ram_tokens`: what a RAM cache is thought to hold until misses tell, where `ram_tokens=` does not.
    """

    def __init__(self, default_ram_tokens: int) -> None:
        self.any = False  # of kinds that have slots
        self._default_ram_tokens = default_ram_tokens
        self._workers: dict[int, Worker] = {}  # those of such kinds, by their slot in the fleet
        self._models: dict[int, SlotModel] = {}
        self._turns: dict[Lease, tuple[SlotModel, Turn]] = {}

    def joined(self, worker: Worker) -> None:
        if KINDS[worker.kind].has_slots:
            self._workers[worker.slot] = worker
            self.any = True

    def left(self, worker: Worker) -> None:
        self._workers.pop(worker.slot, None)
        self._models.pop(worker.slot, None)
        self.any = bool(self._workers)

    def restarted(self, worker: Worker) -> None:
        """Its slots are empty. Requests in flight end on the model that they began with."""
        self._models.pop(worker.slot, None)

    def model_of(self, worker: Worker) -> SlotModel | None:
        report = worker.report
        if worker.slot not in self._workers or report is None:
            return None
        count = min(int(report.extra.get(SLOTS, 0.0)), MAX_SLOTS)
        if count < 1:
            return None
        model = self._models.get(worker.slot)
        if model is None or len(model.slots) != count:
            known = worker.spec.ram_tokens
            model = SlotModel(count, self._default_ram_tokens if known is None else known, known is None)
            self._models[worker.slot] = model
        model.unified = report.extra.get(UNIFIED, 0.0) > 0.0
        return model

    def note_matches(self, workers: Sequence[Worker], prompt: PromptKeys, blind: int) -> list[tuple[int, int]]:
        """Writes into each worker with slots how many blocks of the prompt it would reuse, except those of the mask `blind`.

        Returns (place among the workers, tokens) of those where the prompt would overwrite what goes on being used.
        """
        lost: list[tuple[int, int]] = []
        if prompt.form is NO_KEYS:
            return lost
        for place, worker in enumerate(workers):
            model = self.model_of(worker)
            if model is not None and not worker.bit & blind:
                plan = model.plan(prompt)
                worker.matched_blocks = plan.overlap // BLOCK_TOKENS
                if plan.lost_tokens:
                    lost.append((place, plan.lost_tokens))
        return lost

    def blocks_held(self, worker: Worker, prompt: PromptKeys) -> int:
        """Blocks of the prompt that the worker would reuse; UNKNOWN where it has no model."""
        model = self.model_of(worker)
        return UNKNOWN if model is None or prompt.form is NO_KEYS else model.plan(prompt).overlap // BLOCK_TOKENS

    def sent(self, lease: Lease) -> None:
        model = self.model_of(lease.worker)
        if model is not None and lease.prompt.form is not NO_KEYS:
            self._turns[lease] = model, model.start(lease.prompt)

    def finished(self, lease: Lease, usage: Usage | None) -> None:
        """Counts of the engine are brought to the scale of the keys; where they cannot be compared nothing is learned."""
        found = self._turns.pop(lease, None)
        if found is None:
            return
        cached: int | None = None
        answered: int | None = None
        if usage is not None:
            scale = token_scale(lease.prompt, usage.prompt_tokens)
            answered = usage.completion_tokens
            if scale is not None:
                cached = None if usage.cached_tokens is None else int(usage.cached_tokens / scale)
                answered = None if answered is None else int(answered / scale)
        found[0].finish(found[1], lease.prompt, cached, answered)

    def undone(self, lease: Lease) -> None:
        found = self._turns.pop(lease, None)
        if found is not None:
            found[0].undo(found[1])
