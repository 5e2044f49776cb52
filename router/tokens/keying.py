"""The keys of one call while they are being made: at once, while its choice waits, or after it was sent."""

import asyncio
from array import array
from collections.abc import Callable
from functools import partial

from router.core.stats import Stats
from router.core.types import BLOCK_TOKENS, KeyForm, PromptKeys
from router.tokens.book import TokenizerEntry, encode_all
from router.tokens.encode_lanes import EncodeLanes
from router.tokens.walk import Walk

IsHeld = Callable[["array[int]"], bool]

LOOP_TOKENS = 640  # made on the loop for one call before the rest goes to a thread: 0.6 to 2 ms
FIRST_TOKENS = 24  # of the first look beyond what is known: a block or two
ENDS_AT_TOKENS = 128  # a rest no longer than this is tokenised at once: a thread would cost as much
UNKNOWN_CHARS_PER_TOKEN = 0.7  # of text that is not ASCII, until some of it has been seen
PIECE_CHARS = 2048  # of one call of the tokenizer
SLICE_CHARS = 8192  # of one hand-over to a thread, 5 to 10 ms
PENDING_CHARS = 64 * 1024 * 1024  # of all prompts whose tails wait


class TailBounds:
    """How many prompts, and how much text, may wait to be tokenised after dispatch. Others are dropped and counted."""

    def __init__(self, max_tails: int, stats: Stats) -> None:
        self.max_tails = max_tails
        self.tails = 0
        self.chars = 0
        self._stats = stats

    def admit(self, chars: int) -> bool:
        if self.tails >= self.max_tails or self.chars + chars > PENDING_CHARS:
            self._stats.tails_dropped += 1
            return False
        self.tails += 1
        self.chars += chars
        return True

    def release(self, chars: int) -> None:
        self.tails -= 1
        self.chars -= chars


def count_keys(stats: Stats, keys: PromptKeys) -> None:
    stats.key_forms[keys.form] += 1
    if keys.unkeyed_reason is not None and keys.form is not KeyForm.TOKENS:
        stats.unkeyed[keys.unkeyed_reason] += 1


class Keying:
    """Keys that are complete from the start. `keys` is usable at any time; what it returned never changes afterwards.

    `waiting` is a future while keys are being made that a choice should wait for: it is resolved, with None, when they
    are complete or no worker holds as many. Nobody has to wait for it.
    """

    __slots__ = ("_keys", "waiting")

    def __init__(self, keys: PromptKeys | None) -> None:
        self._keys = keys
        self.waiting: asyncio.Future[None] | None = None

    @property
    def keys(self) -> PromptKeys:
        assert self._keys is not None
        return self._keys

    def finish(self, on_done: Callable[[PromptKeys], None]) -> None:
        """After dispatch: tokenise the rest in a thread, then call `on_done` on the loop with the complete keys.

        Never called for a call whose keys were complete when `start` returned, and at once if they have become so since.
        Not called either if too many tails wait (`max_pending_tails`), the call is cancelled, or the keyer is closed.
        """

    def cancel(self) -> None:
        """The call is over: nothing more is to be tokenised for it."""


class DeepKeying(Keying):
    """Keys of a text that a tokenizer reads, no deeper than workers hold it until it was dispatched."""

    __slots__ = ("_bounds", "_entry", "_is_held", "_is_tail", "_lanes", "_on_done", "_over", "_pieces", "_slice_chars", "_walk")

    def __init__(self, walk: Walk, entry: TokenizerEntry, is_held: IsHeld, lanes: EncodeLanes, bounds: TailBounds) -> None:
        super().__init__(None)
        self._walk = walk
        self._entry = entry
        self._is_held = is_held
        self._lanes = lanes
        self._bounds = bounds
        self._on_done: Callable[[PromptKeys], None] | None = None
        self._is_tail = False  # counted in bounds
        self._over = False
        self._pieces: list[str] = []  # of the slice in a thread
        self._slice_chars = PIECE_CHARS

    @property
    def keys(self) -> PromptKeys:
        if self._keys is None:
            self._keys = self._walk.prompt_keys()
        return self._keys

    def look(self, min_blocks: int) -> None:
        """On the loop, as deep as any worker holds the prompt, but at least `min_blocks`; `waiting` is set if that is long.

        The first `min_blocks` blocks choose a prompt's homes on the ring, so they must not depend on what is held.
        """
        walk, entry = self._walk, self._entry
        tokens_left = LOOP_TOKENS
        per_token = entry.chars_of(100) / 100 if walk.text.isascii() else UNKNOWN_CHARS_PER_TOKEN
        begun_at, begun_tokens = walk.at, walk.tokens
        grown = FIRST_TOKENS
        while not walk.done:
            missing_blocks = min_blocks - len(walk.keys)
            if missing_blocks > 0:
                tokens = missing_blocks * BLOCK_TOKENS + FIRST_TOKENS
            elif not walk.keys or self._is_held(walk.keys):
                tokens = grown
                grown *= 2
            elif walk.end - walk.at <= ENDS_AT_TOKENS * per_token:
                tokens = ENDS_AT_TOKENS
            else:
                break
            chars = int(min(tokens, tokens_left) * per_token) + 1
            end = walk.next_piece(chars)
            if tokens_left <= 0 or end - walk.at > 2 * LOOP_TOKENS * per_token:
                self.waiting = asyncio.get_running_loop().create_future()
                self._lanes.offer(self, urgent=True)
                break
            walk.feed(entry.encode(walk.text[walk.at : end]), end - walk.at)
            tokens_left = LOOP_TOKENS - (walk.tokens - begun_tokens)
            per_token = (walk.at - begun_at) / max(1, walk.tokens - begun_tokens)
        walk.commit()

    def finish(self, on_done: Callable[[PromptKeys], None]) -> None:
        if self._on_done is not None or self._over:
            return
        self._on_done = on_done
        if self._walk.done:
            self._end()
        elif self._bounds.admit(len(self._walk.text)):
            self._is_tail = True
            if self.waiting is None or self.waiting.done():
                self._lanes.offer(self, urgent=False)
        else:
            self._on_done = None
            self._end()

    def cancel(self) -> None:
        self._on_done = None
        self._end()

    def next_slice(self) -> Callable[[], list[bytes]] | None:
        if self._over:
            return None
        self._pieces = self._walk.next_pieces(self._slice_chars, PIECE_CHARS)
        self._slice_chars = min(2 * self._slice_chars, SLICE_CHARS)
        return partial(encode_all, self._entry, self._pieces)

    def take(self, encoded: list[bytes] | None) -> None:
        if self._over:
            return
        if encoded is None:
            self._on_done = None
            self._end()
            return
        walk = self._walk
        for piece, tokens in zip(self._pieces, encoded, strict=True):
            walk.feed(tokens, len(piece))
        walk.commit()
        self._keys = None
        if walk.done:
            self._resolve()
            if self._on_done is not None:
                self._end()
        elif self._is_tail:
            self._lanes.offer(self, urgent=False, again=True)
        elif self._is_held(walk.keys):
            self._lanes.offer(self, urgent=True, again=True)
        else:
            self._resolve()

    def _resolve(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def _end(self) -> None:
        """Nothing more will be done. Tells whoever waits, and `on_done` with the keys if it was not dropped."""
        self._over = True
        if self._is_tail:
            self._is_tail = False
            self._bounds.release(len(self._walk.text))
        keys = self.keys
        self._walk.text = ""  # the call may go on for minutes
        self._resolve()
        if self._on_done is not None:
            self._on_done(keys)
