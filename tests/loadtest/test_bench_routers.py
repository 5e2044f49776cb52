"""The deciding parts without sockets."""

import pytest

from loadtest.bench.bodies import KINDS, bodies
from loadtest.bench.routers import MODEL, PATH, DecidingRouter, placement_over, ready_fleet
from router.core.stats import Stats
from router.core.types import Lifecycle


@pytest.mark.parametrize("workers", [1, 8, 300])
def test_all_workers_are_ready_and_serve_the_model(workers: int) -> None:
    """Every worker of the made-up fleet is a candidate, each with an address of its own."""
    fleet = ready_fleet(workers, capacity_tokens=1 << 20, now_s=0.0)
    candidates = fleet.candidates(MODEL)
    assert len({worker.id for worker in candidates}) == workers
    assert all(worker.lifecycle is Lifecycle.READY for worker in candidates)
    assert placement_over(fleet, Stats()).index.blocks == 0


async def test_decisions_are_those_of_the_router() -> None:
    """A prompt seen before goes where it went, with its prefix counted as cached, and nothing stays in flight."""
    with DecidingRouter(8, None) as router:
        (body,) = bodies(KINDS["chat2k"], 1, seed=5)
        first = await router.decide(PATH, body)
        tokens = await router.end(first)
        second = await router.decide(PATH, body)
        await router.end(second)
    assert second.lease.worker is first.lease.worker
    assert 0 < second.lease.decision.predicted_cached_tokens < tokens
    assert router.placement.load.in_flight == 0
