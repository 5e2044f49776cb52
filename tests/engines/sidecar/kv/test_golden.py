"""What real engines said, played to the decoder and the cache: what they found cached is what was published before."""

import json
from typing import Any

import pytest

from engines.sidecar.kv.cache import EngineCache
from engines.sidecar.kv.events import BlockStored
from engines.sidecar.kv.wire import EventDecoder, live_frames, replay_frames
from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm
from tests.engines.sidecar.kv.naive_cache import StrictRouter

recorded = pytest.importorskip("tests.golden.recorded")
MODEL = "tiny"
RECORDINGS = ["vllm-0.32.0/events", "sglang-0.5.23/events", "sglang-0.5.23/events-page1"]


def request_of(line: dict[str, Any]) -> tuple[list[int], int, int | None] | None:
    """(tokens, root, cached tokens that the engine counted) of a prompt; None for other requests and refused ones."""
    body = line["request"].get("body")
    if line["status"] != 200 or not isinstance(body, dict) or "model" not in body:
        return None
    answer = json.loads(line["body"])
    details = answer["usage"].get("prompt_tokens_details") or {}
    adapter = None if body["model"] == MODEL else body["model"]
    tokens = line.get("prompt_ids") or body["prompt"]
    return tokens, root(MODEL, adapter, body.get("cache_salt"), KeyForm.TOKENS), details.get("cached_tokens")


@pytest.mark.parametrize("recording", RECORDINGS)
def test_predictions(recording: str) -> None:
    """For each recorded prompt the published keys tell how much of it the engine finds, to a whole block."""
    engine, router, decoder = EngineCache(MODEL, 10_000, 1_000), StrictRouter(), EventDecoder()
    compared = 0
    for line in recorded.lines(recording):
        if line["what"] == "frames" and line["socket"] == "events":
            _, number, payload = live_frames([bytes.fromhex(frame) for frame in line["frames"]])
            if number == 0:
                engine.clear()
            for event in decoder.decode(payload).events:
                engine.apply(event)
            router.apply(engine.take_changes())
        request = request_of(line) if line["what"] == "answer" else None
        if request is None or line["step"] == "extra key" or (line["step"] == "restarted"):
            continue
        tokens, seed, cached = request
        held = next((n for n, key in enumerate(chain(tokens_le(tokens), seed)) if key not in router.keys), len(tokens) // 16)
        block = max(engine.block_tokens, 16)
        predicted = min(held * 16, len(tokens) - 1) // block * block
        assert predicted == (cached or 0) // block * block, line["step"]
        compared += 1
    assert compared >= 7 and not engine.doubt and not decoder.unknown_keys and not decoder.unknown_events


@pytest.mark.parametrize("recording", RECORDINGS)
def test_replays(recording: str) -> None:
    """Recorded replies of the replay socket are taken apart; their batches are those that came live."""
    live = {live_frames(frames)[1:] for frames in recorded.frames(recording)}
    replies = [replay_frames(frames) for frames in recorded.frames(recording, socket="replay")]
    assert None in replies
    assert {parts[1:] for parts in replies if parts is not None} <= live


def test_full_reports_make_no_copies() -> None:
    """vLLM's repeat of a found prefix is told from its chain's start, and nothing is removed for it."""
    decoder = EventDecoder()
    [frames] = recorded.frames("vllm-0.32.0/events", "full report")
    first = decoder.decode(live_frames(frames)[2]).events[0]
    assert isinstance(first, BlockStored) and first.parent is None and first.group_kind == "full_attention"
