"""Chains through the memo are the chains without it, and cost less for what is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.keys import text_chain
from router.tokens.byte_memo import CUT_BYTES, LONG_BYTES, ByteMemo
from router.tokens.memo import PrefixMemo

TEXT = bytes(range(256)) * 200


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 3), st.booleans()), max_size=12), st.integers(12, 16))
def test_the_same_keys_as_without_memo(texts: list[tuple[int, int, bool]], memo_bits: int) -> None:
    """Whatever was chained before, in memos large and tiny, a text's keys depend on the text and its root only."""
    memo = ByteMemo(PrefixMemo(2**memo_bits), 7)
    for size, root, changed in texts:
        data = TEXT[:size]
        if changed:
            data = data[: size // 2] + b"!" + data[size // 2 + 1 :]
        assert memo.chain(data, root) == text_chain(data, root)


@pytest.mark.parametrize("size", [0, 63, 64, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, LONG_BYTES + CUT_BYTES, len(TEXT)])
def test_edges(size: int) -> None:
    """Sizes around cuts and blocks, first unknown, then known."""
    memo = ByteMemo(PrefixMemo(2**20), 7)
    for _ in range(2):
        assert memo.chain(TEXT[:size], 5) == text_chain(TEXT[:size], 5)


def test_roots_do_not_meet() -> None:
    """The memo never gives one namespace the keys of another."""
    memo = ByteMemo(PrefixMemo(2**20), 7)
    assert set(memo.chain(TEXT, 1)).isdisjoint(memo.chain(TEXT, 2))


def test_the_memo_is_filled_once_and_stays_within_its_bound() -> None:
    """A text seen again adds nothing; a tiny memo is never above its limit."""
    prefixes = PrefixMemo(2**20)
    memo = ByteMemo(prefixes, 7)
    memo.chain(TEXT, 1)
    used = prefixes.used_bytes
    memo.chain(TEXT, 1)
    assert prefixes.used_bytes == used > 0
    small = PrefixMemo(4000)
    ByteMemo(small, 7).chain(TEXT, 1)
    assert small.used_bytes <= 4000
