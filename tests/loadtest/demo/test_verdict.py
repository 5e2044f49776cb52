"""loadtest.demo.verdict: the demo's last sentence."""

import dataclasses

from loadtest.demo.figures import Figures
from loadtest.demo.verdict import verdict

OLD = Figures("round-robin", 40, 1000, 200, 400, ttft_p50_s=2.0, ttft_p90_s=4.0, wall_s=60.0, routes={}, last_request_id="r")
BETTER = dataclasses.replace(OLD, policy="warm", cached_tokens=600, ttft_p50_s=0.95, ttft_p90_s=3.0, wall_s=45.0)
WORSE = dataclasses.replace(OLD, policy="warm", cached_tokens=0, ttft_p50_s=3.0, ttft_p90_s=6.0, wall_s=90.0)


def test_gain() -> None:
    """Every figure is told in words with its direction."""
    assert verdict(OLD, BETTER) == (
        "Compared with round-robin, warm gave the first token 2.1 times sooner (median; p90 1.3 times sooner), "
        "computed 50% fewer prompt tokens, and took 25% less time in all."
    )


def test_loss() -> None:
    """What got worse is said to be worse."""
    assert verdict(OLD, WORSE) == (
        "Compared with round-robin, warm gave the first token 1.5 times LATER (median; p90 1.5 times LATER), "
        "computed 25% MORE prompt tokens, and took 50% MORE time in all."
    )


def test_no_difference() -> None:
    """Differences within noise are none, and a run without figures divides by nothing."""
    assert verdict(OLD, dataclasses.replace(OLD, policy="warm", ttft_p50_s=2.05)) == (
        "Compared with round-robin, warm gave the first token about as soon (median; p90 about as soon), "
        "computed about as many prompt tokens, and took about as long in all."
    )
    assert "about as soon" in verdict(dataclasses.replace(OLD, ttft_p50_s=0.0), BETTER)
