"""Names in Redis: all of a lane in one slot, pools apart, versions apart."""

from hypothesis import given
from redis.crc import key_slot

from router.core.types import WorkerId
from router.state.frame import VERSION
from router.state.redis_keys import LANES, Keys, lane_of
from tests.state.strategies import NAME


@given(NAME)
def test_the_keys_of_a_lane_share_a_slot(worker: WorkerId) -> None:
    """Whatever a worker is called, braces too, one node of a cluster serves all that is read with one command."""
    keys = Keys("pool")
    lane = lane_of(worker)
    own = keys.of(worker)
    names = (own.report, own.stream, own.snapshot, own.new_snapshot, keys.probe(lane).encode(), keys.tag(lane).encode())
    assert len({key_slot(name) for name in names}) == 1
    assert len(set(names)) == len(names)


def test_what_all_share_is_in_the_first_lane() -> None:
    """The registry is written together with what is in lane 0."""
    keys = Keys("pool")
    assert {key_slot(name.encode()) for name in (keys.workers, keys.load)} == {key_slot(keys.tag(0).encode())}


def test_lanes_are_spread() -> None:
    """Workers over lanes, and lanes over the slots of a cluster."""
    lanes = [lane_of(WorkerId(f"10.0.0.{number}:8000")) for number in range(1000)]
    assert max(map(lanes.count, range(LANES))) < 2 * 1000 / LANES
    slots = sorted(key_slot(Keys("pool").tag(lane).encode()) for lane in range(LANES))
    assert all(any(third * 5461 <= slot < (third + 1) * 5461 for slot in slots) for third in range(3))


def test_pools_and_versions_are_apart() -> None:
    """A rule for one pool covers all of its keys and none of another's."""
    for name in (Keys("a").workers, Keys("a").load, Keys("a").of(WorkerId("w")).report.decode(), Keys("a").probe(3)):
        assert name.startswith(f"warmline:{VERSION}:a:")


def test_names_that_cannot_be_encoded_have_a_lane() -> None:
    """No name raises here; the codec refuses it."""
    assert 0 <= lane_of(WorkerId("\ud800")) < LANES
