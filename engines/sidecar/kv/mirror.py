"""What is known of one engine's cache and told to routers: takes in the batches of its event stream. Does no I/O of its own."""

import asyncio
from collections.abc import Callable, Mapping

from engines.sidecar.kv.cache import EngineCache
from engines.sidecar.kv.deltas import DeltaLog
from engines.sidecar.kv.events import BlocksCleared, BlockStored
from engines.sidecar.kv.wire import EventDecoder, MalformedEvents
from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Stored
from router.core.types import WorkerId
from router.settings import EventSettings

NOTHING_YET = "no KV event has come yet"


class CacheMirror:
    """A Sink of engines.sidecar.kv.stream. `partial` says why not all that is cached is known, "" where all is.

    `on_restart` is called when the stream shows another life of the engine, `on_flush` after what came at once was taken in.
    """

    def __init__(
        self,
        worker: WorkerId,
        rank: int | None,
        limits: EventSettings,
        publish: Callable[[CacheDelta], None],
        on_restart: Callable[[], None],
        on_flush: Callable[[], None],
    ) -> None:
        self.log = DeltaLog(worker, publish)
        self.partial = NOTHING_YET
        self.batches = 0
        self.stored = 0  # events that stored blocks with tokens
        self.malformed = 0
        self.losses = 0
        self.unreadable = ""  # what was wrong with the last malformed batch
        self.foreign_rank: int | None = None  # the last one that was not this worker's
        self.found: set[int] = set()  # of the expected keys those that were published since
        self.news = asyncio.Event()  # set when a batch was taken in while keys are expected
        self._rank = rank
        self._limits = limits
        self._on_restart = on_restart
        self._on_flush = on_flush
        self._decoder = EventDecoder()
        self._expected: frozenset[int] = frozenset()
        self._cache = EngineCache("", limits.max_event_blocks, limits.max_orphan_blocks)

    @property
    def block_tokens(self) -> int:
        """Tokens of an engine block, 0 until one was stored."""
        return self._cache.block_tokens

    @property
    def doubt(self) -> str:
        """Why what is published may not be all that is cached."""
        return self.partial or self._cache.doubt

    def counts(self) -> dict[str, float]:
        """Numbers for people."""
        cache, decoder = self._cache, self._decoder
        return {
            "kv_blocks": float(cache.blocks),
            "kv_keys": float(cache.keys),
            "kv_batches": float(self.batches),
            "kv_losses": float(self.losses),
            "kv_malformed": float(self.malformed),
            "kv_unknown_events": float(decoder.unknown_events),
            "kv_unknown_keys": float(decoder.unknown_keys),
            "kv_lost_blocks": float(cache.lost_blocks),
            "kv_orphan_blocks": float(cache.orphan_blocks),
            "kv_unkeyed_blocks": float(cache.unkeyed_blocks),
            "kv_unplaced_copies": float(cache.unplaced_copies),
        }

    def begin(self, model: str) -> None:
        """Know nothing; keys are made for this model from now on."""
        self._forget(NOTHING_YET)
        self.flush()
        adapters = self._cache.adapters
        self._cache = EngineCache(model, self._limits.max_event_blocks, self._limits.max_orphan_blocks)
        self._cache.adapters = adapters

    def name_adapters(self, texts: Mapping[str, str]) -> None:
        """LoRA adapters by the name that events give: what keys are made with from now on."""
        self._cache.adapters = texts

    def rename(self, generation: str) -> None:
        """What is known goes on under another generation, so it is told anew."""
        self._cache.take_changes()
        self.log.rename(generation, self._cache.snapshot())

    def restart(self, generation: str, reason: str) -> None:
        """Another generation begins, and nothing is known of it."""
        self._forget(reason)
        self.rename(generation)

    def snapshot(self) -> CacheSnapshot | None:
        """All that is published as of the last delta, None before there is a generation."""
        self._tell()
        return self.log.snapshot(self._cache.snapshot())

    def expect(self, keys: frozenset[int]) -> None:
        """Note from now on which of these keys are published; none ends it."""
        self._expected = keys
        self.found = set()
        self.news.clear()

    # The stream

    def batch(self, payload: bytes) -> None:
        self.batches += 1
        try:
            batch = self._decoder.decode(payload)
        except MalformedEvents as error:
            self.malformed += 1
            self.unreadable = str(error)
            self.lost(f"its KV events cannot be read: {error}")
            return
        if batch.rank is not None:
            if self._rank is None:
                self._rank = batch.rank
            if batch.rank != self._rank:
                self.foreign_rank = batch.rank
                self.lost(f"KV events of data-parallel rank {batch.rank} came among its own")
                return
        for event in batch.events:
            self._cache.apply(event)
            if isinstance(event, BlocksCleared):
                self.partial = ""
            elif isinstance(event, BlockStored) and event.tokens:
                self.stored += 1

    def flush(self) -> None:
        self._tell()
        self._on_flush()

    def fresh(self) -> None:
        self._forget("")

    def lost(self, reason: str) -> None:
        self.losses += 1
        self._forget(f"partial: {reason}")

    def restarted(self) -> None:
        self._forget(NOTHING_YET)
        self._on_restart()

    def _forget(self, partial: str) -> None:
        self.partial = partial
        self._cache.clear()

    def _tell(self) -> None:
        changes = self._cache.take_changes()
        if changes:
            self._look_for_expected(changes)
            self.log.write(changes)
        if self._expected:
            self.news.set()

    def _look_for_expected(self, changes: tuple[CacheChange, ...]) -> None:
        for change in changes if self._expected else ():
            if isinstance(change, Stored):
                self.found |= self._expected.intersection(change.keys)
