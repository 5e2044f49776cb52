from router.core.decision_log import DecisionLog
from router.core.types import CandidateCost, Decision, KeyForm, Priced, Truth, WorkerId


def decision(request_id: str) -> Decision:
    return Decision(request_id, 0.0, "warm", "warm_prefix", WorkerId("a"), "m", 100, KeyForm.TOKENS, None, 64)


def test_the_oldest_decision_is_dropped() -> None:
    """Never more than the limit; the newest come first."""
    log = DecisionLog(2)
    for request_id in ("r1", "r2", "r3"):
        log.add(decision(request_id))
    assert log.get("r1") is None
    assert [kept.request_id for kept in log.latest(10)] == ["r3", "r2"]
    assert len(log.latest(1)) == 1 and len(log) == 2


def test_a_request_sent_again_has_one_decision() -> None:
    """The retry replaces the first choice and is the newest."""
    log = DecisionLog(2)
    retried = decision("r1")
    for one in (decision("r1"), decision("r2"), retried, decision("r3")):
        log.add(one)
    assert log.get("r1") is retried and log.get("r2") is None


def test_what_was_replaced_is_never_shown() -> None:
    """The first choice of a retried request keeps a place until its turn comes, and nothing else."""
    log = DecisionLog(3)
    for request_id in ("r1", "r2", "r1"):
        log.add(decision(request_id))
    assert [kept.request_id for kept in log.latest(10)] == ["r1", "r2"] and len(log) == 2
    for request_id in ("r3", "r4"):
        log.add(decision(request_id))
    assert [kept.request_id for kept in log.latest(10)] == ["r4", "r3", "r1"] and len(log) == 3


def test_candidates_are_made_when_asked_for() -> None:
    """What was priced becomes readable, with the homes and the hinted worker marked, once."""
    log, one = DecisionLog(2), decision("r1")
    one.priced = [
        Priced(WorkerId("a"), 64, 0.1, 0.2, 0.3, 0.4, 5, Truth.MODELLED),
        Priced(WorkerId("b"), 0, 0.1, 0.0, 0.3, 0.4, 0, Truth.NONE),
    ]
    one.homes, one.hinted = (WorkerId("b"),), WorkerId("a")
    log.add(one)
    assert not one.candidates
    assert log.get("r1") is one
    assert one.candidates == (
        CandidateCost(WorkerId("a"), 64, 36, 0.1, 0.2, 0.3, 0.4, 5, Truth.MODELLED, False, True),
        CandidateCost(WorkerId("b"), 0, 100, 0.1, 0.0, 0.3, 0.4, 0, Truth.NONE, True, False),
    )
    kept = one.candidates
    assert log.get("r1") is one and one.candidates is kept
