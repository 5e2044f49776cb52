"""engines.sidecar.kv.published: told with the first holder, taken back with the last."""

from array import array

from engines.sidecar.kv.changes import ChangeList
from engines.sidecar.kv.published import ONE, Published, best_tier
from router.core.cache_delta import Cleared, Removed, Stored, Tier


def keys(*values: int) -> "array[int]":
    return array("Q", values)


def counting(*runs: tuple["array[int]", int]) -> Published:
    """Keys with several holders, of which these are the first."""
    published = Published()
    for run, tier in runs:
        published.add(None, array("Q", run), tier)
    published.count(runs)
    published.changes.take()
    return published


def test_one_holder_each() -> None:
    """Without counting, a run is told and taken back as it is, the last key first."""
    published = Published()
    published.add(None, keys(1, 2, 3), 0)
    published.move(1, keys(2), 0, 1)
    published.drop(1, keys(2, 3), 1)
    assert not published.counts and published.keys == 1
    assert published.changes.take() == (Stored(None, keys(1, 2, 3)), Stored(1, keys(2), Tier.HOST), Removed(keys(3, 2)))


def test_further_holders_tell_nothing_new() -> None:
    """A key that is told already is not told again, unless the further holder is faster."""
    published = counting((keys(1, 2), 1))
    published.add(None, keys(1, 5), 1)
    published.add(None, keys(1, 2, 6), 0)
    assert published.changes.take() == (Stored(1, keys(5), Tier.HOST), Stored(None, keys(1, 2, 6), Tier.DEVICE))
    assert published.keys == 4


def test_the_last_holder_takes_the_key_along() -> None:
    """A key goes with its last holder; while a slower one is left it only moves there."""
    published = counting((keys(1, 2), 0))
    published.add(None, keys(1, 3), 0)
    published.add(None, keys(2), 2)
    published.changes.take()
    published.drop(None, keys(1, 2), 0)
    assert published.changes.take() == (Stored(1, keys(2), Tier.DISK),)
    published.drop(None, keys(1, 3), 0)
    published.drop(1, keys(2), 2)
    assert published.changes.take() == (Removed(keys(3, 1, 2)),)
    assert published.keys == 0


def test_moving_shows_where_it_matters() -> None:
    """A holder that moves is told only if the fastest holder is another one then."""
    published = counting((keys(1), 0))
    published.add(None, keys(1), 0)
    published.changes.take()
    published.move(None, keys(1), 0, 1)
    assert published.changes.take() == ()
    published.move(None, keys(1), 0, 2)
    assert published.changes.take() == (Stored(None, keys(1), Tier.HOST),)
    published.drop(None, keys(1), 1)
    assert published.changes.take() == (Stored(None, keys(1), Tier.DISK),)


def test_clear() -> None:
    """Clearing is told, and says whether keys are counted from now on."""
    published = counting((keys(1), 0))
    published.clear(count=False)
    assert (published.keys, published.counts) == (0, False)
    assert published.changes.take() == (Cleared(),)
    published.clear(count=True)
    assert published.counts


def test_listing_tells_each_key_once() -> None:
    """In a snapshot a key of several holders comes once, in the fastest tier."""
    published = counting((keys(1, 2), 1))
    published.add(None, keys(1, 3), 0)
    listed, seen = ChangeList(), set[int]()
    published.list_run(None, keys(1, 2), 1, listed, seen)
    published.list_run(None, keys(1, 3), 0, listed, seen)
    assert listed.take() == (Stored(None, keys(1)), Stored(1, keys(2), Tier.HOST), Stored(1, keys(3)))
    published.list_run(None, keys(2), 1, listed, seen)
    assert listed.take() == (Stored(None, keys(2), Tier.HOST),)


def test_packed_counts() -> None:
    """The fastest tier with a holder counts."""
    assert [best_tier(one) for one in ONE] == [0, 1, 2]
    assert best_tier(ONE[1] + 3 * ONE[2]) == 1
