"""Decision rows: what warm and never-seen mean."""

import json

from loadtest.bench.decision_rows import SIZES, Size, cold_bodies, time_bodies, warm_bodies
from loadtest.bench.routers import PATH, DecidingRouter

SMALL = Size("small", 3000, warm=4, cold=3)


def test_warm_bodies_differ_in_their_last_message_only() -> None:
    """All but the last message has been seen once the first body has gone through."""
    conversations = [json.loads(body)["messages"] for body in warm_bodies(SMALL, 4)]
    assert len(conversations) == 5
    assert all(messages[:-1] == conversations[0][:-1] for messages in conversations)
    assert len({messages[-1]["content"] for messages in conversations}) == 5


def test_cold_bodies_share_no_beginning() -> None:
    """A never-seen prompt differs in its system message already."""
    assert len({json.loads(body)["messages"][0]["content"][:12] for body in cold_bodies(SMALL, 3)}) == 3


async def test_warm_decisions_hit_and_cold_ones_do_not() -> None:
    """The timed decisions are of the kind that their row names."""
    with DecidingRouter(8, None) as router:
        taken_ms, tokens = await time_bodies(router, warm_bodies(SMALL, 4))
        assert len(taken_ms) == 5 and min(taken_ms) > 0
        assert 500 < tokens < 2000
        warm = await router.decide(PATH, warm_bodies(SMALL, 4)[-1])
        cold = await router.decide(PATH, cold_bodies(SMALL, 3)[-1])
    assert warm.lease.decision.predicted_cached_tokens > 0.8 * tokens
    assert cold.lease.decision.predicted_cached_tokens == 0


def test_sizes_are_those_of_the_budget() -> None:
    """Two sizes, with enough decisions for a median."""
    assert [size.name for size in SIZES] == ["2 k-token", "100 k-token"]
    assert all(size.warm >= 20 and size.cold >= 5 for size in SIZES)
