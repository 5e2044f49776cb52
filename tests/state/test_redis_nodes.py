"""Clients for each form of address; a cluster's nodes as they answer, whatever they answer."""

from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from router.errors import SettingsError
from router.redis_url import parse_redis
from router.settings import StateSettings
from router.state.redis_keys import LANES, Keys
from router.state.redis_nodes import ClusterNodes, OneNode, SentinelNodes, client_options, make_nodes


@pytest.mark.parametrize(
    ("url", "kind"),
    [("redis://a", OneNode), ("redis+sentinel://a/main", SentinelNodes), ("redis+cluster://a,b", ClusterNodes)],
)
async def test_each_address_has_its_nodes(url: str, kind: type) -> None:
    """Nothing is connected before it is needed."""
    nodes = make_nodes(StateSettings(redis=url), lambda: None)
    assert isinstance(nodes, kind)
    assert (nodes.serving(0) is None) is (kind is ClusterNodes)
    await nodes.close()


def test_tls_files_are_looked_at_first(tmp_path: Path) -> None:
    """A certificate that is not there is a mistake of the settings, not an outage later."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("x")
    address = parse_redis("rediss://a")
    options = client_options(address, StateSettings(redis="rediss://a", redis_ca_file=str(ca_file)))
    assert options["ssl"] and options["ssl_ca_certs"] == str(ca_file) and "ssl_certfile" not in options
    for knob in ("redis_ca_file", "redis_cert_file", "redis_key_file"):
        with pytest.raises(SettingsError, match=f"{knob}: '/nowhere' is not a readable file"):
            make_nodes(StateSettings(redis="rediss://a", **{knob: "/nowhere"}), lambda: None)  # type: ignore[arg-type]


def cluster() -> ClusterNodes:
    slots = [key_slot(Keys("p").tag(lane).encode()) for lane in range(LANES)]
    return ClusterNodes([("seed", 1)], {}, slots)


def test_a_cluster_says_who_serves_which_slots() -> None:
    """A node that does not know its own name is reached by the name that was asked; slots of nobody are nobody's."""
    nodes = cluster()
    places = nodes._read([[0, 8191, [b"a", 1, b"id"], [b"replica", 2, b"id"]], [8192, 12000, [b"", 3], []]], "seed")
    assert set(places) == {("a", 1), ("seed", 3), None}


@pytest.mark.parametrize("answer", [None, 5, [[1]], [[b"a", b"b", [b"h", 1]]], [[0, 1, [b"\xff", 1]]], [[0, 1, [b"a", b"x"]]]])
def test_what_is_no_cluster_is_told_so(answer: Any) -> None:
    """Whatever a server answers."""
    with pytest.raises(RedisError, match="no cluster"):
        cluster()._read(answer, "seed")
