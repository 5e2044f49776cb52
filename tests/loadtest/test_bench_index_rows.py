"""Index rows on small sizes."""

from loadtest.bench.index_rows import BATCH_TURNS, branch_memory, filled_index, lookup


def test_the_index_is_filled_to_the_size_asked_for() -> None:
    """Distinct blocks reach the target within a batch, and replicas count as held."""
    index, used_s, held = filled_index(8, 5000)
    assert 5000 <= index.blocks < 5000 + BATCH_TURNS * 50
    assert held >= index.blocks and used_s > 0


def test_short_branches_cost_more_than_long_runs() -> None:
    """The pessimistic figure counts all blocks that were put in."""
    figure = branch_memory(2000)
    assert figure.detail["blocks"] == 2000 + 64
    assert figure.value > 20


def test_a_lookup_sees_every_depth() -> None:
    """The timed lookup finds all 32 levels; it is checked while it is timed."""
    assert lookup(3).value > 0
