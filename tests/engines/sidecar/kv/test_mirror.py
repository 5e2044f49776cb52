"""engines.sidecar.kv.mirror: batches in, deltas out, and what is known of the whole."""

from typing import Any

import msgpack

from engines.sidecar.kv.mirror import NOTHING_YET, CacheMirror
from router.core.cache_delta import CacheDelta, Cleared, Stored
from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm, WorkerId
from router.settings import EventSettings
from tests.engines.sidecar.kv.naive_cache import MODEL, Block, make_blocks
from tests.engines.sidecar.kv.publisher import CLEARED, removed_map, stored_map

BLOCKS = make_blocks(16, 4)


class Scene:
    """A mirror and what it told."""

    def __init__(self, rank: int | None = None, generation: str = "g") -> None:
        self.deltas: list[CacheDelta] = []
        self.restarts = 0
        self.flushes = 0
        self.mirror = CacheMirror(WorkerId("w"), rank, EventSettings(), self.deltas.append, self._restarted, self._flushed)
        self.mirror.rename(generation)
        self.mirror.begin(MODEL)

    def _restarted(self) -> None:
        self.restarts += 1

    def _flushed(self) -> None:
        self.flushes += 1

    def send(self, *events: Any, rank: int | None = None) -> list[CacheDelta]:
        """One batch; what came of it."""
        before = len(self.deltas)
        self.mirror.batch(msgpack.packb([1.0, list(events), rank]))
        self.mirror.flush()
        return self.deltas[before:]


def own_keys(block: Block) -> list[int]:
    return list(block.keys)


def test_batch_is_one_delta() -> None:
    """All that came at once is one delta."""
    scene = Scene()
    scene.mirror.fresh()
    [delta] = scene.send(stored_map(BLOCKS[:2]), stored_map(BLOCKS[2:]), removed_map(BLOCKS[3]))
    assert (delta.worker, delta.generation, delta.seq, len(delta.changes)) == ("w", "g", 1, 2)
    assert scene.send() == [] and scene.flushes == 3
    assert scene.mirror.doubt == "" and scene.mirror.block_tokens == 16
    snapshot = scene.mirror.snapshot()
    assert snapshot is not None and list(snapshot.runs[0].keys) == own_keys(BLOCKS[2]) and snapshot.seq == 1


def test_whole_and_part() -> None:
    """Nothing is known before the stream says so, after a loss only a part; clearing and a fresh start make it whole."""
    scene = Scene()
    assert scene.mirror.doubt == NOTHING_YET
    scene.mirror.fresh()
    scene.send(stored_map(BLOCKS))
    assert scene.mirror.doubt == ""
    scene.mirror.lost("batches 1 to 2 were missed")
    scene.mirror.flush()
    assert scene.mirror.doubt == "partial: batches 1 to 2 were missed"
    assert scene.deltas[-1].changes == (Cleared(),)
    scene.send(CLEARED)
    assert scene.mirror.doubt == ""


def test_restart() -> None:
    """Another life begins with nothing, and is the follower's to name."""
    scene = Scene()
    scene.mirror.fresh()
    scene.send(stored_map(BLOCKS))
    scene.mirror.restarted()
    scene.mirror.rename("g+1")
    assert scene.restarts == 1 and scene.mirror.doubt == NOTHING_YET
    [delta] = scene.send(stored_map(BLOCKS))
    assert (delta.generation, delta.seq) == ("g+1", 1)


def test_name_that_changes_tells_all_again() -> None:
    """Under another generation everything that is known is told anew."""
    scene = Scene(generation="")
    scene.mirror.fresh()
    assert scene.send(stored_map(BLOCKS)) == [] and scene.mirror.snapshot() is None
    scene.mirror.rename("named")
    [delta] = scene.deltas
    assert (delta.generation, delta.seq) == ("named", 1)
    assert delta.changes == (Stored(None, BLOCKS[-1].keys),)
    scene.mirror.restart("other", "the engine has restarted")
    assert len(scene.deltas) == 1 and scene.mirror.doubt == "the engine has restarted"


def test_malformed_batches_are_counted() -> None:
    """They never raise; what they stood for is lost."""
    scene = Scene()
    scene.mirror.fresh()
    scene.mirror.batch(b"\xc1")
    assert scene.mirror.malformed == 1 and scene.mirror.doubt.startswith("partial: its KV events cannot be read")
    counts = scene.mirror.counts()
    assert (counts["kv_malformed"], counts["kv_batches"], counts["kv_losses"]) == (1.0, 1.0, 1.0)


def test_ranks() -> None:
    """Batches of another rank are not taken in; where no rank is given the first one counts."""
    scene = Scene()
    scene.mirror.fresh()
    assert scene.send(stored_map(BLOCKS[:1]), rank=3) and scene.send(stored_map(BLOCKS[1:2]))
    scene.send(stored_map(BLOCKS[2:]), rank=0)
    assert scene.mirror.foreign_rank == 0 and "data-parallel rank 0" in scene.mirror.doubt
    other = Scene(rank=1)
    other.send(stored_map(BLOCKS), rank=0)
    assert other.mirror.foreign_rank == 0 and not other.deltas


def test_expected_keys() -> None:
    """Keys that are waited for are noted when they are published."""
    scene = Scene()
    scene.mirror.fresh()
    keys = chain(tokens_le(range(64)), root(MODEL, None, None, KeyForm.TOKENS))
    scene.mirror.expect(frozenset(keys))
    scene.send(stored_map(BLOCKS[:2]))
    assert scene.mirror.found == set(keys[:2]) and scene.mirror.news.is_set()
    scene.mirror.expect(frozenset())
    scene.send(stored_map(BLOCKS[2:]))
    assert not scene.mirror.found and not scene.mirror.news.is_set()


def test_another_model() -> None:
    """Beginning for another model takes back what was told."""
    scene = Scene()
    scene.mirror.fresh()
    scene.send(stored_map(BLOCKS))
    scene.mirror.begin("other")
    assert scene.deltas[-1].changes == (Cleared(),)
    [delta] = scene.send(stored_map(BLOCKS))
    [change] = delta.changes
    assert isinstance(change, Stored)
    assert change.keys == chain(tokens_le(range(64)), root("other", None, None, KeyForm.TOKENS))
