"""Real engines and a real router, each in its own process; the tiny model is written once and kept between sessions."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from engines.launch import LlamaCppOptions
from engines.tiny_gguf import cached_tiny_gguf
from tests.e2e.cluster import MODEL, Cluster, open_cluster

ClusterMaker = Callable[..., Cluster]


@pytest.fixture(scope="session")
def options() -> LlamaCppOptions:
    return LlamaCppOptions(cached_tiny_gguf(), MODEL, slots=4, slot_context_tokens=2048)


@pytest.fixture(scope="session")
def cluster(options: LlamaCppOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two engines and a router, shared by the tests that leave them as they were."""
    with open_cluster(options, tmp_path_factory.mktemp("cluster")) as shared:
        yield shared


@pytest.fixture
def make_cluster(options: LlamaCppOptions, tmp_path: Path) -> Iterator[ClusterMaker]:
    """For tests that break things: `make_cluster(slots=2, …)` with engines of its own, all stopped afterwards."""
    with ExitStack() as stack:

        def make(*flags: str, slots: int = 4, slot_context_tokens: int = 2048, missing: int = 0) -> Cluster:
            own = dataclasses.replace(options, slots=slots, slot_context_tokens=slot_context_tokens)
            return stack.enter_context(open_cluster(own, tmp_path, *flags, missing=missing))

        yield make


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    """The SDK as any user has it, but for its own retries: a failure must show."""
    with openai.OpenAI(base_url=cluster.router.url + "/v1", api_key="none", max_retries=0, timeout=60) as sdk:
        yield sdk
