"""The workers: what is known of each, which may serve a model, and what a report changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Protocol

from router.core.load import Load
from router.core.speed import WorkerSpeed
from router.core.trust import Trust
from router.core.types import BLOCK_TOKENS, Lifecycle, Truth, WorkerId, WorkerReport
from router.errors import InvalidField, ModelNotFound, NoWorker
from router.kinds import KINDS
from router.settings import EngineSpec, FleetSettings

MAX_CACHED_SETS: Final = 1024  # candidate sets by model name; names come from clients where an engine serves any model
ERROR_FADE: Final = 0.05  # weight of the newest request in a worker's moving averages
# Kinds whose engines serve whole blocks from their cache, after leaving the prompt's last token to be computed: vLLM
# (KVCacheManager.get_computed_blocks: max_cache_hit_length is num_tokens - 1, then whole blocks) and SGLang
# (Req.init_next_round_input: at most input_len - 1 tokens, then RadixCache.match_prefix cuts to pages). Others serve any
# number of tokens short of the last.
BLOCKWISE_KINDS: Final = frozenset(("vllm", "sglang"))
NOT_SYNCED: Final = "exact as soon as its cache events are followed from a snapshot"


class Worker:
    """One engine endpoint. Written by `Fleet` and `Placement` only, read anywhere."""

    __slots__ = (
        "actual_tokens_mean",
        "adapters",
        "added_at_s",
        "bit",
        "block_tokens",
        "capacity_tokens",
        "down_reason",
        "down_since_s",
        "drained_by_admin",
        "error_tokens_mean",
        "generation",
        "id",
        "in_sync",
        "kind",
        "life",
        "lifecycle",
        "listed",
        "load",
        "loaded_adapters",
        "matched_blocks",
        "models",
        "predicted_tokens_mean",
        "probed",
        "report",
        "reuse_tokens",
        "slot",
        "spec",
        "speed",
        "told_reason",
        "told_truth",
        "trust",
        "truth",
        "truth_reason",
        "weight",
    )

    def __init__(self, spec: EngineSpec, slot: int) -> None:
        self.id = WorkerId(spec.worker_id)
        self.slot = slot  # small and free again after removal: the worker's bit in masks
        self.bit = 1 << slot
        self.spec = spec
        self.kind = spec.kind
        self.weight = spec.weight
        self.added_at_s = 0.0
        self.probed = Lifecycle.LOADING  # what the last report says
        self.lifecycle = Lifecycle.LOADING  # what holds, with drain and passive failures
        self.models: frozenset[str] | None = frozenset((spec.model,)) if spec.model else None  # None: any, or not known yet
        self.adapters: dict[str, str] = {}  # LoRA adapters that it can serve → as told, with their version
        self.loaded_adapters: frozenset[str] = frozenset()
        self.generation = ""
        self.life = 0  # counts up when the cache is known to be lost; a lease of an earlier life changes nothing
        self.told_truth = Truth.MODELLED  # what the sidecar says of the cache
        self.told_reason = ""
        self.in_sync = False  # the event index has all that the sidecar told
        self.trust = Trust()
        self.truth = Truth.MODELLED  # what follows, see `Fleet.judge`
        self.truth_reason = ""
        self.capacity_tokens = spec.capacity_tokens  # None: not told
        self.block_tokens = BLOCK_TOKENS
        self.reuse_tokens = BLOCK_TOKENS if spec.kind in BLOCKWISE_KINDS else 1  # hits are multiples of this
        self.report: WorkerReport | None = None
        self.load = Load()
        self.speed = WorkerSpeed(spec.weight)
        self.drained_by_admin = False
        self.down_reason = ""
        self.down_since_s = float("-inf")
        self.predicted_tokens_mean = 0.0  # moving averages over requests whose engine told its cached tokens
        self.actual_tokens_mean = 0.0
        self.error_tokens_mean = 0.0
        self.matched_blocks = 0  # leading blocks of the prompt in question that it holds; written by every choice
        self.listed = 0  # number of the choice that listed it last

    def may_serve(self, model: str | None) -> bool:
        return model is None or self.models is None or model in self.models or model in self.adapters

    def base_model(self) -> str:
        """What its adapters belong to: the first of its models that is none."""
        told = self.report.models if self.report is not None and self.report.models is not None else ()
        return self.spec.model or next((name for name in told if name not in self.adapters), "")

    def note_prediction(self, predicted_tokens: float, actual_tokens: int) -> None:
        self.predicted_tokens_mean += (predicted_tokens - self.predicted_tokens_mean) * ERROR_FADE
        self.actual_tokens_mean += (actual_tokens - self.actual_tokens_mean) * ERROR_FADE
        error_tokens = actual_tokens - predicted_tokens
        if error_tokens < 0.0:
            error_tokens = -error_tokens
        self.error_tokens_mean += (error_tokens - self.error_tokens_mean) * ERROR_FADE


@dataclass(frozen=True, slots=True)
class FleetChange:
    """One fact about a worker that a report, a failure or an admin changed."""

    worker: Worker
    what: str  # lifecycle, generation, models, adapters, capacity or truth
    before: str
    after: str
    detail: str = ""


class FleetWatcher(Protocol):
    """Whoever keeps state per worker. Called at once, in the middle of the change."""

    def joined(self, worker: Worker) -> None: ...
    def left(self, worker: Worker) -> None: ...
    def restarted(self, worker: Worker) -> None: ...
    def reloaded(self, worker: Worker) -> None:
        """An adapter has other weights now: what prompts to it left in the cache is void."""

    def retold(self, worker: Worker) -> None:
        """Its capacity or truth changed, or its first generation is known."""


class Fleet:
    """All workers by id. `epoch` counts up with every change that may alter a candidate set."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._workers: dict[WorkerId, Worker] = {}
        self._free_slots: list[int] = []
        self._sets: dict[str | None, tuple[Worker, ...]] = {}
        self._watchers: list[FleetWatcher] = []
        self.epoch = 0
        self.slots: list[Worker | None] = []  # by slot
        self.adapters: dict[str, int] = {}  # adapter → mask of the slots whose workers have it loaded; empty without LoRA
        # A model's other name or an adapter → model, and adapter as told, that its prompts' chains are rooted in
        self.namespaces: dict[str, tuple[str, str | None]] = {}
        self.on_change: Callable[[FleetChange], None] | None = None  # told of every change, whatever caused it

    def watch(self, watcher: FleetWatcher) -> None:
        """Tells the watcher of all workers, now and later."""
        self._watchers.append(watcher)
        for worker in self._workers.values():
            watcher.joined(worker)

    @property
    def max_workers(self) -> int:
        return self._settings.max_workers

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, worker: str) -> Worker | None:
        return self._workers.get(WorkerId(worker))

    def add(self, spec: EngineSpec, now_s: float) -> Worker:
        """A loading worker. Raises ValueError when it is known already or the fleet is full."""
        if spec.worker_id in self._workers:
            raise ValueError(f"worker {spec.worker_id} is known already")
        if len(self._workers) >= self._settings.max_workers:
            raise ValueError(f"max_workers {self._settings.max_workers} is reached")
        slot = heappop(self._free_slots) if self._free_slots else len(self.slots)
        if slot == len(self.slots):
            self.slots.append(None)
        worker = self.slots[slot] = Worker(spec, slot)
        worker.added_at_s = now_s
        self._workers[worker.id] = worker
        self._changed()
        for watcher in self._watchers:
            watcher.joined(worker)
        return worker

    def remove(self, worker_id: str) -> Worker | None:
        """Its leases in flight end on their own. None if it is not known."""
        worker = self._workers.pop(WorkerId(worker_id), None)
        if worker is None:
            return None
        worker.life += 1
        worker.lifecycle = Lifecycle.DOWN
        worker.down_reason = "removed"
        for watcher in self._watchers:
            watcher.left(worker)
        self._name_chains()
        self.slots[worker.slot] = None
        heappush(self._free_slots, worker.slot)
        self._changed()
        return worker

    def apply(self, report: WorkerReport, now_s: float) -> list[FleetChange]:
        """Takes in what a sidecar says. Reports of unknown workers and those older than the newest are dropped."""
        worker = self._workers.get(report.worker)
        if worker is None or (worker.report is not None and report.reported_at_s < worker.report.reported_at_s):
            return []
        changes: list[FleetChange] = []
        self._learn_generation(worker, report, changes)
        base = worker.base_model()
        worker.report = report
        until_s = report.reported_at_s + self._settings.report_ttl_s
        worker.load.report(report.waiting, report.waiting_tokens, until_s)
        if report.block_tokens is not None and report.block_tokens > 0:
            worker.block_tokens = report.block_tokens
            if worker.kind in BLOCKWISE_KINDS:
                worker.reuse_tokens = report.block_tokens
        self._learn_models(worker, report, changes)
        self._learn_adapters(worker, report, changes)
        if worker.base_model() != base:
            self._name_chains()
        self._learn_cache(worker, report, changes)
        if report.reported_at_s > worker.down_since_s or report.lifecycle is not Lifecycle.READY:
            worker.probed = report.lifecycle
            worker.down_reason = "" if report.lifecycle is Lifecycle.READY else report.detail
        self._settle(worker, changes, report.detail)
        return changes

    def mark_down(self, worker_id: str, reason: str, now_s: float) -> list[FleetChange]:
        """A request found it gone. It stays down until a report made after `now_s` says ready."""
        worker = self._workers.get(WorkerId(worker_id))
        if worker is None:
            return []
        worker.probed = Lifecycle.DOWN
        worker.down_since_s = now_s
        worker.down_reason = reason
        changes: list[FleetChange] = []
        self._settle(worker, changes, reason)
        return changes

    def drain(self, worker_id: str) -> list[FleetChange]:
        """No new requests until `resume`; those in flight go on. Raises KeyError if it is not known."""
        return self._set_drained(worker_id, True)

    def resume(self, worker_id: str) -> list[FleetChange]:
        """Raises KeyError if it is not known."""
        return self._set_drained(worker_id, False)

    def candidates(self, model: str | None, tried: Sequence[WorkerId] = ()) -> tuple[Worker, ...]:
        """Ready workers that serve the model, except those tried. The same tuple until the epoch changes.

        Raises ModelNotFound when what is known rules the model out, InvalidField when none is named and the workers
        differ in theirs, NoWorker when somebody may serve it but not now.
        """
        found = self._sets.get(model)
        if found is None:
            found = self._find(model)
            if len(self._sets) >= MAX_CACHED_SETS:
                self._sets.clear()
            self._sets[model] = found
        if not tried:
            return found
        left = tuple(worker for worker in found if worker.id not in tried)
        if not left:
            raise NoWorker(f"every worker for {named(model)} was tried")
        return left

    def models(self) -> tuple[str, ...]:
        """Names that ready workers serve, in the order of the workers, each worker's own order kept where it told one."""
        names: dict[str, None] = {}
        for worker in self._workers.values():
            if worker.lifecycle is Lifecycle.READY and worker.models is not None:
                told = worker.report.models if worker.report is not None and worker.report.models is not None else ()
                names.update(dict.fromkeys(name for name in told if name in worker.models))
                names.update(dict.fromkeys(sorted(worker.models)))
                names.update(dict.fromkeys(worker.adapters))
        return tuple(names)

    def _find(self, model: str | None) -> tuple[Worker, ...]:
        ready = [worker for worker in self._workers.values() if worker.lifecycle is Lifecycle.READY]
        found = tuple(worker for worker in ready if worker.may_serve(model))
        if not found:
            if self._workers and not any(worker.may_serve(model) for worker in self._workers.values()):
                raise ModelNotFound(f"no worker serves {named(model)}", param="model")
            raise NoWorker(f"no worker for {named(model)} is ready")
        if model is None and len({worker.models for worker in found}) > 1:
            raise InvalidField("model is missing, and the workers serve different ones", param="model")
        return found

    def _learn_generation(self, worker: Worker, report: WorkerReport, changes: list[FleetChange]) -> None:
        before = worker.generation
        if not report.generation or report.generation == before:
            return
        worker.generation = report.generation
        if not before:
            for watcher in self._watchers:
                watcher.retold(worker)
        else:
            worker.life += 1
            worker.trust.reset()
            self._note(changes, FleetChange(worker, "generation", before, report.generation))
            for watcher in self._watchers:
                watcher.restarted(worker)

    def _learn_models(self, worker: Worker, report: WorkerReport, changes: list[FleetChange]) -> None:
        """What `--engine model=` says wins; a report that does not know keeps what is known."""
        if report.models is None or worker.spec.model:
            return
        models = frozenset(report.models)
        if models != worker.models:
            before = worker.models
            worker.models = models
            self._note(changes, FleetChange(worker, "models", listed(before), listed(models)))
            self._name_chains()
            self._changed()

    def _learn_adapters(self, worker: Worker, report: WorkerReport, changes: list[FleetChange]) -> None:
        if report.adapters is not None:
            told = {adapter_name(text, report.models or ()): text for text in report.adapters}
            before = worker.adapters
            if told != before:
                is_reload = any(before.get(name, text) != text for name, text in told.items())
                worker.adapters = told
                self._note(changes, FleetChange(worker, "adapters", ", ".join(before.values()), ", ".join(told.values())))
                self._name_chains()
                self._changed()
                if is_reload:
                    worker.life += 1
                    for watcher in self._watchers:
                        watcher.reloaded(worker)
        if report.loaded_adapters is not None:
            loaded = frozenset(adapter_name(text, report.models or ()) for text in report.loaded_adapters)
            for name in loaded ^ worker.loaded_adapters:
                if name in self.adapters:
                    self.adapters[name] ^= worker.bit
            worker.loaded_adapters = loaded

    def _name_chains(self) -> None:
        """Where workers differ, the first that has the adapter or the name decides: others' blocks of it are then not matched.

        Only names under which no worker keys its cache are other names of something.
        """
        self.adapters.clear()
        self.namespaces.clear()
        several: list[Worker] = []
        for worker in self._workers.values():
            for name, text in worker.adapters.items():
                loaded = worker.bit if name in worker.loaded_adapters else 0
                self.adapters[name] = self.adapters.get(name, 0) | loaded
                self.namespaces.setdefault(name, (worker.base_model(), text))
            if worker.models is not None and len(worker.models) > 1 and KINDS[worker.kind].one_model:
                several.append(worker)
        bases = {worker.base_model() for worker in self._workers.values()} if several else set()
        for worker in several:
            assert worker.models is not None
            for name in worker.models:
                if name not in worker.adapters and name not in bases:
                    self.namespaces.setdefault(name, (worker.base_model(), None))

    def judge(self, worker: Worker) -> list[FleetChange]:
        """The truth that follows from what is told of the worker's cache, how far it is followed, and how well it predicts."""
        changes: list[FleetChange] = []
        truth, reason = truth_of(worker)
        worker.truth_reason = reason
        if truth is not worker.truth:
            before, worker.truth = worker.truth, truth
            self._note(changes, FleetChange(worker, "truth", before.value, truth.value, reason))
            for watcher in self._watchers:
                watcher.retold(worker)
        return changes

    def _learn_cache(self, worker: Worker, report: WorkerReport, changes: list[FleetChange]) -> None:
        """Truth and capacity; what `--engine capacity_tokens=` says wins."""
        told = worker.spec.capacity_tokens or report.capacity_tokens
        if told and told != worker.capacity_tokens:
            self._note(changes, FleetChange(worker, "capacity", str(worker.capacity_tokens), str(told)))
            worker.capacity_tokens = told
            for watcher in self._watchers:
                watcher.retold(worker)
        worker.told_truth, worker.told_reason = report.truth, report.truth_reason
        changes.extend(self.judge(worker))

    def _set_drained(self, worker_id: str, drained: bool) -> list[FleetChange]:
        worker = self._workers[WorkerId(worker_id)]
        worker.drained_by_admin = drained
        changes: list[FleetChange] = []
        self._settle(worker, changes, "drained by admin" if drained else "resumed by admin")
        return changes

    def _settle(self, worker: Worker, changes: list[FleetChange], detail: str) -> None:
        """The lifecycle that follows from reports, failures and drain."""
        before, after = worker.lifecycle, worker.probed
        if after is Lifecycle.READY and worker.drained_by_admin:
            after = Lifecycle.DRAINING
        if after is not before:
            worker.lifecycle = after
            self._note(changes, FleetChange(worker, "lifecycle", before.value, after.value, detail))
            self._changed()

    def _note(self, changes: list[FleetChange], change: FleetChange) -> None:
        changes.append(change)
        if self.on_change is not None:
            self.on_change(change)

    def _changed(self) -> None:
        self.epoch += 1
        self._sets.clear()


def truth_of(worker: Worker) -> tuple[Truth, str]:
    """The truth by which requests for the worker are placed, and why it is not what the sidecar says."""
    told, events, history = worker.told_truth, worker.trust.events.doubt, worker.trust.history.doubt
    if told is Truth.NONE or (told is Truth.EXACT and worker.in_sync and not events):
        return told, worker.told_reason
    if history:
        return Truth.UNTRUSTED, f"routed by its load only; {history}"
    if told is not Truth.EXACT:
        return told, worker.told_reason
    return (Truth.UNTRUSTED, f"routed by own history; {events}") if events else (Truth.MODELLED, NOT_SYNCED)


def adapter_name(text: str, models: Sequence[str]) -> str:
    """The name of an adapter told as NAME or NAME@VERSION: the whole text where that is a model's name."""
    name = text.rpartition("@")[0]
    return text if text in models or not name else name


def named(model: str | None) -> str:
    return "any model" if model is None else f"model {model!r}"


def listed(models: frozenset[str] | None) -> str:
    return "unknown" if models is None else ", ".join(sorted(models))
