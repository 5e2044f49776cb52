"""One process: what is published is heard at once."""

from router.state.memory import MemoryState
from tests.state.engine import Engine, Picture


def joined() -> tuple[Engine, Picture, MemoryState]:
    picture = Picture()
    state = MemoryState(picture)
    return Engine("a", state, lambda: 5.0), picture, state


def test_everything_is_heard_at_once() -> None:
    """Reports as they are, deltas in their order, the end of a worker."""
    engine, picture, state = joined()
    engine.post()
    assert picture.reports[engine.worker].reported_at_s == 5.0
    engine.follow()
    for _ in range(50):
        engine.work()
        assert picture.is_right(engine)
    assert len(picture.snapshots) == 1
    state.leave(engine.worker)
    assert picture.lost_workers == [(engine.worker, "it is not watched any more")]


def test_a_gap_is_healed_by_a_snapshot() -> None:
    """A refused delta brings the whole, and so does one of another generation that is not its first."""
    engine, picture, _ = joined()
    engine.post()
    engine.follow()
    engine.change()
    engine.work()
    assert picture.is_right(engine) and len(picture.refused) == 1
    engine.restart()
    engine.change()
    engine.work()
    assert picture.is_right(engine)


def test_who_knows_nothing_yet_is_asked_again() -> None:
    """A sidecar without a picture sends none; the next delta asks anew. Without `follow` nobody is asked."""
    engine, picture, _ = joined()
    engine.post()
    engine.change()
    engine.work()
    assert not picture.snapshots
    engine.knows_its_cache = False
    engine.follow()
    engine.work()
    assert not picture.snapshots
    engine.knows_its_cache = True
    engine.work()
    assert picture.is_right(engine)


def test_after_leaving_nobody_is_asked() -> None:
    """The source of snapshots goes with the worker."""
    engine, picture, state = joined()
    engine.post()
    engine.follow()
    state.leave(engine.worker)
    engine.post()
    engine.change()
    engine.work()
    assert len(picture.snapshots) == 1
