"""Loads of routers on the wire."""

import contextlib
import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import Mark, RouterLoad
from router.core.types import WorkerId
from router.state.frame import LOAD, BadMessage, pack_texts, seal
from router.state.load_codec import HEAD, MAX_COUNT, decode_load, encode_load
from tests.state.hostile import assert_refuses_damage, assert_survives_forgery
from tests.state.strategies import loads

SAMPLE = RouterLoad("r1", 5, False, {WorkerId("a:1"): (1, 200), WorkerId("b:1"): (0, 0)}, (Mark(WorkerId("b:1"), 4, 7),))


@given(loads())
def test_loads_come_back(load: RouterLoad) -> None:
    """Counts of every worker."""
    assert decode_load(encode_load(load)) == load


def test_damage_is_refused() -> None:
    """Cut at every length, every bit flipped."""
    assert_refuses_damage(decode_load, encode_load(SAMPLE))


@settings(max_examples=20)
@given(loads(), st.integers(0, 2**32))
def test_forgery_is_a_value_or_refused(load: RouterLoad, seed: int) -> None:
    """Hostile content under a right checksum raises nothing else."""
    assert_survives_forgery(decode_load, LOAD, encode_load(load), random.Random(seed))


@given(st.binary(max_size=60))
def test_random_bodies_raise_nothing_else(body: bytes) -> None:
    """No body is read beyond its end."""
    with contextlib.suppress(BadMessage):
        decode_load(seal(LOAD, body))


def test_counts_out_of_range_are_refused_on_both_sides() -> None:
    """A count is neither negative nor larger than a float can tell."""
    for counts in ((-1, 0), (0, MAX_COUNT + 1)):
        with pytest.raises(BadMessage, match="out of range"):
            encode_load(RouterLoad("r", 1, True, {WorkerId("a"): counts}))
    lengths, joined = pack_texts(["r", "a"])
    body = HEAD.pack(1, 1, 1, 0, True) + array("Q", [MAX_COUNT + 1, 0]).tobytes() + lengths + joined
    with pytest.raises(BadMessage, match="out of range"):
        decode_load(seal(LOAD, body))


@pytest.mark.parametrize(
    ("workers", "names", "place"),
    [pytest.param(0, 1, 1, id="a mark of nobody"), pytest.param(2, 1, 0, id="counts of more workers than are named"),
     pytest.param(1, 2, 0, id="two of one name")],
)  # fmt: skip
def test_marks_belong_to_workers_that_are_named(workers: int, names: int, place: int) -> None:
    """Whatever a sender claims under a right checksum."""
    lengths, joined = pack_texts(["r", *["a"] * names])
    counts = array("Q", [1] * 2 * workers).tobytes()
    mark = array("Q", [7]).tobytes() + array("I", [4, place]).tobytes()
    with pytest.raises(BadMessage):
        decode_load(seal(LOAD, HEAD.pack(1, workers, names, 1, True) + counts + mark + lengths + joined))


def test_too_many_workers_are_refused_by_the_sender() -> None:
    """A message is bounded."""
    with pytest.raises(BadMessage, match="larger than"):
        encode_load(RouterLoad("r", 1, True, {WorkerId(f"{number:01000d}"): (1, 1) for number in range(1100)}))
