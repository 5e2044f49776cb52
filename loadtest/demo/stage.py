"""The demo's processes for one policy: two cold engines and a router in front of them."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from engines.launch import LlamaCppOptions, LocalEngine, launch
from engines.tiny_gguf import smollm2_path
from loadtest.demo.driver import Exchange
from loadtest.demo.router_process import LocalRouter, start_router

MODEL = "smollm2-135m"
ENGINE_LETTERS = ("A", "B")
SLOTS = 4  # llama.cpp's usual number, and fewer than there are assistants: one engine cannot keep all of them warm
SLOT_CONTEXT_TOKENS = 1024
READY_DEADLINE_S = 30.0
DECISION_DEADLINE_S = 2.0
POLL_INTERVAL_S = 0.02


@dataclass
class Stage:
    """Running engines and router; a context manager that stops them, the router first."""

    engines: Sequence[LocalEngine]
    router: LocalRouter
    closing: contextlib.ExitStack

    @property
    def letters(self) -> dict[str, str]:
        """Worker id → the letter it has in the tables."""
        by_url = dict(zip((engine.url for engine in self.engines), ENGINE_LETTERS, strict=True))
        return {row["id"]: by_url[row["url"]] for row in self.router.workers()}

    def letters_of(self, exchanges: Sequence[Exchange]) -> dict[str, str]:
        """Request id → letter of the engine that answered it, by the router's own record of its decision."""
        letters = self.letters
        return {exchange.request_id: letters[self._worker_of(exchange.request_id)] for exchange in exchanges}

    def _worker_of(self, request_id: str) -> str:
        """The record of a request just answered may come a moment after its last byte."""
        ends_at = time.monotonic() + DECISION_DEADLINE_S
        while "worker" not in (found := self.router.decision(request_id)):
            if time.monotonic() > ends_at:
                raise KeyError(f"the router keeps no decision for request {request_id}")
            time.sleep(POLL_INTERVAL_S)
        return str(found["worker"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.closing.close()


def open_stage(policy: str, log_folder: Path, model_path: Path | None = None) -> Stage:
    """Start two engines and the router and return when all are ready; everything started is stopped if one is not.

    Raises EngineStartError or RouterStartError, whose texts end with the log of what failed.
    """
    model_path = model_path or smollm2_path()
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(launch(options(model_path), log_folder / f"{policy}-engine-{letter}.log"))
            for letter in ENGINE_LETTERS
        ]
        specs = [f"llama.cpp={engine.url}" for engine in engines]
        flags = ("--policy", policy, "--tokenizer", str(model_path))
        router = stack.enter_context(start_router(specs, log_folder / f"{policy}-router.log", *flags))
        router.await_workers(len(engines), READY_DEADLINE_S)
        return Stage(engines, router, stack.pop_all())


def options(model_path: Path) -> LlamaCppOptions:
    return LlamaCppOptions(model_path, MODEL, slots=SLOTS, slot_context_tokens=SLOT_CONTEXT_TOKENS)
