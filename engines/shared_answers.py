"""Answers that the ranks of one engine share: what one asked for just now serves the others too."""

import asyncio
from collections.abc import Awaitable, Callable

from engines.fetch import Answer, EngineError, NoAnswer


class SharedAnswers:
    """By what was asked for; an answer serves for `keep_s`, failures are shared only by those that wait for them.

    `clock` is monotonic. As many are kept as there are things to ask for.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._kept: dict[str, tuple[float, Answer]] = {}
        self._asked: dict[str, asyncio.Future[Answer]] = {}

    async def get(self, what: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Raises what `ask` raises; NoAnswer when whoever asked first gave up."""
        kept = self._kept.get(what)
        if kept is not None and self._clock() - kept[0] < self._keep_s:
            return kept[1]
        asked = self._asked.get(what)
        if asked is not None:
            return await asyncio.shield(asked)
        asked = self._asked[what] = asyncio.get_running_loop().create_future()
        began_s = self._clock()
        try:
            answer = await ask()
        except EngineError as error:
            asked.set_exception(error)
            raise
        else:
            self._kept[what] = (began_s, answer)
            asked.set_result(answer)
            return answer
        finally:
            del self._asked[what]
            if not asked.done():
                asked.set_exception(NoAnswer(f"{what}: no answer in time"))
            asked.exception()  # seen, whether or not anybody waited
