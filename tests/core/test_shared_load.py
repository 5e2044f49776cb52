from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import RouterLoad
from router.core.fleet import Fleet
from router.core.shared_load import MAX_ROUTERS, MAX_TOLD, SharedLoad
from router.core.types import WorkerId
from tests.core.builders import prompt, ready_fleet, spec
from tests.core.test_placement import World

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")


class Listener:
    """A router that hears others, over two workers."""

    def __init__(self) -> None:
        self.world = World(fleet=ready_fleet(2))
        self.shared = self.world.placement.share_load("me", 2.0)

    @property
    def fleet(self) -> Fleet:
        return self.world.fleet

    def hear(self, seq: int, full: bool = False, router: str = "r2", now_s: float = 0.0, **workers: tuple[int, int]) -> None:
        names = {"a": A, "b": B, "x": WorkerId("x:1")}
        self.shared.heard(RouterLoad(router, seq, full, {names[name]: told for name, told in workers.items()}), now_s)

    def counted(self) -> Any:
        loads = [worker.load for worker in self.fleet.workers]
        return [(load.other_requests, load.other_tokens) for load in loads], self.world.placement.load.other_requests


def test_totals_of_other_routers_are_added_up() -> None:
    """Each message replaces what that router told of those workers; a full one also of all others."""
    here = Listener()
    here.hear(1, True, a=(2, 300), b=(1, 0))
    here.hear(7, False, "r3", a=(5, 50), x=(9, 9))
    assert here.counted() == ([(7, 350), (1, 0)], 8)
    here.hear(2, a=(1, 0))
    assert here.counted() == ([(6, 50), (1, 0)], 7)
    here.hear(3, True, a=(1, 10))
    assert here.counted() == ([(6, 60), (0, 0)], 6)
    assert len(here.shared) == here.world.placement.load.other_routers == 2


def test_late_messages_and_own_ones_change_nothing() -> None:
    """Own messages come back from the others' channel; what is older than the newest is passed by."""
    here = Listener()
    here.hear(5, a=(2, 300))
    here.hear(5, a=(9, 900))
    here.hear(4, True)
    here.hear(9, router="me", a=(9, 900))
    assert here.counted() == ([(2, 300), (0, 0)], 2)
    assert here.shared.stale == 2 and len(here.shared) == 1


def test_a_silent_router_is_taken_off() -> None:
    """Whether it died or cannot be heard; it may start again with any number."""
    here = Listener()
    here.hear(500, now_s=1.0, a=(2, 300))
    here.hear(1, router="r3", now_s=2.0, a=(1, 100))
    here.world.placement.catch_up(3.0)
    assert here.counted() == ([(3, 400), (0, 0)], 3)
    here.world.placement.catch_up(3.1)
    assert here.counted() == ([(1, 100), (0, 0)], 1)
    here.hear(1, now_s=3.2, a=(4, 0))
    assert here.counted() == ([(5, 100), (0, 0)], 5)


def test_what_makes_no_sense_is_bounded() -> None:
    """Negative or endless numbers, and more routers than there can be."""
    here = Listener()
    here.hear(1, a=(-5, -7), b=(1 << 80, 1 << 80))
    assert here.counted() == ([(0, 0), (MAX_TOLD, MAX_TOLD)], MAX_TOLD)
    here.hear(2, True)
    for number in range(MAX_ROUTERS + 3):
        here.hear(1, router=f"n{number}", a=(1, 1))
    assert here.shared.refused == 4 and here.counted()[1] == MAX_ROUTERS - 1


def test_a_worker_that_leaves_takes_its_share_along() -> None:
    """A new worker under the old name starts with nothing, and nothing is taken off it for the old one."""
    here = Listener()
    here.hear(1, a=(2, 300), b=(1, 10))
    here.fleet.remove(A)
    here.fleet.add(spec(1), 0.0)
    here.hear(2, a=(1, 100))
    by_id = {worker.id: worker.load for worker in here.fleet.workers}
    assert (by_id[A].other_requests, by_id[A].other_tokens) == (1, 100)
    assert here.counted()[1] == 2
    here.world.placement.catch_up(99.0)
    assert here.counted() == ([(0, 0), (0, 0)], 0)


def test_own_load_is_told_as_it_moves() -> None:
    """At choice, first token, a prompt's late end and the end of the request: the totals of workers that changed only."""
    here = Listener()
    world, shared = here.world, here.shared
    assert shared.message() is None
    lease = world.choose(prompt(range(4)), only=[0])
    assert shared.message() == RouterLoad("me", 1, False, {A: (1, 68)})
    assert shared.message() is None
    world.placement.extend(lease, prompt(range(6)))
    assert shared.message() == RouterLoad("me", 2, False, {A: (1, 100)})
    world.placement.first_token(lease, world.now_s)
    other = world.choose(prompt(range(4)), only=[1])
    assert shared.message() == RouterLoad("me", 3, False, {A: (1, 0), B: (1, 68)})
    world.placement.fail(other, world.now_s, "client_gone")
    assert shared.full_message() == RouterLoad("me", 4, True, {A: (1, 0)})
    world.finish(lease)
    assert shared.message() == RouterLoad("me", 5, False, {A: (0, 0)})
    assert shared.full_message() == RouterLoad("me", 6, True, {})


def test_choices_spread_over_what_other_routers_send() -> None:
    """Two routers that see each other's requests do not pile onto the same worker."""
    here = Listener()
    here.hear(1, a=(40, 40_000))
    for number in range(6):
        assert here.world.choose(prompt([number, 1])).worker.id == B
    for policy in ("least-queue", "ring"):
        world = World(fleet=ready_fleet(2), policy=policy)
        world.placement.share_load("me", 2.0).heard(RouterLoad("r2", 1, True, {A: (9, 0)}), 0.0)
        assert {world.choose(prompt([number, 2])).worker.id for number in range(6)} == {B}


messages = st.lists(
    st.tuples(
        st.sampled_from(["r2", "r3", "me"]),
        st.integers(0, 12),
        st.booleans(),
        st.dictionaries(st.sampled_from([A, B]), st.tuples(st.integers(-2, 9), st.integers(-2, 900))),
        st.floats(0, 1.5),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(messages)
def test_counts_return_to_zero(told: list[tuple[str, int, bool, dict[WorkerId, tuple[int, int]], float]]) -> None:
    """Whatever is told in whatever order, with silences and workers that come and go: in the end nothing is left over."""
    here, now_s = Listener(), 0.0
    for router, seq, full, workers, pause_s in told:
        now_s += pause_s
        here.shared.heard(RouterLoad(router, seq, full, workers), now_s)
        here.shared.expire(now_s)
        if seq == 7:
            here.fleet.remove(A)
        elif seq == 8 and here.fleet.get(A) is None:
            here.fleet.add(spec(1), now_s)
        counted, total = here.counted()
        assert all(requests >= 0 and tokens >= 0 for requests, tokens in counted)
        assert total >= sum(requests for requests, _ in counted)
    here.shared.expire(now_s + 3.0)
    assert here.counted()[1] == 0 and all(pair == (0, 0) for pair in here.counted()[0])


def test_a_shared_load_needs_no_placement() -> None:
    """It reads the fleet when it is asked; nothing changed is nothing told."""
    world = World()
    shared = SharedLoad("me", world.fleet, world.placement.load, 2.0)
    world.choose(prompt([1]), only=[2])
    assert shared.message() is None
    assert shared.full_message().workers == {WorkerId("10.0.0.3:8000"): (1, 20)}
