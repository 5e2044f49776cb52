"""engines.sidecar.kv.cache: against a plain model of an engine's cache, and case by case."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sidecar.kv.cache import EngineCache
from engines.sidecar.kv.events import BlocksCleared, BlockStored, CacheEvent
from router.core.cache_delta import Tier
from tests.engines.sidecar.kv.naive_cache import MODEL, Block, NaiveCache, StrictRouter, make_blocks, removed, stored

KINDS = {0: "full_attention", 1: "mla_attention", 2: "sliding_window"}


def cache(max_blocks: int = 10_000, max_orphan_blocks: int = 1_000) -> EngineCache:
    return EngineCache(MODEL, max_blocks, max_orphan_blocks)


def publish(engine: EngineCache, *events: CacheEvent) -> dict[int, Tier]:
    """What a router holds that hears only of these events."""
    router = StrictRouter()
    for event in events:
        engine.apply(event)
        router.apply(engine.take_changes())
    return router.keys


def forest(size: int) -> list[Block]:
    """Leaves of a few chains of blocks that share starts: parting within a block, and with equal tokens but another handle."""
    trunk = make_blocks(size, 3)
    half = size // 2
    leaves = [trunk[-1], make_blocks(size, 2, salt="s")[-1]]
    for at in trunk[:2]:
        tokens = trunk[len(at.path)].tokens
        leaves.append(make_blocks(size, 2, 1000, before=at)[-1])
        leaves.append(make_blocks(size, 1, 7000, before=Block(at, (*tokens[:half], *range(5000, 5000 + size - half))))[-1])
        leaves.append(make_blocks(size, 2, tokens[-1] + 1, before=Block(at, tokens, hidden=1))[-1])
    return leaves


class Walk:
    """An engine and the plain model of it, going through the same random steps."""

    def __init__(self, size: int, groups: int, chance: Random) -> None:
        self.engine = cache()
        self.model = NaiveCache(frozenset(range(groups)))
        self._chance = chance
        self._leaves = forest(size)
        self._media = chance.choice([["GPU"], ["GPU", "GPU", "GPU", "CPU_PINNED", "DISK"]])
        self._groups = groups

    def step(self) -> None:
        chance = self._chance
        path = chance.choice(self._leaves).path
        start = chance.choice([0, 0, chance.randrange(len(path))])
        blocks = path[start : start + chance.randint(1, len(path))]
        medium, group = chance.choice(self._media), chance.randint(0, self._groups)
        what = chance.choices(["store", "remove", "copy", "clear"], [50, 45, 5, 1])[0]
        if what == "store":
            kind = "full_attention" if group < self._groups else "sliding_window"
            self.engine.apply(stored(blocks, medium, group, kind))
            self.model.store(blocks, medium, group)
        elif what == "remove":
            some = [block for block in blocks if chance.random() < 0.6]
            chance.shuffle(some)
            self.engine.apply(removed(some, medium, group))
            self.model.remove(some, medium, group)
        elif what == "copy" and group in self.model.media.get("GPU", ()):  # else nobody knows what kind of group it is
            self.engine.apply(BlockStored([block.id for block in blocks], medium="STORAGE", group=group))
            self.model.copy(blocks, "STORAGE", group)
        elif what == "clear":
            self.engine.apply(BlocksCleared())
            self.model.clear()


@pytest.mark.parametrize("size", [1, 4, 5, 16, 24, 32])
@pytest.mark.parametrize("groups", [1, 2])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_agrees_with_a_plain_model(size: int, groups: int, seed: int) -> None:
    """Stores, repeats, removals, other memories and groups in any order: the router holds what the plain model says."""
    walk, router = Walk(size, groups, Random(seed)), StrictRouter()
    for _ in range(80):
        walk.step()
        router.apply(walk.engine.take_changes())
        assert router.keys == walk.model.published()
        again = StrictRouter()
        again.apply(walk.engine.snapshot())
        assert again.keys == router.keys
        assert walk.engine.keys == len(router.keys)
        assert walk.engine.blocks == len(walk.model.remembered()) + walk.model.unknown_parents()
