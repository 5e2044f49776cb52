"""Block keys: the same chain from bytes, token ids and memoryviews; namespaces that never meet."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.core.keys import BLOCK_BYTES, TEXT_STEP_BYTES, chain, root, text_chain, tokens_le
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


@given(st.binary(max_size=1200), st.integers(0, 2**64 - 1))
def test_text_chain_has_four_keys_a_step(data: bytes, parent: int) -> None:
    """Whole steps only, no key twice, and the same from bytes and from a view of them."""
    keys = text_chain(data, parent)
    assert len(keys) == 4 * (len(data) // TEXT_STEP_BYTES)
    assert len(set(keys)) == len(keys)
    assert text_chain(memoryview(data), parent) == keys


@given(st.binary(min_size=600, max_size=1200), st.integers(0, 4))
def test_text_chain_goes_on_where_it_stopped(data: bytes, steps: int) -> None:
    """The last key is the parent of what follows, so a text can be chained in parts."""
    cut = min(steps, len(data) // TEXT_STEP_BYTES) * TEXT_STEP_BYTES
    first = text_chain(data[:cut], 7)
    assert first + text_chain(data[cut:], first[-1] if first else 7) == text_chain(data, 7)


@given(st.binary(min_size=512, max_size=1200), st.data())
def test_text_chain_names_its_whole_prefix(data: bytes, draw: st.DataObject) -> None:
    """One changed byte changes every key from its step on and none before it."""
    whole = len(data) // TEXT_STEP_BYTES * TEXT_STEP_BYTES
    at = draw.draw(st.integers(0, whole - 1))
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    one, other = text_chain(data, 7), text_chain(changed, 7)
    same = 4 * (at // TEXT_STEP_BYTES)
    assert one[:same] == other[:same] and set(one[same:]).isdisjoint(other[same:])
