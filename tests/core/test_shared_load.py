from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import Mark, RouterLoad
from router.core.elsewhere import marks_of
from router.core.fleet import Fleet
from router.core.shared_load import MAX_TOLD
from router.core.types import WorkerId
from tests.core.builders import prompt, ready_fleet, spec
from tests.core.test_placement import World

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")


class Listener:
    """A router that hears others, over two workers."""

    def __init__(self) -> None:
        self.world = World(fleet=ready_fleet(2))
        self.shared = self.world.placement.shared_load

    @property
    def fleet(self) -> Fleet:
        return self.world.fleet

    def hear(self, full: bool = False, router: str = "r2", **workers: tuple[int, int]) -> None:
        names = {"a": A, "b": B, "x": WorkerId("x:1")}
        self.shared.heard(RouterLoad(router, 1, full, {names[name]: told for name, told in workers.items()}), self.world.now_s)

    def counted(self) -> Any:
        loads = [worker.load for worker in self.fleet.workers]
        return [(load.other_requests, load.other_tokens) for load in loads], self.world.placement.load.other_requests


class Board:
    """Remembers the workers whose load moved."""

    def __init__(self) -> None:
        self.touched: list[WorkerId] = []
        self.marks: list[Mark] = []

    def touch(self, worker: WorkerId) -> None:
        self.touched.append(worker)

    def mark(self, worker: WorkerId, keys: "array[int]", known_blocks: int) -> None:
        self.marks += marks_of(worker, keys, known_blocks)


def test_totals_of_other_routers_are_added_up() -> None:
    """Each message replaces what that router told of those workers; a full one also of all others."""
    here = Listener()
    here.hear(True, a=(2, 300), b=(1, 0))
    here.hear(False, "r3", a=(5, 50), x=(9, 9))
    assert here.counted() == ([(7, 350), (1, 0)], 8)
    here.hear(a=(1, 0))
    assert here.counted() == ([(6, 50), (1, 0)], 7)
    here.hear(True, a=(1, 10))
    assert here.counted() == ([(6, 60), (0, 0)], 6)
    assert here.world.placement.load.other_routers == 2


def test_a_router_that_is_gone_is_taken_off() -> None:
    """An empty full message is what stands for it."""
    here = Listener()
    here.hear(a=(2, 300))
    here.hear(router="r3", a=(1, 100))
    here.hear(True)
    assert here.counted() == ([(1, 100), (0, 0)], 1)
    assert here.world.placement.load.other_routers == 1


def test_what_makes_no_sense_is_bounded() -> None:
    """Negative or endless numbers."""
    here = Listener()
    here.hear(a=(-5, -7), b=(1 << 80, 1 << 80))
    assert here.counted() == ([(0, 0), (MAX_TOLD, MAX_TOLD)], MAX_TOLD)


def test_a_worker_that_leaves_takes_its_share_along() -> None:
    """A new worker under the old name starts with nothing, and nothing is taken off it for the old one."""
    here = Listener()
    here.hear(a=(2, 300), b=(1, 10))
    here.fleet.remove(A)
    here.fleet.add(spec(1), 0.0)
    here.hear(a=(1, 100))
    by_id = {worker.id: worker.load for worker in here.fleet.workers}
    assert (by_id[A].other_requests, by_id[A].other_tokens) == (1, 100)
    assert here.counted()[1] == 2
    here.hear(True)
    assert here.counted() == ([(0, 0), (0, 0)], 0)


def test_own_load_is_noted_as_it_moves() -> None:
    """At choice, first token, a prompt's late end and the end of the request: the workers that changed only."""
    world, board = World(fleet=ready_fleet(2)), Board()
    world.placement.share_load(board)
    lease = world.choose(prompt(range(4)), only=[0])
    world.placement.extend(lease, prompt(range(6)))
    world.placement.first_token(lease, world.now_s)
    other = world.choose(prompt(range(4)), only=[1])
    world.placement.fail(other, world.now_s, "client_gone")
    world.finish(lease)
    assert board.touched == [A, A, A, B, B, A]


def test_own_load_is_told_as_it_is_now() -> None:
    """A request whose answer does not stream counts as computed once it should be, though nothing told so."""
    world = World(fleet=ready_fleet(1))
    world.choose(prompt(range(4)), stream=False)
    assert world.placement.own_load(A, world.now_s) == (1, 68)
    assert world.placement.own_load(A, world.now_s + 60.0) == (1, 0)
    assert world.placement.own_load(WorkerId("x:1"), world.now_s) == (0, 0)


def test_speed_is_not_learned_behind_others() -> None:
    """When a prefill began is not known where another router's may have been ahead of it."""
    here = Listener()
    world = here.world
    for number, others in enumerate([(0, 0), (3, 9000)]):
        here.hear(a=others)
        seen = world.placement.speed.observations
        lease = world.choose(prompt([number, 7, 8]), only=[0])
        world.now_s += 1.0
        world.placement.first_token(lease, world.now_s)
        world.finish(lease)
        assert world.placement.speed.observations - seen == (0 if others[1] else 1)


def test_choices_spread_over_what_other_routers_send() -> None:
    """Two routers that see each other's requests do not pile onto the same worker."""
    here = Listener()
    here.hear(a=(40, 40_000))
    for number in range(6):
        assert here.world.choose(prompt([number, 1])).worker.id == B
    for policy in ("least-queue", "ring"):
        world = World(fleet=ready_fleet(2), policy=policy)
        world.placement.shared_load.heard(RouterLoad("r2", 1, True, {A: (9, 0)}), world.now_s)
        assert {world.choose(prompt([number, 2])).worker.id for number in range(6)} == {B}


messages = st.lists(
    st.tuples(
        st.sampled_from(["r2", "r3"]),
        st.integers(0, 12),
        st.booleans(),
        st.dictionaries(st.sampled_from([A, B]), st.tuples(st.integers(-2, 9), st.integers(-2, 900))),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(messages)
def test_counts_return_to_zero(told: list[tuple[str, int, bool, dict[WorkerId, tuple[int, int]]]]) -> None:
    """Whatever is told in whatever order, with workers that come and go: in the end nothing is left over."""
    here = Listener()
    for router, event, full, workers in told:
        here.shared.heard(RouterLoad(router, 1, full, workers), 0.0)
        if event == 7:
            here.fleet.remove(A)
        elif event == 8 and here.fleet.get(A) is None:
            here.fleet.add(spec(1), 0.0)
        counted, total = here.counted()
        assert all(requests >= 0 and tokens >= 0 for requests, tokens in counted)
        assert total >= sum(requests for requests, _ in counted)
    for router in ("r2", "r3"):
        here.hear(True, router)
    assert here.counted()[1] == 0 and all(pair == (0, 0) for pair in here.counted()[0])
    assert here.world.placement.load.other_routers == 0
