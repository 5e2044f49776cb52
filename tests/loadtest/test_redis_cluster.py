"""A real cluster for tests: its slots are all served, and one can be moved with what is in it."""

from typing import Any

from redis import RedisCluster
from redis.crc import key_slot

from loadtest.redis_cluster import SLOTS, move_slot, redis_cluster, url_of


def test_a_slot_moves_with_its_keys() -> None:
    """Clients that look find them at the next node."""
    with redis_cluster() as servers:
        assert url_of(servers) == f"redis+cluster://127.0.0.1:{servers[0].port},127.0.0.1:{servers[1].port}"
        client: Any = RedisCluster(host="127.0.0.1", port=servers[0].port)
        try:
            for number in range(5):
                client.set(f"{{tag}}{number}", number)
            slot = key_slot(b"tag")
            move_slot(slot, servers, 0.0)
            client.nodes_manager.initialize()
            holder = servers[(slot * 3 // SLOTS + 1) % 3]
            assert client.get_node_from_key("{tag}0").port == holder.port
            assert [client.get(f"{{tag}}{number}") for number in range(5)] == [b"%d" % number for number in range(5)]
        finally:
            client.close()
