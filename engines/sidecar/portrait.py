"""Everything known of one engine, put together from single looks. Pure; becomes the report."""

from engines.adapter import Look
from engines.sidecar.adapters import Adapters
from engines.sidecar.generation import Generation
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.kinds import KINDS
from router.settings import EngineSpec


class Portrait:
    """Facts last until a restart or a newer word; load numbers are those of the last scrape, unknown if that failed."""

    def __init__(self, spec: EngineSpec, unmarked: str = "start") -> None:
        """`unmarked`: see Generation."""
        self._spec = spec
        self.lifecycle = Lifecycle.LOADING
        self.detail = "not seen yet"
        self.described = False
        self.models: tuple[str, ...] | None = None
        self.generation = Generation(unmarked)
        self._note = ""
        self._adapters = Adapters(spec.adapters)
        self._loaded_adapters: tuple[str, ...] | None = None
        self._block_tokens: int | None = None
        self._capacity_tokens: int | None = None
        self._extra: dict[str, float] = {}
        self._load = Look()
        self._truth = Truth.MODELLED if KINDS[spec.kind].reuses_prefixes else Truth.NONE

    def describe(self, look: Look, *, fresh: bool) -> bool:
        """Takes in models and facts; `fresh` drops the facts of before. True when the look proves a restart."""
        if fresh:
            self._drop_facts()
        restarted = self._take(look)
        self.described = True
        self.models = look.models if look.models is None else tuple(dict.fromkeys((*look.models, *self._spec.adapters)))
        if look.adapters is not None:
            self._adapters.saw(look.adapters)
        self._note = look.detail
        self._extra.update(look.extra)
        return restarted

    def measure(self, look: Look) -> bool:
        """Takes in load numbers and the facts that came with them. True when the look proves a restart."""
        self._load = look
        return self._take(look)

    def forget_load(self) -> None:
        self._load = Look()

    @property
    def has_queue(self) -> bool:
        """Whether requests waited in the engine when its load was last looked at."""
        return bool(self._load.waiting or self._load.waiting_tokens)

    def report(self, now_s: float, counts: dict[str, float]) -> WorkerReport:
        """`now_s` is when the look behind this report began. Load numbers are given for a ready engine only."""
        load = self._load if self.lifecycle is Lifecycle.READY else Look()
        return WorkerReport(
            worker=WorkerId(self._spec.worker_id),
            kind=self._spec.kind,
            url=self._spec.url,
            generation=self.generation.name(),
            lifecycle=self.lifecycle,
            reported_at_s=now_s,
            models=(self._spec.model,) if self._spec.model else self.models,
            adapters=self._adapters.told() if self._spec.model or self.models is not None else None,
            loaded_adapters=self._loaded_adapters,
            block_tokens=self._block_tokens,
            capacity_tokens=self._spec.capacity_tokens or self._capacity_tokens,
            running=load.running,
            waiting=load.waiting,
            waiting_tokens=load.waiting_tokens,
            kv_used_ratio=load.kv_used_ratio,
            truth=self._truth,
            truth_reason="" if self._truth is Truth.MODELLED else "engines of its kind reuse no prefixes",
            detail=self.detail or self._note,
            extra={**self._extra, **load.extra, **counts},
        )

    def _take(self, look: Look) -> bool:
        restarted = self.generation.saw(look)
        if restarted:
            self._drop_facts()
        if look.block_tokens is not None:
            self._block_tokens = look.block_tokens
        if look.capacity_tokens is not None:
            self._capacity_tokens = look.capacity_tokens
        if look.loaded_adapters is not None:
            self._loaded_adapters = look.loaded_adapters
        return restarted

    def _drop_facts(self) -> None:
        self._block_tokens = None
        self._capacity_tokens = None
        self._loaded_adapters = None
        self._extra = {}
