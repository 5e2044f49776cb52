"""Made-up block chains."""

from itertools import islice

from loadtest.bench.chains import SYSTEM_BLOCKS, SYSTEM_PROMPTS, TURN_BLOCKS, Traffic


def test_turns_grow_their_conversation() -> None:
    """A turn's chain begins with the chain of the turn before; conversations begin with few system prompts."""
    longest: dict[int, list[int]] = {}
    heads = set()
    for worker, keys in islice(Traffic(workers=4, seed=1, active=8).turns(), 200):
        assert 0 <= worker < 4
        heads.add(tuple(keys[:SYSTEM_BLOCKS]))
        before = longest.get(keys[SYSTEM_BLOCKS], [])
        assert keys[: len(before)].tolist() == before
        assert TURN_BLOCKS[0] <= len(keys) - max(len(before), SYSTEM_BLOCKS) <= TURN_BLOCKS[1]
        longest[keys[SYSTEM_BLOCKS]] = keys.tolist()
    assert 1 < len(heads) <= SYSTEM_PROMPTS
    assert len(longest) > 8


def test_same_seed_same_traffic() -> None:
    """Runs are repeatable, and another seed is other traffic."""
    one, again, other = (list(islice(Traffic(2, seed).turns(), 20)) for seed in (1, 1, 2))
    assert one == again != other
