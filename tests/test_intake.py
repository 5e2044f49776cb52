"""What comes from sidecars and other routers reaches fleet and placement, and nothing else does."""

from array import array
from typing import Any

import pytest

from router.core.cache_delta import CacheDelta, CacheSnapshot, RouterLoad, Stored
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.intake import MAX_REMEMBERED, Intake, PoolIntake, bounded
from router.proxy.upstream import Endpoint
from tests.core.builders import prompt
from tests.core.test_placement import World

A = WorkerId("10.0.0.1:8000")
NEW = WorkerId("10.0.9.9:8000")


class Side:
    """Both intakes of one router over three workers, and who went down."""

    def __init__(self) -> None:
        self.world = World()
        self.now_s = 100.0
        self.down: list[WorkerId] = []
        self.intake = Intake(self.world.fleet, self.world.placement, lambda: self.now_s, self.down.append)
        self.pool = PoolIntake(self.intake, self.world.fleet, lambda: self.now_s, 60.0, self.forget)

    def forget(self, worker: WorkerId) -> None:
        self.world.fleet.remove(worker)

    def report(self, worker: WorkerId = NEW, **changes: Any) -> None:
        self.now_s += 1.0
        known: dict[str, Any] = {"kind": "vllm", "url": f"http://{worker}", "generation": "g1", "lifecycle": Lifecycle.READY}
        self.pool.report(WorkerReport(worker=worker, reported_at_s=self.now_s, **{**known, **changes}))

    def lifecycle(self, worker: WorkerId = NEW) -> Lifecycle | None:
        known = self.world.fleet.get(worker)
        return None if known is None else known.lifecycle


def test_reported_workers_join_and_leave() -> None:
    """A sidecar's worker joins with its first report, is down without one, comes back, and is forgotten in the end."""
    side = Side()
    side.report(models=("m",))
    assert side.lifecycle() is Lifecycle.READY
    side.pool.lost(NEW, "no report for 3 s")
    side.pool.lost(NEW, "no report for 3 s")
    side.pool.forget_lost()
    assert (side.lifecycle(), side.down) == (Lifecycle.DOWN, [NEW])
    side.report()
    side.now_s += 100.0
    side.pool.forget_lost()
    assert side.lifecycle() is Lifecycle.READY
    side.pool.lost(NEW, "gone")
    side.now_s += 60.0
    side.pool.forget_lost()
    assert side.lifecycle() is None
    side.report()
    assert side.lifecycle() is Lifecycle.READY


def test_a_removed_worker_stays_away_while_it_is_reported() -> None:
    """What an operator removed does not come back by itself; after a silence of its sidecar, or when it is added, it may."""
    side = Side()
    side.report()
    side.forget(NEW)
    side.pool.drop(NEW)
    side.report()
    assert side.lifecycle() is None
    side.pool.lost(NEW, "no report for 3 s")
    side.report()
    assert side.lifecycle() is Lifecycle.READY


def test_a_worker_that_is_watched_now_is_not_forgotten() -> None:
    """A worker lost by its sidecar and then added to this router is the router's own."""
    side = Side()
    side.report()
    side.pool.lost(NEW, "gone")
    side.pool.watch(NEW)
    side.now_s += 100.0
    side.pool.forget_lost()
    assert side.lifecycle() is Lifecycle.DOWN


def test_another_kind_is_another_worker() -> None:
    """A sidecar that was given the wrong kind is corrected by starting it anew."""
    side = Side()
    side.report(kind="openai")
    side.report(kind="vllm")
    worker = side.world.fleet.get(NEW)
    assert worker is not None and worker.kind == "vllm" and worker.lifecycle is Lifecycle.READY


def test_what_is_remembered_is_bounded() -> None:
    """However many workers are removed or refused."""
    kept = {WorkerId(str(number)): None for number in range(MAX_REMEMBERED)}
    assert len(bounded(kept)) == MAX_REMEMBERED - 1 and WorkerId("0") not in kept


def test_a_down_report_closes_connections() -> None:
    """Whoever keeps connections to a worker hears at once that it is down."""
    side = Side()
    side.report()
    side.report(lifecycle=Lifecycle.DOWN, detail="refused")
    assert side.down == [NEW]


@pytest.mark.parametrize(
    "changes",
    [{"url": "http://10.0.9.8:8000"}, {"url": "ftp://10.0.9.9:8000"}, {"kind": "nothing"}, {"url": "http://10.0.9.9:8000/v1"}],
)
def test_what_cannot_join_is_refused(changes: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """A report over the network may name anything: it is counted, told once, and changes nothing."""
    side = Side()
    for _ in range(3):
        side.report(NEW, **changes)
    assert side.lifecycle() is None and side.pool.refused == 3
    assert len(caplog.records) == 1


def test_ranks_join(caplog: pytest.LogCaptureFixture) -> None:
    """Each data-parallel rank of an engine is a worker, and requests to it will name the rank."""
    side = Side()
    ranks = [WorkerId(f"{NEW}#{rank}") for rank in range(2)]
    for worker in ranks:
        side.report(worker, url=f"http://{NEW}", truth=Truth.EXACT)
    joined = [side.world.fleet.get(worker) for worker in ranks]
    assert [(worker.spec.url, Endpoint(worker.spec).rank) for worker in joined if worker] == [
        (f"http://{NEW}", b"0"),
        (f"http://{NEW}", b"1"),
    ]
    side.report(ranks[1], url=f"http://{NEW}", generation="g2")
    assert side.world.fleet.get(ranks[1]) is joined[1] and side.pool.refused == 0


@pytest.mark.parametrize("name", ["#", "#x", "#-1", "#01", "#256", "#0#1", "#9" * 5000, "#" + "9" * 5000])
def test_names_that_are_no_ranks_are_refused(name: str) -> None:
    """Whatever stands behind the mark."""
    side = Side()
    worker = WorkerId(NEW + name)
    side.report(worker, url=f"http://{NEW}")
    assert side.lifecycle(worker) is None and side.pool.refused == 1


def test_own_workers_are_for_nobody_else_to_report() -> None:
    """A worker that the router watches itself does not change by what the pool says of it."""
    side = Side()
    side.pool.watch(A)
    generation = side.world.fleet.workers[0].generation
    side.report(A, generation="other", lifecycle=Lifecycle.DOWN)
    side.pool.lost(A, "gone")
    side.pool.snapshot(CacheSnapshot(A, "other", 1, ()))
    assert side.pool.delta(CacheDelta(A, "other", 5, ())) is True
    worker = side.world.fleet.workers[0]
    assert (worker.lifecycle, worker.generation, side.down) == (Lifecycle.READY, generation, [])
    assert side.world.placement.cache_truth.feed.stale == 0
    side.pool.lost(WorkerId("unknown:1"), "gone")


def test_cache_and_load_reach_placement() -> None:
    """Snapshot and deltas make a worker exact; a gap asks for a snapshot; a lost worker's cache is not believed."""
    side = Side()
    side.report(truth=Truth.EXACT)
    keys = array("Q", prompt(range(4)).keys)
    side.pool.snapshot(CacheSnapshot(NEW, "g1", 3, (Stored(None, keys[:2]),)))
    assert side.pool.delta(CacheDelta(NEW, "g1", 4, (Stored(keys[1], keys[2:]),))) is True
    worker = side.world.fleet.get(NEW)
    assert worker is not None and worker.truth is Truth.EXACT
    assert side.world.placement.blocks_held(worker) == 4
    assert side.pool.delta(CacheDelta(NEW, "g1", 9, ())) is False
    side.pool.lost(NEW, "gone")
    assert not side.world.placement.cache_truth.feed.in_sync(NEW)
    side.pool.router_load(RouterLoad("r2", 1, True, {A: (3, 10)}))
    assert side.world.placement.load.other_requests == 3
