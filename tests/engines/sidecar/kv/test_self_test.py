"""engines.sidecar.kv.self_test: what is sent, what must come back, and what it means when it does not."""

from dataclasses import replace

import pytest

from engines.fetch import Answer
from engines.sidecar.kv.self_test import (
    Evidence,
    diagnosis,
    expected_keys,
    probe_body,
    probe_tokens,
    refusal,
    usage_of,
)

NOTHING = Evidence(sent_tokens=49)
SEEN = replace(NOTHING, batches=1, stored=1, block_tokens=16)


@pytest.mark.parametrize(("block_tokens", "count"), [(16, 49), (1, 49), (64, 193), (256, 769), (None, 513), (0, 513)])
def test_probe(block_tokens: int | None, count: int) -> None:
    """A prompt that nobody sent before, of several blocks and one token more, in ids that every vocabulary has."""
    tokens = probe_tokens(block_tokens)
    assert len(tokens) == count and tokens != probe_tokens(block_tokens)
    assert all(3 <= token <= 250 for token in tokens)
    assert probe_body("m", tokens) == {"model": "m", "prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": False}


@pytest.mark.parametrize(("tokens", "block_tokens", "keys"), [(49, 16, 3), (49, 1, 3), (193, 64, 12), (40, 32, 2), (40, 0, 0)])
def test_expected_keys(tokens: int, block_tokens: int, keys: int) -> None:
    """Only full blocks of the engine are kept, and only whole blocks of 16 tokens have keys."""
    assert expected_keys(tokens, block_tokens) == keys


def test_usage() -> None:
    """Counts are read where they are given."""
    body = b'{"usage":{"prompt_tokens":49,"prompt_tokens_details":{"cached_tokens":48}}}'
    assert usage_of(Answer("/", 200, {}, body)) == (49, 48)
    assert usage_of(Answer("/", 200, {}, b'{"usage":{"prompt_tokens":49,"prompt_tokens_details":null}}')) == (49, None)
    assert usage_of(Answer("/", 200, {}, b"[]")) == (None, None)


def test_refusal() -> None:
    """The engine's own words are passed on."""
    answer = Answer("/", 400, {}, b'{"error":{"message":"too long"}}')
    assert refusal(answer) == "the engine refused the probe prompt (400: too long)"
    assert refusal(Answer("/", 503, {}, b"")) == "the engine refused the probe prompt (503)"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(SEEN, counted_tokens=50), "token ids differ: 49 were sent, the engine counted 50"),
        (replace(NOTHING, unreadable="not msgpack"), "its KV events cannot be read: not msgpack"),
        (replace(SEEN, foreign_rank=2), "its KV events come from data-parallel rank 2, which is not this worker's"),
        (replace(NOTHING, foreign_topic="kv@\n", topic="x"), "topic: its KV events come under 'kv@', not 'x'"),
        (replace(NOTHING, cached_again=48), "events off: 48 tokens of the probe prompt were cached and no KV event told so"),
        (replace(NOTHING, cached_again=0), "prefix caching off: the probe prompt sent once more found nothing cached"),
        (NOTHING, "events off, or prefix caching off: the probe prompt led to no KV event"),
        (replace(SEEN, stored=0), "prefix caching off: its KV events tell of no stored block"),
        (replace(SEEN, block_tokens=0), "block size unknown: its KV events tell of no block of full attention with its size"),
        (replace(SEEN, doubt="it caches more than 4 blocks"), "it caches more than 4 blocks"),
        (SEEN, "token ids differ: its KV events tell of other blocks than those of the probe prompt"),
    ],
)
def test_diagnosis(seen: Evidence, words: str) -> None:
    """The precondition that is not met is named."""
    assert diagnosis(replace(seen, counted_tokens=seen.counted_tokens or 49)) == words
