"""engines.deepspeed_backend.line: order, bound and leaving, with real threads."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engines.deepspeed_backend.line import LeftLine, Line, LineFull, Place

DEADLINE_S = 5.0


def run(line: Line, place: Place, names: list[str], name: str, until: threading.Event) -> None:
    with line.turn(place):
        names.append(name)
        assert until.wait(DEADLINE_S)


def test_one_works_and_others_wait_in_order() -> None:
    """Turns come in the order of joining; beyond the bound nobody joins, and a free place can be taken again."""
    line, names = Line(max_waiting=2), list[str]()
    events = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        places = [line.join() for _ in range(3)]
        assert (line.running, line.waiting) == (0, 3)
        with pytest.raises(LineFull, match="0 requests run and 3 wait"):
            line.join()
        turns: list[Future[None]] = []
        for at in (2, 0, 1):
            turns.append(threads.submit(run, line, places[at], names, str(at), events[at]))
        for at, waiting in ((0, 2), (1, 1), (2, 0)):
            with line.changed:
                assert line.changed.wait_for(lambda at=at: len(names) == at + 1, DEADLINE_S)  # type: ignore[misc]
            assert (names[-1], line.running, line.waiting) == (str(at), 1, waiting)
            events[at].set()
        for turn in turns:
            turn.result(DEADLINE_S)
    assert (line.running, line.waiting) == (0, 0)


def test_several_may_work_at_a_time() -> None:
    """With room for two, two turns overlap."""
    line, both = Line(max_waiting=0, max_running=2), threading.Barrier(2, timeout=DEADLINE_S)

    def meet(place: Place) -> None:
        with line.turn(place):
            both.wait()

    with ThreadPoolExecutor(2) as threads:
        for turn in [threads.submit(meet, line.join()) for _ in range(2)]:
            turn.result(DEADLINE_S)


def test_leaving_while_waiting() -> None:
    """A caller that goes away gives its place up at once; the one behind moves up."""
    line, names, done = Line(max_waiting=2), list[str](), threading.Event()
    first, second, third = line.join(), line.join(), line.join()
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(run, line, first, names, "first", done)
        leaving = threads.submit(run, line, second, names, "second", done)
        behind = threads.submit(run, line, third, names, "third", done)
        second.leave()
        second.leave()
        with pytest.raises(LeftLine):
            leaving.result(DEADLINE_S)
        done.set()
        running.result(DEADLINE_S)
        behind.result(DEADLINE_S)
    assert names == ["first", "third"]


def test_an_error_ends_the_turn() -> None:
    """Whatever is raised in a turn, the next one follows."""
    line = Line(max_waiting=1)
    with pytest.raises(RuntimeError), line.turn(line.join()):
        raise RuntimeError
    with line.turn(line.join()):
        assert line.running == 1
    assert line.running == 0


def test_leaving_before_the_turn_was_asked_for() -> None:
    """A place that is left frees its room at once, whether or not anybody ever waits for its turn."""
    line = Line(max_waiting=0)
    place = line.join()
    place.leave()
    assert line.waiting == 0
    with pytest.raises(LeftLine), line.turn(place):
        raise AssertionError("it was left")
    with line.turn(line.join()):
        assert line.running == 1
