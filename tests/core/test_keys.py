"""Block keys: the same chain from bytes, token ids and memoryviews; namespaces that never meet."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.core.keys import BLOCK_BYTES, chain, root, tokens_le
from router.core.types import KeyForm


@given(st.binary(max_size=400), st.integers(0, 2**64 - 1))
def test_chain_is_seeded_by_the_key_before(data: bytes, parent: int) -> None:
    """key[i] is xxh3_64 of block i seeded with key[i-1]; a rest shorter than a block has no key."""
    expected, key = [], parent
    for start in range(0, len(data) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES):
        key = xxh3_64_intdigest(data[start : start + BLOCK_BYTES], seed=key)
        expected.append(key)
    assert chain(data, parent) == array("Q", expected)
    assert chain(memoryview(data), parent) == array("Q", expected)


@given(st.binary(min_size=64, max_size=400), st.integers(0, 6))
def test_chain_goes_on_where_it_stopped(data: bytes, blocks: int) -> None:
    """Chaining in two goes at a block's end gives the keys of one go."""
    cut = min(blocks, len(data) // BLOCK_BYTES) * BLOCK_BYTES
    first = chain(data[:cut], 7)
    assert first + chain(data[cut:], first[-1] if first else 7) == chain(data, 7)


def test_tokens_are_little_endian_u32() -> None:
    """Ids are packed as the sidecars and other routers pack them; what does not fit is refused, not wrapped."""
    assert tokens_le([1, 2**32 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff"
    with pytest.raises(OverflowError):
        tokens_le([2**32])
    with pytest.raises(OverflowError):
        tokens_le([-1])


parts = st.tuples(
    st.text(max_size=6), st.none() | st.text(max_size=6), st.none() | st.text(max_size=6), st.sampled_from(KeyForm)
)


@given(parts, parts)
def test_roots_of_different_namespaces_differ(one: tuple[str, str, str, KeyForm], other: tuple[str, str, str, KeyForm]) -> None:
    """Model, adapter, salt and form cannot run into each other: ("ab", "c") is not ("a", "bc"), None is not ""."""
    assert (root(*one) == root(*other)) == (one == other)


def test_root_takes_what_json_takes() -> None:
    """A lone surrogate in a name is no reason to fail."""
    assert root("m\ud800", None, None, KeyForm.TEXT) != root("m", None, None, KeyForm.TEXT)
