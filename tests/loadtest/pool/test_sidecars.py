"""Simulated sidecars: what they tell is what they hold."""

import random
from array import array

from loadtest.pool.sidecars import CACHE_RUNS, MODEL, SidecarFleet, SimulatedSidecar, urls_below
from router.core.cache_delta import Removed, Stored
from router.settings import StateSettings


def test_a_simulated_cache_stays_as_large_as_it_is() -> None:
    """Each new run drives out the oldest once it is full, and the snapshot is what is left."""
    sidecar = SimulatedSidecar("http://a:1/e1", random.Random(1))
    held: set[int] = set()
    for number in range(CACHE_RUNS + 50):
        delta = sidecar.step(4)
        assert delta.seq == number + 1
        for change in delta.changes:
            if isinstance(change, Stored):
                held.update(change.keys)
            elif isinstance(change, Removed):
                held.difference_update(change.keys)
    keys = array("Q")
    for run in sidecar.snapshot().runs:
        keys.extend(run.keys)
    assert set(keys) == held and len(keys) == sidecar.held == 4 * CACHE_RUNS
    report = sidecar.report()
    assert (report.worker, report.url, report.models) == ("a:1/e1", "http://a:1/e1", (MODEL,))


def test_a_fleet_counts_what_it_told() -> None:
    """Nothing at rate 0; then the blocks of all changes."""
    urls = urls_below("http://a:1", 3)
    fleet = SidecarFleet(
        StateSettings(redis="redis://127.0.0.1:1"), [SimulatedSidecar(url, random.Random(1), 2) for url in urls]
    )
    fleet._step(0)
    assert fleet.told[-1][1] == fleet.held == 0
    fleet.blocks_per_s = 50.0
    for step in range(4):
        fleet._step(step)
    assert fleet.held == 3 * 2 * 5 and fleet.told[-1][1] == 3 * (4 + 2) * 5
