"""Keys of prompts whose tokens only an engine can tell: asked for once, remembered, and meanwhile those of the turn before.

An answer is kept in the prefix memo under a digest of all that the client sent of the prompt. A chat that goes on is a
longer one, so the turn before is found at the end of one of its messages. Its keys but for the last ones, where a template
opens the answer, are the leading ones of the whole, and serve until the engine has answered.
"""

import asyncio
from array import array
from collections.abc import Callable
from typing import Final, Protocol

from xxhash import xxh3_128

from router.core.keys import chain, tokens_le
from router.core.stats import Stats
from router.core.types import KeyForm, PromptKeys, WorkerId
from router.tokens.book import TokenizerEntry
from router.tokens.direct_keys import preamble_of, root_of
from router.tokens.key_sources import ShapeKeys
from router.tokens.keying import IsHeld, Keying, count_keys
from router.tokens.memo import PrefixMemo, Span, keys_up_to
from router.wire.chat_text import chat_text
from router.wire.openai_request import ChatPrompt, ModelCall, TextPrompt, UnkeyedReason

TAIL_BLOCKS: Final = 2  # of a prompt, that may not be the same in the next turn: what opens an answer is shorter
ASKED: Final = "engine_asked"
TextKeys = Callable[[str], PromptKeys]  # of the same prompt, for the reason given


class Asker(Protocol):
    def ask(
        self,
        workers: tuple[WorkerId, ...],
        model: str | None,
        prompt: ChatPrompt | TextPrompt,
        on_done: Callable[["array[int] | None"], None],
    ) -> UnkeyedReason | None:
        """Begins to ask one of the workers; `on_done` gets the ids, or None, later on the loop.

        Where that cannot be begun it says why, and `on_done` is never called.
        """


class AskedKeys:
    """Makes them. `min_blocks` leading blocks are waited for whether or not anyone holds them, as in `Keyer`."""

    def __init__(self, memo: PrefixMemo, seed: int, asker: Asker, stats: Stats, min_blocks: int) -> None:
        self.memo = memo
        self.asker = asker
        self.stats = stats
        self._seed = seed
        self._min_blocks = min_blocks

    def start(
        self, call: ModelCall, prompt: ChatPrompt | TextPrompt, entry: TokenizerEntry, shape: ShapeKeys, is_held: IsHeld,
        by_text: TextKeys,
    ) -> Keying:  # fmt: skip
        """The keys where the engine told them before; otherwise it is asked, at once if a choice should wait for it.

        `by_text` serves where it does not tell in time. `entry` is for estimates only.
        """
        root = root_of(call, KeyForm.TOKENS)
        digests, ends = marks_of(self._seed, root, shape.tokens, prompt)
        known, span = self.memo.deepest(digests)
        base = None if span is None else span.parent
        keying = AskedKeying(self, call.model, prompt, entry, shape, root, digests[-1], ends[-1], base, by_text)
        if span is not None:
            if known == len(digests) - 1:
                self.stats.token_asks["remembered"] += 1
                return Keying(keying.whole(keys_up_to(span), span.tokens))
            if base is not None:
                keying.guess(keys_up_to(base), span.tokens, ends[-1] - ends[known])
        keying.look(self._min_blocks, is_held)
        return keying


class AskedKeying(Keying):
    """Keys of one prompt while an engine is asked for its tokens. Counts itself when a choice is made by it."""

    __slots__ = (
        "_base",
        "_by_text",
        "_chars",
        "_chosen_whole",
        "_digest",
        "_entry",
        "_from",
        "_guess",
        "_is_begun",
        "_model",
        "_more_chars",
        "_on_done",
        "_over",
        "_prompt",
        "_reason",
        "_root",
        "_shape",
        "_was_read",
    )

    def __init__(
        self, source: AskedKeys, model: str | None, prompt: ChatPrompt | TextPrompt, entry: TokenizerEntry,
        shape: ShapeKeys, root: int, digest: bytes, chars: int, base: Span | None, by_text: TextKeys,
    ) -> None:  # fmt: skip
        super().__init__(None)
        self._from = source
        self._model = model
        self._prompt = prompt
        self._entry = entry
        self._shape = shape
        self._root = root
        self._digest = digest
        self._chars = chars
        self._base = base  # the longest known beginning
        self._by_text = by_text
        self._more_chars = sum(map(len, prompt.texts[1:])) if isinstance(prompt, TextPrompt) else 0
        self._guess: PromptKeys | None = None  # what is known before the engine has answered
        self._reason: UnkeyedReason = "engine_late"
        self._is_begun = False
        self._was_read = False
        self._chosen_whole = False
        self._over = False  # nobody waits for the answer; it is remembered all the same
        self._on_done: Callable[[PromptKeys], None] | None = None

    @property
    def keys(self) -> PromptKeys:
        keys = self._keys
        if keys is None:
            keys = self._guess
        if keys is None:
            keys = self._guess = self._by_text(self._reason)
        if not self._was_read:
            self._was_read = True
            self._chosen_whole = keys.complete and keys.form is KeyForm.TOKENS
            count_keys(self._from.stats, keys)
        return keys

    def whole(self, keys: "array[int]", tokens: int) -> PromptKeys:
        """What the engine told; tokens of further texts are an estimate."""
        if self._more_chars:
            return PromptKeys(keys, tokens + self._entry.estimate(self._more_chars), KeyForm.TOKENS, True, False, ASKED)
        return PromptKeys(keys, tokens, KeyForm.TOKENS, True, True, ASKED, self._shape.asked)

    def guess(self, keys: "array[int]", tokens: int, chars_left: int) -> None:
        """Keys and tokens of a known beginning."""
        tokens += self._entry.estimate(chars_left + self._more_chars)
        self._guess = PromptKeys(keys, tokens, KeyForm.TOKENS, False, False, ASKED)

    def look(self, min_blocks: int, is_held: IsHeld) -> None:
        """Asks at once, and sets `waiting`, unless a known beginning is enough to choose by: nobody holds all of it."""
        known = self._guess
        if known is None or len(known.keys) < min_blocks or is_held(known.keys):
            self._begin()
            if self._is_begun:
                self.waiting = asyncio.get_running_loop().create_future()

    def finish(self, on_done: Callable[[PromptKeys], None]) -> None:
        if self._over or self._chosen_whole:
            return
        if self._keys is not None:
            self._over = True
            on_done(self._keys)
            return
        if not self._is_begun:
            self._begin()
        if self._is_begun:
            self._on_done = on_done

    def cancel(self) -> None:
        self._over = True
        self._on_done = None
        self._resolve()

    def _begin(self) -> None:
        reason = self._from.asker.ask(self._shape.askable, self._model, self._prompt, self._take)
        self._is_begun = reason is None
        if reason is not None:
            self._reason = reason

    def _take(self, ids: "array[int] | None") -> None:
        if ids is None:
            self._reason = "engine_failed"
            self._over = True
        else:
            keys = chain(tokens_le(ids), self._root)
            self._entry.note_ratio(self._chars, len(ids))
            self._remember(keys, len(ids))
            self._keys = self.whole(keys, len(ids))
            if self._on_done is not None and not self._over:
                self._over = True
                self._on_done(self._keys)
        self._resolve()

    def _remember(self, keys: "array[int]", tokens: int) -> None:
        """In two spans, the lasting part on top of the known beginning, if it goes on from there, and the tail."""
        memo, base, digest = self._from.memo, self._base, self._digest
        begun = keys_up_to(base)
        if keys[: len(begun)] != begun:
            base = None
            begun = keys[:0]
        lasting = len(keys) - TAIL_BLOCKS
        if lasting > len(begun):
            base = memo.add(Span(digest + b"-", base, keys[len(begun) : lasting], keys[lasting - 1], b"", tokens))
            begun = keys[:lasting]
        last_key = keys[-1] if keys else self._root
        memo.commit(memo.add(Span(digest, base, keys[len(begun) :], last_key, b"", tokens)))

    def _resolve(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


def marks_of(seed: int, root: int, tokens: int, prompt: ChatPrompt | TextPrompt) -> tuple[list[bytes], list[int]]:
    """Where a prompt may have ended in an earlier request: a digest of namespace and all before, and the characters before.

    Ends of messages for a chat, its own end for a text. `tokens` stands for what the engines make of prompts. Lengths go
    in too, so that no two prompts are the same bytes.
    """
    if isinstance(prompt, TextPrompt):
        head, pieces = "text", [prompt.texts[0]]
    else:
        options = [("open", prompt.add_generation_prompt), ("continued", prompt.continue_final_message)]
        head = chat_text([], [*options, *preamble_of(prompt)])
        pieces = [chat_text([message]) for message in prompt.messages]
    running = xxh3_128(b"asked" + root.to_bytes(8, "little") + tokens.to_bytes(8, "little"), seed=seed)
    digests: list[bytes] = []
    ends: list[int] = []
    chars = len(head)
    for piece in [head, *pieces]:
        data = piece.encode("utf-8", "surrogatepass")
        running.update(len(data).to_bytes(8, "little"))
        running.update(data)
        chars += len(piece)
        digests.append(running.digest())
        ends.append(chars)
    return digests[1:], ends[1:]
