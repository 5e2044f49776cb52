"""What a router makes of what it reads, in virtual time: losses, gaps, hostile values, and a store that fails."""

import random

import pytest
from redis.exceptions import OutOfMemoryError

from router.core.types import WorkerId
from router.state import lane
from router.state.batch import Command
from router.state.lane import GRACE_AFTER_S, SPLIT_S
from router.state.redis_keys import lane_of
from tests.state.virtual_pool import STEP_S, VirtualPool


def test_a_router_follows_its_workers() -> None:
    """From their snapshots on, delta by delta."""
    pool = VirtualPool()
    pool.run(20)
    assert pool.is_right() and pool.counts.gaps == 0
    assert pool.counts.snapshots == 2 and pool.counts.deltas > 300 and pool.counts.blocks > 2400


def test_a_worker_without_reports_is_lost() -> None:
    """Once, with the reason, after the reports' time to live; the others stay."""
    pool = VirtualPool()
    pool.run(5)
    del pool.posts[WorkerId("a")]
    pool.run(3.5)
    assert pool.picture.lost_workers == [("a", "no report for 3 s")] and pool.is_right()
    pool.begin_post(pool.engines[0])
    pool.run(1)
    assert pool.is_right() and len(pool.picture.lost_workers) == 1


def test_nobody_is_lost_while_redis_cannot_be_read() -> None:
    """What is known stays; afterwards everybody has the whole time again to be seen."""
    pool = VirtualPool()
    pool.run(5)
    pool.is_readable = pool.is_written = False
    pool.run(60)
    pool.is_readable = True
    pool.run(2.5, busy=False)
    assert not pool.picture.lost_workers
    pool.is_written = True
    pool.run(1)
    assert pool.is_right()


def test_nobody_is_lost_while_redis_takes_no_writes() -> None:
    """Reports run out without being renewed: that says nothing about the workers."""
    pool = VirtualPool()
    pool.run(5)
    pool.redis.is_full = True
    pool.run(30)
    assert not pool.picture.lost_workers
    pool.redis.is_full = False
    pool.run(3)
    assert pool.is_right() and not pool.picture.lost_workers


def test_a_router_that_slept_loses_nobody() -> None:
    """Its own pause is no silence of the workers."""
    pool = VirtualPool()
    pool.run(5)
    pool.now_s += 20
    pool.write()
    pool.run(GRACE_AFTER_S)
    assert not pool.picture.lost_workers and pool.is_right()


@pytest.mark.parametrize("lost", ["stream", "snapshot", "report", "everything"])
def test_what_is_gone_from_redis_comes_back(lost: str) -> None:
    """Flushed or evicted, whole or in part: right again within 3 s, also for a router that starts then."""
    pool = VirtualPool()
    pool.run(5)
    if lost == "everything":
        pool.redis.flush()
    for key in [key for key in pool.redis.values if f":{lost}:".encode() in key]:
        pool.redis._unlink(key)
    pool.run(2)
    assert pool.is_right() and not pool.picture.lost_workers
    late = VirtualPool(0)
    late.redis, late.engines, late.posts, late.now_s = pool.redis, pool.engines, pool.posts, pool.now_s
    for engine in pool.engines:
        late.lane(engine.worker).add(engine.worker, late.now_s)
    late.run(1)
    assert late.is_right()


def test_a_snapshot_that_is_gone_is_written_again_without_any_delta() -> None:
    """The sidecar of an idle engine looks after it, too."""
    pool = VirtualPool()
    pool.run(2)
    for engine in pool.engines:
        pool.redis._unlink(pool.keys.of(engine.worker).snapshot)
    pool.run(2, busy=False)
    assert all(pool.keys.of(engine.worker).snapshot in pool.redis.values for engine in pool.engines)


def test_one_spoilt_stream_keeps_nobody_else_from_being_read() -> None:
    """Workers of one lane are read with one command; where it fails they are read one by one for a while."""
    pool = VirtualPool(1)
    a = pool.engines[0].worker
    b = pool.join(next(name for number in range(999) if lane_of(WorkerId(name := f"b{number}")) == lane_of(a)))
    pool.run(2)
    del pool.posts[a]
    pool.redis.values[pool.keys.of(a).stream] = {b"not": b"a stream"}
    pool.run(2)
    assert pool.picture.keys[b.worker] == b.keys
    pool.run(2 * SPLIT_S)
    assert pool.picture.keys[b.worker] == b.keys and pool.counts.gaps == 0


def test_a_restarted_engine_is_never_taken_for_the_old_one() -> None:
    """At the first word of the new generation its old cache is gone."""
    pool = VirtualPool(1)
    pool.run(5)
    old = pool.engines[0].keys
    pool.engines[0].restart()
    pool.run(STEP_S)
    assert not pool.picture.keys[WorkerId("a")] & old and pool.is_right()
    pool.run(10)
    assert pool.is_right()


def test_a_restarted_sidecar_is_followed_on() -> None:
    """It counts anew, of the same engine; also when its host's clock was set back."""
    pool = VirtualPool(1)
    pool.run(5)
    for wall_s in (pool.now_s, 50.0):
        pool.begin_post(pool.engines[0], wall_s)
        pool.run(3)
        assert pool.is_right()


def test_two_sidecars_of_one_worker_do_no_harm() -> None:
    """Both follow the same engine; whichever writes, the picture is right."""
    pool = VirtualPool(1)
    pool.run(2)
    engine, first = pool.engines[0], pool.posts[WorkerId("a")]
    pool.begin_post(engine)
    second = pool.posts[WorkerId("a")]
    for step in range(200):
        pool.now_s += STEP_S
        delta = engine.change()
        for post in (first, second):
            post.outbox.put_delta(delta, pool.now_s)
        for post in (first, second):
            pool.posts[WorkerId("a")] = post
            pool.write()
        pool.read()
        if step % 50 == 49:
            assert pool.counts.snapshots < 30
    pool.posts = {WorkerId("a"): first}
    pool.run(12)
    assert pool.is_right()


def test_a_long_silence_of_the_router_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More entries than one read brings are no gap."""
    monkeypatch.setattr(lane, "ENTRIES_AT_ONCE", 5)
    pool = VirtualPool(1)
    pool.run(1)
    for _ in range(16):
        pool.now_s += STEP_S / 100
        pool.work(pool.engines[0])
        pool.write()
    pool.run(1, busy=False)
    assert pool.is_right() and pool.counts.gaps == 0


def test_a_stream_that_was_trimmed_too_far_is_a_gap() -> None:
    """What the router missed comes with the snapshot."""
    pool = VirtualPool(1)
    pool.run(1)
    for _ in range(100):
        pool.now_s += STEP_S
        pool.work(pool.engines[0])
        pool.write()
    pool.run(1)
    assert pool.is_right() and pool.counts.gaps == 1


@pytest.mark.parametrize("kind", ["report", "stream", "snapshot"])
def test_hostile_values_spoil_nothing_but_themselves(kind: str) -> None:
    """Another type, random bytes, another worker's message: no exception, the neighbour's state is untouched."""
    pool = VirtualPool()
    a, b = (pool.keys.of(engine.worker) for engine in pool.engines)
    pool.run(3)
    rng = random.Random(5)
    for content in (
        rng.randbytes(50),
        {b"x": 1.0},
        [rng.randbytes(9)],
        [b"x", None],
        ((b"9999999999999-1", [b"d", b"x"]),),
        "swap",
    ):
        key = getattr(a, kind)
        value = pool.redis.values.get(getattr(b, kind)) if content == "swap" else content
        pool.redis.values[key] = value
        right_before = pool.picture.keys[WorkerId("b")]
        if kind == "snapshot":
            pool.lane(WorkerId("a")).feeds[WorkerId("a")].want_snapshot(0.0)
        pool.read()
        assert pool.picture.keys[WorkerId("b")] == right_before
        pool.run(SPLIT_S + 8)
        assert pool.is_right(), content
    assert not pool.picture.lost_workers and pool.counts.surprises == 0


def test_a_fault_of_the_listener_is_logged_once_and_keeps_nobody_from_being_read(caplog: pytest.LogCaptureFixture) -> None:
    """The worker is read again from its snapshot; when the fault is over everything is right."""
    pool = VirtualPool()
    pool.run(2)
    take, taken = pool.picture.delta, pool.picture.snapshot

    def broken(_: object) -> bool:
        raise KeyError("fault")

    pool.picture.delta = pool.picture.snapshot = broken  # type: ignore[method-assign, assignment]
    pool.run(2)
    assert pool.counts.surprises > 4
    assert len([record for record in caplog.records if "surprise" in record.message]) == 2
    pool.picture.delta, pool.picture.snapshot = take, taken  # type: ignore[method-assign]
    pool.run(3)
    assert pool.is_right()
    pool.picture.report = broken  # type: ignore[method-assign, assignment]
    pool.run(1)


def test_a_worker_that_left_is_dropped_cleanly() -> None:
    """Nothing is read of it any more."""
    pool = VirtualPool()
    pool.run(1)
    its_lane = pool.lane(WorkerId("a"))
    its_lane.drop(its_lane.feeds[WorkerId("a")])
    del pool.posts[WorkerId("a")]
    pool.run(1)
    assert WorkerId("a") not in its_lane.feeds
    assert its_lane.add(WorkerId("a"), pool.now_s) and not its_lane.add(WorkerId("a"), pool.now_s)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_it_comes_right(seed: int) -> None:
    """Random outages, refusals, flushes, restarts of engines and sidecars: right within 3 s of the last one."""
    rng = random.Random(seed)
    pool = VirtualPool(3)

    def refuse_some(command: Command) -> Exception | None:
        return OutOfMemoryError("x") if rng.random() < 0.2 else None

    for _ in range(40):
        pool.is_readable = rng.random() < 0.8
        pool.redis.is_full = rng.random() < 0.2
        pool.redis.fail = refuse_some if rng.random() < 0.3 else lambda command: None
        engine = rng.choice(pool.engines)
        match rng.randrange(8):
            case 0:
                engine.restart()
            case 1:
                pool.begin_post(engine)
            case 2:
                pool.redis.flush()
            case 3:
                pool.now_s += rng.random() * 5
            case 4:
                engine.change()
        pool.run(rng.random() * 2, busy=rng.random() < 0.8)
    pool.is_readable, pool.redis.is_full, pool.redis.fail = True, False, lambda command: None
    pool.run(3)
    assert pool.is_right() and pool.counts.surprises == 0
