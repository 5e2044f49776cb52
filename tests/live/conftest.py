"""Real engines beside llama.cpp. Collected only where the Makefile's targets name a folder with their environments."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.demo.router_process import LocalRouter, start_router
from tests.live.places import VARIABLE, Places

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]

READY_DEADLINE_S = 30.0


@pytest.fixture(scope="session")
def places() -> Places:
    return Places.prepared()


class Routers:
    """Starts routers over given engines; all are stopped at the end of the test."""

    def __init__(self, stack: ExitStack, places: Places, folder: Path) -> None:
        self._stack = stack
        self._places = places
        self._folder = folder
        self._started = 0

    def start(self, specs: list[str], *flags: str, ready: int | None = None) -> LocalRouter:
        """`specs`: KIND=URL,… each. Returns when `ready` workers are (all by default)."""
        self._started += 1
        tokenizer = ("--tokenizer", str(self._places.model))
        log = self._folder / f"router-{self._started}.log"
        router = self._stack.enter_context(start_router(specs, log, *tokenizer, *flags))
        router.await_workers(len(specs) if ready is None else ready, READY_DEADLINE_S)
        return router


@pytest.fixture
def routers(places: Places, tmp_path: Path) -> Iterator[Routers]:
    with ExitStack() as stack:
        yield Routers(stack, places, tmp_path)
