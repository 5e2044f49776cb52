"""The footprint of a real sidecar: what ran is what was measured."""

import pytest

from loadtest.pool import footprint


def test_a_real_sidecar_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the events of a busy engine, exactly; the figures say what it used."""
    monkeypatch.setattr(footprint, "FULL_AFTER_S", 1)
    row = footprint.run(1.0, 500, 500)
    assert row["truth"] == "exact" and row["batches_per_s"] > 5 and 0 < row["cached_blocks"] < 5000
    assert 0 < row["cpu_share"] < 1 and 10 < row["resident_mb"] < 500 and row["deltas_written"] > 0
    text = footprint.show({"full": row})
    assert "500 blocks/s" in text
