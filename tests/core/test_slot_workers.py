"""router.core.slot_workers: llama.cpp workers in a fleet, from their reports to the choices they get."""

import pytest

from router.core.fleet import Fleet
from router.core.slot_workers import MAX_SLOTS
from router.core.types import KeyForm, Lifecycle, PromptKeys, Usage, WorkerId, WorkerReport
from router.settings import EngineSpec, FleetSettings
from tests.core.builders import prompt
from tests.core.test_placement import World


def tell(fleet: Fleet, number: int, at_s: float = 0.0, generation: str = "g1", **extra: float) -> None:
    told = WorkerReport(
        WorkerId(f"10.0.0.{number}:8080"),
        "llama.cpp",
        f"http://10.0.0.{number}:8080",
        generation,
        Lifecycle.READY,
        at_s,
        models=("m",),
        block_tokens=1,
        capacity_tokens=8192,
        extra=extra,
    )
    fleet.apply(told, at_s)


def servers(count: int, *, slots: float = 1.0, kind: str = "llama.cpp", **options: int) -> World:
    """A world of llama.cpp workers with so many slots."""
    fleet = Fleet(FleetSettings())
    for number in range(1, count + 1):
        fleet.add(EngineSpec(kind, f"http://10.0.0.{number}:8080", **options), 0.0)  # type: ignore[arg-type]
        tell(fleet, number, slots=slots)
    return World(fleet=fleet)


def predicted(world: World, keys: PromptKeys) -> int:
    lease = world.choose(keys)
    world.finish(lease, None, "client_gone", None)
    return lease.decision.predicted_cached_tokens


def test_slots_are_what_is_predicted() -> None:
    """One slot holds one content: a conversation that was pushed out is not predicted, though an LRU of blocks has room."""
    world = servers(1, ram_tokens=0)
    world.serve(prompt(range(20)), cached=0)
    assert predicted(world, prompt(range(30))) == 320
    world.serve(prompt(range(100, 120)), cached=0)
    assert predicted(world, prompt(range(30))) == 0
    assert world.placement.index.blocks_of(0) > 40


def test_a_worker_without_slots_told_is_modelled_like_any_other() -> None:
    """Until a report tells of slots, and for kinds that have none, the LRU of blocks is the model."""
    for world in (servers(1, slots=0.0), servers(1, kind="vllm")):
        world.serve(prompt(range(20)), cached=0)
        world.serve(prompt(range(100, 120)), cached=0)
        assert predicted(world, prompt(range(30))) == 320


def test_a_ram_cache_of_unknown_size_is_learned() -> None:
    """Without `ram_tokens=` a large one is assumed until misses tell otherwise."""
    world = servers(1)
    for start in range(0, 500, 100):
        world.serve(prompt(range(start, start + 20)), cached=0)
    assert predicted(world, prompt(range(30))) == 320
    world.serve(prompt(range(100, 130)), cached=0)
    model = world.placement._slots.model_of(world.fleet.workers[0])
    assert model is not None and model.ram_tokens < 2000


def test_restart_and_change_of_slots_empty_the_model() -> None:
    """Another process, or another number of slots, holds nothing of before; requests in flight end without effect."""
    world = servers(1, ram_tokens=0)
    worker = world.fleet.workers[0]
    world.serve(prompt(range(20)), cached=0)
    lease = world.choose(prompt(range(30)))
    tell(world.fleet, 1, at_s=1.0, generation="g2", slots=1.0)
    world.finish(lease, Usage(484, 320, 5))
    assert predicted(world, prompt(range(30))) == 0
    world.serve(prompt(range(20)), cached=0)
    tell(world.fleet, 1, at_s=2.0, generation="g2", slots=2.0, unified_kv=1.0)
    model = world.placement._slots.model_of(worker)
    assert model is not None and (len(model.slots), model.unified) == (2, True)
    tell(world.fleet, 1, at_s=3.0, generation="g2", slots=1e9)
    assert len(world.placement._slots.model_of(worker).slots) == MAX_SLOTS  # type: ignore[union-attr]


def test_a_removed_worker_leaves_nothing() -> None:
    """Fleets without such workers pay for one look at a flag."""
    world = servers(1)
    lease = world.choose(prompt(range(20)))
    slots = world.placement._slots
    assert slots.any
    world.fleet.remove("10.0.0.1:8080")
    assert not slots.any and slots.model_of(lease.worker) is None
    world.finish(lease, None, "client_gone", None)
    assert not slots._turns and not slots._models and not slots._workers


def test_failed_requests_give_their_slots_back() -> None:
    """Refused, failed or answered with an error: the slot holds what it held."""
    world = servers(1, ram_tokens=0)
    world.serve(prompt(range(20)), cached=0)
    world.placement.fail(world.choose(prompt(range(100, 140))), world.now_s, "upstream_refused")
    world.finish(world.choose(prompt(range(200, 240))), None, "ok", 400)
    assert predicted(world, prompt(range(30))) == 320
    assert not world.placement._slots._turns


def test_small_requests_leave_hot_slots_alone() -> None:
    """A prompt that would overwrite what a conversation goes on with goes to a worker where it costs nobody anything."""
    world = servers(2, ram_tokens=0)
    first = world.serve(prompt(range(200)), cached=0)
    world.serve(prompt(range(260)), cached=3200, only=[first.worker.slot])
    for small in range(20):
        assert world.serve(prompt([5000 + small, 5001]), cached=0).worker is not first.worker
    assert predicted(world, prompt(range(300))) >= 260 * 16


def test_requests_without_a_prompt_take_no_slot() -> None:
    """Tokenising, embedding and the like are no business of the model."""
    world = servers(1, ram_tokens=0)
    world.serve(prompt(range(20)), cached=0)
    world.serve(prompt([], tokens=0, form=KeyForm.NONE))
    assert predicted(world, prompt(range(30))) == 320


@pytest.mark.parametrize(("told_tokens", "expected"), [(648, 320), (None, 320)])
def test_counts_on_another_scale(told_tokens: int | None, expected: int) -> None:
    """Text keys count estimated tokens: what the engine tells is scaled where it can be."""
    world = servers(1, ram_tokens=0)
    text = prompt(range(20), form=KeyForm.TEXT)
    lease = world.choose(text)
    world.finish(lease, Usage(told_tokens, 0, 11))
    model = world.placement._slots.model_of(lease.worker)
    assert model is not None and model.slots[0].kept is not None
    assert model.slots[0].kept.tokens == (328 if told_tokens else 334)
    assert predicted(world, prompt(range(30), form=KeyForm.TEXT)) == expected


def test_a_doubted_worker_is_tested_against_its_slots() -> None:
    """Load alone decides while its model was wrong; what is compared then is what the slots say, not the LRU of blocks."""
    world = servers(1, ram_tokens=0)
    worker = world.fleet.workers[0]
    for _ in range(60):
        world.serve(prompt(range(20)), cached=0)
        world.now_s += 1.0
    assert worker.truth_reason.startswith("routed by its load only; own history: ")
    world.serve(prompt(range(100, 120)), cached=0)
    world.now_s += 1000.0
    lease = world.choose(prompt(range(20)))
    assert (lease.decision.predicted_cached_tokens, lease.by_history) == (0, 0)
    world.finish(lease, None, "client_gone", None)
    lease = world.choose(prompt(range(30)))
    assert (lease.decision.predicted_cached_tokens, lease.by_history) == (0, 320)
