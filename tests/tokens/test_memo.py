"""The prefix memo: what is counted is what is held, and parents outlive children."""

import random
import tracemalloc
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from router.tokens.memo import SPAN_BYTES, PrefixMemo, Span, keys_up_to


def span(name: str, parent: Span | None, keys: int = 2, rest: bytes = b"") -> Span:
    base = parent.tokens if parent else 0
    return Span(name.encode(), parent, array("Q", range(base, base + keys)), base + keys - 1, rest, base + keys)


def test_keys_are_those_of_all_spans_in_order() -> None:
    """A prefix's chain is that of its spans, first one first, in an array of its own."""
    one = span("1", None)
    two = span("2", one, 3)
    keys = keys_up_to(two)
    assert keys == array("Q", range(5))
    keys.append(9)
    assert keys_up_to(two) == array("Q", range(5))
    assert keys_up_to(None) == array("Q")


def test_deepest_known_digest_wins() -> None:
    """The last digest known is found, whatever is missing before it; none known is (-1, None)."""
    memo = PrefixMemo(10_000)
    one = memo.add(span("1", None))
    memo.commit(one)
    assert memo.deepest([b"1", b"2"]) == (0, one)
    assert memo.deepest([b"x"]) == (-1, None)
    assert memo.deepest([]) == (-1, None)


def test_a_known_span_is_not_taken_twice() -> None:
    """Two prompts that tokenise the same part at once share what the first has stored."""
    memo = PrefixMemo(10_000)
    first = memo.add(span("1", None))
    assert memo.add(span("1", None)) is first
    assert memo.used_bytes == first.cost


def test_a_span_without_its_parent_is_not_kept() -> None:
    """Where the parent was evicted meanwhile, the child stays out: it could never be accounted for."""
    memo = PrefixMemo(10_000)
    orphan = span("2", span("1", None))
    assert memo.add(orphan) is orphan
    memo.commit(orphan)
    assert (len(memo), memo.used_bytes) == (0, 0)


@settings(max_examples=50)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_random_use_keeps_the_invariants(rng: random.Random, room: int) -> None:
    """After any use: the bytes are the sum of the spans held, within the limit, and every held span's parent is held."""
    memo = PrefixMemo(room * SPAN_BYTES)
    seen: list[Span] = []
    for step in range(60):
        parent = rng.choice([None, *seen[-8:]])
        if rng.random() < 0.3 and seen:
            memo.deepest([rng.choice(seen).digest])
            continue
        for depth in range(rng.randrange(1, 4)):
            parent = memo.add(span(f"{step}.{depth}", parent, rng.randrange(5), b"x" * rng.randrange(9)))
            seen.append(parent)
        assert parent is not None
        memo.commit(parent)
        held = [item for item in seen if memo.holds(item)]
        assert memo.used_bytes == sum(item.cost for item in held) <= memo.limit_bytes
        assert len(memo) == len(held)
        assert all(item.parent is None or memo.holds(item.parent) for item in held)


def test_least_recently_used_goes_first() -> None:
    """Use of a deep span keeps all before it; the conversation untouched for longest is forgotten."""
    memo = PrefixMemo(4 * (SPAN_BYTES + 16))
    old = memo.add(span("old", None))
    memo.commit(old)
    root = memo.add(span("root", None))
    leaf = memo.add(span("leaf", root))
    memo.commit(leaf)
    memo.deepest([b"old"])
    for name in ("a", "b"):
        memo.commit(memo.add(span(name, None)))
    assert memo.holds(old)
    assert memo.holds(root)
    assert not memo.holds(leaf)


def test_span_bytes_are_what_a_span_takes() -> None:
    """The accounting is within a fifth of what Python allocates for spans of a few blocks."""
    memo = PrefixMemo(2**30)
    tracemalloc.start()
    parent: Span | None = None
    for index in range(2000):
        number = index + 2**40
        digest = number.to_bytes(16, "big")
        parent = memo.add(Span(digest, parent, array("Q", range(number, number + 8)), 2**50 + index, bytes(40), number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 < memo.used_bytes / taken < 1.3  # a compiled span is the smaller
