"""The load of shared state, small: everything is taken in, and the figures are those of what ran."""

import json
import random
from pathlib import Path

import pytest

from loadtest.state_load import CACHE_RUNS, CountingListener, SimulatedSidecar, main
from router.core.cache_delta import Removed, Stored


def test_a_small_load_is_taken_in_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes and a real Redis: each router sees every block, nobody is lost, the results are kept."""
    assert main(["--sidecars=20", "--blocks-per-s=100", "--routers=2", "--seconds=2", f"--out={tmp_path}"]) == 0
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    assert kept["asked"] == {"sidecars": 20, "blocks_per_s": 100, "routers": 2, "seconds": 2.0}
    assert len(kept["routers"]) == 2 and json.loads(capsys.readouterr().out)["routers"] == kept["routers"]
    for router in kept["routers"]:
        assert router["stored_blocks_per_s"] > 1000 and router["reports_per_s"] > 40
        assert (router["gaps"], router["lost"], router["errors"]) == (0, 0, {})
        assert router["lag_p50_ms"] > 0 and router["loads_heard_per_s"] > 0


def test_a_simulated_cache_stays_as_large_as_it_is() -> None:
    """Each new run drives out the oldest once it is full, and the snapshot is what is left."""
    sidecar, listener = SimulatedSidecar("a", 4, random.Random(1)), CountingListener()
    held: set[int] = set()
    for _ in range(CACHE_RUNS + 50):
        delta = sidecar.step()
        assert listener.delta(delta)
        for change in delta.changes:
            if isinstance(change, Stored):
                held.update(change.keys)
            elif isinstance(change, Removed):
                held.difference_update(change.keys)
    snapshot = sidecar.snapshot()
    assert {key for run in snapshot.runs for key in run.keys} == held and len(held) == 4 * CACHE_RUNS
    assert (listener.stored, listener.removed) == (4 * (CACHE_RUNS + 50), 4 * 50)
    assert min(listener.lags_ns) >= 0
