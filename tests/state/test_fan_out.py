"""Everything reaches every publisher."""

from router.state.fan_out import FanOut
from router.state.memory import MemoryState
from tests.state.engine import Engine, Picture


def test_each_publisher_hears_everything() -> None:
    """Reports, deltas, snapshots and the end of a worker."""
    pictures = Picture(), Picture()
    state = FanOut(*map(MemoryState, pictures))
    engine = Engine("a", state, lambda: 1.0)
    engine.post()
    engine.follow()
    engine.work()
    assert all(picture.is_right(engine) and len(picture.snapshots) == 1 for picture in pictures)
    state.leave(engine.worker)
    assert all(picture.lost_workers for picture in pictures)
