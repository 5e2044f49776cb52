"""Predictions for a real llama.cpp: what its slots and its RAM cache hold, on mixed traffic through a real router."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from engines.launch import LlamaCppOptions, launch
from loadtest.demo.router_process import start_router
from router.core.types import BLOCK_TOKENS
from tests.e2e.cluster import READY_DEADLINE_S
from tests.e2e.mixed_load import MixedLoad

RAM_MIB = 8
RAM_TOKENS = 3990  # that many of the tiny model's
REQUESTS = 200


TOLD = f",ram_tokens={RAM_TOKENS}"


@pytest.mark.parametrize(
    ("ram_mib", "told", "unified", "clients", "least"),
    [
        pytest.param(RAM_MIB, TOLD, False, 1, 0.95, id="small RAM cache"),
        pytest.param(RAM_MIB, "", False, 1, 0.9, id="RAM cache of unknown size"),
        pytest.param(0, ",ram_tokens=0", False, 1, 0.95, id="slots only"),
        pytest.param(RAM_MIB, TOLD, True, 1, 0.9, id="one KV cache for all slots"),
        pytest.param(RAM_MIB, TOLD, False, 4, 0.85, id="four at a time"),
    ],
)
def test_predictions_are_right_to_a_block(
    options: LlamaCppOptions, tmp_path: Path, ram_mib: int, told: str, unified: bool, clients: int, least: float
) -> None:
    """Of 200 mixed requests over 4 slots the predicted cached tokens are those reported, to within one block.

    One at a time, each finds the slots as the ones before left them. Of several at a time only the engine knows which ended
    or began first where milliseconds part them: there fewer are right, 93 to 97 in a hundred with answers of 4 to 60 tokens.
    """
    own = dataclasses.replace(options, cache_ram_mib=ram_mib, unified_kv=unified)
    flags = ("--tokenizer", str(own.model_path), "--tokenizer-cache", str(own.model_path.parent))
    answers = (8, 8) if clients == 1 else (4, 24)
    with (
        launch(own, tmp_path / "engine.log") as engine,
        start_router([f"llama.cpp={engine.url}{told}"], tmp_path / "router.log", *flags) as router,
    ):
        router.await_workers(1, READY_DEADLINE_S)
        sent = MixedLoad(router.url, seed=1, requests=REQUESTS, clients=clients, answers=answers).play()
        decisions = [router.decision(one.request_id) for one in sent]
    errors = [row["predicted_cached_tokens"] - row["actual_cached_tokens"] for row in decisions]
    kinds = Counter(one.what for one, error in zip(sent, errors, strict=True) if abs(error) > BLOCK_TOKENS)
    share = sum(abs(error) <= BLOCK_TOKENS for error in errors) / REQUESTS
    cached = sum(row["actual_cached_tokens"] for row in decisions) / sum(row["prompt_tokens"] for row in decisions)
    print(f"within a block: {share:.1%}; missed {dict(kinds)}; cached {cached:.1%} of the prompts' tokens")
    assert share >= least, sorted(errors)
