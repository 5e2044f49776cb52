"""Sidecars, a fake Redis and a router's lanes in virtual time: rounds of both sides, and anything may happen between."""

from router.core.types import WorkerId
from router.settings import FleetSettings, StateSettings
from router.state.batch import Batch
from router.state.lane import FollowCounts, Lane
from router.state.memory import MemoryState
from router.state.redis_keys import LANES, Keys, lane_of
from router.state.redis_post import Post
from router.state.snapshot_load import SnapshotLoad
from tests.state.engine import Engine, Picture
from tests.state.fake_redis import FakeRedis

STEP_S = 0.1
SETTINGS = StateSettings(max_stream_deltas=32, max_pending_blocks=1024)


class VirtualPool:
    """Engines `a`, `b`, … each with its post; one router."""

    def __init__(self, engines: int = 2) -> None:
        self.now_s = 100.0
        self.redis = FakeRedis(lambda: self.now_s)
        self.picture = Picture()
        self.counts = FollowCounts()
        self.keys = Keys(SETTINGS.pool_name)
        self.lanes = [
            Lane(n, self.keys, self.picture, self.counts, FleetSettings().report_ttl_s, self.now_s) for n in range(LANES)
        ]
        self.engines: list[Engine] = []
        self.posts: dict[WorkerId, Post] = {}
        self.is_readable = True
        self.is_written = True
        for number in range(engines):
            self.join(chr(ord("a") + number))

    def join(self, name: str) -> Engine:
        engine = Engine(name, MemoryState(Picture()), lambda: self.now_s)
        self.engines.append(engine)
        self.begin_post(engine)
        self.lane(engine.worker).add(engine.worker, self.now_s)
        return engine

    def begin_post(self, engine: Engine, wall_s: float | None = None) -> None:
        """A sidecar begins, or begins anew."""
        wall_s = self.now_s if wall_s is None else wall_s
        post = self.posts[engine.worker] = Post(engine.worker, SETTINGS, FleetSettings(), self.keys, self.now_s, wall_s)
        post.outbox.follow(engine.snapshot, self.now_s)

    def lane(self, worker: WorkerId) -> Lane:
        return self.lanes[lane_of(worker)]

    def work(self, engine: Engine) -> None:
        post = self.posts.get(engine.worker)
        if post is not None:
            post.outbox.put_delta(engine.change(), self.now_s)

    def write(self) -> None:
        """One round of the sidecars."""
        batch = Batch()
        for engine in self.engines:
            post = self.posts.get(engine.worker)
            if post is None:
                continue
            post.outbox.put_report(engine.report(), self.now_s)
            write = post.snapshot(self.now_s)
            post.plan_deltas(batch, self.now_s)
            while write is not None and not write.is_done:
                write.plan_some(batch)
            post.plan_words(batch, self.now_s, self.now_s)
        batch.deliver(self.redis.execute(batch.plan))

    def read(self, probes: bool = True) -> None:
        """One round of the router."""
        batch = Batch()
        for lane in self.lanes:
            lane.plan(batch, self.now_s, probes)
        failure = OSError("no answer")
        batch.deliver(
            self.redis.execute(batch.plan)
            if self.is_readable
            else {lane: [failure] * len(commands) for lane, commands in batch.plan.items()}
        )
        for lane in self.lanes:
            for _ in lane.digest(self.now_s):
                pass
            for feed in [feed for feed in lane.feeds.values() if self.is_readable and feed.wants_load(self.now_s)]:
                load = SnapshotLoad(feed, SETTINGS.max_snapshot_blocks)
                while not load.is_done:
                    fetch = Batch()
                    load.plan(fetch)
                    fetch.deliver(self.redis.execute(fetch.plan))
                lane.take_snapshot(load, self.now_s)

    def run(self, seconds: float, busy: bool = True) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for engine in self.engines if busy else ():
                self.work(engine)
            if self.is_written:
                self.write()
            self.read()

    def is_right(self) -> bool:
        return self.picture.is_right(*(engine for engine in self.engines if engine.worker in self.posts))
