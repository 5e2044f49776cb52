"""What happens to Redis is not noticed by requests: real routers, a real Redis; how fast is measured elsewhere."""

from typing import Any

import pytest

from loadtest.pool.chaos import ALONE, CLUSTER, figures, measure, show
from loadtest.pool.requests import Answer, Flow


def check(found: dict[str, Any], happenings: int) -> None:
    assert found["failures"] == {"pool": {}, "plain": {}}, show(found)
    assert len(found["happenings"]) == happenings
    for row in found["happenings"]:
        assert row["right_after_s"] is not None, show(found)
        assert row["pool"]["requests"] > 0 and row["plain"]["requests"] > 0


async def test_no_request_fails_whatever_happens_to_redis() -> None:
    """Killed, paused, flushed, full, far away: every request is answered, and the routers know the state again."""
    check(await measure(0.25, 50.0), len(ALONE))


async def test_no_request_fails_while_a_cluster_moves_a_slot() -> None:
    """The keys of a lane go to another node while they are written and read."""
    check(await measure(0.25, 50.0, cluster=True), len(CLUSTER))


@pytest.mark.parametrize("failed", [0, 2])
def test_figures(failed: int) -> None:
    """Each request counts for what happened when it was due; the routers of the pool are one."""
    flows = [Flow(f"http://{name}:1", [b""], 1.0) for name in "abc"]
    for flow, took_s in zip(flows, (0.001, 0.003, 0.002), strict=True):
        flow.answers += [Answer(1.0, took_s), Answer(5.0, took_s * 2)]
    flows[1].failures["status 502"] += failed
    flows[1].failures += type(flows[1].failures)()
    found = figures(flows, [("killed", 0.0, 0.25), ("paused", 4.0, None), ("", 6.0, None)])
    assert [(row["what"], row["pool"]["requests"], row["added_p99_ms"]) for row in found["happenings"]] == [
        ("killed", 2, 1.0),
        ("paused", 2, 2.0),
    ]
    assert found["all"]["pool"]["requests"] == 4 and found["failures"]["pool"] == ({"status 502": 2} if failed else {})
    assert ("none of the pool's" in show(found)) is (not failed)
