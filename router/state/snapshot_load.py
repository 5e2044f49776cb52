"""A worker's snapshot on its way from Redis: one piece or several, put together when all of one kind are there. Pure."""

from typing import Any, Final

from router.core.cache_delta import CacheSnapshot
from router.state.batch import Batch
from router.state.cache_codec import Piece, decode_piece, decode_snapshot
from router.state.feed import Feed
from router.state.frame import BadMessage
from router.state.redis_keys import lane_of

PIECES_AT_ONCE: Final = 4  # of a large one


class SnapshotLoad:
    """`plan` and take answers until it `is_done`; then `snapshot` is there, or there was none to load."""

    def __init__(self, feed: Feed, max_blocks: int) -> None:
        self.feed = feed
        self.is_done = False
        self.snapshot: CacheSnapshot | None = None
        self.error: BadMessage | None = None  # what was found is no snapshot
        self._max_blocks = max_blocks
        self._pieces: list[Piece] = []

    @property
    def epoch(self) -> int:
        return self._pieces[0].epoch

    def plan(self, batch: Batch) -> None:
        """The first piece says how many there are."""
        first = len(self._pieces)
        last = first if not first else first + PIECES_AT_ONCE - 1
        batch.add(lane_of(self.feed.worker), ("LRANGE", self.feed.keys.snapshot, first, last), self._take)

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, list) or not answer:
            self.is_done = True  # none is there, or it was replaced by a shorter one meanwhile
            return
        try:
            for data in answer:
                piece = decode_piece(data, self._max_blocks)
                if self._pieces and not is_sibling(piece, self._pieces[0]):
                    self.is_done = True  # replaced by another one meanwhile
                    return
                if piece.index != len(self._pieces):
                    raise BadMessage(f"piece {piece.index} of a snapshot where {len(self._pieces)} is due")
                self._pieces.append(piece)
            if len(self._pieces) == self._pieces[0].total:
                self.is_done = True
                self.snapshot = self._join()
        except BadMessage as error:
            self.is_done = True
            self.error = error

    def _join(self) -> CacheSnapshot:
        snapshot = decode_snapshot(b"".join(piece.data for piece in self._pieces), self._max_blocks)
        if snapshot.seq != self._pieces[0].seq:
            raise BadMessage("a snapshot and its pieces have different numbers")
        return snapshot


def is_sibling(piece: Piece, first: Piece) -> bool:
    return (piece.epoch, piece.seq, piece.total) == (first.epoch, first.seq, first.total)
