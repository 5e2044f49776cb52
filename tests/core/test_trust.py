import pytest

from router.core.trust import MAX_WAIT_S, Judge, Record, Trust
from router.settings import CacheSettings

LIMIT = CacheSettings(distrust_share=0.2, distrust_requests=10, retest_s=60.0)
PROMPT = 1000


def hear(trust: Trust, source: str, predicted: int, actual: int, now_s: float, requests: int = 10) -> bool:
    """So many requests with 1,000 prompt tokens and blocks of 16; whether one of them changed the verdict."""
    judge = Judge(LIMIT)
    record, verdict = (trust.events, judge.on_events) if source == "events" else (trust.history, judge.on_history)
    changed = False
    for _ in range(requests):
        record.note(predicted, actual, PROMPT, 16)
        changed = verdict(trust, now_s) or changed
    return changed


@pytest.mark.parametrize(
    ("source", "predicted", "actual", "doubted"),
    [
        pytest.param("events", 800, 800, False, id="right"),
        pytest.param("events", 800, 785, False, id="within a block"),
        pytest.param("events", 800, 600, False, id="at the limit"),
        pytest.param("events", 800, 590, True, id="too much was expected"),
        pytest.param("events", 0, 300, True, id="too little was expected"),
        pytest.param("history", 800, 800, False, id="history right"),
        pytest.param("history", 800, 100, False, id="history wrong, but the cache is worth something"),
        pytest.param("history", 800, 40, True, id="history wrong, and next to nothing is served"),
        pytest.param("history", 0, 900, False, id="history that only starts to know"),
        pytest.param("history", 150, 0, False, id="nothing served, little expected"),
    ],
)
def test_verdicts(source: str, predicted: int, actual: int, doubted: bool) -> None:
    """A source is doubted for what it misses of the prompts, history only where the cache is not worth a thing."""
    trust = Trust()
    assert hear(trust, source, predicted, actual, 1.0) == doubted
    record = trust.events if source == "events" else trust.history
    assert bool(record.doubt) == doubted and trust.demotions == doubted
    assert record.is_wanted(1.0) != doubted
    if doubted:
        assert (
            f"{predicted} cached tokens a request predicted, {actual} counted by the engine, over 10 requests" in record.doubt
        )


def test_single_misses_are_no_reason() -> None:
    """One request in ten wholly wrong is within the limit, and a verdict needs its number of requests."""
    trust = Trust()
    for _ in range(5):
        assert not hear(trust, "events", 1000, 0, 0.0, requests=1)
        assert not hear(trust, "events", 500, 500, 0.0, requests=9)
    assert not hear(trust, "events", 1000, 0, 0.0, requests=9)
    assert hear(trust, "events", 1000, 0, 0.0, requests=1)


@pytest.mark.parametrize(
    ("source", "predicted", "actual", "regained"),
    [
        pytest.param("events", 800, 800, True, id="right again"),
        pytest.param("events", 800, 710, True, id="within half the limit"),
        pytest.param("events", 800, 690, False, id="good enough to stay, not to come back"),
        pytest.param("history", 0, 0, True, id="nothing expected, nothing served"),
        pytest.param("history", 800, 150, True, id="the cache is worth something again"),
        pytest.param("history", 800, 60, False, id="still next to nothing"),
    ],
)
def test_a_doubted_source_is_tested(source: str, predicted: int, actual: int, regained: bool) -> None:
    """Not before its time; it comes back only when it does twice as well as what it was doubted for."""
    trust = Trust()
    assert hear(trust, source, 900, 0, 100.0)
    record = trust.events if source == "events" else trust.history
    assert not record.is_wanted(159.9) and record.is_wanted(160.0)
    assert hear(trust, source, predicted, actual, 160.0) == regained
    assert (record.doubt == "") == regained
    assert record.is_wanted(160.0) == regained and not record.requests


def test_tests_that_fail_come_ever_less_often() -> None:
    """Each doubles the wait, up to an hour; a source that kept its word for four times the wait starts over."""
    trust, now_s, waits = Trust(), 0.0, []
    hear(trust, "events", 900, 0, now_s)
    for _ in range(9):
        waits.append(trust.events.wait_s)
        now_s += trust.events.wait_s
        assert trust.events.is_wanted(now_s)
        hear(trust, "events", 900, 0, now_s)
    assert waits == [60, 120, 240, 480, 960, 1920, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]
    now_s += MAX_WAIT_S
    assert hear(trust, "events", 5, 5, now_s)
    assert hear(trust, "events", 900, 0, now_s + 10) and trust.events.wait_s == MAX_WAIT_S
    now_s += 2 * MAX_WAIT_S
    assert hear(trust, "events", 5, 5, now_s)
    assert hear(trust, "events", 900, 0, now_s + 4 * MAX_WAIT_S) and trust.events.wait_s == 60
    assert trust.demotions == 3


def test_a_worker_on_the_edge_does_not_go_back_and_forth() -> None:
    """Wrong whenever it is used, right whenever it is tested: in a day of it there are few changes."""
    trust, changes = Trust(), 0
    for minute in range(24 * 60):
        now_s = minute * 60.0
        if trust.events.is_wanted(now_s):
            changes += hear(trust, "events", 900, 900 if trust.events.doubt else 0, now_s)
    assert changes < 70, "an hour's wait, then one change each way"


def test_another_process_starts_with_a_clean_record() -> None:
    """What the old one did does not count, but that it was demoted stays counted."""
    trust = Trust()
    hear(trust, "events", 900, 0, 5.0)
    hear(trust, "history", 900, 0, 5.0)
    trust.reset()
    assert (trust.events.doubt, trust.history.doubt, trust.demotions) == ("", "", 2)
    assert Record().wait_s == trust.events.wait_s == 0.0
