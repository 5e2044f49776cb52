"""A real cluster of three nodes: workers spread over them, slots that move, a node that dies and comes back empty."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from loadtest.redis_cluster import move_slot, redis_cluster, url_of
from loadtest.redis_server import RedisServer
from router.core.types import WorkerId
from router.settings import StateSettings
from router.state.redis_keys import Keys, lane_of
from tests.state.rig import RouterProcess, SidecarProcess, admin, changes_of_state, comes_right, eventually, running

ENGINES = tuple("abcdefgh")


@pytest.fixture
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


async def test_a_pool_in_a_cluster(cluster: list[RedisServer], caplog: pytest.LogCaptureFixture) -> None:
    """Every node holds some workers; loads are told through one; a slot moves; a node is killed and comes back empty."""
    caplog.set_level(logging.INFO, "warmline.state")
    settings = StateSettings(redis=url_of(cluster))
    sidecar = SidecarProcess(settings, *ENGINES)
    routers = RouterProcess(settings, "1"), RouterProcess(settings, "2")
    async with running(sidecar, *routers):
        await comes_right(sidecar, *routers)
        await asyncio.sleep(0.3)
        await comes_right(sidecar, *routers, within_s=1.0)
        await eventually(lambda: routers[0].loads.routers == 1, 3.0)
        for server in cluster:
            with admin(server) as client:
                assert any(b":report:" in key for key in client.scan_iter())
        assert not changes_of_state(caplog) and not routers[0].health.errors

        slot = key_slot(Keys(settings.pool_name).tag(lane_of(WorkerId("a"))).encode())
        await asyncio.to_thread(move_slot, slot, cluster, 0.7)
        await comes_right(sidecar, *routers)
        await eventually(lambda: not any(process.health.is_lost for process in (sidecar, *routers)), 4.0)

        cluster[2].kill()
        await asyncio.sleep(1.5)
        assert all(process.health.is_lost for process in (sidecar, *routers))
        cluster[2].start()
        await comes_right(sidecar, *routers, within_s=5.0)
        assert not routers[0].picture.lost_workers and not routers[1].picture.lost_workers
