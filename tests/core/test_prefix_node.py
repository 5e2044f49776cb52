from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix_node import Node, common_blocks, held_blocks, partial_levels, slots_of, with_at_least
from tests.core.builders import chain


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_common_blocks_is_where_two_chains_part(same: int, more: int, other: int, start: int) -> None:
    """Bisection finds what a walk would, wherever the run lies in the keys and whichever of the two ends first."""
    run = chain([0] * same + [1] * more)
    keys = array("Q", range(start)) + chain([0] * same + [2] * other)
    assert common_blocks(run, keys, start, len(keys)) == same


def test_partial_levels_are_shallow_first_and_count_all_who_hold_as_much() -> None:
    """A worker that holds only the head of a run counts at its own depth, and every deeper one at that depth too."""
    node = Node(chain(range(10)), 0b0001, None, 0)
    node.partial = {0b0010: 3, 0b0100: 7, 0b1000: 3}
    for end, expected in ((110, [(103, 0b1111), (107, 0b0101)]), (105, [(103, 0b1111)])):
        assert [(level.blocks, level.mask) for level in partial_levels(node, 100, end)] == expected
    assert [with_at_least(node, blocks) for blocks in (3, 4, 8)] == [0b1111, 0b0101, 0b0001]
    assert [held_blocks(node, bit) for bit in (0b0001, 0b0010, 0b0100)] == [10, 3, 7]


def test_slots_of_lists_set_bits_downwards() -> None:
    """Slot n is bit n, also beyond a machine word."""
    assert slots_of(0) == []
    assert slots_of(1 << 900 | 0b101) == [900, 2, 0]
