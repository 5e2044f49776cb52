"""engines.sidecar.kv.deltas: numbers without gaps, deltas of bounded size, the same changes in the same order."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sidecar.kv import deltas
from engines.sidecar.kv.deltas import DeltaLog, parted
from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Removed, Stored, Tier
from router.core.types import WorkerId

WORKER = WorkerId("w")


def keys(*values: int) -> "array[int]":
    return array("Q", values)


def test_numbers_and_generations() -> None:
    """Nothing is told before there is a generation; each begins at 1, with what is cached already."""
    told: list[CacheDelta] = []
    log = DeltaLog(WORKER, told.append)
    log.write((Cleared(),))
    assert log.snapshot(()) is None and not told
    log.rename("a", (Stored(None, keys(1)),))
    log.write((Removed(keys(1)),))
    assert log.snapshot((Stored(None, keys(2)),)) == CacheSnapshot(WORKER, "a", 2, (Stored(None, keys(2)),))
    log.rename("b", ())
    assert log.snapshot(()) == CacheSnapshot(WORKER, "b", 0, ())
    log.write((Cleared(),))
    assert [(delta.generation, delta.seq, delta.changes) for delta in told] == [
        ("a", 1, (Stored(None, keys(1)),)),
        ("a", 2, (Removed(keys(1)),)),
        ("b", 1, (Cleared(),)),
    ]


def flat(changes: tuple[CacheChange, ...]) -> list[tuple[object, ...]]:
    """Key by key, with the key before each stored one."""
    steps: list[tuple[object, ...]] = []
    for change in changes:
        if isinstance(change, Stored):
            before = [change.parent, *change.keys[:-1]]
            steps += [("stored", parent, key, change.tier) for parent, key in zip(before, change.keys, strict=True)]
        elif isinstance(change, Removed):
            steps += [("removed", key) for key in change.keys]
        else:
            steps.append(("cleared",))
    return steps


RUN = st.lists(st.integers(0, 99), min_size=1, max_size=40).map(lambda values: array("Q", values))
CHANGE = st.one_of(
    st.builds(Stored, st.none() | st.integers(0, 99), RUN, st.sampled_from(Tier)), st.builds(Removed, RUN), st.just(Cleared())
)


@settings(max_examples=200, deadline=None)
@given(changes=st.lists(CHANGE, max_size=8).map(tuple))
def test_parts(changes: tuple[CacheChange, ...]) -> None:
    """Cut into parts of at most so many keys, the changes say the same; none is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "MAX_DELTA_KEYS", 10)
        parts = list(parted(changes))
    assert [step for part in parts for step in flat(part)] == flat(changes)
    assert all(len(part) > 0 and sum(len(c.keys) for c in part if not isinstance(c, Cleared)) <= 10 for part in parts)
