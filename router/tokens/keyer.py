"""From a call to its block keys: what can be known at once, what is worth waiting for, and what may come later."""

import asyncio
from array import array
from collections.abc import Callable

from router.core.stats import Stats
from router.core.types import PromptKeys
from router.settings import TokenSettings
from router.tokens.book import TokenizerBook
from router.tokens.direct_keys import direct_keys
from router.wire.openai_request import ModelCall

IsHeld = Callable[["array[int]"], bool]


class Keying:
    """The keys of one call. `keys` is usable at any time and replaced, never changed, as more becomes known."""

    __slots__ = ("keys", "waiting")

    def __init__(self, keys: PromptKeys) -> None:
        self.keys = keys
        self.waiting: asyncio.Future[None] | None = None

    def finish(self, on_done: Callable[[PromptKeys], None]) -> None:
        """Nothing is left to do: `on_done` is called only for keys that were incomplete at the start."""

    def cancel(self) -> None:
        """The call was given up before it was dispatched."""


class Keyer:
    """Makes the keys of calls. Call it on the event loop only; `close` ends its threads."""

    def __init__(self, settings: TokenSettings, book: TokenizerBook, stats: Stats, min_blocks: int = 16) -> None:
        self.settings = settings
        self.book = book
        self.stats = stats
        self.min_blocks = min_blocks

    def start(self, call: ModelCall, is_held: IsHeld) -> Keying:
        """`is_held(keys)` tells whether any worker holds all of these leading blocks."""
        keys = direct_keys(call)
        self.stats.key_forms[keys.form] += 1
        if keys.unkeyed_reason:
            self.stats.unkeyed[keys.unkeyed_reason] += 1
        return Keying(keys)

    def close(self) -> None:
        """Further tails are dropped."""
