"""engines.llama_cpp against the real server: what it shows while it loads, runs, is killed and comes back."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from engines.launch import LlamaCppOptions, launch
from engines.sidecar.watch import watch
from engines.tiny_gguf import cached_tiny_gguf, smollm2_path
from router.core.types import Lifecycle, WorkerReport
from router.settings import EngineSpec, EventSettings, FleetSettings
from tests.engines.sidecar.heard import Heard

SETTINGS = FleetSettings(probe_interval_s=0.1, scrape_interval_s=0.05, probe_timeout_s=2.0)
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def options() -> LlamaCppOptions:
    return LlamaCppOptions(cached_tiny_gguf(), "tiny", slots=2, slot_context_tokens=512)


class Watched:
    """Reports of one watched engine, to wait in."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[WorkerReport] = asyncio.Queue()

    async def until(self, holds: Callable[[WorkerReport], bool]) -> WorkerReport:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                report = await self.reports.get()
                if holds(report):
                    return report


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watched]:
    watched = Watched()
    async with asyncio.TaskGroup() as group:
        spec = EngineSpec("llama.cpp", url)
        loop = group.create_task(watch(spec, SETTINGS, EventSettings(), Heard(watched.reports.put_nowait), time.monotonic))
        yield watched
        loop.cancel()


async def generate(url: str, tokens: int) -> int:
    """One completion; how many tokens it generated."""
    body = {"model": "tiny", "prompt": "once upon a time", "max_tokens": tokens, "ignore_eos": True}
    async with aiohttp.ClientSession() as client, client.post(url + "/v1/completions", json=body) as answer:
        return int((await answer.json())["usage"]["completion_tokens"])


async def test_real_engine_from_ready_to_restarted(options: LlamaCppOptions, tmp_path: Path) -> None:
    """Models, cache size and load of the real server are read; a kill shows as down, a restart as a new generation."""
    with launch(options, tmp_path / "log") as engine:
        async with watching(engine.url) as watched:
            ready = await watched.until(lambda report: report.lifecycle is Lifecycle.READY)
            assert (ready.models, ready.capacity_tokens, ready.block_tokens) == (("tiny",), 1024, 1)
            assert (ready.running, ready.waiting) == (0, 0)
            assert ready.generation

            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(generate(engine.url, 150)) for _ in range(3)]
                await watched.until(lambda report: report.running == 2 and report.waiting == 1)
            assert [answer.result() for answer in answers] == [150] * 3
            idle = await watched.until(lambda report: report.running == 0)
            assert idle.generation == ready.generation

            engine.kill()
            down = await watched.until(lambda report: report.lifecycle is Lifecycle.DOWN)
            assert down.detail == "no connection: connection refused"
            again = dataclasses.replace(options, port=engine.port)
            with await asyncio.to_thread(launch, again, tmp_path / "log2"):
                back = await watched.until(lambda report: report.lifecycle is Lifecycle.READY)
                assert back.generation != ready.generation
                assert (back.models, back.capacity_tokens) == (("tiny",), 1024)


async def test_real_model(tmp_path: Path) -> None:
    """SmolLM2 loads, is ready, and what it runs shows in its reports."""
    options = LlamaCppOptions(smollm2_path(), "smollm2", slots=1, slot_context_tokens=256)
    with launch(options, tmp_path / "log") as engine:
        async with watching(engine.url) as watched, asyncio.TaskGroup() as group:
            ready = await watched.until(lambda report: report.lifecycle is Lifecycle.READY)
            assert (ready.models, ready.capacity_tokens, ready.running) == (("smollm2",), 256, 0)
            answer = group.create_task(generate(engine.url, 20))
            await watched.until(lambda report: report.running == 1)
            assert await answer == 20
