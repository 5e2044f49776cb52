"""A simulated engine's cache, and a router's picture of many of them: both are sets of keys that tests compare."""

import random
from array import array
from collections.abc import Callable

from router.core.cache_delta import CacheDelta, CacheSnapshot, Cleared, Removed, RouterLoad, Stored, Tier
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.state.contract import StatePublisher


class Engine:
    """Stores chains, removes their ends, and tells a publisher of it."""

    def __init__(self, name: str, publisher: StatePublisher, clock: Callable[[], float], seed: int = 0) -> None:
        self.worker = WorkerId(name)
        self.generation = "g1"
        self.chains: list[array[int]] = []
        self.seq = 0
        self.running = 0
        self.lifecycle = Lifecycle.READY
        self.knows_its_cache = True
        self.rng = random.Random(f"{name} {seed}")
        self._publisher = publisher
        self._clock = clock

    @property
    def keys(self) -> set[int]:
        return {key for chain in self.chains for key in chain}

    def report(self) -> WorkerReport:
        self.running += 1
        return WorkerReport(
            self.worker, "vllm", f"http://{self.worker}", self.generation, self.lifecycle, self._clock(), models=("m",),
            running=self.running, truth=Truth.EXACT,
        )  # fmt: skip

    def post(self) -> None:
        self._publisher.report(self.report())

    def follow(self) -> None:
        self._publisher.follow(self.worker, self.snapshot)

    def snapshot(self) -> CacheSnapshot | None:
        if not self.knows_its_cache:
            return None
        return CacheSnapshot(self.worker, self.generation, self.seq, tuple(Stored(None, array("Q", c)) for c in self.chains))

    def work(self, blocks: int = 8) -> CacheDelta:
        """A new chain; sometimes the end of an old one goes, rarely everything."""
        delta = self.change(blocks)
        self._publisher.delta(delta)
        return delta

    def change(self, blocks: int = 8) -> CacheDelta:
        chain = array("Q", self.rng.randbytes(8 * blocks))
        changes: list[Stored | Removed | Cleared] = [Stored(None, chain[:1]), Stored(chain[0], chain[1:], Tier.HOST)]
        if self.chains and self.rng.random() < 0.5:
            old = self.chains.pop(self.rng.randrange(len(self.chains)))
            kept, gone = old[:-2], old[-2:]
            changes.insert(0, Removed(gone))
            if kept:
                self.chains.append(kept)
        if self.rng.random() < 0.02:
            self.chains = []
            changes.insert(0, Cleared())
        self.chains.append(chain)
        self.seq += 1
        return CacheDelta(self.worker, self.generation, self.seq, tuple(changes))

    def restart(self) -> None:
        """Another process: nothing is cached."""
        self.generation += "'"
        self.chains = []
        self.seq = 0


class Picture:
    """A StateListener that believes what it is told, as a router's index does."""

    def __init__(self) -> None:
        self.reports: dict[WorkerId, WorkerReport] = {}
        self.keys: dict[WorkerId, set[int]] = {}
        self.at: dict[WorkerId, tuple[str, int]] = {}
        self.lost_workers: list[tuple[WorkerId, str]] = []
        self.loads: list[RouterLoad] = []
        self.refused: list[CacheDelta] = []
        self.snapshots: list[CacheSnapshot] = []
        self.deltas: list[CacheDelta] = []

    def report(self, report: WorkerReport) -> None:
        self.reports[report.worker] = report
        if self.at.get(report.worker, ("", 0))[0] not in ("", report.generation):
            self.keys[report.worker] = set()
            del self.at[report.worker]

    def delta(self, delta: CacheDelta) -> bool:
        assert delta.worker in self.reports, "the first word of a worker is its report"
        generation, seq = self.at.get(delta.worker, ("", 0))
        if delta.generation != generation:
            self.keys[delta.worker] = set()
            seq = 0
        if delta.seq != seq + 1:
            self.refused.append(delta)
            return False
        self.deltas.append(delta)
        self.at[delta.worker] = (delta.generation, delta.seq)
        keys = self.keys.setdefault(delta.worker, set())
        for change in delta.changes:
            if isinstance(change, Stored):
                keys.update(change.keys)
            elif isinstance(change, Removed):
                keys.difference_update(change.keys)
            else:
                keys.clear()
        return True

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        assert snapshot.worker in self.reports, "the first word of a worker is its report"
        self.snapshots.append(snapshot)
        self.at[snapshot.worker] = (snapshot.generation, snapshot.seq)
        self.keys[snapshot.worker] = {key for run in snapshot.runs for key in run.keys}

    def lost(self, worker: WorkerId, reason: str) -> None:
        self.lost_workers.append((worker, reason))
        for known in (self.reports, self.keys, self.at):
            known.pop(worker, None)

    def router_load(self, load: RouterLoad) -> None:
        self.loads.append(load)

    def is_right(self, *engines: Engine) -> bool:
        """Whether it knows exactly these engines, each with exactly its cache."""
        return self.keys == {engine.worker: engine.keys for engine in engines} and set(self.reports) == set(self.keys)
