"""Which copies of a block matter: one lane for each memory and each group of layers whose blocks a prefix needs. Pure.

Engines with several kinds of attention keep a block for each group of layers. Those of full attention must all hold a
block for it to be of use; sliding-window and state-space groups skip blocks and announce parents that were never stored,
so they are left out, as Dynamo does (their share of a hit cannot be told from events).
"""

from typing import Final

from engines.sidecar.kv.changes import TIERS
from engines.sidecar.kv.events import BlockStored

FULL_ATTENTION: Final = frozenset(("full_attention", "mla_attention", "sink_full_attention"))
DEVICE, HOST, DISK = range(len(TIERS))
# what engines call their memories; any other is taken for the slowest
MEDIA: Final = {"GPU": DEVICE, "CPU": HOST, "CPU_PINNED": HOST, "STORAGE": DISK, "DISK": DISK, "EXTERNAL": DISK}
# vLLM's offloading leaves salts and images out of its events, so these tell of copies of known blocks only
COPIES_ONLY: Final = frozenset(("CPU", "STORAGE"))
MAX_LANES: Final = 8
MASKS: Final = 1 << MAX_LANES


class Lanes:
    """A block's copies are a mask of lane bits; `tiers[mask]` is 0 where it is of no use, else 1 + the fastest tier."""

    __slots__ = ("_groups", "_lanes", "block_tokens", "tiers")

    def __init__(self) -> None:
        self.block_tokens = 0  # of the groups that matter; 0 until a block told it
        self.tiers = bytes(MASKS)
        self._lanes: dict[tuple[str, int], int] = {}  # bit, 0 for those that do not matter
        self._groups: dict[int, bool] = {}  # whether it matters

    def find(self, medium: str, group: int) -> int:
        """The lane's bit, 0 where nothing that matters was stored in it."""
        return self._lanes.get((medium, group), 0)

    def learn(self, event: BlockStored) -> int:
        """The bit of the lane that a block is stored in. A lane not seen before may change what other masks are worth."""
        lane = (event.medium, event.group)
        bit = self._lanes.get(lane)
        if bit is None:
            used = sum(1 for known in self._lanes.values() if known)
            bit = 1 << used if self._matters(event) and used < MAX_LANES else 0
            if bit or len(self._lanes) < MASKS:
                self._lanes[lane] = bit
            if bit:
                self.tiers = self._table()
        return bit

    def _matters(self, event: BlockStored) -> bool:
        """A group's kind is told with blocks of the device; where no event tells it, the first group counts.

        Hits are counted in blocks of one size: a further group of another size is left out.
        """
        matters = self._groups.get(event.group)
        if matters is None:
            matters = event.group == 0 if event.group_kind is None else event.group_kind in FULL_ATTENTION
            matters = matters and event.block_tokens in (0, self.block_tokens or event.block_tokens)
            if len(self._groups) < MASKS:
                self._groups[event.group] = matters
        if matters and event.tokens and not self.block_tokens:
            self.block_tokens = event.block_tokens
        return matters

    def _table(self) -> bytes:
        media: dict[str, int] = {}
        for (medium, _), bit in self._lanes.items():
            if bit:
                media[medium] = media.get(medium, 0) | bit
        ranks = sorted((MEDIA.get(medium, DISK), bits) for medium, bits in media.items())
        return bytes(next((1 + tier for tier, bits in ranks if mask & bits == bits), 0) for mask in range(MASKS))
