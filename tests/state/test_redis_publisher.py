"""Sidecars that write to a real Redis."""

import asyncio
import logging

import pytest
from redis import Redis

from loadtest.redis_server import RedisServer
from router.core.types import Lifecycle, WorkerId
from router.state import outbox, redis_publisher
from router.state.cache_codec import decode_delta, decode_piece, decode_snapshot
from router.state.redis_keys import Keys
from router.state.report_codec import decode_left, decode_report
from tests.state.rig import RouterProcess, SidecarProcess, admin, comes_right, eventually, running, state_of

KEYS = Keys("default").of(WorkerId("a"))


def written_snapshots(sidecar: SidecarProcess) -> int:
    return sum(post.written_snapshots for post in sidecar.publisher.posts)


async def test_what_a_sidecar_writes(redis: RedisServer) -> None:
    """The newest report, a bounded stream of joined deltas, a snapshot, the registry: all with a time to live."""
    settings = state_of(redis, max_stream_deltas=16, state_interval_s=0.06)
    sidecar = SidecarProcess(settings, "a")
    async with running(sidecar):
        await eventually(lambda: written_snapshots(sidecar) >= 3, 6.0)
        with admin(redis) as client:
            entries = client.xrange(KEYS.stream)
            assert 8 <= len(entries) < 140, "trimmed by whole blocks of entries"
            deltas = [decode_delta(fields[b"d"]) for _, fields in entries]
            assert [delta.seq for delta in deltas] == list(range(deltas[0].seq, deltas[0].seq + len(deltas)))
            assert all(
                entry_id.endswith(f"-{delta.seq}".encode()) for (entry_id, _), delta in zip(entries, deltas, strict=True)
            )
            (data,) = client.lrange(KEYS.snapshot, 0, -1)
            snapshot = decode_snapshot(decode_piece(data, 10**6).data, 10**6)
            assert deltas[0].seq - 1 <= snapshot.seq <= deltas[-1].seq
            report = client.get(KEYS.report)
            assert isinstance(report, bytes) and decode_report(report).report.worker == "a"
            assert client.zrange(Keys("default").workers, 0, -1) == [b"a"]
            assert 0 < client.pttl(KEYS.report) <= 3000
            await asyncio.sleep(1.2)
            ttls = {key: client.pttl(key) for key in client.scan_iter()}
            assert all(0 < ttl <= 600_000 for ttl in ttls.values()), ttls


async def test_an_idle_sidecar_repeats_its_word(redis: RedisServer) -> None:
    """Once a second, each time another value, so that readers see that it is alive."""
    sidecar = SidecarProcess(state_of(redis), "a")
    async with running(sidecar.publisher):
        with admin(redis) as client:
            await eventually(lambda: client.exists(KEYS.report) == 1, 1.0)
            await asyncio.sleep(0.3)
            first = client.get(KEYS.report)
            await eventually(lambda: client.get(KEYS.report) != first, 1.5)
            again = client.get(KEYS.report)
            assert isinstance(again, bytes) and decode_report(again).age_s > 0.4


async def test_leaving_takes_everything_along(redis: RedisServer) -> None:
    """What a worker had in Redis is gone, but for the word that it left; coming back is no problem."""
    sidecar, router = SidecarProcess(state_of(redis), "a"), RouterProcess(state_of(redis))
    async with running(sidecar, router):
        await comes_right(sidecar, router)
        (engine,) = sidecar.engines
        sidecar.engines.clear()
        sidecar.publisher.leave(engine.worker)
        sidecar.publisher.leave(engine.worker)
        await eventually(lambda: len(router.picture.lost_workers) == 1, 1.0)
        with admin(redis) as client:
            assert client.exists(KEYS.stream, KEYS.snapshot, Keys("default").workers) == 0
        engine.post()
        engine.follow()
        sidecar.engines.append(engine)
        await comes_right(sidecar, router)


async def test_the_last_word_is_written(redis: RedisServer) -> None:
    """`finish` writes what was taken in, then `run` ends by itself."""
    sidecar = SidecarProcess(state_of(redis), "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sidecar.publisher.run())
        await asyncio.sleep(0.15)
        sidecar.engines[0].lifecycle = Lifecycle.DRAINING
        sidecar.engines[0].post()
        sidecar.publisher.finish()
        async with asyncio.timeout(1.0):
            await task
    with admin(redis) as client:
        report = client.get(KEYS.report)
    assert isinstance(report, bytes) and decode_report(report).report.lifecycle is Lifecycle.DRAINING


async def test_the_last_word_is_tried_again(redis: RedisServer) -> None:
    """A Redis that comes back within the time for last words gets them, reports and leavings."""
    sidecar = SidecarProcess(state_of(redis), "a", "b")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sidecar.publisher.run())
        await eventually(lambda: written_snapshots(sidecar) >= 2, 3.0)
        redis.kill()
        sidecar.engines[0].lifecycle = Lifecycle.DRAINING
        sidecar.engines[0].post()
        sidecar.publisher.leave(sidecar.engines[1].worker)
        sidecar.publisher.finish()
        await asyncio.sleep(0.5)
        assert not task.done()
        redis.start()
        async with asyncio.timeout(2.0):
            await task
    with admin(redis) as client:
        report = client.get(KEYS.report)
        left = client.get(Keys("default").of(sidecar.engines[1].worker).report)
    assert isinstance(report, bytes) and decode_report(report).report.lifecycle is Lifecycle.DRAINING
    assert isinstance(left, bytes) and decode_left(left) == "b"


async def test_a_redis_that_stays_away_holds_no_sidecar_up(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word is given up after a while."""
    monkeypatch.setattr(redis_publisher, "LAST_WORDS_S", 0.3)
    redis.kill()
    sidecar = SidecarProcess(state_of(redis), "a")
    sidecar.publisher.finish()
    async with asyncio.timeout(2.0):
        await sidecar.publisher.run()
    assert sidecar.publisher.posts[0].outbox.report_is_new


async def test_two_sidecars_of_one_worker(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take turns and say so; when one is gone, what the other says is right again."""
    monkeypatch.setattr(outbox, "TAKEOVER_S", 0.5)
    settings = state_of(redis)
    first, router = SidecarProcess(settings, "a"), RouterProcess(settings)
    async with running(first, router):
        await comes_right(first, router)
        second = SidecarProcess(settings, "a")
        async with running(second):
            await asyncio.sleep(1.0)
        await comes_right(first, router)
    assert "another sidecar writes its cache too" in caplog.text
    assert not router.picture.lost_workers and router.follower.counts.snapshots < 20


async def test_a_fault_of_one_sidecar_keeps_no_other_from_being_written(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot that raises, and a report that no message can carry."""
    sidecar, router = SidecarProcess(state_of(redis), "a", "b"), RouterProcess(state_of(redis))
    faulty, good = sidecar.engines
    faulty.snapshot = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    faulty.follow()
    unspeakable = good.report()
    unspeakable.worker, unspeakable.detail = WorkerId("c"), "\ud800"
    sidecar.publisher.report(unspeakable)
    async with running(sidecar, router):
        await eventually(lambda: good.worker in router.picture.keys, 2.0)
        await asyncio.sleep(1.2)
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
    assert caplog.text.count("its report cannot be written") == 1
    assert sum(post.unwritable for post in sidecar.publisher.posts) >= 2


async def test_a_surprise_in_a_round_ends_nothing(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next round comes."""
    sidecar = SidecarProcess(state_of(redis), "a")
    exchange = sidecar.publisher._exchange

    async def broken() -> None:
        sidecar.publisher._exchange = exchange  # type: ignore[method-assign]
        raise KeyError("fault")

    sidecar.publisher._exchange = broken  # type: ignore[method-assign]
    async with running(sidecar):
        await eventually(lambda: written_snapshots(sidecar) > 0, 3.0)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_without_workers_nothing_is_written(redis: RedisServer) -> None:
    """And nothing is lost either."""
    sidecar = SidecarProcess(state_of(redis))
    async with running(sidecar):
        await asyncio.sleep(0.3)
    with Redis(port=redis.port) as client:
        assert client.dbsize() == 0
