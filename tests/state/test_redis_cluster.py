"""A real cluster of three nodes: workers spread over them, slots that move, a node that dies and comes back empty."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.crc import key_slot

from loadtest.redis_server import RedisServer, redis_server
from router.core.types import WorkerId
from router.settings import StateSettings
from router.state.redis_keys import Keys, lane_of
from tests.state.rig import RouterProcess, SidecarProcess, admin, changes_of_state, comes_right, eventually, running

ENGINES = tuple("abcdefgh")
SLOTS = 16384
READY_S = 10.0


@pytest.fixture
def cluster() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
        servers = [stack.enter_context(redis_server(*options)) for _ in range(3)]
        clients = [stack.enter_context(admin(server)) for server in servers]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS * number // 3, SLOTS * (number + 1) // 3))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        deadline_s = time.monotonic() + READY_S
        while not all(is_ready(client) for client in clients):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield servers


def is_ready(client: Any) -> bool:
    """It knows of all slots, and has waited long enough after its start to let writes in."""
    client.response_callbacks.clear()
    told = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_slots_ok:%d" % SLOTS in told


def settings_of(servers: list[RedisServer]) -> StateSettings:
    """Told of two nodes; it finds the third."""
    return StateSettings(redis=f"redis+cluster://127.0.0.1:{servers[0].port},127.0.0.1:{servers[1].port}")


def move_slot(slot: int, source: RedisServer, target: RedisServer, pause_s: float) -> None:
    """As an administrator's tool does it, key by key, with a pause in the middle."""
    with admin(source) as old, admin(target) as new:
        old_id, new_id = (client.execute_command("CLUSTER", "MYID").decode() for client in (old, new))
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        for half in (1, 2):
            keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            for key in keys[: (len(keys) + 1) // 2] if half == 1 else keys:
                old.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
            time.sleep(pause_s if half == 1 else 0)
        for client in (new, old):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)


async def test_a_pool_in_a_cluster(cluster: list[RedisServer], caplog: pytest.LogCaptureFixture) -> None:
    """Every node holds some workers; loads are told through one; a slot moves; a node is killed and comes back empty."""
    caplog.set_level(logging.INFO, "warmline.state")
    settings = settings_of(cluster)
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
        holder = slot * 3 // SLOTS
        await asyncio.to_thread(move_slot, slot, cluster[holder], cluster[(holder + 1) % 3], 0.7)
        await comes_right(sidecar, *routers)
        await eventually(lambda: not any(process.health.is_lost for process in (sidecar, *routers)), 4.0)

        cluster[2].kill()
        await asyncio.sleep(1.5)
        assert all(process.health.is_lost for process in (sidecar, *routers))
        cluster[2].start()
        await comes_right(sidecar, *routers, within_s=5.0)
        assert not routers[0].picture.lost_workers and not routers[1].picture.lost_workers
