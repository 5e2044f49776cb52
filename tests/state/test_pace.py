"""router.state.pace: what is new is passed on soon, what is costly seldom."""

import pytest

from router.state.pace import LEAST_S, MOST_SAVED_S, Pace

SHARE = 0.01


class Doing:
    """Something that takes `cost_s` of CPU each time, and the clocks it is measured by."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.now_s = self.cpu_s = 0.0
        self.pace = Pace(0.1, SHARE, lambda: self.cpu_s, lambda: self.now_s)

    def do(self) -> float:
        """Once; returns the pause after it, which is over then."""
        self.pace.began()
        self.cpu_s += self.cost_s
        self.pace.ended()
        pause_s = self.pace.soon_s
        self.now_s += pause_s
        return pause_s


@pytest.mark.parametrize(
    ("cost_s", "soon_s"),
    [
        pytest.param(0.0, LEAST_S, id="never all the time"),
        pytest.param(0.000_3, 0.03, id="within its share of a core"),
        pytest.param(0.005, 0.1, id="never less often than without news"),
    ],
)
def test_pause_follows_the_cost(cost_s: float, soon_s: float) -> None:
    """In the long run the pause is a hundred times the mean cost, within its bounds."""
    doing = Doing(cost_s)
    pauses = [doing.do() for _ in range(500)]
    assert pauses[-1] == pytest.approx(soon_s, rel=0.01)


def test_news_after_a_quiet_time_is_not_held_up() -> None:
    """What was not used of the share is there for a burst, up to a bound; over all, no more than the share is used."""
    doing = Doing(0.000_8)
    steady = [doing.do() for _ in range(100)][-1]
    doing.now_s += 100.0
    doing.do()
    pauses = [doing.do() for _ in range(200)]
    at_once = pauses.count(LEAST_S)
    assert steady == pytest.approx(0.08, rel=0.01) and set(pauses[:at_once]) == {LEAST_S}
    assert doing.cpu_s <= SHARE * (doing.now_s + MOST_SAVED_S)
    assert at_once * doing.cost_s == pytest.approx(MOST_SAVED_S * SHARE, rel=0.2)
