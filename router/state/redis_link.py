"""Exchanges with Redis: commands by lane in, their answers out, within a deadline. Nothing is raised, all is counted."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from router.settings import StateSettings
from router.state.batch import Command
from router.state.redis_health import LINK_ERRORS, RedisHealth, is_wide
from router.state.redis_nodes import Nodes, make_nodes

if TYPE_CHECKING:
    from redis.asyncio import Redis

REFRESH_S: Final = 0.3  # shortest time between two looks at who serves what


class RedisLink:
    """One part's connections. Exchanges one after the other."""

    def __init__(
        self, settings: StateSettings, health: RedisHealth, part: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Connects nowhere yet. Raises SettingsError for a TLS file that cannot be read."""
        self._nodes: Nodes = make_nodes(settings, self._connected)
        self._timeout_s = settings.redis_timeout_s
        self._health = health
        self._part = part
        self._clock = clock
        self._refreshed_s = float("-inf")
        self._is_doubtful = True  # it may be another node by now that serves a lane
        self.connects = 0  # a connection that is another one may lead to another Redis, or an older state of it

    async def execute(self, plan: Mapping[int, Sequence[Command]]) -> dict[int, list[Any]]:
        """For each lane one answer per command, in order: what Redis said, or the exception in its place.

        Commands of a lane reach one node, one after the other. Raises only cancellation.
        """
        if self._is_doubtful:
            await self.refresh()
        shares: dict[Redis, list[int]] = {}
        answers: dict[int, list[Any]] = {}
        for lane, commands in plan.items():
            client = self._nodes.serving(lane)
            if client is None:
                answers[lane] = [ConnectionError(f"no node serves lane {lane}")] * len(commands)
            else:
                shares.setdefault(client, []).append(lane)
        if len(shares) == 1:
            await self._ask(*next(iter(shares.items())), plan, answers)
        else:
            async with asyncio.TaskGroup() as group:
                for client, lanes in shares.items():
                    group.create_task(self._ask(client, lanes, plan, answers))
        self._judge(answers)
        return answers

    def client(self, lane: int) -> "Redis | None":
        """For what has no single answer. None while nobody is known to serve the lane."""
        return self._nodes.serving(lane)

    async def close(self) -> None:
        with contextlib.suppress(*LINK_ERRORS):
            async with asyncio.timeout(self._timeout_s):
                await self._nodes.close()

    async def _ask(
        self, client: "Redis", lanes: list[int], plan: Mapping[int, Sequence[Command]], answers: dict[int, list[Any]]
    ) -> None:
        """What one node serves, as one pipeline."""
        pipeline = client.pipeline(transaction=False)
        for lane in lanes:
            for command in plan[lane]:
                pipeline.execute_command(*command)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await pipeline.execute(raise_on_error=False)
        except LINK_ERRORS as error:
            for lane in lanes:
                answers[lane] = [error] * len(plan[lane])
            return
        at = 0
        for lane in lanes:
            answers[lane] = found[at : at + len(plan[lane])]
            at += len(plan[lane])

    def _judge(self, answers: Mapping[int, list[Any]]) -> None:
        failures = dict.fromkeys(answer for found in answers.values() for answer in found if isinstance(answer, Exception))
        wide = [error for error in failures if is_wide(error)]
        for error in failures:
            if not is_wide(error):
                self._health.count(error)
        for error in wide:
            self._health.bad(self._part, error)
        self._is_doubtful = bool(wide)
        if not wide:
            self._health.good(self._part)

    def _connected(self) -> None:
        self.connects += 1

    async def refresh(self) -> None:
        """Finds out anew which node serves what."""
        now_s = self._clock()
        if now_s - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = now_s
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._nodes.refresh()
        except LINK_ERRORS as error:
            self._health.bad(self._part, error)
