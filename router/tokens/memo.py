"""Remembered prefixes: text up to a cut → the chain of its block keys, so that a turn re-uses the turns before it.

A span is one part of a text between two cuts. It holds the keys that end inside it and knows the span before it; the
keys of a prefix are those of its spans in order. Spans are found by a digest of all the text before their end.
"""

from array import array
from collections import OrderedDict

SPAN_BYTES = 450  # object, digest, numbers, empty array and dict entry of a span without keys, measured with tracemalloc


class Span:
    """A known prefix of a text. `rest` holds the packed tokens behind its last whole block, fewer than 16."""

    __slots__ = ("cost", "digest", "keys", "last_key", "parent", "rest", "tokens")

    def __init__(
        self, digest: bytes, parent: "Span | None", keys: "array[int]", last_key: int, rest: bytes, tokens: int
    ) -> None:
        self.digest = digest
        self.parent = parent
        self.keys = keys  # of the blocks that end in this span
        self.last_key = last_key  # the key of the last whole block so far, or the root
        self.rest = rest
        self.tokens = tokens  # from the start of the text
        self.cost = SPAN_BYTES + 8 * len(keys) + len(rest)


class PrefixMemo:
    """Spans by digest, at most `limit_bytes` of them; the ones unused for longest go first.

    A span never goes before the spans that build on it: use of a span is use of all before it, and those are marked
    as used after it. So what is counted is what is held.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._spans: OrderedDict[bytes, Span] = OrderedDict()

    def __len__(self) -> int:
        return len(self._spans)

    def deepest(self, digests: list[bytes]) -> tuple[int, Span | None]:
        """The last of a text's `digests` that is known: its place and its span, or (-1, None)."""
        spans = self._spans
        for index in range(len(digests) - 1, -1, -1):
            span = spans.get(digests[index])
            if span is not None:
                self.touch(span)
                return index, span
        return -1, None

    def touch(self, span: Span) -> None:
        """Marks the span and all before it as just used."""
        move = self._spans.move_to_end
        node: Span | None = span
        while node is not None:
            move(node.digest)
            node = node.parent

    def add(self, span: Span) -> Span:
        """Takes the span in, or returns the one known under its digest; `commit` must follow before anything else happens.

        A span whose parent has gone meanwhile is returned as it is and not kept.
        """
        known = self._spans.get(span.digest)
        if known is not None:
            return known
        if span.parent is None or self.holds(span.parent):
            self._spans[span.digest] = span
            self.used_bytes += span.cost
        return span

    def commit(self, span: Span) -> None:
        """Marks the deepest span added, and all before it, as used, and goes back within the limit."""
        if self.holds(span):
            self.touch(span)
        spans = self._spans
        while self.used_bytes > self.limit_bytes:
            _, oldest = spans.popitem(last=False)
            self.used_bytes -= oldest.cost

    def holds(self, span: Span) -> bool:
        return self._spans.get(span.digest) is span


def keys_up_to(span: Span | None) -> "array[int]":
    """The whole chain to the end of a span, in a new array."""
    path = []
    while span is not None:
        path.append(span.keys)
        span = span.parent
    keys = array("Q")
    for piece in reversed(path):
        keys += piece
    return keys
