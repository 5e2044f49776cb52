"""What one worker writes, command by command, in virtual time; see test_lane.py for what readers make of it."""

import pytest
from redis.exceptions import OutOfMemoryError

from router.core.types import WorkerId
from router.state.batch import FULL_SIZE, Batch
from router.state.cache_codec import PIECE_BYTES, decode_piece
from router.state.redis_post import ANNOUNCE_S
from tests.state.virtual_pool import STEP_S, VirtualPool

A = WorkerId("a")


def commands(pool: VirtualPool) -> list[str]:
    """Names of what a round of worker `a` writes."""
    post, batch = pool.posts[A], Batch()
    write = post.snapshot(pool.now_s)
    post.plan_deltas(batch, pool.now_s)
    while write is not None and not write.is_done:
        write.plan_some(batch)
    post.plan_words(batch, pool.now_s, pool.now_s)
    names = [str(command[0]) for lane in batch.plan.values() for command in lane]
    batch.deliver(pool.redis.execute(batch.plan))
    return names


def test_readers_can_rely_on_the_order() -> None:
    """Deltas, then the snapshot, then the report that speaks of both; then the announcement."""
    pool = VirtualPool(1)
    pool.work(pool.engines[0])
    pool.posts[A].outbox.put_report(pool.engines[0].report(), pool.now_s)
    found = commands(pool)
    assert [name for name in found if name not in ("ZADD",)][:6] == ["XADD", "UNLINK", "RPUSH", "PEXPIRE", "RENAME", "SET"]
    assert "ZADD" in found
    assert commands(pool) == ["SET"], "the report tells now that there is a snapshot"
    assert commands(pool) == []


def test_announcements_are_spread() -> None:
    """Once an interval; sidecars that start together do not announce together."""
    pool = VirtualPool(8)
    rounds: list[set[str]] = []
    for _ in range(round(4 * ANNOUNCE_S / STEP_S)):
        before = {key: value.copy() for key, value in pool.redis.values.items() if key.endswith(b"workers")}
        pool.now_s += STEP_S
        pool.write()
        after = pool.redis.values[pool.keys.workers.encode()]
        old = before.get(pool.keys.workers.encode(), {})
        rounds.append({name.decode() for name, at_s in after.items() if old.get(name) != at_s})
    assert all(sum(name in announced for announced in rounds) >= 3 for name in "abcdefgh")
    assert max(len(announced) for announced in rounds[1:]) < 8


def test_a_report_that_was_refused_is_written_again() -> None:
    """In the next round, not when the next report is due."""
    pool = VirtualPool(1)
    pool.run(0.5)
    pool.redis.fail = lambda command: OutOfMemoryError("x") if command[0] == "SET" else None
    pool.posts[A].outbox.put_report(pool.engines[0].report(), pool.now_s)
    assert "SET" in commands(pool)
    pool.redis.fail = lambda command: None
    assert "SET" in commands(pool) and "SET" not in commands(pool)


def test_a_large_snapshot_is_written_in_parts_and_exposed_whole() -> None:
    """Readers see the one before until all pieces are there; with a piece missing they go on seeing it."""
    pool = VirtualPool(1)
    pool.run(0.5)
    post, engine = pool.posts[A], pool.engines[0]
    old = pool.redis.values[post.keys.snapshot]
    engine.change(PIECE_BYTES)
    for breaks in (True, False):
        post.outbox.want_snapshot(pool.now_s)
        pool.now_s += 2.0
        write = post.snapshot(pool.now_s)
        assert write is not None
        exchanges = 0
        while not write.is_done:
            batch = Batch()
            write.plan_some(batch)
            assert batch.size < 2 * FULL_SIZE
            pool.redis.is_full = breaks and exchanges == 1
            assert pool.redis.values[post.keys.snapshot] == old
            batch.deliver(pool.redis.execute(batch.plan))
            exchanges += 1
        assert exchanges > 1
        assert (pool.redis.values[post.keys.snapshot] == old) is breaks
    pieces = [decode_piece(data, 10**7) for data in pool.redis.values[post.keys.snapshot]]
    assert [piece.index for piece in pieces] == list(range(pieces[0].total)) and pieces[0].total > 8


@pytest.mark.parametrize("key", ["stream", "snapshot", "new_snapshot"])
def test_what_somebody_put_in_its_place_is_removed(key: str) -> None:
    """Something of another type under a worker's key does not stop it for good."""
    pool = VirtualPool(1)
    pool.run(0.5)
    pool.redis.values[getattr(pool.posts[A].keys, key)] = {b"x": 1.0}
    pool.posts[A].outbox.want_snapshot(pool.now_s)
    pool.run(3)
    assert pool.is_right()
    assert pool.redis.values[pool.posts[A].keys.stream]


def test_a_last_entry_that_is_none_does_not_stop_a_takeover() -> None:
    """Whatever the stream's last id is taken for, the sidecar goes on."""
    pool = VirtualPool(1)
    pool.run(0.5)
    outbox = pool.posts[A].outbox
    for answer in ([], [[b"x-y", []]], [None], None, OSError()):
        outbox.displaced = True
        pool.posts[A]._take_over(answer, pool.now_s + 100)
        assert outbox.displaced is isinstance(answer, OSError)


def test_leaving_is_done_when_redis_has_taken_it() -> None:
    """Until then it is tried again."""
    pool = VirtualPool(1)
    pool.run(0.5)
    post = pool.posts.pop(A)
    for fails in (True, False):
        pool.redis.is_full = fails
        batch = Batch()
        post.plan_leaving(batch)
        batch.deliver(pool.redis.execute(batch.plan))
        assert post.has_left is not fails
    pool.run(STEP_S)
    assert pool.picture.lost_workers == [(A, "it is not watched any more")]
