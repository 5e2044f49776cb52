from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cost import WORK_PRICE, Steer, held_blocks, mean_rates, note_matches, price
from router.core.fleet import Worker
from router.core.load import FleetLoad, Lease
from router.core.speed import FleetSpeed
from router.core.types import Decision, KeyForm, Priced, Truth, WorkerId
from router.settings import RoutingSettings
from tests.core.builders import levels, prompt, spec

ROUTING = RoutingSettings(prefill_tokens_per_s=1000.0)


def worker_with(*queue: tuple[int, float], slot: int = 0, **facts: object) -> Worker:
    """A worker with requests of so many uncached tokens, sent then, before their first token."""
    worker = Worker(spec(slot + 1), slot)
    for tokens, sent_s in queue:
        worker.load.take(request(worker, tokens, sent_s))
    for name, value in facts.items():
        setattr(worker, name, value)
    return worker


def request(worker: Worker, tokens: int, sent_s: float, stream: bool = True) -> Lease:
    decision = Decision("r", 0.0, "warm", "x", WorkerId("w"), "m", tokens, KeyForm.TOKENS, None, 0)
    lease = Lease(worker, decision, prompt([1]), tokens, sent_s)
    lease.stream = stream
    return lease


def price_one(
    worker: Worker, tokens: int, held: Sequence[tuple[int, int]], now_s: float = 0.0, load: FleetLoad | None = None
) -> Priced:  # fmt: skip
    load = load or FleetLoad(60.0)
    rates = mean_rates([worker])
    note_matches([worker], levels(*held))
    return price([worker], tokens, load, FleetSpeed(1000.0), rates, load.weight(now_s), Steer(ROUTING), now_s)[0]


@pytest.mark.parametrize(
    ("held", "tokens", "reuse_tokens", "expected"),
    [
        pytest.param([], 100, 16, 0, id="nobody holds it"),
        pytest.param([(4, 0b10)], 100, 16, 0, id="another holds it"),
        pytest.param([(6, 0b10), (4, 0b11)], 100, 16, 64, id="its own level"),
        pytest.param([(5, 0b01)], 100, 32, 64, id="rounded down to engine blocks"),
        pytest.param([(6, 0b01)], 96, 1, 95, id="the last token is always computed"),
        pytest.param([(6, 0b01)], 96, 4, 92, id="with the page that it is in"),
        pytest.param([(6, 0b01)], 96, 16, 80, id="with the block that it is in"),
        pytest.param([(6, 0b01)], 96, 64, 64, id="also of large blocks"),
        pytest.param([(1, 0b01)], 0, 16, 0, id="unknown length"),
    ],
)
def test_matched_tokens(held: list[tuple[int, int]], tokens: int, reuse_tokens: int, expected: int) -> None:
    """What a worker need not compute: its level in the index, never the whole prompt, in whole blocks where it reuses such."""
    row = price_one(worker_with(reuse_tokens=reuse_tokens), tokens, held)
    assert row.matched_tokens == expected
    assert row.prefill_s == pytest.approx((tokens - expected) / 1000)


@pytest.mark.parametrize(
    ("queue", "now_s", "expected_s"),
    [
        pytest.param([], 0.0, 0.0, id="idle"),
        pytest.param([(1000, 0.0), (500, 0.1)], 0.4, 1.1, id="head in progress"),
        pytest.param([(1000, 0.0), (500, 0.1)], 9.0, 0.5, id="head should be done"),
    ],
)
def test_backlog_is_the_prefill_ahead(queue: list[tuple[int, float]], now_s: float, expected_s: float) -> None:
    """Uncached tokens sent and not yet computed, less the head's progress, at the worker's speed."""
    worker = worker_with(*queue)
    assert price_one(worker, 100, [], now_s).backlog_s == pytest.approx(expected_s)
    tokens = worker.load.backlog_tokens(now_s, 0.001, 0.0)
    assert tokens * 0.001 == pytest.approx(expected_s), "the readable form of the same sum"


def test_backlog_counts_what_fresh_reports_show_beyond_own_requests() -> None:
    """Three waiting of which one is own are two strangers at the fleet's mean; a stale report adds nothing."""
    worker, load = worker_with((1000, 0.0)), FleetLoad(60.0)
    load.arrivals, load.tokens = 2.0, 600.0
    worker.load.report(waiting=3, waiting_tokens=None, until_s=5.0)
    assert price_one(worker, 100, [], 0.0, load).backlog_s == pytest.approx(1.0 + 2 * 0.3)
    assert price_one(worker, 100, [], 5.1, load).backlog_s == pytest.approx(0.0)


def test_unstreamed_heads_leave_as_their_prefill_should_be_done() -> None:
    """Otherwise a request behind a long unstreamed answer would seem to wait for all of it."""
    worker = worker_with()
    worker.load.take(request(worker, 1000, 0.0, stream=False))
    worker.load.take(request(worker, 500, 0.1))
    assert price_one(worker, 100, [], 1.2).backlog_s == pytest.approx(0.3)
    worker = worker_with()
    worker.load.take(request(worker, 1000, 0.0, stream=False))
    assert price_one(worker, 100, [], 1.2).backlog_s == 0.0


@given(
    st.floats(0, 10), st.floats(0, 10), st.floats(0, 0.8), st.floats(0, 0.8), st.integers(1, 5000), st.integers(0, 5000)
)  # fmt: skip
def test_cost_is_the_steer_rule(
    own_rate: float, mean_rate: float, own_use: float, mean_use: float, tokens: int, queued: int
) -> None:  # fmt: skip
    """(u + x) + q·x·(u + x/2) with q = g·λ/(1 − min(ρ, cap)), λ and ρ half the worker's own and half the fleet's mean."""
    load = FleetLoad(60.0)
    per_s = load.per_s(load.weight(0.0))
    worker = worker_with((queued, 0.0))
    worker.load.arrivals, worker.load.busy_s = own_rate / per_s, own_use / per_s
    peers = (mean_rate / per_s, mean_use / per_s)
    [row] = price([worker], tokens, load, FleetSpeed(1000.0), peers, 1.0, Steer(ROUTING), 0.0)
    x, u = tokens / 1000, queued / 1000
    q = 2.0 * (own_rate + mean_rate) / 2 / (1 - min((own_use + mean_use) / 2, 0.9))
    cost_s = (u + WORK_PRICE * x) + q * x * (u + x / 2)
    assert (row.prefill_s, row.backlog_s, row.price, row.cost_s) == pytest.approx((x, u, q, cost_s))
    assert (row.worker, row.in_flight, row.truth, row.bid_s) == (worker.id, 1, Truth.MODELLED, row.cost_s)


def test_a_slower_worker_costs_more() -> None:
    """Its factor stretches its own prefill and its backlog."""
    slow = worker_with((100, 0.0))
    slow.speed.factor = 3.0
    row = price_one(slow, 100, [])
    assert (row.prefill_s, row.backlog_s) == pytest.approx((0.3, 0.3))


def test_levels_known_to_miss_are_not_asked_again() -> None:
    """Who is known to be in none of the deepest levels is looked up from the next one on."""
    found = levels((6, 0b10), (4, 0b11), (2, 0b111))
    worker = worker_with(slot=1)
    assert [held_blocks(worker, found, at) for at in range(4)] == [6, 4, 2, 0]


def test_the_load_of_other_routers_counts() -> None:
    """Their uncached tokens are ahead of this request, and their requests make work dearer for later arrivals."""
    load = FleetLoad(60.0)
    worker = worker_with((200, 0.0))
    worker.load.in_flight = 1
    worker.load.arrivals = worker.load.busy_s = load.arrivals = load.busy_s = 1.0
    alone = price_one(worker, 100, [], load=load)
    worker.load.other_requests, worker.load.other_tokens = 3, 500
    load.in_flight, load.other_requests, load.other_routers = 1, 1, 1
    row = price_one(worker, 100, [], load=load)
    assert (alone.in_flight, row.in_flight) == (1, 4)
    assert row.backlog_s == pytest.approx(alone.backlog_s + 0.5)
    assert row.price == pytest.approx(2 * alone.price, rel=0.05)
