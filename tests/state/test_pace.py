"""router.state.pace: what is new is passed on soon, what is costly seldom."""

import pytest

from router.state.pace import LEAST_S, Pace


@pytest.mark.parametrize(
    ("cost_s", "soon_s"),
    [
        pytest.param(0.0, LEAST_S, id="never all the time"),
        pytest.param(0.000_3, 0.03, id="within its share of a core"),
        pytest.param(0.005, 0.1, id="never less often than without news"),
    ],
)
def test_pause_follows_the_cost(cost_s: float, soon_s: float) -> None:
    """The pause is a hundred times the mean cost, within its bounds."""
    cpu_s = 0.0
    pace = Pace(0.1, 0.01, lambda: cpu_s)
    for _ in range(100):
        pace.began()
        cpu_s += cost_s
        pace.ended()
    assert pace.soon_s == pytest.approx(soon_s, rel=0.01)
