import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.retry import FLOOR, RetryBudget


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.5)), max_size=300), st.floats(0, 1))
def test_retries_stay_within_the_share_and_the_floor(steps: list[tuple[bool, float]], share: float) -> None:
    """At no time have there been more retries than the floor, as often as it could renew, and the share of requests."""
    budget, now_s, requests, retries = RetryBudget(share), 0.0, 0, 0
    for is_request, wait_s in steps:
        now_s += wait_s
        if is_request:
            budget.note_request(now_s)
            requests += 1
        else:
            retries += budget.may_retry(now_s)
        assert retries <= (FLOOR + share * requests) * (1 + now_s / 10.0) + 1e-6


def test_a_small_fleet_may_always_fail_over_a_few_times() -> None:
    """The floor holds without any requests on record, is used up, and comes back as time passes."""
    budget = RetryBudget(0.0)
    assert sum(budget.may_retry(0.0) for _ in range(50)) == FLOOR
    assert not budget.may_retry(0.5)
    assert sum(budget.may_retry(20.0) for _ in range(50)) == pytest.approx(FLOOR * 0.75, abs=1)


def test_many_requests_allow_many_retries() -> None:
    """A tenth of a thousand requests just made may be retried, beside the floor."""
    budget = RetryBudget(0.1)
    for _ in range(1000):
        budget.note_request(0.0)
    assert sum(budget.may_retry(0.0) for _ in range(1000)) == 100 + FLOOR
