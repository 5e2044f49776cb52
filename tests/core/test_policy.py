from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from router.core.cost import note_matches
from router.core.fleet import Fleet, Worker
from router.core.load import FleetLoad
from router.core.policy import FleetView, Pool, Question, cheapest, least_queue, make_policy, ring_homes, shortlist, some_slots
from router.core.ring import Ring
from router.core.types import Priced, Truth, WorkerId
from router.settings import POLICIES
from tests.core.builders import Dice, chain, levels, ready_fleet

KEY = chain([1, 2, 3])[-1]


def world(count: int) -> tuple[Fleet, FleetView, Pool]:
    fleet = ready_fleet(count)
    ring = Ring(64)
    for worker in fleet.workers:
        ring.add(worker.slot, worker.id, worker.weight)
    return fleet, FleetView(fleet.slots, FleetLoad(60.0), 1.25, Random(1)), Pool(fleet.workers, ring)


def question(
    pool: Pool, held: Sequence[tuple[int, int]] = (), key: int | None = KEY, hint: Worker | None = None, credit_s: float = 0.05,
    costs: Sequence[float] = (), matched: Sequence[int] = (), prefill_s: float = 1.0,
) -> Question:  # fmt: skip
    """A priced question; every worker costs a second unless `costs` says otherwise."""
    q = Question(pool, levels(*held), key, hint, 0.0)
    note_matches(pool.workers, q.levels)
    costs = costs or [1.0] * len(pool.workers)
    matched = matched or [0] * len(pool.workers)
    q.priced = [
        Priced(worker.id, matched[i], prefill_s, 0.0, 0.0, costs[i], 0, Truth.MODELLED) for i, worker in enumerate(pool.workers)
    ]
    if hint is not None:
        q.priced[pool.workers.index(hint)].bid_s -= credit_s
    return q


def ask(name: str, q: Question, view: FleetView) -> tuple[int, str]:
    policy = make_policy(name)
    q.nominee = policy.nominate(q, view)
    return policy.pick(q, view)


def test_every_policy_of_the_settings_exists() -> None:
    """The names in settings are the names here, and each makes a choice with and without keys."""
    for name in POLICIES:
        _, view, pool = world(3)
        for key in (KEY, None):
            place, reason = ask(name, question(pool, key=key), view)
            assert place in range(3) and reason
    with pytest.raises(KeyError):
        make_policy("best")


@pytest.mark.parametrize(
    ("held", "matched", "costs", "hint", "expected"),
    [
        pytest.param([(4, 0b010)], [0, 64, 0], [3, 1, 2], None, (1, "warm_prefix"), id="the deepest holder"),
        pytest.param(
            [(6, 0b010), (4, 0b110)], [0, 96, 64], [3, 2, 1], None, (2, "holder_busy"), id="a shallower one is cheaper"
        ),
        pytest.param([(6, 0b010)], [0, 96, 0], [1, 2, 3], None, (0, "holder_busy"), id="a stranger is cheaper"),
        pytest.param(
            [(9, 0b1000), (4, 0b010)], [0, 64, 0], [3, 1, 2], None, (1, "warm_prefix"), id="deepest of the candidates"
        ),
        pytest.param([(4, 0b011)], [64, 64, 0], [1.00, 1.02, 2], 1, (1, "session"), id="the session tips the balance"),
        pytest.param([(4, 0b011)], [64, 64, 0], [1.00, 1.20, 2], 1, (0, "warm_prefix"), id="the session is too dear"),
        pytest.param(
            [(4, 0b011)], [64, 64, 0], [1.10, 1.00, 2], 1, (1, "warm_prefix"), id="the session would be chosen anyway"
        ),
    ],
)
def test_warm(
    held: list[tuple[int, int]], matched: list[int], costs: list[float], hint: int | None, expected: tuple[int, str]
) -> None:  # fmt: skip
    """The least cost wins, a session hint is worth its credit and no more, and the reason says what tipped it."""
    fleet, view, pool = world(3)
    q = question(pool, held, hint=None if hint is None else fleet.workers[hint], costs=costs, matched=matched)
    assert ask("warm", q, view) == expected


def test_warm_without_keys_follows_the_session_or_the_queue() -> None:
    """A prompt that could not be keyed has its session as the only affinity, at the same price; else the queue decides."""
    fleet, view, pool = world(3)
    fleet.workers[0].load.in_flight = fleet.workers[2].load.in_flight = 1
    for costs, hint, expected in (
        ([1.0, 1.0, 1.0], 2, (2, "session")),
        ([1.0, 1.0, 1.1], 2, (1, "least_queue")),
        ([1.0, 1.0, 1.0], None, (1, "least_queue")),
    ):
        q = question(pool, key=None, hint=None if hint is None else fleet.workers[hint], costs=costs)
        assert ask("warm", q, view) == expected


def test_warm_sends_the_unseen_to_a_home_unless_a_stranger_is_much_cheaper() -> None:
    """The second home has to be a tenth of the prefill cheaper than the first, a stranger a quarter cheaper than that."""
    _, view, pool = world(4)
    first, second = [pool.workers.index(worker) for worker in ring_homes(question(pool), view)]
    stranger = next(i for i in range(4) if i not in (first, second))
    costs = [1.0] * 4
    q = question(pool, costs=costs)
    assert ask("warm", q, view) == (first, "ring_home")
    assert [worker.slot for worker in q.homes] == [first, second]
    costs[first] = 1.09
    assert ask("warm", question(pool, costs=costs), view) == (first, "ring_home")
    costs[first] = 1.11
    assert ask("warm", question(pool, costs=costs), view) == (second, "ring_home")
    costs[stranger] = 0.76
    assert ask("warm", question(pool, costs=costs), view) == (second, "ring_home")
    costs[stranger] = 0.74
    assert ask("warm", question(pool, costs=costs), view) == (stranger, "least_cost")
    held_elsewhere = question(pool, [(3, 1 << 50)], costs=costs)
    assert ask("warm", held_elsewhere, view) == (stranger, "least_cost"), "only workers outside the pool hold it"


def test_warm_without_any_home_takes_the_cheapest() -> None:
    """When every worker is at the ring's bound there is no home to prefer."""
    _, view, pool = world(2)
    pool.ring = Ring(8)
    assert ask("warm", question(pool, costs=[2.0, 1.0]), view) == (1, "least_cost")


def test_homes_leave_out_workers_at_their_bound_and_strangers() -> None:
    """The bound is the mean times the factor, by weight; workers of the ring that are not in the pool do not count."""
    fleet, view, pool = world(4)
    homes = ring_homes(question(pool), view, 4)
    homes[0].load.in_flight = 10
    assert ring_homes(question(pool), view, 4) == homes[1:]
    part = Pool([worker for worker in fleet.workers if worker is not homes[1]], pool.ring)
    assert ring_homes(question(part), view, 4) == homes[2:]
    fleet.remove(homes[2].id)
    assert ring_homes(question(part), view, 4) == homes[3:]


def test_homes_of_a_large_pool_take_the_fleets_count() -> None:
    """Above 64 workers nobody is counted one by one."""
    _, view, pool = world(70)
    homes = ring_homes(question(pool), view)
    homes[0].load.in_flight = 3
    assert ring_homes(question(pool), view)[0] is homes[1]
    view.load.in_flight = 400
    assert ring_homes(question(pool), view)[0] is homes[0]


def test_ring_policy_follows_the_ring_and_the_queue_without_keys() -> None:
    """The first home under the bound; a prompt without keys has no home."""
    _, view, pool = world(4)
    first, second = ring_homes(question(pool), view)
    assert ask("ring", question(pool), view) == (first.slot, "ring_home")
    first.load.in_flight = 4
    assert ask("ring", question(pool), view) == (second.slot, "ring_home")
    place, reason = ask("ring", question(pool, key=None), view)
    assert place != first.slot and reason == "least_queue"
    pool.ring = Ring(8)
    assert ask("ring", question(pool), view)[1] == "least_queue"


def test_round_robin_takes_turns() -> None:
    """Each worker once per round, in order."""
    _, view, pool = world(3)
    policy, places = make_policy("round-robin"), []
    for _ in range(7):
        q = question(pool)
        q.nominee = policy.nominate(q, view)
        places.append(policy.pick(q, view)[0])
    assert places == [0, 1, 2, 0, 1, 2, 0]


def test_random_reaches_all_alike() -> None:
    """Three workers, each about a third of the time."""
    _, view, pool = world(3)
    counts = Counter(ask("random", question(pool), view)[0] for _ in range(3000))
    assert all(850 < counts[place] < 1150 for place in range(3))


def test_least_queue_weighs_then_asks_who_waits_then_draws() -> None:
    """Requests in flight per weight first; equal ones by what waits there; equal again by chance, not by place."""
    fleet, _, _ = world(4)
    workers = list(fleet.workers)
    for worker, (in_flight, weight) in zip(workers, [(4, 1.0), (6, 2.0), (3, 1.0), (3, 1.0)], strict=True):
        worker.load.in_flight, worker.weight = in_flight, weight
    assert {least_queue(workers, 0.0, Dice(chance)) for chance in (0.0, 0.5, 0.99)} == {1, 2, 3}
    workers[1].load.report(7, None, until_s=1.0)
    workers[2].load.report(5, None, until_s=1.0)
    assert {least_queue(workers, 0.0, Dice(chance)) for chance in (0.0, 0.99)} == {3}
    assert least_queue(workers[::-1], 0.0, Dice(0.0)) == 0, "who waits less comes first"
    assert {least_queue(workers, 2.0, Dice(chance)) for chance in (0.0, 0.5, 0.99)} == {1, 2, 3}, "stale reports"


def test_equal_costs_are_drawn() -> None:
    """No worker is preferred for being first in the list (P7)."""

    def rows(*costs: float) -> list[Priced]:
        return [Priced(WorkerId("w"), 0, 0.0, 0.0, 0.0, cost, 0, Truth.MODELLED) for cost in costs]

    assert [cheapest(rows(2.0, 1.0, 1.0), Dice(chance)) for chance in (0.0, 0.49, 0.51, 0.99)] == [1, 1, 2, 2]
    assert cheapest(rows(2.0, 1.0, 3.0), Dice(0.9)) == 1


def test_shortlist_has_holders_homes_hint_and_the_less_loaded() -> None:
    """Of a large pool at most an eighth of the places go to holders, deepest first; the others stay open for idle workers."""
    fleet, view, pool = world(200)
    workers = fleet.workers
    hint = workers[150]
    pool = Pool(workers[:199], pool.ring)
    held = [(11, 1 << 199), (9, 1 << 7 | 1 << 199), (6, 1 << 7 | 1 << 8 | 1 << 199), (2, 1 << 199 | (1 << 100) - 1)]
    listed = shortlist(question(pool, held, hint=hint), view, 32)
    assert listed[:3] == [hint, workers[7], workers[8]]
    assert 4 < len(listed) <= 8 and len(set(listed)) == len(listed)
    assert sum(worker.slot < 100 for worker in listed[:4]) == 3
    q = question(pool)
    listed = shortlist(q, view, 32)
    assert listed[:2] == list(q.homes) == ring_homes(question(pool), view)
    assert shortlist(question(pool, key=None), view, 32)
    for worker in workers[::2]:
        worker.load.in_flight = 50
    view.rng = Random(5)
    drawn = [worker for _ in range(100) for worker in shortlist(question(pool, key=None), view, 32)]
    busy = sum(worker.load.in_flight > 0 for worker in drawn) / len(drawn)
    assert 0.15 < busy < 0.35, "the less loaded of two: a quarter of the busy half"
    assert len(shortlist(question(pool, held, hint=hint), view, 2)) == 2


def test_some_slots_starts_anywhere_and_goes_around() -> None:
    """So that of a thousand equal holders not always the same few are asked."""
    mask = 0b1011_0001
    assert some_slots(mask, 9, 0) == [0, 4, 5, 7]
    assert some_slots(mask, 3, 5) == [5, 7, 0, 4]
    assert some_slots(mask, 2, 5) == [5, 7]
    assert some_slots(mask, 0, 5) == []
    assert some_slots(0, 4, 5) == []
    assert some_slots(mask << 20, 9, 26) == [27, 20, 24, 25]
    assert some_slots(mask << 20, 9, 99) == [20, 24, 25, 27]
