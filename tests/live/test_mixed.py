"""llama.cpp, vLLM and DeepSpeed in one pool under one model name, all with the same weights: `make test-mixed`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engines.launch import LlamaCppOptions, launch_all
from engines.starters.vllm import VllmOptions
from engines.tiny_gguf import cached_tiny_gguf
from tests.e2e.cluster import until
from tests.live.conftest import Routers
from tests.live.loads import decision, mixed, play, problems
from tests.live.places import Places
from tests.live.stage import EXACT_DEADLINE_S, START_DEADLINE_S, DeepSpeed, deepspeed_options, row_of

REQUESTS = 200


@pytest.fixture(scope="module")
def pool(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """Kind → (URL, `--engine` text)."""
    folder = tmp_path_factory.mktemp("mixed")
    events, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    vllm = replace(VllmOptions(places.vllm, places.model, "tiny", topic="kv"), events=events, replay=replay)
    llama = LlamaCppOptions(cached_tiny_gguf(), "tiny", slots=4, slot_context_tokens=1024)
    wanted = [*deepspeed_options(places, folder, 64), (vllm, folder / "vllm.log"), (llama, folder / "llama.log")]
    engines = launch_all(wanted, START_DEADLINE_S)
    back_end, server, vllm_engine, llama_engine = engines
    deepspeed = DeepSpeed(server, back_end)
    yield {
        "deepspeed": (deepspeed.url, deepspeed.spec),
        "vllm": (vllm_engine.url, f"vllm={vllm_engine.url},events={events},replay={replay}"),
        "llama.cpp": (llama_engine.url, f"llama.cpp={llama_engine.url}"),
    }
    for engine in engines:
        engine.stop()


async def test_mixed_pool(pool: dict[str, tuple[str, str]], routers: Routers) -> None:
    """200 mixed requests from six clients succeed; every kind gets some, and cache credit only where there is a cache."""
    router = routers.start([spec for _, spec in pool.values()])
    until(lambda: row_of(router, pool["vllm"][0])["truth"] == "exact", "vLLM's events are followed", EXACT_DEADLINE_S)
    answers = await play([router], mixed("tiny", REQUESTS), clients=6)
    assert not problems(answers) and len(answers) == REQUESTS
    kinds = {row_of(router, url)["id"]: kind for kind, (url, _) in pool.items()}
    records = [decision(one) for one in answers]
    used = Counter(kinds[record["worker"]] for record in records)
    print(dict(used), {kind: row_of(router, url)["truth"] for kind, (url, _) in pool.items()})
    assert set(used) == set(pool), f"not every kind was used: {used}"
    for record in records:
        for candidate in record["candidates"]:
            assert kinds[candidate["worker"]] != "deepspeed" or candidate["matched_tokens"] == 0
    assert row_of(router, pool["deepspeed"][0])["truth"] == "none"
    assert row_of(router, pool["llama.cpp"][0])["truth"] == "modelled"
    assert row_of(router, pool["vllm"][0])["truth"] == "exact"
    by_events = [record for record in records if kinds[record["worker"]] == "vllm"]
    assert all(record["predicted_cached_tokens"] == record["actual_cached_tokens"] for record in by_events)
    warm = [record for record in records if kinds[record["worker"]] != "deepspeed" and record["actual_cached_tokens"]]
    assert len(warm) > REQUESTS / 4
