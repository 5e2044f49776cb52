"""router.catch_up: what sidecars told is taken in bit by bit, and what would help is asked for."""

import asyncio
import random
from array import array
from contextlib import suppress

import pytest

from router import catch_up
from router.catch_up import CatchUp
from router.core.cache_delta import CacheSnapshot, Stored
from router.core.placement import Placement
from router.core.stats import Stats
from router.core.types import Truth, WorkerId
from router.settings import Settings
from tests.core.builders import ready_fleet, report

BLOCKS = 5000


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.fleet = ready_fleet(1)
        (self.worker,) = self.fleet.workers
        settings = Settings()
        self.placement = Placement(settings.routing, settings.cache, self.fleet, Stats(), random.Random(1))
        self.wanted: list[WorkerId] = []
        self.catch_up = CatchUp(self.placement, lambda: self.now_s, self.wanted.append)
        self.fleet.apply(report(self.worker, self.now_s, truth=Truth.EXACT), self.now_s)

    @property
    def is_exact(self) -> bool:
        return self.worker.truth is Truth.EXACT

    def tell(self) -> None:
        rng = random.Random(7)
        keys = array("Q", [rng.getrandbits(64) for _ in range(BLOCKS)])
        self.placement.cache_truth.snapshot(CacheSnapshot(self.worker.id, self.worker.generation, 0, (Stored(None, keys),)))


def test_a_cache_that_is_told_of_and_not_known_is_asked_for_now_and_then() -> None:
    """Once a second, until it is known."""
    world = World()
    world.catch_up.step()
    world.catch_up.step()
    assert world.wanted == [world.worker.id]
    world.now_s += catch_up.WANT_S
    world.catch_up.step()
    assert len(world.wanted) == 2
    world.tell()
    while world.catch_up.step():
        pass
    world.now_s += catch_up.WANT_S
    world.catch_up.step()
    assert len(world.wanted) == 2 and world.worker.truth is Truth.EXACT


async def test_what_is_large_takes_several_turns() -> None:
    """Other tasks run between two pieces."""
    world = World()
    world.tell()
    assert not world.is_exact
    task = asyncio.ensure_future(world.catch_up.run())
    turns = 0
    while not world.is_exact:
        await asyncio.sleep(0)
        turns += 1
    assert 1 < turns < BLOCKS and world.placement.blocks_held(world.worker) == BLOCKS
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_surprise_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An exception nobody expected in what others told does not end the loop."""
    world = World()

    def surprising(worker: WorkerId) -> None:
        raise RuntimeError("surprise")

    world.catch_up = CatchUp(world.placement, lambda: world.now_s, surprising)
    assert not world.catch_up.step()
    assert world.catch_up.surprises == 1 and "surprise" in caplog.text
