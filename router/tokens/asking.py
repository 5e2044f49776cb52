"""Asks engines for the tokens of prompts, in the background: a bounded number at a time, and none that is silent."""

import asyncio
import logging
import time
from array import array
from collections.abc import Callable

from router.core.stats import Stats
from router.core.types import WorkerId
from router.wire.engine_tokens import NoTokens, TokenRoutes
from router.wire.openai_request import ChatPrompt, TextPrompt, UnkeyedReason

log = logging.getLogger("warmline.tokens")
SILENCE_S = 5.0  # an engine that did not answer is not asked again for so long
TRIES = 2  # engines asked for one prompt

OnDone = Callable[["array[int] | None"], None]


class Asking:
    """Its tasks live in the group given to `open`; before that, and after `close`, nobody can be asked."""

    def __init__(self, limit: int, stats: Stats, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._stats = stats
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self._routes_of: Callable[[WorkerId], TokenRoutes | None] = lambda worker: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent_until_s: dict[WorkerId, float] = {}
        self._turn = 0

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def open(self, group: asyncio.TaskGroup, routes_of: Callable[[WorkerId], TokenRoutes | None]) -> None:
        self._group, self._routes_of = group, routes_of

    def close(self) -> None:
        self._group = None
        for task in self._tasks:
            task.cancel()

    def forget(self, worker: WorkerId) -> None:
        self._silent_until_s.pop(worker, None)

    def ask(
        self, workers: tuple[WorkerId, ...], model: str | None, prompt: ChatPrompt | TextPrompt, on_done: OnDone
    ) -> UnkeyedReason | None:
        """Workers in turn, another one where the first does not tell. See `asked_keys.Asker`."""
        if len(self._tasks) >= self.limit:
            self._stats.token_asks["refused"] += 1
            return "asks_full"
        now_s = self._clock()
        ready = [worker for worker in workers if self._silent_until_s.get(worker, 0.0) <= now_s]
        if not ready or self._group is None:
            return "engine_failed"
        self._turn += 1
        first = self._turn % len(ready)
        chosen = (ready[first:] + ready[:first])[:TRIES]
        task = self._group.create_task(self._ask(chosen, model, prompt, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _ask(self, workers: list[WorkerId], model: str | None, prompt: ChatPrompt | TextPrompt, on_done: OnDone) -> None:
        """Raises nothing but cancellation: a surprise is logged and counts as no answer."""
        try:
            ids = await self._first_answer(workers, model, prompt)
            self._stats.token_asks["failed" if ids is None else "told"] += 1
            on_done(ids)
        except Exception:
            log.exception("surprise while asking %s for tokens", ", ".join(workers))

    async def _first_answer(
        self, workers: list[WorkerId], model: str | None, prompt: ChatPrompt | TextPrompt
    ) -> "array[int] | None":
        for worker in workers:
            routes = self._routes_of(worker)
            if routes is None:
                continue
            try:
                return (await routes.tokens(prompt, model)).ids
            except NoTokens as reason:
                if not reason.lasting:
                    self._silent_until_s[worker] = self._clock() + SILENCE_S
        return None
