"""engines.sidecar.kv.run: keys of blocks of any size, places, and what may be forgotten."""

import pytest

from engines.sidecar.kv.run import Run
from router.core.keys import chain, tokens_le

SEED = 99


def rooted(parent: Run | None = None, at: int = 0, size: int = 16) -> Run:
    """An empty run at a chain's start, or behind so many blocks of another."""
    run = Run(parent, at)
    if parent is None:
        run.seed, run.first = SEED, True
    else:
        run.root(4 * size)
    return run


def fill(run: Run, size: int, *tokens: int) -> None:
    ids = [1000 + token for token in tokens[::size]]
    run.extend(ids, tokens_le(tokens), 1, size % 16 != 0)


@pytest.mark.parametrize("size", [1, 5, 16, 24, 32, 64])
def test_keys_do_not_depend_on_how_a_chain_is_cut(size: int) -> None:
    """A chain in one run, in two extensions and in runs behind one another has the keys of its tokens."""
    tokens = list(range(size * 12))
    expected = chain(tokens_le(tokens), SEED)
    for cut in range(1, 12):
        anchor = rooted()
        whole, head = rooted(anchor, size=size), rooted(anchor, size=size)
        fill(whole, size, *tokens[: cut * size])
        fill(whole, size, *tokens[cut * size :])
        assert whole.keys == expected
        fill(head, size, *tokens[: (cut + 1) * size])  # goes on past the branch
        branch = rooted(head, cut, size)
        fill(branch, size, *tokens[cut * size :])
        kept = head.key_count(cut, 4 * size)
        assert head.keys[:kept] + branch.keys == expected
        assert branch.key_before(0) == (expected[kept - 1] if kept else None)
        whole.cut(cut, 4 * size)
        fill(whole, size, *tokens[cut * size :])
        assert whole.keys == expected


def test_keys_follow_once_the_parent_has_some() -> None:
    """A run without a seed keeps its tokens, and has its keys as soon as its parent can tell where they begin."""
    waiting = Run(Run(None, 0), 1)
    waiting.root(64)
    fill(waiting, 16, *range(16, 48))
    assert waiting.seed is None and not waiting.keys
    parent = rooted(rooted())
    fill(parent, 16, *range(16))
    parent.link(waiting, 1)
    waiting.root(64)
    assert parent.keys + waiting.keys == chain(tokens_le(range(48)), SEED)


def test_places() -> None:
    """Blocks are found at the end, beside the last one found, and anywhere."""
    run = rooted(rooted())
    fill(run, 16, *range(16 * 6))
    ids = list(run.ids)
    assert [run.find(block, near) for near, block in enumerate(ids)] == list(range(6))
    assert run.find(ids[1], 2) == 1 and run.find(ids[0], 5) == 0 and run.find(ids[5], 0) == 5


def test_what_is_kept() -> None:
    """Blocks without a copy at the end may be forgotten, unless a run is behind them."""
    run = rooted(rooted())
    fill(run, 16, *range(16 * 4))
    run.held[1] = run.held[3] = 0
    assert (run.kept(4), run.kept(3), run.kept(2)) == (3, 3, 1)
    child = rooted(run, 4)
    run.link(child, 4)
    assert run.kept(4) == 4
    assert run.children_within(3, 4) == [child] and run.children_within(0, 3) == []
    run.unlink(child)
    assert run.kept(4) == 3 and run.children_within(0, 4) == []
