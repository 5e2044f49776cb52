"""What `Placement` learns of an engine's speed from how requests went."""

from random import Random

import pytest

from router.core.placement import Lease
from router.core.types import Usage
from tests.core.builders import prompt, report
from tests.core.test_placement import World


def test_speed_counts_what_the_engine_says_it_computed() -> None:
    """A hit or miss that was not predicted would otherwise look like a fast or slow engine; so would an error's answer."""
    world = World(count=1, prefill_tokens_per_s=1000.0)
    for i in range(100):
        keys = prompt([i] * 50)
        lease = world.choose(keys)
        world.now_s += 0.404
        world.placement.first_token(lease, world.now_s)
        world.finish(lease, Usage(keys.prompt_tokens, 400, 1))
        refused = world.choose(prompt([i] * 90))
        world.placement.first_token(refused, world.now_s + 0.001)
        world.finish(refused, None, "ok", 400)
    assert world.placement.prefill_tokens_per_s(world.fleet.workers[0]) == pytest.approx(1000, rel=0.05)


def test_speed_is_learned_without_any_streaming() -> None:
    """Whole answers of requests that had nothing ahead of them teach as well, where the answer's length is told."""
    world, rng = World(count=1, prefill_tokens_per_s=2500.0), Random(4)
    for i in range(300):
        keys = prompt([i] * rng.randrange(5, 60))
        lease, answer = world.choose(keys, stream=False), rng.randrange(1, 50)
        behind = world.choose(prompt([1000 + i] * 5), stream=False)
        world.now_s += keys.prompt_tokens / 500 + answer * 0.02
        world.finish(lease, Usage(keys.prompt_tokens, 0, answer))
        world.now_s += 60.0
        world.finish(behind, Usage(84, 0, 1 if i % 3 else None) if i % 2 else None)
    assert world.placement.prefill_tokens_per_s(world.fleet.workers[0]) == pytest.approx(500, rel=0.2)


def learned_from_whole_answers(tokens_per_s: float, answer_tokens: int, seed: int, *, one_at_a_time: bool = False) -> float:
    """Tokens per second that four clients at once teach of an engine that prefills in turn and decodes beside that.

    `one_at_a_time`: it has place for one request, and says that others wait for it.
    """
    world, rng = World(count=1, prefill_tokens_per_s=2500.0), Random(seed)
    worker = world.fleet.workers[0]
    free_s, running = 0.0, list[tuple[float, int, Lease]]()
    for number in range(200):
        if len(running) == 4:
            running.sort(key=lambda one: one[0])
            world.now_s, cached, lease = running.pop(0)
            world.placement.finish(lease, world.now_s, Usage(lease.prompt.prompt_tokens, cached, answer_tokens), "ok", 200)
        waiting = max(0, len(running) - 1) if one_at_a_time else 0
        world.fleet.apply(report(worker, world.now_s, waiting=waiting), world.now_s)
        lease = world.choose(prompt([*[rng.randrange(40)] * 28, 1000 + number]), stream=False)
        decode_s = answer_tokens * 0.01 * rng.uniform(0.9, 1.2)
        free_s = max(free_s, world.now_s) + lease.uncached_tokens / tokens_per_s
        done_s = free_s + decode_s
        if one_at_a_time:
            free_s = done_s
        running.append((done_s, lease.prompt.prompt_tokens - lease.uncached_tokens, lease))
    return world.placement.prefill_tokens_per_s(worker)


@pytest.mark.parametrize(
    ("tokens_per_s", "answer_tokens", "most"), [(800.0, 4, 1.8), (800.0, 40, 1.8), (9000.0, 4, 1.8), (9000.0, 40, 4.0)]
)
def test_speed_is_learned_from_answers_that_overlap(tokens_per_s: float, answer_tokens: int, most: float) -> None:
    """Though none streams, all are of one length and none runs alone; where prefill is a tenth of the time, not so well.

    An engine whose requests wait for a place is not thought slow for that.
    """
    for seed in range(6):
        assert 0.7 < learned_from_whole_answers(tokens_per_s, answer_tokens, seed) / tokens_per_s < most
        assert learned_from_whole_answers(tokens_per_s, answer_tokens, seed, one_at_a_time=True) >= 2400


def test_an_answer_bounds_the_time_of_its_prefill() -> None:
    """The first whole answer already tells that an engine is faster than was assumed, whatever else it did; not of tokens
    that nobody counted."""
    for cached, faster in ((0, True), (None, False)):
        world = World(count=1, prefill_tokens_per_s=1000.0)
        world.choose(prompt([7] * 50), stream=False)
        lease = world.choose(prompt([8] * 50), stream=False)
        world.now_s += 0.2
        world.finish(lease, Usage(lease.prompt.prompt_tokens, cached, 5))
        assert (world.placement.prefill_tokens_per_s(world.fleet.workers[0]) > 1100) is faster
