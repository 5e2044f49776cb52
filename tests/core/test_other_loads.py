from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import RouterLoad
from router.core.fleet import Fleet
from router.core.other_loads import MAX_TOLD
from router.core.types import WorkerId
from tests.core.builders import prompt, ready_fleet, spec
from tests.core.test_placement import World

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")


class Listener:
    """A router that hears others, over two workers."""

    def __init__(self, **routing: Any) -> None:
        self.world = World(fleet=ready_fleet(2), **routing)

    @property
    def fleet(self) -> Fleet:
        return self.world.fleet

    def hear(self, router: str = "r2", full: bool = False, **workers: tuple[int, int]) -> None:
        names = {"a": A, "b": B, "x": WorkerId("x:1")}
        self.world.placement.router_load(RouterLoad(router, 1, full, {names[name]: told for name, told in workers.items()}))

    def counted(self) -> Any:
        loads = [worker.load for worker in self.fleet.workers]
        return [(load.other_requests, load.other_tokens) for load in loads], self.world.placement.load.other_requests


def test_totals_of_other_routers_are_added_up() -> None:
    """Each message replaces what that router told of those workers; a full one also of all others."""
    here = Listener()
    here.hear(full=True, a=(2, 300), b=(1, 0))
    here.hear("r3", a=(5, 50), x=(9, 9))
    assert here.counted() == ([(7, 350), (1, 0)], 8)
    here.hear(a=(1, 0))
    assert here.counted() == ([(6, 50), (1, 0)], 7)
    here.hear(full=True, a=(1, 10))
    assert here.counted() == ([(6, 60), (0, 0)], 6)
    assert here.world.placement.load.other_routers == 2


def test_a_router_that_is_gone_has_nothing() -> None:
    """An empty full load takes all of its share off, and it does not count as a router."""
    here = Listener()
    here.hear(a=(2, 300), b=(3, 30))
    here.hear(full=True)
    here.hear("r9", full=True)
    assert here.counted() == ([(0, 0), (0, 0)], 0)
    assert here.world.placement.load.other_routers == 0


def test_numbers_that_make_no_sense_are_bounded() -> None:
    """Negative or endless: what is believed cannot overflow a cost, nor lower that of others."""
    here = Listener()
    here.hear(a=(-5, -7), b=(1 << 80, 1 << 80))
    assert here.counted() == ([(0, 0), (MAX_TOLD, MAX_TOLD)], MAX_TOLD)
    assert here.world.choose(prompt([1])).worker.id == A


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
    here.hear(full=True)
    assert here.counted() == ([(0, 0), (0, 0)], 0)


class Board:
    """Notes what is touched, and what the load is then."""

    def __init__(self, world: World) -> None:
        self.told: list[tuple[str, tuple[int, int]]] = []
        self._world = world

    def touch(self, worker: WorkerId) -> None:
        self.told.append((worker, self._world.placement.own_load(worker)))


def test_own_load_is_told_as_it_moves() -> None:
    """At choice, first token, a prompt's late end and the end of the request, each time after the counts have moved."""
    world = Listener().world
    board = Board(world)
    world.placement.share_load(board)
    lease = world.choose(prompt(range(4)), only=[0])
    world.placement.extend(lease, prompt(range(6)))
    world.placement.first_token(lease, world.now_s)
    other = world.choose(prompt(range(4)), only=[1])
    world.placement.fail(other, world.now_s, "client_gone")
    world.finish(lease)
    assert board.told == [(A, (1, 68)), (A, (1, 100)), (A, (1, 0)), (B, (1, 68)), (B, (0, 0)), (A, (0, 0))]
    assert world.placement.own_load(WorkerId("x:1")) == (0, 0)


def test_choices_spread_over_what_other_routers_send() -> None:
    """Two routers that see each other's requests do not pile onto the same worker, whatever the policy."""
    for policy in ("warm", "least-queue", "ring"):
        here = Listener(policy=policy)
        here.hear(a=(40, 40_000))
        assert {here.world.choose(prompt([number, 2])).worker.id for number in range(6)} == {B}


messages = st.lists(
    st.tuples(
        st.sampled_from(["r2", "r3", "r4"]),
        st.booleans(),
        st.dictionaries(st.sampled_from([A, B]), st.tuples(st.integers(-2, 9), st.integers(-2, 900))),
        st.sampled_from(["", "", "remove", "add"]),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(messages)
def test_counts_return_to_zero(told: list[tuple[str, bool, dict[WorkerId, tuple[int, int]], str]]) -> None:
    """Whatever is told in whatever order, with workers that come and go: in the end nothing is left over."""
    here = Listener()
    for router, full, workers, change in told:
        here.world.placement.router_load(RouterLoad(router, 1, full, workers))
        if change == "remove":
            here.fleet.remove(A)
        elif change == "add" and here.fleet.get(A) is None:
            here.fleet.add(spec(1), 0.0)
        counted, total = here.counted()
        assert all(requests >= 0 and tokens >= 0 for requests, tokens in counted)
        assert total >= sum(requests for requests, _ in counted)
    for router in ("r2", "r3", "r4"):
        here.hear(router, full=True)
    assert here.counted()[1] == 0 and all(pair == (0, 0) for pair in here.counted()[0])
