import pytest

from router.core.types import KeyForm, PromptKeys, Truth, Usage
from router.settings import CacheSettings
from tests.core.builders import prompt, ready_fleet, report
from tests.core.test_placement import World


def test_an_overpredicted_worker_loses_cold_blocks_and_capacity() -> None:
    """A prompt that was predicted but not cached: all colder blocks go, and the cache is thought to be smaller."""
    world = World(count=1, cache=CacheSettings(default_capacity_tokens=16 * 1600))
    worker, index = world.fleet.workers[0], world.placement.index
    for i in range(20):
        world.serve(prompt([i] * 40))
    world.serve(prompt([5] * 40), cached=0)
    assert [world.held(prompt([i] * 40)) > 0 for i in range(7)] == [False] * 5 + [True] * 2
    assert index.blocks_of(0) == 15 * 40
    assert world.placement.capacity_tokens(worker) == 16 * (1600 - (1600 - 600) // 2)
    assert worker.error_tokens_mean > 0
    for _ in range(30):
        world.serve(prompt([8] * 40), cached=0)
    assert world.placement.capacity_tokens(worker) >= 16 * 100


def test_an_underpredicted_worker_gains_capacity_up_to_a_limit() -> None:
    """A hit on blocks that the model had evicted proves it too small; one on blocks never seen proves nothing."""
    world = World(count=1, cache=CacheSettings(default_capacity_tokens=16 * 400))
    worker = world.fleet.workers[0]
    for i in range(10):
        world.serve(prompt([i] * 40))
    world.serve(prompt([1] * 40), cached=0)
    shrunk = world.placement.capacity_tokens(worker)
    assert shrunk < 6400
    for i in range(20, 30):
        world.serve(prompt([i] * 40), cached=0)
    assert world.placement.capacity_tokens(worker) == shrunk
    world.serve(prompt([77] * 40), cached=640)
    assert world.placement.capacity_tokens(worker) == shrunk, "a prompt never seen here"
    for i in range(2000):
        world.serve(prompt([i % 200 + 20] * 40), cached=643)
    assert world.placement.capacity_tokens(worker) == 16 * 6400


@pytest.mark.parametrize(
    ("keys", "usage", "expected"),
    [
        pytest.param(prompt(range(40)), Usage(644, 640, 1), True, id="as predicted"),
        pytest.param(prompt(range(40)), Usage(644, 570, 1), True, id="within a block and a tenth"),
        pytest.param(prompt(range(40)), Usage(644, 0, 1), False, id="missed"),
        pytest.param(prompt(range(40)), Usage(644, None, 1), True, id="not told"),
        pytest.param(prompt(range(40)), None, True, id="no usage"),
        pytest.param(prompt(range(40), 800, KeyForm.TEXT), Usage(400, 330, 1), True, id="text keys, scaled"),
        pytest.param(prompt(range(40), 800, KeyForm.TEXT), Usage(800, 330, 1), False, id="text keys, missed"),
        pytest.param(prompt(range(40), 800, KeyForm.TEXT), Usage(None, 0, 1), True, id="text keys, unknown length"),
        pytest.param(prompt(range(40), 800, KeyForm.RAW), Usage(800, 0, 1), True, id="raw keys prove nothing"),
    ],
)
def test_only_a_clear_miss_corrects_the_model(keys: PromptKeys, usage: Usage | None, expected: bool) -> None:
    """Predictions are compared with what engines report, with slack, and only where both count the same tokens."""
    world = World(count=1)
    old = prompt([5] * 10)
    world.serve(old)
    world.finish(world.choose(keys), Usage(644, None, 1))
    lease = world.choose(keys)
    world.finish(lease, usage)
    assert (world.held(old) == 10) is expected
    known = usage is not None and usage.cached_tokens is not None
    assert lease.decision.actual_cached_tokens == (usage.cached_tokens if usage else None)
    assert (world.stats.actual_known_prompt_tokens > 0) is known
    assert world.stats.usage_unknown == (usage is None)


def test_unconfirmed_blocks_and_given_capacities_are_not_corrected() -> None:
    """A sibling's blocks may still be being computed; a capacity from --engine is the operator's word."""
    world = World(count=1)
    worker, old = world.fleet.workers[0], prompt([5] * 10)
    world.serve(old)
    first, second = world.choose(prompt(range(40))), world.choose(prompt(range(40)))
    world.finish(second, Usage(644, 0, 1))
    assert world.held(old) == 10 and world.placement.capacity_tokens(worker) == 262_144
    world.finish(first)
    told = World(fleet=ready_fleet(1, capacity_tokens=16_000))
    told.serve(old)
    told.serve(prompt(range(40)))
    told.serve(prompt(range(40)), cached=0)
    assert told.held(old) == 0
    assert told.placement.capacity_tokens(told.fleet.workers[0]) == 16_000


def test_capacity_follows_reports() -> None:
    """A size that the engine tells replaces the assumed one and any correction of it."""
    world = World(count=1)
    worker = world.fleet.workers[0]
    world.fleet.apply(report(worker, 200.0, capacity_tokens=3200), 200.0)
    assert world.placement.capacity_tokens(worker) == 3200
    world.fleet.apply(report(worker, 201.0, capacity_tokens=3200, truth=Truth.UNTRUSTED), 201.0)
    assert world.placement.capacity_tokens(worker) == 3200
