"""Placement over workers that tell of their caches: what is matched by what, and what becomes of it."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Removed, Stored
from router.core.cache_truth import united, without
from router.core.fleet import FleetChange, Worker
from router.core.load import Lease
from router.core.prefix_node import Level
from router.core.types import KeyForm, PromptKeys, Truth, Usage, WorkerId
from router.settings import CacheSettings
from tests.core.builders import chain, levels, prompt, ready_fleet, report
from tests.core.test_placement import World as PlacementWorld


class World(PlacementWorld):
    """Workers whose truth is exact and whose deltas are followed, empty at first."""

    def __init__(self, count: int = 2, truth: Truth = Truth.EXACT, **cache: Any) -> None:
        cache = {"distrust_requests": 10, "retest_s": 60.0, **cache}
        super().__init__(cache=CacheSettings(**cache), fleet=ready_fleet(count, truth=truth))
        self.changes: list[FleetChange] = []
        self.fleet.on_change = self.changes.append
        self.truth = self.placement.cache_truth
        self.seqs = [0] * count
        if truth is Truth.EXACT:
            for slot in range(count):
                assert self.tell(slot)
        self.changes.clear()

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self.fleet.workers

    def tell(self, slot: int, *changes: CacheChange) -> bool:
        self.seqs[slot] += 1
        worker = self.workers[slot]
        return self.truth.delta(CacheDelta(worker.id, worker.generation, self.seqs[slot], changes))

    def show(self, slot: int, *runs: Stored) -> None:
        self.seqs[slot] += 1
        worker = self.workers[slot]
        self.truth.snapshot(CacheSnapshot(worker.id, worker.generation, self.seqs[slot], runs))

    def truth_of(self, slot: int) -> Truth:
        return self.workers[slot].truth

    def caught_up(self) -> None:
        while self.placement.catch_up(self.now_s):
            pass

    def predicted(self, keys: PromptKeys, slot: int) -> int:
        """Cached tokens that a request to this worker would be predicted to have."""
        lease = self.choose(keys, only=[slot])
        self.placement.fail(lease, self.now_s, "upstream_refused")
        return lease.decision.predicted_cached_tokens

    def served(self, keys: PromptKeys, slot: int, cached: int) -> Lease:
        """A request whose engine counted so many cached tokens, at this worker."""
        return self.serve(keys, cached, only=[slot])


def stored(blocks: "list[int] | range") -> Stored:
    return Stored(None, chain(blocks))


def test_a_worker_in_sync_is_matched_by_its_events() -> None:
    """What it says is cached counts, whoever sent it there; what it says is gone is gone, whatever was sent."""
    world = World()
    assert [worker.truth for worker in world.workers] == [Truth.EXACT, Truth.EXACT]
    world.tell(0, stored(range(20)))
    lease = world.choose(prompt(range(30)))
    assert (lease.worker.slot, lease.decision.reason) == (0, "warm_prefix")
    assert lease.decision.predicted_cached_tokens == 320
    row = next(row for row in world.placement.latest_decisions(1)[0].candidates if row.worker == lease.worker.id)
    assert (row.truth, row.matched_tokens) == (Truth.EXACT, 320)
    world.placement.first_token(lease, world.now_s)
    world.tell(0, Stored(chain(range(20))[-1], chain(range(30))[20:]))
    world.finish(lease, Usage(484, 320, 4))
    assert world.placement.blocks_held(world.workers[0]) == 30
    world.tell(0, Removed(chain(range(30))[4:]))
    assert world.predicted(prompt(range(30)), 0) == 64
    assert world.placement.blocks_held(world.workers[0]) == 4


@pytest.mark.parametrize(
    ("blocks", "tokens", "block_tokens", "expected"),
    [
        pytest.param(10, 164, 16, 160, id="a rest behind the last block"),
        pytest.param(10, 160, 16, 144, id="vLLM computes the last block of a prompt that ends with it"),
        pytest.param(10, 161, 16, 160, id="one token behind it"),
        pytest.param(10, 160, 64, 128, id="large blocks"),
        pytest.param(10, 160, 1, 159, id="SGLang, page of one token"),
    ],
)
def test_predictions_are_the_engines_own(blocks: int, tokens: int, block_tokens: int, expected: int) -> None:
    """Hits are whole blocks, short of the prompt's last token."""
    world = World()
    world.fleet.apply(report(world.workers[0], 1.0, truth=Truth.EXACT, block_tokens=block_tokens), 1.0)
    world.tell(0, stored(range(blocks)))
    assert world.predicted(prompt(range(blocks), tokens), 0) == expected


def test_what_was_just_sent_is_believed_until_events_have_it() -> None:
    """Siblings follow at once (P6); then only events count: when the engine evicts it, nobody believes in it longer."""
    world = World()
    first = world.choose(prompt(range(8)))
    slot = first.worker.slot
    second = world.choose(prompt([*range(8), 90]))
    assert second.worker is first.worker and second.decision.predicted_cached_tokens == 128
    assert world.placement.is_held(chain(range(8)))
    world.tell(slot, stored(range(8)), Stored(chain(range(8))[-1], chain([*range(8), 90])[8:]))
    assert world.placement.index.blocks == 0
    assert world.placement.is_held(chain(range(8))) and not world.placement.is_held(chain([7]))
    world.tell(slot, Removed(chain(range(8))[1:]), Removed(chain([*range(8), 90])[8:]))
    assert world.predicted(prompt(range(8)), slot) == 16


def test_what_events_have_is_not_entered_again() -> None:
    """A prompt that is cached whole costs the prefix index nothing; nor does one shorter than a block of the engine."""
    world = World()
    world.fleet.apply(report(world.workers[0], 1.0, truth=Truth.EXACT, block_tokens=64), 1.0)
    world.tell(0, stored(range(8)))
    for blocks in (range(8), range(9), range(30, 33)):
        world.finish(world.choose(prompt(blocks), only=[0]))
    assert world.placement.index.blocks == 0
    world.finish(world.choose(prompt(range(12)), only=[0]))
    assert world.placement.index.blocks == 12
    world.tell(0, Stored(chain(range(8))[-1], chain(range(12))[8:]))
    assert world.placement.index.blocks == 0


def test_unconfirmed_blocks_are_believed_for_their_time_only() -> None:
    """An engine that evicted before it told, or tells nothing: after `speculative_s` the events are right."""
    world = World(speculative_s=1.0)
    lease = world.choose(prompt(range(8)), only=[0])
    world.finish(lease)
    world.now_s += 0.9
    assert world.predicted(prompt(range(8)), 0) == 128
    world.now_s += 1.1
    assert world.predicted(prompt(range(8)), 0) == 0
    world.finish(world.choose(prompt(range(8)), only=[0]))
    world.now_s += 1.1
    world.caught_up()
    assert world.placement.index.blocks == 0


def test_a_failed_request_leaves_nothing_behind() -> None:
    """Its own blocks go at once, those that it shares with others when their time is over; what events have stays."""
    world = World(count=1)
    world.tell(0, stored(range(4)))
    one, other = world.choose(prompt(range(8))), world.choose(prompt([*range(6), 99]))
    world.placement.fail(one, world.now_s, "upstream_closed")
    assert world.predicted(prompt(range(8)), 0) == 96
    world.finish(other, None, "ok", 503)
    assert world.predicted(prompt([*range(6), 99]), 0) == 96
    world.now_s += 2.0
    world.caught_up()
    assert world.predicted(prompt(range(8)), 0) == 64


def test_prompts_without_token_keys_are_matched_by_history() -> None:
    """Events know tokens only: text keys are remembered as for any other worker."""
    world = World(count=1)
    text = prompt(range(100, 108), form=KeyForm.TEXT)
    assert world.serve(text, 0).by_events == -1
    world.now_s += 60.0
    assert world.serve(text).decision.predicted_cached_tokens == 128
    assert world.serve(prompt(range(8)), 0).decision.predicted_cached_tokens == 0


def test_out_of_sync_is_history() -> None:
    """A gap: what was told is not used, the router's own model is, and the decision says so; a snapshot mends it."""
    world = World(count=2)
    worker = world.workers[0]
    world.tell(0, stored(range(20)))
    world.serve(prompt([50, 51]), only=[0])
    world.seqs[0] += 1
    assert not world.tell(0, stored(range(30)))
    assert (world.truth_of(0), worker.truth_reason.split()[0]) == (Truth.MODELLED, "exact")
    assert world.truth.wanted() == [worker.id]
    lease = world.served(prompt(range(20)), 0, 0)
    assert lease.decision.predicted_cached_tokens == 0
    assert lease.decision.priced[0].truth is Truth.MODELLED
    assert world.predicted(prompt(range(20)), 0) == 320, "by its own history now"
    world.show(0, stored(range(10)))
    assert world.truth_of(0) is Truth.EXACT and world.truth.wanted() == []
    assert world.predicted(prompt(range(20)), 0) == 160
    assert [(change.before, change.after) for change in world.changes] == [("exact", "modelled"), ("modelled", "exact")]


def test_only_workers_that_say_exact_are_asked_for_snapshots() -> None:
    """Those whose sidecars publish nothing have nothing to show."""
    world = World(truth=Truth.MODELLED)
    assert world.truth.wanted() == []
    world.fleet.apply(report(world.workers[1], 1.0, truth=Truth.EXACT), 1.0)
    assert world.truth.wanted() == [world.workers[1].id]
    assert world.tell(1) and world.truth_of(1) is Truth.EXACT


def test_a_restart_is_forgotten_at_once() -> None:
    """No stale prediction after the first report of the new process, and none of what its requests in flight left (P12)."""
    world = World(count=1)
    worker = world.workers[0]
    world.tell(0, stored(range(20)))
    lease = world.choose(prompt(range(30)))
    world.fleet.apply(report(worker, 200.0, generation="g2", truth=Truth.EXACT), 200.0)
    assert world.truth_of(0) is Truth.MODELLED and worker.load.in_flight == 1
    assert world.predicted(prompt(range(30)), 0) == 0
    world.seqs[0] = 0
    world.tell(0, stored(range(2)))
    assert world.truth_of(0) is Truth.EXACT and world.predicted(prompt(range(30)), 0) == 32
    world.finish(lease, Usage(484, 320, 1))
    assert worker.trust.events.requests == 0


def test_a_sidecar_that_is_lost_is_not_believed() -> None:
    """The engine may go on without it: history until it is back."""
    world = World(count=1)
    world.tell(0, stored(range(20)))
    world.truth.lost(world.workers[0].id)
    assert world.truth_of(0) is Truth.MODELLED and world.predicted(prompt(range(20)), 0) == 0


def test_a_removed_worker_takes_its_events_along() -> None:
    """Its slot's next worker starts with nothing, and nobody hears of a truth that changed."""
    world = World(count=2)
    world.tell(0, stored(range(20)))
    gone = world.workers[0]
    lease = world.choose(prompt([7, 8, 9]), only=[0])
    world.fleet.remove(gone.id)
    assert world.changes == []
    newcomer = world.fleet.add(gone.spec, world.now_s)
    world.fleet.apply(report(newcomer, 200.0), 200.0)
    assert (newcomer.slot, newcomer.truth) == (0, Truth.MODELLED)
    assert world.predicted(prompt(range(20)), 0) == 0
    world.finish(lease)
    world.now_s += 5.0
    world.serve(prompt([1]))
    assert world.truth.special == 0b10


def test_events_that_keep_missing_are_dropped_and_tested() -> None:
    """The engine counts other hits than its events promise: history takes over, the events are compared in silence, and
    come back once they are right; each change is told once, with its reason."""
    world = World(count=1)
    worker = world.workers[0]
    world.tell(0, stored(range(20)))
    for _ in range(10):
        world.served(prompt(range(20)), 0, 0)
        world.now_s += 3.0
    assert world.truth_of(0) is Truth.UNTRUSTED
    assert worker.truth_reason.startswith("routed by own history; cache events: 320 cached tokens a request predicted, 0 ")
    lease = world.served(prompt(range(20)), 0, 320)
    assert (lease.decision.predicted_cached_tokens, lease.by_events, lease.by_history) == (0, -1, 0)
    assert world.served(prompt(range(20)), 0, 320).decision.predicted_cached_tokens == 320, "by history"
    world.now_s += 60.0
    for number in range(10):
        assert world.truth_of(0) is Truth.UNTRUSTED
        lease = world.served(prompt([*range(20), number]), 0, 320)
        assert lease.by_events == 320
    assert world.truth_of(0) is Truth.EXACT and worker.truth_reason == ""
    told = [(change.what, change.before, change.after) for change in world.changes]
    assert told == [("truth", "exact", "untrusted"), ("truth", "untrusted", "exact")]
    assert worker.trust.demotions == 1


def test_a_prediction_that_events_alone_did_not_make_is_not_held_against_them() -> None:
    """A sibling that was sent before the first one's blocks were computed misses: the guess was the router's."""
    world = World(count=1)
    for number in range(30):
        first = world.choose(prompt([number, *range(20)]))
        world.served(prompt([number, *range(20), 5]), 0, 0)
        world.finish(first, Usage(340, 0, 1))
    assert world.truth_of(0) is Truth.EXACT
    assert world.workers[0].error_tokens_mean > 100


def test_an_engine_that_serves_nothing_is_routed_by_load() -> None:
    """Truth modelled or worse, and whatever is sent there comes back with no hit: only its load counts until that changes."""
    world = World(count=1, truth=Truth.MODELLED)
    worker = world.workers[0]
    for _ in range(25):
        world.served(prompt(range(20)), 0, 0)
        world.now_s += 1.0
    assert world.truth_of(0) is Truth.UNTRUSTED and worker.truth_reason.startswith("routed by its load only; own history: ")
    assert world.predicted(prompt(range(20)), 0) == 0
    world.now_s += 60.0
    for _ in range(10):
        lease = world.served(prompt(range(20)), 0, 320)
    assert lease.by_history == 320
    assert world.truth_of(0) is Truth.MODELLED and worker.truth_reason == ""
    assert world.predicted(prompt(range(20)), 0) == 320


def test_events_and_history_both_wrong_is_load_only() -> None:
    """First the events are dropped, then the history that took their place; both are tested again on their own."""
    world = World(count=1, retest_s=1000.0)
    worker = world.workers[0]
    world.tell(0, stored(range(20)))
    for _ in range(45):
        world.served(prompt(range(20)), 0, 0)
        world.now_s += 3.0
    assert worker.truth_reason.startswith("routed by its load only; own history: ") and worker.trust.demotions == 2
    assert world.served(prompt(range(20)), 0, 0).by_history == -1
    world.now_s += 1000.0
    for _ in range(10):
        world.served(prompt(range(20)), 0, 320)
    assert world.truth_of(0) is Truth.EXACT


def test_numbers_that_make_no_sense_are_not_compared() -> None:
    """More cached tokens than the prompt has, another tokenizer's prompt, no keys at all: no verdict rests on that."""
    world = World(count=1)
    world.tell(0, stored(range(20)))
    trust = world.workers[0].trust
    keys = prompt(range(20))
    for usage in (Usage(324, 999, 1), Usage(324, -5, 1)):
        world.finish(world.choose(keys), usage)
    world.finish(world.choose(PromptKeys(array("Q"), 50, KeyForm.NONE)), Usage(50, 0, 1))
    world.finish(world.choose(PromptKeys(keys.keys, 340, exact_tokens=False)), Usage(340, 0, 1))
    world.finish(world.choose(PromptKeys(array("Q"), 0)), Usage(None, 0, 1))
    assert (trust.events.requests, trust.history.requests) == (0, 0)


def test_models_of_exact_workers_keep_their_size() -> None:
    """What the engine holds is told; a miss there says nothing about the router's model of it."""
    world = World(count=1, default_capacity_tokens=3200)
    worker = world.workers[0]
    for number in range(9):
        world.served(prompt([number, *range(30)]), 0, 0)
        world.now_s += 3.0
        world.served(prompt([number, *range(30)]), 0, 480)
    assert world.placement.capacity_tokens(worker) == 3200


def test_both_indexes_share_the_byte_bound() -> None:
    """Blocks told by events take up to three quarters; models of other workers make room for them."""
    world = World(count=2, index_bytes=1 << 20, default_capacity_tokens=1 << 20)
    world.fleet.apply(report(world.workers[1], 1.0, truth=Truth.MODELLED), 1.0)
    index = world.placement.index
    for number in range(900):
        world.finish(world.choose(prompt([number, *range(60)]), only=[1]))
    before = index.bytes
    for number in range(3000):
        world.tell(0, stored([number, *range(20)]))
    world.finish(world.choose(prompt([1000, *range(60)]), only=[1]))
    assert world.truth.events.full_blocks > 0
    assert index.bytes < before and index.bytes + world.truth.events.bytes <= 1 << 20


def test_a_router_that_starts_late_is_right_with_the_first_choice() -> None:
    """Snapshots come in pieces; once they are in, nothing has to be learned."""
    world = World(count=2, truth=Truth.MODELLED)
    for slot, worker in enumerate(world.workers):
        world.fleet.apply(report(worker, 1.0, truth=Truth.EXACT), 1.0)
        world.seqs[slot] = 70
    runs = [stored([number, *range(60)]) for number in range(100)]
    world.show(1, *runs)
    world.show(0)
    assert world.truth_of(1) is Truth.MODELLED
    world.caught_up()
    assert world.truth_of(1) is Truth.EXACT
    lease = world.choose(prompt([50, *range(60), 7]))
    assert (lease.worker.slot, lease.decision.predicted_cached_tokens) == (1, 976)


hostile_keys = st.lists(st.sampled_from([*chain(range(12)), 0, 1, (1 << 64) - 1]), max_size=20).map(
    lambda keys: array("Q", keys)
)
hostile_changes = st.one_of(
    st.builds(Stored, st.none() | st.sampled_from([*chain(range(12)), 5]), hostile_keys),
    st.builds(Removed, hostile_keys),
    st.builds(Cleared),
)
hostile_messages = st.tuples(
    st.sampled_from(["delta", "snapshot", "lost", "choose", "report", "catch up"]),
    st.sampled_from(["10.0.0.2:8000", "nobody:1", ""]),
    st.sampled_from(["g1", "g2", ""]),
    st.integers(-3, 6) | st.just(1 << 70),
    st.lists(hostile_changes, max_size=4).map(tuple),
)


@settings(max_examples=200)
@given(st.lists(hostile_messages, max_size=30))
def test_a_hostile_sidecar_harms_only_its_own_worker(
    messages: list[tuple[str, str, str, int, tuple[CacheChange, ...]]],
) -> None:
    """Anything in any order from one worker and from strangers: nothing raises, the other worker's blocks stay what it said,
    and requests go on."""
    world = World(count=2)
    world.tell(0, stored(range(9)))
    for what, name, generation, seq, changes in messages:
        worker_id = WorkerId(name)
        match what:
            case "delta":
                world.truth.delta(CacheDelta(worker_id, generation, seq, changes))
            case "snapshot":
                runs = tuple(change for change in changes if isinstance(change, Stored))
                world.truth.snapshot(CacheSnapshot(worker_id, generation, seq, runs))
            case "lost":
                world.truth.lost(worker_id)
            case "choose":
                lease = world.choose(prompt(range(seq % 12)))
                world.finish(lease, Usage(lease.decision.prompt_tokens, max(seq, 0), 1))
            case "report":
                world.now_s += 1.0
                told = report(world.workers[1], world.now_s, generation=generation, truth=Truth.EXACT)
                world.fleet.apply(told, world.now_s)
            case "catch up":
                world.placement.catch_up(world.now_s)
        own = world.truth.events.levels(chain(range(12)), 0b1)
        assert pairs(own) == [(9, 0b1)]
        assert world.truth.feed.in_sync(world.workers[0].id)
    assert world.placement.load.in_flight == 0


@pytest.mark.parametrize(
    ("some", "others", "both"),
    [
        ([], [(3, 1)], [(3, 1)]),
        ([(3, 1)], [], [(3, 1)]),
        ([(5, 0b1), (2, 0b11)], [(7, 0b100), (2, 0b1100)], [(7, 0b100), (5, 0b101), (2, 0b1111)]),
        ([(5, 0b1)], [(5, 0b1), (3, 0b11)], [(5, 0b1), (3, 0b11)]),
        ([(5, 0b11)], [(4, 0b1)], [(5, 0b11)]),
        ([(4, 0b1)], [(9, 0b10), (6, 0b110), (1, 0b1110)], [(9, 0b10), (6, 0b110), (4, 0b111), (1, 0b1111)]),
    ],
)
def test_levels_of_two_sources(some: list[tuple[int, int]], others: list[tuple[int, int]], both: list[tuple[int, int]]) -> None:
    """A worker holds what either source says, deepest first, masks growing."""
    assert pairs(united(levels(*some), levels(*others))) == both
    assert pairs(united(levels(*others), levels(*some))) == both


def test_levels_without_some_workers() -> None:
    """As if they held nothing."""
    assert pairs(without(levels((5, 0b1), (4, 0b11), (2, 0b111)), 0b1)) == [(4, 0b10), (2, 0b110)]
    assert pairs(without(levels((5, 0b1), (4, 0b11)), 0b10)) == [(5, 0b1)]
    assert without(levels((5, 0b1)), 0b1) == []


def pairs(found: list[Level]) -> list[tuple[int, int]]:
    return [(level.blocks, level.mask) for level in found]
