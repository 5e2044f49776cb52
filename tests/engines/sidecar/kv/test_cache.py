"""engines.sidecar.kv.cache: against a plain model of an engine's cache, and case by case."""

import gc
from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sidecar.kv.cache import EngineCache
from engines.sidecar.kv.events import BlockRemoved, BlocksCleared, BlockStored, CacheEvent
from engines.sidecar.kv.run import Run
from router.core.cache_delta import Cleared, Removed, Stored, Tier
from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm
from tests.engines.sidecar.kv.naive_cache import MODEL, Block, NaiveCache, StrictRouter, make_blocks, removed, stored


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
        self._kind = chance.choice(["full_attention", None]) if groups == 1 else "full_attention"  # None: not told

    def step(self) -> None:
        chance = self._chance
        path = chance.choice(self._leaves).path
        start = chance.choice([0, 0, chance.randrange(len(path))])
        blocks = path[start : start + chance.randint(1, len(path))]
        medium, group = chance.choice(self._media), chance.randint(0, self._groups)
        what = chance.choices(["store", "remove", "copy", "clear"], [50, 45, 5, 1])[0]
        if what == "store":
            kind = self._kind if group < self._groups else "sliding_window"
            self.engine.apply(stored(blocks, medium, group, kind))
            self.model.store(blocks, medium, group, kind)
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


def keys_of(block: Block) -> list[int]:
    return list(block.keys)


def test_blocks_of_32_tokens_share_the_key_of_their_first_half() -> None:
    """The shared key is told once and stays until both blocks are gone."""
    one = make_blocks(32, 1)[0]
    other = Block(None, (*one.tokens[:16], *range(900, 916)))
    first, second = one.keys
    assert publish(cache(), stored([one]), stored([other])).keys() == {first, second, other.keys[1]}
    assert publish(cache(), stored([one]), stored([other]), removed([one])).keys() == set(other.keys)
    assert not publish(cache(), stored([one]), stored([other]), removed([one]), removed([other]))


def test_pages_of_one_token() -> None:
    """A key appears with the token that fills it and goes with any of its tokens."""
    pages = make_blocks(1, 40)
    engine = cache()
    assert publish(engine, stored(pages[:15])) == {}
    assert publish(engine, stored(pages[15:])).keys() == set(keys_of(pages[-1]))
    assert len(publish(cache(), stored(pages), removed([pages[20]]))) == 1
    assert publish(cache(), stored(pages), removed([pages[3]])) == {}
    assert len(publish(cache(), stored(pages), removed([pages[3]]), stored([pages[3]]))) == 2


def test_hole_hides_what_is_behind_until_it_is_filled() -> None:
    """A block gone from the middle takes all behind it along, and brings it back."""
    blocks = make_blocks(16, 5)
    engine = cache()
    engine.apply(stored(blocks))
    engine.take_changes()
    engine.apply(removed([blocks[2]]))
    keys = keys_of(blocks[-1])
    assert engine.take_changes() == (Removed(array("Q", keys[:1:-1])),)
    engine.apply(stored([blocks[2]]))
    assert engine.take_changes() == (Stored(keys[1], array("Q", keys[2:])),)


def test_copies_are_counted() -> None:
    """vLLM stores the last block of a repeated, aligned prompt once more: it is there until both copies are gone."""
    blocks = make_blocks(16, 3)
    engine = cache()
    again = stored([blocks[2]])
    assert len(publish(engine, stored(blocks), again, removed([blocks[2]]))) == 3
    engine.apply(removed([blocks[2]]))
    assert engine.take_changes() == (Removed(blocks[2].own_keys),)
    engine.apply(removed([blocks[2]]))
    assert engine.take_changes() == ()


def test_repeats_of_a_found_prefix_make_no_copies() -> None:
    """kv_cache_report_mode=full tells a found prefix again, from its start, without a removal to come for it."""
    blocks = make_blocks(16, 3)
    told = stored(blocks, kind="full_attention")
    assert not publish(cache(), told, told, stored(blocks[:2], kind="full_attention"), removed(blocks))
    assert len(publish(cache(), stored(blocks), stored(blocks), removed(blocks))) == 3  # an engine without that mode
    assert publish(cache(), stored(blocks), stored(blocks, reused=False), removed(blocks)).keys() == set(keys_of(blocks[-1]))
    assert not publish(cache(), stored(blocks), stored(blocks[2:], reused=True), removed(blocks))


def test_repeats_fill_gaps() -> None:
    """What a late joiner missed is placed when a repeat tells it, and so is what waited behind it."""
    blocks = make_blocks(16, 4)
    engine = cache()
    assert publish(engine, stored(blocks[3:])) == {}
    assert engine.orphan_blocks == 2 and engine.doubt
    assert publish(engine, stored(blocks[:3])).keys() == set(keys_of(blocks[-1]))
    assert engine.orphan_blocks == 0 and not engine.doubt
    assert not publish(cache(), stored(blocks[3:]), stored(blocks[:3]), removed(blocks))


def test_orphans_of_orphans() -> None:
    """Blocks behind blocks whose parent is unknown wait with them, and are forgotten with their last copy."""
    blocks = make_blocks(1, 40)
    branch = make_blocks(1, 3, 700, before=blocks[30])
    engine = cache()
    assert publish(engine, stored(blocks[20:]), stored(branch)) == {}
    assert engine.orphan_blocks == 24
    assert publish(engine, stored(blocks[10:20])) == {}
    assert engine.orphan_blocks == 34
    assert publish(engine, stored(blocks[:10])).keys() == {*keys_of(blocks[-1]), *keys_of(branch[-1])}
    assert (engine.orphan_blocks, engine.blocks) == (0, 43)
    lost = cache()
    assert publish(lost, stored(blocks[20:]), removed(blocks[20:])) == {}
    assert (lost.orphan_blocks, lost.blocks, lost.doubt) == (0, 0, "")


def test_tiers() -> None:
    """A block is told in its fastest memory, moves when that copy goes, and stays until the last one is gone."""
    blocks = make_blocks(16, 2)
    engine = cache()
    router = StrictRouter()
    steps: list[tuple[CacheEvent, Tier | None]] = [
        (stored(blocks), Tier.DEVICE),
        (stored(blocks, "CPU_PINNED"), Tier.DEVICE),
        (removed(blocks), Tier.HOST),
        (BlockStored([blocks[0].id, blocks[1].id], medium="STORAGE"), Tier.HOST),
        (removed(blocks, "CPU_PINNED"), Tier.DISK),
        (stored(blocks), Tier.DEVICE),
        (removed(blocks), Tier.DISK),
        (removed(blocks, "STORAGE"), None),
    ]
    for event, tier in steps:
        engine.apply(event)
        router.apply(engine.take_changes())
        assert set(router.keys.values()) == ({tier} if tier else set())


def test_offloaded_copies_are_no_new_blocks() -> None:
    """vLLM's offloading leaves out salts and images, so it tells of copies of known blocks only."""
    blocks = make_blocks(16, 2)
    engine = cache()
    assert publish(engine, stored(blocks, "CPU")) == {}
    assert engine.unplaced_copies == 2 and not engine.doubt
    assert set(publish(engine, stored(blocks), stored(blocks, "CPU"), removed(blocks)).values()) == {Tier.HOST}


def test_groups_of_a_hybrid_model() -> None:
    """A block counts once every group of full attention holds it; a group that is learnt late takes others back."""
    blocks = make_blocks(16, 2)
    engine = cache()
    full, window = "full_attention", "sliding_window"
    engine.apply(stored(blocks, kind=full))
    engine.apply(BlockStored([1, 2], 77, bytes(4 * 16 * 3), 16, group=1, group_kind=window, keyed=2))
    router = StrictRouter()
    router.apply(engine.take_changes())
    assert len(router.keys) == 2 and not engine.doubt
    engine.apply(stored(blocks[:1], group=2, kind=full))
    router.apply(engine.take_changes())
    assert router.keys.keys() == set(blocks[0].keys)
    engine.apply(removed(blocks, group=1))
    engine.apply(removed(blocks[:1], group=0))
    router.apply(engine.take_changes())
    assert not router.keys


def test_namespaces_are_apart() -> None:
    """Equal tokens of another adapter or salt have other keys, made as the router makes them."""
    block = make_blocks(16, 1)[0]
    events = [
        BlockStored([number], None, tokens_le(block.tokens), 16, adapter=adapter, salt=salt, keyed=1)
        for number, (adapter, salt) in enumerate([(None, None), ("legal", None), (None, "s"), ("legal", "s")])
    ]
    roots = [root(MODEL, adapter, salt, KeyForm.TOKENS) for adapter in (None, "legal") for salt in (None, "s")]
    expected = {chain(tokens_le(block.tokens), seed)[0] for seed in roots}
    assert publish(cache(), *events).keys() == expected and len(expected) == 4


def test_blocks_with_images_have_no_keys() -> None:
    """From the first block with other inputs on nothing is published; what comes behind is known to be without keys too."""
    blocks = make_blocks(16, 5)
    event = stored(blocks[:3])
    event.keyed = 1
    engine = cache()
    later = stored(blocks[3:])
    assert publish(engine, event, later, later).keys() == set(blocks[0].keys)
    assert (engine.unkeyed_blocks, engine.blocks, engine.doubt) == (4, 5, "")
    engine.apply(removed(blocks))
    assert engine.blocks == 2  # the last two have a second copy
    engine.apply(removed(blocks))
    assert engine.blocks == 0
    image_first = stored(blocks[:2])
    image_first.keyed = 0
    assert publish(cache(), image_first) == {}


def test_room() -> None:
    """Beyond its bound nothing is taken in, and that is told; clearing makes it certain again."""
    engine = cache(max_blocks=4)
    assert len(publish(engine, stored(make_blocks(16, 4)))) == 4
    assert publish(engine, stored(make_blocks(16, 1, 500))) == {}
    assert engine.lost_blocks == 1 and engine.doubt == "it caches more than 4 blocks"
    engine.apply(BlocksCleared())
    assert engine.take_changes() == (Cleared(),)
    assert (engine.blocks, engine.keys, engine.doubt) == (0, 0, "")


def test_room_for_orphans() -> None:
    """Blocks behind unknown ones are kept up to a bound of their own."""
    engine = cache(max_orphan_blocks=3)
    chains = [make_blocks(16, 2, first) for first in (0, 100, 200)]
    for blocks in chains:
        engine.apply(stored(blocks[1:]))
    assert (engine.orphan_blocks, engine.lost_blocks) == (2, 2)
    assert engine.doubt == "blocks were stored behind others that were never told"


@pytest.mark.parametrize(
    ("event", "doubt"),
    [
        pytest.param(BlockStored([1, 2], None, bytes(64), 16, keyed=2), "tokens", id="tokens for one block of two"),
        pytest.param(BlockStored([1], None, bytes(32), 8, keyed=1), "tokens", id="another block size"),
        pytest.param(BlockStored([1, 1], None, bytes(128), 16, keyed=2), "tail", id="a block twice"),
        pytest.param(BlockStored([1], 1, bytes(64), 16, keyed=1), "tail", id="its own parent"),
        pytest.param(BlockStored([], None, bytes(64), 16), "", id="no block at all"),
        pytest.param(BlockStored([1], None, b"", 0), "", id="no tokens"),
        pytest.param(BlockRemoved([1]), "", id="removal of an unknown block"),
        pytest.param(BlockRemoved([1], "TAPE", 9), "", id="removal from an unknown memory"),
    ],
)
def test_events_that_do_not_fit(event: CacheEvent, doubt: str) -> None:
    """Such events change nothing; those that stored something put the rest in doubt."""
    blocks = make_blocks(16, 2)
    engine = cache()
    assert len(publish(engine, stored(blocks))) == 2
    assert publish(engine, event) == {}
    assert doubt in engine.doubt and bool(engine.doubt) == bool(doubt)
    assert engine.keys == 2


def test_block_size_is_learnt() -> None:
    """The first block tells the size."""
    engine = cache()
    assert engine.block_tokens == 0
    engine.apply(stored(make_blocks(64, 1)))
    assert engine.block_tokens == 64 and engine.keys == 4


def test_removing_a_long_run_from_its_start() -> None:
    """SGLang removes a node's pages first to last: one after the other costs no search, and in the end nothing is left."""
    ids = list(range(3000))
    engine = cache()
    engine.apply(BlockStored(ids, None, tokens_le(range(3000)), 1, keyed=3000))
    engine.apply(BlockRemoved(ids))
    assert (engine.blocks, engine.keys) == (0, 0)
    assert [type(change) for change in engine.take_changes()] == [Stored, Removed]


def test_cleared_cache_holds_no_cycles() -> None:
    """Old objects are never searched for cycles in a router, so a cleared cache must fall apart by itself."""
    engine = cache()
    trunk = make_blocks(16, 3)
    engine.apply(stored(trunk))
    engine.apply(stored(make_blocks(16, 1, 900, before=trunk[0])))
    engine.apply(stored(make_blocks(16, 3, 400)[2:]))
    engine.take_changes()

    def runs() -> int:
        return sum(isinstance(thing, Run) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert runs() > 4
        engine.clear()
        assert runs() == 0
    finally:
        gc.enable()


HOSTILE = st.one_of(
    st.builds(
        lambda ids, parent, token, size, medium, group, keyed, reused: BlockStored(
            ids, parent, tokens_le([token] * (size * len(ids))), size, medium, group, None, None, None, keyed, reused
        ),
        st.lists(st.integers(0, 8), max_size=5),
        st.none() | st.integers(0, 8),
        st.integers(0, 2),
        st.sampled_from([0, 1, 16, 16, 32]),
        st.sampled_from(["GPU", "DISK", "CPU"]),
        st.integers(0, 1),
        st.integers(-1, 6),
        st.none() | st.booleans(),
    ),
    st.builds(BlockRemoved, st.lists(st.integers(0, 8), max_size=6), st.sampled_from(["GPU", "DISK"]), st.integers(0, 1)),
    st.just(BlocksCleared()),
)


@settings(max_examples=400, deadline=None)
@given(events=st.lists(HOSTILE, max_size=25))
def test_contradictions_do_no_harm(events: list[CacheEvent]) -> None:
    """Events that contradict each other never raise, and what is published stays a set of whole chains."""
    engine, router = cache(20, 6), StrictRouter()
    for event in events:
        engine.apply(event)
        router.apply(engine.take_changes())
        again = StrictRouter()
        again.apply(engine.snapshot())
        assert again.keys == router.keys and engine.keys == len(router.keys)
        assert engine.blocks <= 20 + 1 and 0 <= engine.orphan_blocks <= 7
    engine.apply(BlockRemoved(list(range(9)) * 40))
    engine.apply(BlockRemoved(list(range(9)) * 40, "DISK"))
    engine.apply(BlockRemoved(list(range(9)) * 40, "CPU"))
    assert engine.keys == 0
