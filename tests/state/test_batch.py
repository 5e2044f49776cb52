"""Commands and their answers stay together."""

from typing import Any

from router.state.batch import FULL_SIZE, UNIT_BYTES, Batch


def test_answers_reach_who_asked() -> None:
    """Lane by lane, in order; nobody is told where nobody asked."""
    told: list[tuple[str, Any]] = []
    batch = Batch()
    batch.add(3, ("GET", "a"), lambda answer: told.append(("a", answer)))
    batch.add(3, ("GET", "b"))
    batch.add(1, ("GET", "c"), lambda answer: told.append(("c", answer)))
    assert batch.plan == {3: [("GET", "a"), ("GET", "b")], 1: [("GET", "c")]}
    error = OSError()
    batch.deliver({1: [error], 3: [b"1", b"2"]})
    assert told == [("a", b"1"), ("c", error)]


def test_a_batch_is_full_by_commands_or_by_bytes() -> None:
    """What it holds fits an exchange."""
    many, large = Batch(), Batch()
    for _ in range(FULL_SIZE):
        assert not many.is_full
        many.add(0, ("PING",))
    assert many.is_full
    large.add(0, ("SET",), None, FULL_SIZE * UNIT_BYTES)
    assert large.is_full
