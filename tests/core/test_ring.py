import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.ring import MAX_POINTS, SLOT_MASK, Ring, load_bound
from router.core.types import WorkerId
from tests.core.builders import chain

KEYS = list(chain(range(400)))


def ring_of(names: list[str], points: int = 64, weights: dict[str, float] | None = None) -> Ring:
    ring = Ring(points)
    for slot, name in enumerate(names):
        ring.add(slot, WorkerId(name), (weights or {}).get(name, 1.0))
    return ring


names_lists = st.lists(st.text("abcdef0123456789.:", min_size=1, max_size=8), min_size=2, max_size=12, unique=True)


@given(names_lists)
def test_a_leaving_worker_moves_only_its_own_share(names: list[str]) -> None:
    """Keys that were at home elsewhere stay there; those of the leaver go to what was their next home."""
    ring = ring_of(names)
    before = {key: ring.homes(key) for key in KEYS}
    ring.remove(0)
    for key, homes in before.items():
        assert ring.homes(key, 1) == [homes[1] if homes[0] == 0 else homes[0]]


@given(names_lists)
def test_a_joining_worker_takes_only_its_own_share(names: list[str]) -> None:
    """Each key stays where it was or moves to the newcomer; removing the newcomer restores all."""
    ring = ring_of(names[:-1])
    before = [ring.homes(key, 1) for key in KEYS]
    newcomer = len(names) - 1
    ring.add(newcomer, WorkerId(names[-1]))
    assert all(now in (then, [newcomer]) for then, now in zip(before, (ring.homes(k, 1) for k in KEYS), strict=True))
    ring.remove(newcomer)
    assert [ring.homes(key, 1) for key in KEYS] == before


def test_homes_depend_on_ids_not_on_slots_or_order() -> None:
    """Two routers that learnt of the workers in another order name the same homes."""
    names = [f"10.0.0.{i}:8000" for i in range(6)]
    one, other = ring_of(names), ring_of(names[::-1])
    for key in KEYS:
        assert [names[slot] for slot in one.homes(key)] == [names[5 - slot] for slot in other.homes(key)]


def test_homes_are_distinct_and_fewer_where_few_are_allowed() -> None:
    """Each worker once, in clockwise order, those not allowed left out."""
    ring = ring_of(["a", "b", "c"])
    assert sorted(ring.homes(KEYS[0], 5)) == [0, 1, 2]
    assert ring.homes(KEYS[0], 2, lambda slot: slot == 2) == [2]
    assert len(ring) == 3
    assert Ring(8).homes(KEYS[0]) == []


def test_only_is_the_ring_without_the_others() -> None:
    """A part of the ring places like the ring with the others skipped."""
    ring = ring_of([f"w{i}" for i in range(8)])
    part = ring.only([1, 4, 5])
    assert all(part.homes(key) == ring.homes(key, 2, lambda slot: slot in (1, 4, 5)) for key in KEYS)
    whole = ring.only(range(8))
    ring.remove(0)
    assert len(whole) == 8 and len(part) == 3


def test_weight_is_the_share_of_keys() -> None:
    """A worker of weight 3 is home to about three times the keys, up to the most points one worker may have."""
    ring = ring_of(["light", "heavy"], points=256, weights={"heavy": 3.0})
    heavy = sum(ring.homes(key, 1) == [1] for key in KEYS) / len(KEYS)
    assert 0.65 < heavy < 0.85
    capped = ring_of(["a"], weights={"a": 1000.0})
    assert len(capped._points) == MAX_POINTS


@given(st.integers(1, 8), st.floats(1.0, 3.0))
def test_no_worker_gets_more_than_its_bound(workers: int, factor: float) -> None:
    """Placing keys one by one, no worker is ever above ⌈factor · (total) / N⌉ requests."""
    ring = ring_of([f"w{i}" for i in range(workers)])
    in_flight = [0] * workers
    for total, key in enumerate(KEYS[:60]):
        in_flight[ring.place(KEYS[0] if total % 2 else key, in_flight.__getitem__, total, factor)] += 1
        assert max(in_flight) <= math.ceil(factor * (total + 1) / workers)


def test_place_takes_the_first_home_where_all_are_over_the_bound() -> None:
    """Counts that do not fit the total leave nobody under the bound; the key's home then takes it."""
    ring = ring_of(["a", "b"])
    assert ring.place(KEYS[0], lambda slot: 99, 0, 1.0) == ring.homes(KEYS[0], 1)[0]
    with pytest.raises(ValueError, match="empty"):
        Ring(8).place(KEYS[0], lambda slot: 0, 0, 1.25)


def test_a_slot_is_taken_once_and_must_fit_a_point() -> None:
    """Points carry the slot in their low bits."""
    ring = ring_of(["a"])
    for slot in (0, SLOT_MASK + 1):
        with pytest.raises(ValueError, match="slot"):
            ring.add(slot, WorkerId("b"))
    ring.remove(7)
    assert load_bound(1.25, 7, 0.25) == 3
