from array import array

from router.core.fleet import Worker
from router.core.load import Lease
from router.core.prefix_index import PrefixIndex
from router.core.speculation import MAX_EXPIRED, Speculation
from router.core.types import Decision, KeyForm, WorkerId
from tests.core.builders import chain, prompt, spec


class World:
    """One worker in slot 0 with room for anything, and blocks that are believed for 2 s."""

    def __init__(self) -> None:
        self.index = PrefixIndex(1 << 30)
        self.index.add_worker(0, 1 << 30)
        self.speculation = Speculation(self.index, 2.0)
        self.worker = Worker(spec(1), 0)

    def send(self, blocks: list[int], now_s: float, *, answered: bool = True) -> Lease:
        decision = Decision("r", 0.0, "warm", "x", WorkerId("w"), "m", 1, KeyForm.TOKENS, None, 0)
        lease = Lease(self.worker, decision, prompt(blocks), 1, now_s)
        if not answered:
            self.worker.load.take(lease)
        self.believe(lease, now_s)
        return lease

    def believe(self, lease: Lease, now_s: float) -> None:
        self.index.insert(0, lease.prompt.keys, now_s)
        lease.inserted_s = now_s
        self.speculation.believe(lease, lease.prompt.keys[-1], now_s)

    def held(self, blocks: list[int]) -> int:
        return self.index.deepest(chain(blocks))


def test_blocks_go_when_events_have_them() -> None:
    """The last block says that all are there; those that a later request shares stay for it."""
    world = World()
    world.send([1, 2, 3], 10.0)
    world.send([1, 2, 9], 10.1)
    world.speculation.stored(0, chain([1, 2]))
    assert world.held([1, 2, 3]) == 3
    world.speculation.stored(0, chain([1, 2, 3]))
    assert (world.held([1, 2, 3]), world.held([1, 2, 9])) == (2, 3)
    world.speculation.stored(0, chain([1, 2, 9])[2:])
    assert world.index.blocks == 0
    world.speculation.stored(0, chain([1, 2, 9]))
    world.speculation.stored(7, chain([1]))
    assert not world.speculation.expire(99.0) and len(world.speculation) == 0


def test_siblings_are_confirmed_together() -> None:
    """The same prompt sent twice is one set of blocks: the event of it ends both."""
    world = World()
    one, other = world.send([1, 2], 10.0), world.send([1, 2], 10.5)
    world.speculation.stored(0, chain([1, 2]))
    assert world.index.blocks == 0 and other.awaited_key is None
    world.send([1, 2], 12.2)
    assert not world.speculation.expire(12.6)
    assert one.awaited_key is None and world.held([1, 2]) == 2, "the first one's end does not take the third one's blocks"


def test_blocks_that_never_come_are_not_believed_for_long() -> None:
    """After the time set, unless the request still waits for its first token: then for as long again."""
    world = World()
    world.send([1], 10.0)
    waiting = world.send([2], 10.5, answered=False)
    assert not world.speculation.expire(11.9) and world.index.blocks == 2
    assert not world.speculation.expire(12.5)
    assert (world.held([1]), world.held([2])) == (0, 1)
    world.worker.load.first_token(waiting, 12.6)
    world.speculation.expire(14.4)
    assert world.held([2]) == 1
    world.speculation.expire(14.5)
    assert world.held([2]) == 0 and len(world.speculation) == 0


def test_a_longer_prompt_is_awaited_by_its_new_end() -> None:
    """The end of a prompt that was keyed after dispatch: events of the first part do not end the wait."""
    world = World()
    lease = world.send([1, 2], 10.0)
    lease.prompt = prompt([1, 2, 3])
    world.believe(lease, 10.1)
    world.speculation.stored(0, chain([1, 2]))
    assert world.held([1, 2, 3]) == 3 and len(world.speculation) == 1
    world.speculation.stored(0, chain([1, 2, 3]))
    assert world.index.blocks == 0


def test_blocks_touched_by_a_request_that_failed_go_with_it() -> None:
    """It shares them with an earlier one, whose end they outlive because they were used since: its own time ends them."""
    world = World()
    world.send([1, 2], 10.0)
    failed = world.send([1, 2, 3], 11.0)
    world.index.drop(0, failed.prompt.keys, 2, 11.0)
    failed.life = -1
    world.speculation.stored(0, chain([1, 2]))
    assert world.held([1, 2, 3]) == 2
    world.speculation.expire(13.0)
    assert world.index.blocks == 0


def test_nothing_is_taken_from_a_model_that_became_a_history() -> None:
    """After `forget` the awaited blocks stay where they are; a worker in its next life is not touched either."""
    world = World()
    world.send([1], 10.0)
    world.speculation.forget(0)
    world.speculation.forget(0)
    world.send([2], 10.0)
    world.worker.life += 1
    assert not world.speculation.expire(20.0)
    assert (world.held([1]), world.held([2])) == (1, 1)


def test_a_choice_does_not_pay_for_all_that_is_due() -> None:
    """After a quiet time the rest of a burst goes in later calls."""
    world = World()
    for number in range(2 * MAX_EXPIRED):
        world.send([number], 10.0)
    assert world.speculation.expire(15.0) and world.index.blocks == MAX_EXPIRED
    assert world.speculation.expire(15.0) and world.index.blocks == 0
    assert not world.speculation.expire(15.0)
    assert world.held([]) == 0 and array("Q") == chain([])
