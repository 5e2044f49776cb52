"""A real Redis Cluster on free loopback ports, for tests and measurements: three nodes, slots that move."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redis import Redis

from loadtest.redis_server import RedisServer, redis_server

SLOTS = 16384
READY_S = 10.0


@contextlib.contextmanager
def redis_cluster() -> Iterator[list[RedisServer]]:
    """Its nodes, each with a third of the slots in order. Raises RuntimeError when they do not find each other."""
    with contextlib.ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
        servers = [stack.enter_context(redis_server(*options)) for _ in range(3)]
        clients: list[Any] = [stack.enter_context(Redis(port=server.port)) for server in servers]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS * number // 3, SLOTS * (number + 1) // 3))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        deadline_s = time.monotonic() + READY_S
        while not all(is_ready(client) for client in clients):
            if time.monotonic() > deadline_s:
                raise RuntimeError("the nodes do not form a cluster")
            time.sleep(0.05)
        yield servers


def is_ready(client: Any) -> bool:
    """It knows of all slots, and has waited long enough after its start to let writes in."""
    client.response_callbacks.clear()
    told = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_slots_ok:%d" % SLOTS in told


def url_of(servers: list[RedisServer]) -> str:
    """Names two nodes; the third is found."""
    return f"redis+cluster://127.0.0.1:{servers[0].port},127.0.0.1:{servers[1].port}"


def move_slot(slot: int, servers: list[RedisServer], pause_s: float) -> None:
    """To the next node, as an administrator's tool does it: key by key, with a pause in the middle."""
    holder = slot * 3 // SLOTS
    source, target = servers[holder], servers[(holder + 1) % 3]
    with contextlib.ExitStack() as stack:
        old, new = (stack.enter_context(Redis(port=server.port)) for server in (source, target))
        clients: tuple[Any, Any] = (old, new)
        old_id, new_id = (client.execute_command("CLUSTER", "MYID").decode() for client in clients)
        clients[1].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        clients[0].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        for half in (1, 2):
            keys = clients[0].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            for key in keys[: (len(keys) + 1) // 2] if half == 1 else keys:
                clients[0].execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
            time.sleep(pause_s if half == 1 else 0)
        for client in reversed(clients):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
