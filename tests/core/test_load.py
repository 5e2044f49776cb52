import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet import Worker
from router.core.load import REBASE_AT, FleetLoad, Lease, Load
from router.core.types import Decision, KeyForm, PromptKeys, WorkerId
from tests.core.builders import prompt, spec

S_PER_TOKEN = 0.001


def lease_of(tokens: int, sent_s: float = 0.0, stream: bool = True) -> Lease:
    decision = Decision("r", 0.0, "warm", "x", WorkerId("w"), "m", tokens, KeyForm.TOKENS, None, 0)
    lease = Lease(Worker(spec(1), 0), decision, prompt([1]), tokens, sent_s)
    lease.stream = stream
    return lease


@given(st.lists(st.tuples(st.sampled_from(["take", "first", "release"]), st.integers(0, 9), st.booleans()), max_size=80))
def test_every_lease_is_counted_once_and_gone_at_its_end(steps: list[tuple[str, int, bool]]) -> None:
    """Whatever the order of ends, first tokens and repeats: counts are those of the live leases, and zero at the end."""
    load, leases, live, waiting = Load(), {}, set(), set()
    for now, (what, number, stream) in enumerate(steps):
        if what == "take" and number not in leases:
            leases[number] = lease_of(100 + number, now, stream)
            load.take(leases[number])
            live.add(number)
            waiting.add(number)
        elif what == "first" and number in live:
            assert (load.first_token(leases[number], now) is not None) <= (number in waiting)
            waiting.discard(number)
        elif what == "release" and number in leases:
            assert load.release(leases[number], now) is (number in live)
            live.discard(number)
            waiting.discard(number)
        assert load.in_flight == len(live)
        assert load.pending_tokens == sum(100 + number for number in waiting)
        assert load.head is next(iter(load.pending), None)
        assert 0 <= load.backlog_tokens(now, S_PER_TOKEN, 0.0) <= load.pending_tokens
    for lease in leases.values():
        load.release(lease, 99.0)
    assert (load.in_flight, load.pending_tokens, load.pending, load.head) == (0, 0, {}, None)


def test_only_the_heads_prefill_progresses() -> None:
    """Time takes tokens off the first request without a first token, never more than it has, and off no other."""
    load = Load()
    load.take(lease_of(1000, 0.0))
    load.take(lease_of(500, 0.1))
    assert [load.backlog_tokens(now, S_PER_TOKEN, 0.0) for now in (0.0, 0.4, 5.0)] == [1500, 1100, 500]


def test_first_token_tells_how_long_the_head_took() -> None:
    """Since it was sent or, if later, since the last first token: only then was nothing ahead of it."""
    load = Load()
    one, two, three = lease_of(1000, 0.0), lease_of(500, 0.1), lease_of(50, 0.2)
    for lease in (one, two, three):
        load.take(lease)
    assert load.first_token(one, 1.0) == 1.0
    assert load.first_token(one, 1.1) is None
    assert load.first_token(three, 1.2) is None, "out of order"
    assert load.first_token(two, 1.5) == pytest.approx(0.3)
    late = lease_of(10, 2.0)
    load.take(late)
    assert load.first_token(late, 2.25) == 0.25


def test_a_head_that_ends_early_gives_the_next_no_credit() -> None:
    """The next request's prefill is thought to start when the head goes, not when it was sent."""
    load = Load()
    one, two = lease_of(1000, 0.0), lease_of(500, 0.1)
    load.take(one)
    load.take(two)
    load.release(one, 3.0)
    assert load.backlog_tokens(3.0, S_PER_TOKEN, 0.0) == 500
    load.release(two, 3.0)
    assert load.release(two, 3.0) is False


def test_unstreamed_requests_leave_the_queue_when_their_prefill_should_be_done() -> None:
    """Their first byte comes with the whole answer, so it cannot tell; a streamed one behind them waits for its own."""
    load = Load()
    leases = [lease_of(1000, 0.0, False), lease_of(500, 0.1, False), lease_of(100, 4.0)]
    load.take(leases[0])
    load.take(leases[1])
    load.advance(0.9, S_PER_TOKEN)
    assert len(load.pending) == 2
    load.advance(1.2, S_PER_TOKEN)
    assert load.head is leases[1] and load.head_since_s == 1.0
    load.take(leases[2])
    load.advance(9.0, S_PER_TOKEN)
    assert load.head is leases[2] and load.head_since_s == 4.0
    assert load.first_token(leases[0], 9.0) is None
    load.release(leases[2], 9.5)
    load.take(lease_of(10, 10.0, False))
    load.advance(11.0, S_PER_TOKEN)
    assert load.head is None and load.pending_tokens == 0


def test_repricing_moves_the_queue_only_while_it_waits() -> None:
    """A prompt counted late corrects the backlog; after its first token there is nothing to correct."""
    load, lease = Load(), lease_of(100)
    load.take(lease)
    load.reprice(lease, 130)
    assert load.pending_tokens == 130
    load.first_token(lease, 1.0)
    load.reprice(lease, 500)
    assert (load.pending_tokens, lease.uncached_tokens) == (0, 500)


@pytest.mark.parametrize(
    ("waiting", "waiting_tokens", "others", "now_s", "requests", "tokens"),
    [
        pytest.param(None, None, 0, 1.0, 1, 0.0, id="unknown is not zero and not more"),
        pytest.param(5, None, 0, 1.0, 5, 4 * 200.0, id="others' requests at the mean"),
        pytest.param(0, None, 0, 1.0, 1, 0.0, id="own counts always"),
        pytest.param(5, 900, 0, 1.0, 5, 800.0, id="tokens beat requests"),
        pytest.param(5, 50, 0, 1.0, 5, 0.0, id="fewer tokens than own"),
        pytest.param(5, 900, 0, 3.1, 1, 0.0, id="stale is ignored"),
        pytest.param(5, 900, 300, 1.0, 5, 500.0, id="less what other routers told"),
        pytest.param(5, 900, 850, 1.0, 5, 0.0, id="all of it told by routers"),
        pytest.param(5, None, 300, 1.0, 5, 500.0, id="requests, less what other routers told"),
        pytest.param(2, None, 300, 1.0, 2, 0.0, id="no more requests than told"),
    ],
)
def test_reports_add_the_work_that_nobody_told(
    waiting: int | None, waiting_tokens: int | None, others: int, now_s: float, requests: int, tokens: float
) -> None:
    """A fresh report counts for what exceeds the requests of routers; an old or silent one for nothing."""
    load = Load()
    load.take(lease_of(100, 1.0))
    load.other_tokens = others
    load.report(waiting, waiting_tokens, until_s=3.0)
    assert load.waiting_at(now_s) == requests
    assert load.unexplained_tokens(now_s, 200.0) == tokens
    assert load.backlog_tokens(now_s, S_PER_TOKEN, 200.0) >= others + tokens


@pytest.mark.parametrize(
    ("own", "others", "routers", "share"),
    [(0, 0, 0, 1.0), (10, 0, 3, 1.0), (10, 5, 1, 1.5), (10, 90, 2, 3.0), (0, 1, 4, 2.0), (0, 50, 4, 5.0)],
)
def test_own_rates_are_scaled_to_the_fleet(own: int, others: int, routers: int, share: float) -> None:
    """By requests in flight; few own ones say little, so no other router counts for more than this one does."""
    fleet = FleetLoad(60.0)
    fleet.in_flight, fleet.other_requests, fleet.other_routers = own, others, routers
    assert fleet.fleet_share() == share


def test_rates_halve_in_their_half_life() -> None:
    """Ten arrivals a second read as ten a second, and as five one half-life after they stop."""
    fleet = FleetLoad(60.0)
    for i in range(12_000):
        fleet.arrivals += fleet.weight(i / 10)
    for now_s, rate in ((1200.0, 10.0), (1260.0, 5.0)):
        assert fleet.arrivals * fleet.per_s(fleet.weight(now_s)) == pytest.approx(rate, rel=0.01)


def test_rebasing_changes_no_rate() -> None:
    """Before weights grow out of a float's range all sums are scaled down together."""
    fleet, load = FleetLoad(1.0), Load()
    assert fleet.mean_uncached_tokens() == 0.0
    now_s = REBASE_AT / math.log(2) + 1
    assert not fleet.needs_rebase(fleet.weight(0.0))
    weight = fleet.weight(now_s)
    assert fleet.needs_rebase(weight)
    for sums in (fleet, load):
        sums.arrivals = 3 * weight
        sums.busy_s = 2 * weight
    fleet.tokens = 600 * weight
    before = fleet.arrivals * fleet.per_s(weight)
    fleet.rebase(now_s, [load])
    assert not fleet.needs_rebase(fleet.weight(now_s))
    assert fleet.arrivals * fleet.per_s(fleet.weight(now_s)) == pytest.approx(before)
    assert load.arrivals == pytest.approx(3.0)
    assert load.busy_s == pytest.approx(2.0)
    assert fleet.mean_uncached_tokens() == pytest.approx(200.0)
    assert math.isfinite(fleet.weight(now_s * 1000))


def test_what_was_computed_is_ahead_of_nobody() -> None:
    """A whole answer's prefill is over when the worker has stored the prompt; a streamed one's, when its first token comes."""
    load = Load()
    first, second, stream = lease_of(1000, 0.0, False), lease_of(500, 0.0, False), lease_of(50, 0.1)
    for lease in (first, second, stream):
        load.take(lease)
    load.computed(second)
    load.computed(stream)
    assert load.pending_tokens == 1050 and load.head is first
    load.computed(first)
    load.advance(0.2, S_PER_TOKEN)
    assert (load.pending_tokens, load.head, load.head_since_s) == (50, stream, 0.2)
    load.computed(first)
    assert load.pending_tokens == 50
    part = lease_of(5000, 0.3, False)
    part.prompt = PromptKeys(part.prompt.keys, 5000, complete=False)
    load.take(part)
    load.computed(part)
    load.advance(0.3, S_PER_TOKEN)
    assert load.pending_tokens == 5050, "its leading blocks are not all of it"


def test_prefill_of_other_routers_goes_on() -> None:
    """They tell of a whole answer only when it ends; until then its prefill is taken to run, when this router's does not."""

    def backlog_s(*at_s: float) -> list[float]:
        return [load.other_backlog_s(now_s, S_PER_TOKEN) for now_s in at_s]

    load = Load()
    load.hear_others(1, 500, 10.0, S_PER_TOKEN)
    assert backlog_s(10.0, 10.2, 99.0) == pytest.approx([0.5, 0.3, 0.0])
    load.hear_others(1, 300, 10.2, S_PER_TOKEN)
    assert backlog_s(10.2, 10.5, 99.0) == pytest.approx([0.6, 0.3, 0.3]), "what came behind it waits"
    load.hear_others(0, -500, 10.6, S_PER_TOKEN)
    assert backlog_s(10.7) == pytest.approx([0.2])
    load.hear_others(1, 200, 15.0, S_PER_TOKEN)
    assert backlog_s(15.0, 15.1) == pytest.approx([0.5, 0.4]), "300 are over, and another 500 in their place"
    load.take(lease_of(1000, 15.1))
    assert backlog_s(15.3) == pytest.approx([0.5]), "an engine prefills one after the other"
