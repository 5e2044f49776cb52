from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache_delta import Mark, RouterLoad
from router.core.elsewhere import DEPTHS, SentElsewhere, marks_of
from router.core.types import Truth, WorkerId
from tests.core.builders import chain, prompt, ready_fleet
from tests.core.test_placement import World
from tests.core.test_shared_load import Board

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")
KEEP_S = 2.0


def sent(max_marks: int = 100) -> SentElsewhere:
    return SentElsewhere(ready_fleet(2), KEEP_S, max_marks)


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_what_two_prompts_share_is_known_to_within_a_fifth(blocks: int, shared: int) -> None:
    """Few marks tell it, and never more than there is."""
    one, other = chain(range(blocks)), chain([*range(min(shared, blocks)), 9999])
    elsewhere = sent(1000)
    marks = marks_of(A, one, 0)
    assert len(marks) <= 4 * blocks.bit_length()
    elsewhere.heard(tuple(marks), 1.0)
    found = elsewhere.levels(other, 1.0)
    depth = found[0].blocks if found else 0
    assert min(shared, blocks) * 4 / 5 <= depth <= min(shared, blocks)


def test_only_what_is_new_there_is_marked() -> None:
    """What is known to be held needs no mark; nor does a prompt without keys."""
    assert [mark.blocks for mark in marks_of(A, chain(range(40)), 12)] == [14, 16, 20, 24, 28, 32, 40]
    assert marks_of(A, chain(range(40)), 40) == marks_of(A, array("Q"), 0) == []
    assert DEPTHS[-1] >= 1 << 20, "longer prompts than any engine takes"


def test_holders_grow_towards_the_start() -> None:
    """Two workers were sent prompts that part after some blocks; what both were sent counts for the latest."""
    elsewhere = sent()
    elsewhere.heard(tuple(marks_of(A, chain(range(16)), 0)), 1.0)
    elsewhere.heard(tuple(marks_of(B, chain([*range(4), 99, 98]), 0)), 1.1)
    assert [(level.blocks, level.mask) for level in elsewhere.levels(chain(range(20)), 1.2)] == [(16, 0b01), (4, 0b11)]


def test_marks_are_kept_for_a_while_and_are_bounded() -> None:
    """Each for the time set, from when it was heard last; the oldest go first where there are too many."""
    elsewhere = sent(max_marks=3)
    keys = chain(range(4))
    elsewhere.heard(tuple(marks_of(A, keys, 0)), 1.0)
    assert (len(elsewhere), elsewhere.dropped) == (3, 1)
    assert [level.blocks for level in elsewhere.levels(keys, 1.0)] == [4] and not elsewhere.levels(keys[:1], 1.0)
    elsewhere.heard((Mark(A, 2, keys[1]),), 2.0)
    assert [level.blocks for level in elsewhere.levels(keys, 3.5)] == [2]
    elsewhere.expire(3.5)
    assert len(elsewhere) == 1
    elsewhere.expire(4.0)
    assert len(elsewhere) == 0


def test_workers_that_cannot_hold_it_are_left_out() -> None:
    """Strangers, kinds without a prefix cache, and workers that left or began anew."""
    fleet = ready_fleet(3)
    fleet.workers[2].truth = Truth.NONE
    elsewhere = SentElsewhere(fleet, KEEP_S, 100)
    keys = chain(range(2))
    names = [*(WorkerId(worker.id) for worker in fleet.workers), WorkerId("x:1")]
    elsewhere.heard(tuple(mark for name in names for mark in marks_of(name, keys, 0)), 1.0)
    assert [level.mask for level in elsewhere.levels(keys, 1.0)] == [0b10]
    elsewhere.heard(tuple(marks_of(A, chain([5]), 0)), 1.0)
    elsewhere.forget(fleet.workers[1])
    assert not elsewhere.levels(keys, 1.0) and len(elsewhere) == 1
    elsewhere.forget(fleet.workers[0])
    assert len(elsewhere) == 0


def pool(truth: Truth = Truth.MODELLED) -> tuple[World, World, Board]:
    """Two routers over the same two workers, and what the first tells the second."""
    here, there = (World(fleet=ready_fleet(2, truth=truth)) for _ in range(2))
    board = Board()
    here.placement.share_load(board)
    return here, there, board


def tell(there: World, board: Board) -> None:
    marks, board.marks = tuple(board.marks), []
    there.placement.shared_load.heard(RouterLoad("r1", 1, True, {A: (1, 400)}, marks), there.now_s)


@pytest.mark.parametrize("order", [1, -1])
def test_a_new_prefix_is_placed_once_though_two_routers_meet_it(order: int) -> None:
    """The second router follows the first before any engine answered, though the ring or load would have it otherwise."""
    here, there, board = pool()
    workers = here.fleet.workers[::order]
    first = here.choose(prompt(range(64)), only=[workers[0].slot])
    tell(there, board)
    second = there.choose(prompt([*range(60), 7, 8]))
    assert second.worker.id == first.worker.id
    assert (second.decision.reason, second.decision.predicted_cached_tokens) == ("warm_prefix", 56 * 16)
    assert not second.confirmed, "nothing is learnt about a model that did not say it"


def test_a_prompt_is_keyed_as_deep_as_it_was_sent_elsewhere() -> None:
    """Keys are made only as far as they may matter; what another router was the first to send matters."""
    here, there, board = pool()
    keys = chain(range(64))
    assert not there.placement.is_held(keys[:16])
    here.choose(prompt(range(64)))
    tell(there, board)
    assert there.placement.is_held(keys[:16]) and there.placement.is_held(keys[:50])
    assert not there.placement.is_held(chain([*range(15), 99]))
    there.now_s += 3.0
    there.choose(prompt([5]))
    assert not there.placement.is_held(keys[:16])
    there.placement.catch_up(there.now_s)
    assert len(there.placement.elsewhere) == 0


def test_what_only_marks_said_is_no_history_of_a_request_that_failed() -> None:
    """Nothing ran there: the model holds what it held before."""
    here, there, board = pool()
    here.choose(prompt(range(64)), only=[0])
    tell(there, board)
    lease = there.choose(prompt([*range(60), 7, 8]))
    assert lease.decision.predicted_cached_tokens > 0
    there.placement.fail(lease, there.now_s, "upstream_closed")
    assert there.placement.index.blocks == 0


def test_what_is_told_ends_with_the_worker() -> None:
    """A restart there empties the cache that was told of."""
    here, there, board = pool()
    here.choose(prompt(range(64)), only=[0])
    tell(there, board)
    there.placement.forget(there.fleet.workers[0])
    assert there.choose(prompt(range(64))).decision.predicted_cached_tokens == 0


def test_a_tail_that_is_keyed_later_is_marked_then() -> None:
    """A long prompt is sent before all of its keys are known."""
    here, _, board = pool()
    keys = prompt(range(64))
    lease = here.choose(prompt(range(10)))
    assert [mark.blocks for mark in board.marks] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    board.marks.clear()
    here.placement.extend(lease, keys)
    assert [mark.blocks for mark in board.marks] == [12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]


def test_a_worker_without_a_cache_is_not_told_of() -> None:
    """It will hold nothing."""
    here, _, board = pool(Truth.NONE)
    lease = here.choose(prompt(range(10)))
    here.placement.extend(lease, prompt(range(64)))
    assert board.touched and not board.marks
