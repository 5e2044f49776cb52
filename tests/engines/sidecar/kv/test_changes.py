"""engines.sidecar.kv.changes: neighbours become one, and order stays."""

from array import array

from engines.sidecar.kv.changes import ChangeList
from router.core.cache_delta import Cleared, Removed, Stored, Tier


def keys(*values: int) -> "array[int]":
    return array("Q", values)


def test_runs_that_go_on_are_one() -> None:
    """A run behind the last key of the one before, in the same tier, becomes part of it; any other starts anew."""
    changes = ChangeList()
    changes.stored(None, keys(1, 2), 0)
    changes.stored(2, keys(3), 0)
    changes.stored(3, keys(4), 1)
    changes.stored(2, keys(5), 1)
    assert changes.take() == (
        Stored(None, keys(1, 2, 3)),
        Stored(3, keys(4), Tier.HOST),
        Stored(2, keys(5), Tier.HOST),
    )
    assert not changes and changes.take() == ()


def test_removals_are_one_until_something_is_stored() -> None:
    """Removals join; one behind a store stays behind it."""
    changes = ChangeList()
    changes.removed(keys(3))
    changes.removed(keys(2, 1))
    changes.stored(None, keys(1), 0)
    changes.removed(keys(1))
    assert changes.take() == (Removed(keys(3, 2, 1)), Stored(None, keys(1)), Removed(keys(1)))


def test_clearing_makes_what_was_before_needless() -> None:
    """Nothing before a clearing is told any more."""
    changes = ChangeList()
    changes.stored(None, keys(1), 0)
    changes.cleared()
    changes.stored(None, keys(2), 2)
    assert changes.take() == (Cleared(), Stored(None, keys(2), Tier.DISK))
