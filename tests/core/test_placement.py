from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.fleet import Fleet
from router.core.placement import MAX_POOLS, Lease, Placement
from router.core.stats import Stats
from router.core.types import KeyForm, Lifecycle, PromptKeys, Truth, Usage
from router.errors import NoWorker
from router.settings import POLICIES, CacheSettings, RoutingSettings
from tests.core.builders import chain, prompt, ready_fleet, report, spec
from tests.core.test_prefix_index import check_structure


class World:
    """A placement over a ready fleet, with a clock and request ids of its own."""

    def __init__(
        self, count: int = 3, *, cache: CacheSettings | None = None, fleet: Fleet | None = None, **routing: Any
    ) -> None:
        self.fleet = fleet or ready_fleet(count)
        self.stats = Stats()
        self.placement = Placement(
            RoutingSettings(**routing), cache or CacheSettings(), self.fleet, self.stats, Random(7)
        )  # fmt: skip
        self.now_s = 100.0
        self.sent = 0

    def choose(self, keys: PromptKeys, *, only: Sequence[int] | None = None, model: str | None = "m", **hints: Any) -> Lease:
        """`only`: the slots that are candidates."""
        workers = self.fleet.candidates(model, hints.get("tried", ()))
        if only is not None:
            workers = tuple(worker for worker in workers if worker.slot in only)
        self.sent += 1
        self.now_s += 0.01
        return self.placement.choose(f"r{self.sent}", model, keys, workers, now_s=self.now_s, wall_s=1e9, **hints)

    def finish(self, lease: Lease, usage: Usage | None = None, outcome: str = "ok", status: int | None = 200) -> None:
        self.now_s += 0.01
        self.placement.finish(lease, self.now_s, usage, outcome, status)

    def serve(self, keys: PromptKeys, cached: int | None = None, **hints: Any) -> Lease:
        """One request from choice to end; `cached` is what the engine reports."""
        lease = self.choose(keys, **hints)
        self.placement.first_token(lease, self.now_s + 0.01)
        self.finish(lease, Usage(keys.prompt_tokens, cached, 5))
        return lease

    def held(self, keys: PromptKeys) -> int:
        return self.placement.index.deepest(keys.keys)


def test_a_prompt_goes_back_to_the_worker_that_has_its_prefix() -> None:
    """The next turn of a conversation lands where the last one was computed, and the prediction is the shared head."""
    world = World()
    first = world.serve(prompt(range(20)))
    second = world.serve(prompt([*range(20), 90, 91]))
    assert second.worker is first.worker
    assert (first.decision.reason, second.decision.reason) == ("ring_home", "warm_prefix")
    assert second.decision.predicted_cached_tokens == 320
    assert world.stats.decisions[("warm", "warm_prefix")] == 1


def test_siblings_follow_the_first_before_any_answer() -> None:
    """Blocks count as held from the moment of choice: parallel requests with one new prompt do not scatter (P6)."""
    world = World()
    leases = [world.choose(prompt(range(64))) for _ in range(3)]
    assert len({lease.worker.id for lease in leases}) == 1


def test_a_hot_prefix_is_replicated_when_its_holder_is_busy() -> None:
    """Enough requests in a burst spill to others by cost alone, and everyone holds the prefix then (P4)."""
    world = World(count=4)
    leases = [world.choose(prompt([*range(64), 1000 + i])) for i in range(300)]
    assert len({lease.worker.id for lease in leases}) == 4
    assert any(lease.decision.reason == "holder_busy" for lease in leases)


def test_counts_move_at_selection_and_end_once() -> None:
    """In flight from choice to the first of finish and fail; everything after that has no effect (P3, P5)."""
    world = World()
    lease = world.choose(prompt(range(4)))
    load = lease.worker.load
    assert (load.in_flight, load.pending_tokens, world.placement.load.in_flight) == (1, 68, 1)
    world.placement.first_token(lease, world.now_s + 0.5)
    assert (load.in_flight, load.pending_tokens, lease.decision.ttft_s) == (1, 0, 0.5)
    world.finish(lease, Usage(68, 0, 9))
    for _ in range(2):
        world.finish(lease, Usage(68, 0, 9))
        world.placement.fail(lease, world.now_s, "upstream_closed")
        world.placement.first_token(lease, world.now_s)
    assert (load.in_flight, world.placement.load.in_flight) == (0, 0)
    decision = world.placement.decision("r1")
    assert decision is lease.decision
    assert (decision.outcome, decision.status, decision.actual_cached_tokens) == ("ok", 200, 0)
    assert decision.duration_s == pytest.approx(0.01)
    assert world.stats.prompt_tokens == 68 and world.stats.completion_tokens == 9


def test_a_prompt_of_unknown_length_counts_as_one_token() -> None:
    """Work that is not known is not no work, and nothing of it is predicted as cached."""
    world = World()
    lease = world.choose(prompt(range(3), tokens=0))
    assert lease.uncached_tokens == lease.worker.load.pending_tokens == 1
    assert world.choose(prompt(range(3), tokens=0)).decision.predicted_cached_tokens == 0


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refused_request_leaves_no_blocks_behind(status: int) -> None:
    """An engine that answers with an error has not computed the prompt."""
    world = World()
    kept = world.serve(prompt(range(8)))
    lease = world.choose(prompt(range(16)))
    assert lease.worker is kept.worker and world.held(prompt(range(16))) == 16
    world.finish(lease, None, "ok", status)
    assert world.held(prompt(range(16))) == 8
    assert lease.decision.status == status and world.stats.prompt_tokens == kept.decision.prompt_tokens


def test_a_failed_request_is_retried_elsewhere_and_leaves_no_blocks_behind() -> None:
    """Nothing ran: the blocks go, the lease goes, the worker tried is not asked again (P32)."""
    world = World()
    lease = world.choose(prompt(range(8)))
    world.placement.fail(lease, world.now_s, "upstream_refused", 502)
    assert world.held(prompt(range(8))) == 0
    world.placement.extend(lease, prompt(range(16)))
    assert world.held(prompt(range(16))) == 0, "an end that is computed late does not bring them back"
    tried = (lease.worker.id,)
    again = world.choose(prompt(range(8)), tried=tried)
    assert again.worker is not lease.worker
    assert (again.decision.reason, again.decision.tried) == ("retry", tried)
    assert (lease.decision.outcome, lease.decision.status) == ("upstream_refused", 502)


def test_failing_spares_blocks_that_a_sibling_uses() -> None:
    """Two requests with one prompt on one worker: the failure of one does not unlearn what the other computes."""
    world = World(count=1)
    one, other = world.choose(prompt(range(8))), world.choose(prompt(range(8)))
    world.placement.fail(one, world.now_s, "client_gone")
    assert world.held(prompt(range(8))) == 8
    world.finish(other)


def test_a_single_candidate_and_a_prompt_without_keys_say_so() -> None:
    """Reasons tell placements that were no choice, or made by queue for want of keys."""
    world = World(count=2)
    assert world.choose(prompt(range(4)), only=[1]).decision.reason == "only_candidate"
    unkeyed = PromptKeys(chain([]), 500, KeyForm.NONE, unkeyed_reason="images")
    lease = world.choose(unkeyed)
    assert (lease.worker.slot, lease.decision.reason) == (0, "least_queue")
    assert lease.decision.unkeyed_reason == "images"
    assert lease.decision.model == "m"
    assert world.choose(unkeyed, model=None).decision.model == ""


def test_a_session_tips_equal_costs() -> None:
    """Without any prefix match worth more, a session stays with its worker; a worker that is gone is no hint."""
    world = World(count=2)
    short = PromptKeys(chain([5]), 20)
    first = world.choose(short, session="s")
    world.finish(first)
    other = 1 - first.worker.slot
    world.finish(world.choose(short, only=[other]))
    for _ in range(10):
        lease = world.choose(short, session="s")
        assert lease.worker is first.worker
        assert lease.decision.hinted == first.worker.id
        world.finish(lease)
    assert world.choose(short, session="new").decision.hinted is None
    assert world.placement.sessions_kept == 2
    assert world.choose(short, session="s", only=[other]).decision.hinted is None
    world.fleet.remove(world.fleet.workers[other].id)
    assert world.choose(short, session="s").decision.hinted is None


def test_explain_has_every_candidate_for_every_policy() -> None:
    """Whatever the policy, each candidate's numbers are on record, and the worker chosen is among them."""
    for policy in POLICIES:
        world = World(policy=policy)
        world.serve(prompt(range(20)))
        decision = world.serve(prompt(range(20))).decision
        kept = world.placement.decision(decision.request_id)
        assert kept is not None and kept.policy == policy
        assert sorted(row.worker for row in kept.candidates) == [worker.id for worker in world.fleet.workers]
        assert kept.predicted_cached_tokens == next(r.matched_tokens for r in kept.candidates if r.worker == kept.worker)
        assert [kept, world.placement.decision("r1")] == world.placement.latest_decisions(5)
        assert world.placement.decisions_kept == 2


def test_workers_without_a_cache_match_nothing() -> None:
    """Truth none: no blocks are entered, and those entered before the truth was known go."""
    world = World(count=1)
    worker = world.fleet.workers[0]
    world.serve(prompt(range(8)))
    world.fleet.apply(report(worker, 200.0, truth=Truth.NONE), 200.0)
    assert world.held(prompt(range(8))) == 0
    lease = world.serve(prompt(range(8)), cached=0)
    assert (lease.decision.predicted_cached_tokens, world.held(prompt(range(8)))) == (0, 0)
    world.placement.fail(world.choose(prompt(range(8))), world.now_s, "upstream_closed")


def test_a_restarted_worker_is_empty_and_old_leases_do_not_fill_it() -> None:
    """A new generation forgets the cache at once; requests from before teach nothing, but still count until they end (P12)."""
    world = World(count=1)
    worker = world.fleet.workers[0]
    lease = world.choose(prompt(range(8)))
    world.fleet.apply(report(worker, 200.0, generation="g2"), 200.0)
    assert world.held(prompt(range(8))) == 0
    assert worker.load.in_flight == 1
    world.placement.first_token(lease, world.now_s + 9)
    world.placement.extend(lease, prompt(range(9)))
    world.finish(lease, Usage(132, 128, 1))
    assert world.held(prompt(range(8))) == 0
    assert world.placement.speed.observations == 0
    assert (worker.load.in_flight, worker.load.pending_tokens) == (0, 0)
    lease = world.choose(prompt(range(8)))
    world.placement.forget(worker)
    world.placement.fail(lease, world.now_s, "upstream_closed")
    assert world.placement.blocks_held(worker) == 0


def test_a_removed_workers_slot_starts_clean() -> None:
    """Leases of the removed worker end without touching the newcomer in its slot."""
    world = World(count=2)
    lease = world.choose(prompt(range(8)), only=[0])
    world.stats.ttft_of(lease.worker.id)
    world.fleet.remove(lease.worker.id)
    assert world.stats.ttft_s == {}
    newcomer = world.fleet.add(spec(9), world.now_s)
    world.fleet.apply(report(newcomer, 200.0), 200.0)
    assert newcomer.slot == 0
    world.placement.extend(lease, prompt(range(12)))
    world.finish(lease, Usage(132, 0, 1))
    assert world.placement.blocks_held(newcomer) == 0
    assert world.placement.load.in_flight == 0
    assert world.choose(prompt(range(8)), only=[0]).worker is newcomer


def test_a_prompt_keyed_in_part_is_completed_later() -> None:
    """The tail enters the worker's model when it is known, before or after the end, and the backlog is corrected."""
    world = World(count=1)
    part = PromptKeys(chain(range(4)), 200, complete=False, exact_tokens=False)
    lease = world.choose(part)
    assert world.placement.is_held(chain(range(4))) and not world.placement.is_held(chain(range(5)))
    world.placement.extend(lease, prompt(range(20)))
    assert world.held(prompt(range(20))) == 20
    assert lease.worker.load.pending_tokens == lease.decision.prompt_tokens == 324
    late = world.choose(part)
    world.finish(late)
    world.placement.extend(late, prompt(range(30)))
    assert world.held(prompt(range(30))) == 30
    assert lease.worker.load.pending_tokens == 324


def test_speed_is_learned_from_streamed_heads() -> None:
    """Only a streamed answer's first byte marks the end of prefill, and only for a request with nothing ahead of it."""
    world = World(count=1, prefill_tokens_per_s=1000.0)
    worker = world.fleet.workers[0]
    for i in range(200):
        lease = world.choose(prompt([i] * 20), stream=i % 2 == 0)
        world.now_s += lease.uncached_tokens / 400
        world.placement.first_token(lease, world.now_s)
        world.finish(lease)
    assert world.placement.speed.observations == 100
    assert world.placement.prefill_tokens_per_s(worker) == pytest.approx(400, rel=0.15)
    world.choose(prompt([999] * 20))
    assert world.placement.backlog_s(worker, world.now_s) == pytest.approx(324 / 400, rel=0.15)
    arrivals, busy = world.placement.rates(worker, world.now_s)
    assert 0.5 < arrivals < 2 and 0.3 < busy < 1.2


def test_a_large_fleet_prices_a_shortlist() -> None:
    """More workers than max_candidates: holders and hint are found among 300, each policy's own pick is in the record."""
    for policy in POLICIES:
        world = World(count=300, policy=policy)
        first = world.serve(prompt(range(20)), session="s")
        second = world.serve(prompt([*range(20), 7]), session="s")
        assert len(second.decision.priced) <= 33
        assert second.worker.id in [row.worker for row in second.decision.priced]
        if policy == "warm":
            assert second.worker is first.worker


def test_a_small_pool_in_a_large_fleet_has_its_own_ring() -> None:
    """Homes are found among the few that serve the model, the same whether asked alone or by skipping the others."""
    world = World(count=40)
    for worker in world.fleet.workers[::10]:
        world.fleet.apply(report(worker, 1.0, models=("m", "rare")), 1.0)
    lease = world.choose(prompt(range(5)), model="rare")
    assert lease.decision.reason == "ring_home" and lease.worker.slot % 10 == 0
    world.finish(lease)
    tried = world.fleet.workers[1].id
    again = World(fleet=world.fleet).choose(prompt(range(5)), model="rare", tried=(tried,))
    assert again.worker is lease.worker


def test_what_is_kept_per_candidate_set_is_bounded() -> None:
    """Sets that never come again, and sets of an old epoch, are dropped."""
    world = World(count=2)
    for _ in range(MAX_POOLS + 20):
        world.finish(world.choose(prompt(range(2)), only=[0, 1]))
    assert len(world.placement._pools) <= MAX_POOLS
    world.fleet.drain(world.fleet.workers[0].id)
    world.finish(world.choose(prompt(range(2))))
    assert len(world.placement._pools) == 1


def test_time_that_stands_or_runs_for_weeks_is_no_trouble() -> None:
    """Sums are rebased before a float overflows, and a clock that goes back is held."""
    world = World(rate_half_life_s=1.0)
    for step_s in (0.0, 1000.0, 1e6, -50.0, 1.0):
        world.now_s += step_s
        world.serve(prompt(range(4)))
    rates = [world.placement.rates(worker, world.now_s) for worker in world.fleet.workers]
    assert 0 < sum(arrivals for arrivals, _ in rates) < 10


def test_equal_workers_share_a_load_without_prefixes() -> None:
    """Unrelated prompts spread over the fleet, none starved, none flooded (P7)."""
    world = World(count=4)
    counts = Counter(world.serve(prompt([1000 + i] * 8)).worker.id for i in range(400))
    assert len(counts) == 4 and min(counts.values()) > 40


def lora_world(count: int, loaded: Sequence[int], **routing: Any) -> World:
    """Workers that all can serve adapter "legal", in the engine's memory on some."""
    world = World(count=count, prefill_tokens_per_s=1000.0, **routing)
    for worker in world.fleet.workers:
        names = ("legal",) * (worker.slot in loaded)
        told = report(worker, 1.0, models=("m", "legal"), adapters=("legal@1",), loaded_adapters=names)
        world.fleet.apply(told, 1.0)
    return world


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("keys", [prompt(range(9)), PromptKeys(chain([]), 200, KeyForm.NONE)], ids=["keyed", "unkeyed"])
def test_workers_that_have_the_adapter_loaded_come_first(policy: str, keys: PromptKeys) -> None:
    """Others only where none has; requests for the base model are not concerned."""
    world = lora_world(4, [2], policy=policy)
    for _ in range(3):
        assert world.serve(keys, model="legal").worker.slot == 2
    world.fleet.drain(world.fleet.workers[2].id)
    assert world.serve(keys, model="legal").worker.slot != 2
    if policy != "warm":
        assert len({world.choose(prompt([n, *range(8)])).worker.slot for n in range(40)}) == 3


def test_an_adapter_is_loaded_elsewhere_when_its_worker_drowns() -> None:
    """Loading costs a time that a queue can outweigh: a hot adapter spreads."""
    world = lora_world(2, [0], adapter_load_s=0.5)
    leases = [world.choose(prompt([n, *range(8)]), model="legal") for n in range(20)]
    assert {lease.worker.slot for lease in leases[:3]} == {0}
    assert {lease.worker.slot for lease in leases} == {0, 1}


def test_a_large_fleet_lists_workers_that_have_the_adapter() -> None:
    """The few that have it among a thousand are always priced, as far as there are places."""
    world = lora_world(100, [40, 41, 97])
    for number in range(10):
        assert world.serve(prompt([number, 2, 3]), model="legal").worker.slot in (40, 41, 97)
    world = lora_world(100, range(50), max_candidates=8)
    assert len(world.serve(prompt([1, 2]), model="legal").decision.priced) <= 8


def test_a_reloaded_adapter_leaves_no_blocks() -> None:
    """Other weights under its name: what was computed with the old ones is no hit, nor what is being computed."""
    world = lora_world(1, [0])
    world.serve(prompt(range(8)), model="legal")
    lease = world.choose(prompt(range(12)), model="legal")
    world.fleet.apply(report(world.fleet.workers[0], 200.0, models=("m", "legal"), adapters=("legal@2",)), 200.0)
    world.placement.extend(lease, prompt(range(20)))
    world.finish(lease, Usage(324, 128, 1))
    assert world.held(prompt(range(8))) == 0


events = st.tuples(
    st.sampled_from(["choose"] * 4 + ["first", "finish", "finish", "fail", "extend", "restart", "down", "remove", "add"]),
    st.integers(0, 30),
    st.integers(0, 3),
)


@settings(max_examples=150)
@given(st.lists(events, max_size=60), st.sampled_from(POLICIES))
def test_leases_return_to_zero_under_any_sequence(steps: list[tuple[str, int, int]], policy: str) -> None:
    """Choices, first tokens, ends of every kind, repeats, restarts, removals in any order: every count is that of the
    live leases throughout and zero at the end, and the index stays whole."""
    world = World(count=3, policy=policy, cache=CacheSettings(default_capacity_tokens=1024, index_bytes=64 * 1024))
    leases: list[Lease] = []
    for step, (what, number, branch) in enumerate(steps):
        lease = leases[number % len(leases)] if leases else None
        worker = world.fleet.workers[number % len(world.fleet)] if len(world.fleet) else None
        match what:
            case "choose":
                try:
                    leases.append(
                        world.choose(prompt([0] * (number % 7) + [branch] * 5), session=str(branch), stream=branch > 0)
                    )
                except NoWorker:
                    assert not any(w.lifecycle is Lifecycle.READY for w in world.fleet.workers)
            case "first" if lease:
                world.placement.first_token(lease, world.now_s)
            case "finish" if lease:
                world.finish(lease, Usage(90, branch * 20, 3) if branch else None, status=200 if branch < 3 else 500)
            case "fail" if lease:
                world.placement.fail(lease, world.now_s, "upstream_closed")
            case "extend" if lease:
                world.placement.extend(lease, prompt(range(number)))
            case "restart" if worker:
                world.fleet.apply(report(worker, world.now_s, generation=f"g{world.now_s}"), world.now_s)
            case "down" if worker:
                world.fleet.mark_down(worker.id, "refused", world.now_s)
            case "remove" if worker:
                world.fleet.remove(worker.id)
            case "add" if len(world.fleet) < 4:
                added = world.fleet.add(spec(50 + step), world.now_s)
                world.fleet.apply(report(added, world.now_s), world.now_s)
        live = [one for one in leases if not one.released]
        assert world.placement.load.in_flight == len(live)
        assert Counter(one.worker.id for one in live) == Counter(
            {one.worker.id: one.worker.load.in_flight for one in leases if one.worker.load.in_flight}
        )
        check_structure(world.placement.index)
    for one in leases:
        world.finish(one)
    assert world.placement.load.in_flight == 0
    assert all((one.worker.load.in_flight, one.worker.load.pending_tokens) == (0, 0) for one in leases)
