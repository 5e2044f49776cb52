"""Bodies of the bench: sizes, shared beginnings, fresh tails."""

import json

import pytest

from loadtest.bench.bodies import FAMILIES, KINDS, bodies, unseen_body


def shared_length(texts: list[str]) -> int:
    """Length of the beginning that all texts share."""
    low, high = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("chat2k", 1900, 2500), ("chat100k", 98_000, 105_000), ("stream64", 1900, 2500)]
)
def test_a_kind_has_its_size(kind: str, low: int, high: int) -> None:
    """Names promise sizes: all bodies of a kind lie within a few percent."""
    sizes = [len(body) for body in bodies(KINDS[kind], 12, seed=3)]
    assert low <= min(sizes) and max(sizes) <= high


def test_same_seed_same_bodies_next_seed_fresh_tails() -> None:
    """Contenders of a round get equal bytes; another round never repeats a body but shares the histories."""
    first, again, other = (bodies(KINDS["chat2k"], 40, seed) for seed in (1, 1, 2))
    assert first == again
    assert len({*first, *other}) == 80
    histories = {json.dumps(json.loads(body)["messages"][:-1]) for body in (*first, *other)}
    assert len(histories) <= FAMILIES


def test_requests_of_a_family_share_most_of_their_bytes() -> None:
    """Multi-turn shape: what is new is the last message only."""
    by_history: dict[str, list[str]] = {}
    for body in bodies(KINDS["chat100k"], 20, seed=1):
        text = body.decode()
        by_history.setdefault(text[:4000], []).append(text)
    family = max(by_history.values(), key=len)
    assert shared_length(family) > 0.95 * len(family[0])


def test_streams_ask_for_a_stream() -> None:
    """Only the stream kind sets stream."""
    assert all(json.loads(bodies(kind, 1, 0)[0])["stream"] is kind.stream for kind in KINDS.values())


def test_unseen_bodies_share_nothing() -> None:
    """Two never-seen prompts differ from their first words on."""
    one, two = unseen_body(50_000, 1).decode(), unseen_body(50_000, 2).decode()
    assert 49_000 < len(one) < 54_000
    assert shared_length([one, two]) < 80
