"""Scale row on a small fleet."""

import gc

from loadtest.bench.chains import Traffic
from loadtest.bench.scale_rows import Crowd, GcPauses, Scale, scales, time_choices

TINY = Scale(workers=3, blocks_each=200, choices=20)


def test_the_large_size_is_that_of_the_budget() -> None:
    """1,000 workers with 10 M blocks against 8 workers with as many blocks each; a quick run has fewer blocks."""
    small, large = scales(quick=False)
    assert (large.workers, large.workers * large.blocks_each) == (1000, 10_000_000)
    assert small.workers == 8 and small.blocks_each == large.blocks_each
    assert scales(quick=True)[1].blocks_each < large.blocks_each


def test_choices_are_timed_on_a_filled_index() -> None:
    """One time per choice; the index holds what was asked for."""
    taken_us, notes = time_choices(TINY)
    assert len(taken_us) == 20 and min(taken_us) > 0
    assert notes["blocks"] >= 600
    assert notes["slowest_us"] >= notes["p99_us"]


def test_requests_stay_in_flight_up_to_the_limit() -> None:
    """The fleet is under load while it is asked: two requests per worker, no more."""
    crowd = Crowd(TINY)
    turns = Traffic(3, seed=1, active=4).turns()
    for number in range(20):
        crowd.choose(next(turns)[1], f"r{number}")
    assert crowd.placement.load.in_flight == len(crowd.in_flight) == 6


def test_the_longest_collection_is_noted() -> None:
    """A full collection inside the block counts, one outside does not, and the hook goes away."""
    with GcPauses() as pauses:
        gc.collect()
    longest_ms = pauses.longest_ms
    gc.collect()
    assert pauses.longest_ms == longest_ms > 0
    assert pauses._note not in gc.callbacks
