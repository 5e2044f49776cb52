"""Keys of text without a tokenizer, a long text's known beginning taken from the prefix memo.

A chain costs 0.2 us per 256 bytes, 0.1 ms for 100 KB; the digests that find a known beginning cost 0.01 ms. Text grows
at its end (see wire.chat_text), so any fixed places serve as cuts.
"""

from array import array

from xxhash import xxh3_128

from router.core.keys import TEXT_STEP_BYTES, text_chain
from router.tokens.memo import PrefixMemo, Span, keys_up_to

CUT_BYTES = 16 * TEXT_STEP_BYTES
LONG_BYTES = 2 * CUT_BYTES  # below it the digests would cost as much as they save


class ByteMemo:
    """Chains bytes through a memo shared with the token keys; `seed` is this process's own, see `Walk`."""

    __slots__ = ("_memo", "_seed")

    def __init__(self, memo: PrefixMemo, seed: int) -> None:
        self._memo = memo
        self._seed = seed

    def chain(self, data: bytes, root: int) -> "array[int]":
        """The same keys as `core.keys.text_chain(data, root)`."""
        if len(data) < LONG_BYTES:
            return text_chain(data, root)
        memo, view = self._memo, memoryview(data)
        digests = self._digests(view, root)
        known, span = memo.deepest(digests)
        keys = keys_up_to(span)
        at = (known + 1) * CUT_BYTES
        for digest in digests[known + 1 :]:
            added = text_chain(view[at : at + CUT_BYTES], keys[-1] if keys else root)
            keys += added
            at += CUT_BYTES
            span = memo.add(Span(digest, span, added, added[-1], b"", 0))
        if span is not None:
            memo.commit(span)
        keys += text_chain(view[at:], keys[-1])
        return keys

    def _digests(self, view: memoryview, root: int) -> list[bytes]:
        """A digest of root and bytes up to each cut."""
        running = xxh3_128(b"bytes" + root.to_bytes(8, "little"), seed=self._seed)
        digests = []
        for end in range(CUT_BYTES, len(view) + 1, CUT_BYTES):
            running.update(view[end - CUT_BYTES : end])
            digests.append(running.digest())
        return digests
