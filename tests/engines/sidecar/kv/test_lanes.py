"""engines.sidecar.kv.lanes: which copies make a block usable."""

from engines.sidecar.kv.events import BlockStored
from engines.sidecar.kv.lanes import MAX_LANES, Lanes


def block(medium: str = "GPU", group: int = 0, kind: str | None = None, tokens: int = 16) -> BlockStored:
    return BlockStored([1], None, bytes(4 * tokens), tokens, medium, group, kind)


def test_one_lane() -> None:
    """The plain case: one memory, one group; block size learnt, other lanes unknown."""
    lanes = Lanes()
    assert lanes.find("GPU", 0) == 0
    assert lanes.learn(block()) == lanes.learn(block()) == lanes.find("GPU", 0) == 1
    assert (lanes.block_tokens, lanes.tiers[0], lanes.tiers[1]) == (16, 0, 1)
    assert lanes.find("CPU", 0) == 0


def test_fastest_memory_counts() -> None:
    """A copy in any memory makes a block usable, in the tier of the fastest; unknown memories are the slowest."""
    lanes = Lanes()
    device, host, disk, other = (lanes.learn(block(medium)) for medium in ("GPU", "CPU_PINNED", "STORAGE", "TAPE"))
    assert [lanes.tiers[mask] for mask in (device | disk, host | other, disk, other, 0)] == [1, 2, 3, 3, 0]


def test_all_groups_of_full_attention_are_needed() -> None:
    """With two such groups a memory counts when it holds the block for both; sliding windows and state spaces do not count."""
    lanes = Lanes()
    first = lanes.learn(block(group=0, kind="full_attention"))
    assert lanes.learn(block(group=1, kind="sliding_window")) == 0
    second = lanes.learn(block(group=2, kind="mla_attention"))
    assert [lanes.tiers[mask] for mask in (first, second, first | second)] == [0, 0, 1]
    host = lanes.learn(block("CPU", group=2))  # offloading does not tell the kind: it is known
    assert lanes.tiers[first | host] == 2
    assert lanes.learn(block("CPU", group=1)) == 0


def test_without_a_kind_the_first_group_counts() -> None:
    """Older releases told no kind: group 0 is taken for full attention, the others are not."""
    lanes = Lanes()
    assert lanes.learn(block(group=0)) == 1
    assert lanes.learn(block(group=1)) == 0


def test_group_with_blocks_of_another_size() -> None:
    """Blocks of one size are followed; a copy told without tokens has any size."""
    lanes = Lanes()
    lanes.learn(block(group=0, kind="full_attention"))
    assert lanes.learn(block(group=1, kind="full_attention", tokens=32)) == 0
    assert lanes.learn(BlockStored([1], medium="CPU", group=0)) != 0
    assert lanes.block_tokens == 16


def test_bounds() -> None:
    """Names that never end cost nothing: only so many lanes are kept, further ones do not count."""
    lanes = Lanes()
    bits = [lanes.learn(block(f"M{number}")) for number in range(1000)]
    assert sum(bit > 0 for bit in bits) == MAX_LANES
    assert all(lanes.learn(block(group=number, kind="x")) == 0 for number in range(1, 1000))
    assert len(lanes._lanes) < 300 and len(lanes._groups) < 300
