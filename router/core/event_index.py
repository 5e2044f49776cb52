"""Who holds which block, as engines tell it: one compact hash table from key to the set of its holders.

Rules the structure lives by:
- What a worker holds is prefix-closed (see cache_delta.py), so along a chain the set of holders only shrinks, and where it
  changes is found by bisection: a lookup looks at the logarithm of the prompt's length for each change.
- A block is one 64-bit word: 42 bits of its key and the number of its set of holders. The table is cut into many small
  ones by 13 other bits of the key, so that growing never takes long. Two keys that share these 55 bits are taken for one:
  in ten million blocks that happens once in a thousand such indexes.
- Equal sets of holders are one set, counted by the blocks that have it.
- Each worker has one of two bits in the sets. Forgetting it means going on with the other one; the old bit is taken out of
  the sets little by little (`sweep`) and is clean again after a whole round. Forgetting it a second time within a round
  makes the worker wait for the end of the round: until then nothing is taken in for it.
- Where room is wanting, in bytes or in numbers for sets, holders are lost, never invented.
"""

from array import array
from typing import Final

from router.core.prefix_node import Level, slots_of

SHARD_BITS: Final = 13
SHARDS: Final = 1 << SHARD_BITS
SHARD_MASK: Final = SHARDS - 1
TAG_MASK: Final = (1 << 42) - 1
SET_BITS: Final = 20  # with the tag 62 bits: the largest number that compiled code computes with in a register
SET_MASK: Final = (1 << SET_BITS) - 1
NOBODY: Final = 0  # the empty set; an entry with it is dead, an entry 0 was never used
NO_ROOM: Final = -1
FIRST_PLACES: Final = 16
SHARD_BYTES: Final = 200  # beside its places: object, array head, what allocations lose
PARTING_SHARE: Final = 16  # one part in so many of the limit may be used beyond it for the sets of holders that part
SET_BYTES: Final = 200  # mask, dict entry, list entries (tracemalloc, CPython 3.11)

EMPTY: Final = array("Q", [0])  # the table of a shard without entries

__all__ = ["EventIndex"]


class EventIndex:
    """Holders by block, for workers named by slot. By its own account hardly above `limit_bytes`, see PARTING_SHARE."""

    def __init__(self, limit_bytes: int, max_slots: int = 1024, max_sets: int = SET_MASK) -> None:
        self.limit_bytes = limit_bytes
        self.blocks = 0  # distinct; those that only forgotten workers held count until they are swept
        self.bytes = 0  # resident, estimated
        self.orphan_blocks = 0  # refused: the worker does not hold the block before them
        self.full_blocks = 0  # refused or lost: no room
        self._max_slots = max_slots
        self._max_sets = max_sets
        # Open-addressed tables: an entry stands at its tag modulo the size or, where that is taken, behind it.
        self._tables = [EMPTY] * SHARDS
        self._filled = [0] * SHARDS  # entries of each, dead ones included
        self._masks = [0]  # bits of the holders, by set
        self._users = [0]  # entries that have it, by set
        self._sets: dict[int, int] = {}  # bits → set
        self._free_sets: list[int] = []
        self._set_bytes = SET_BYTES + max_slots // 30 * 8
        self._bits = [0] * max_slots  # by slot; 0: no worker, or one that waits for a clean bit
        self._held = [0] * max_slots  # blocks, by slot
        self._low = 0  # of the slots with a worker those that use bit `slot`
        self._high = 0  # and those that use bit `max_slots + slot`
        self._waiting: set[int] = set()
        self._dirty = 0  # bits of forgotten workers that may still be in sets
        self._sweeping = 0  # those of them that the round in progress takes out
        self._at = 0  # its next shard

    def add_worker(self, slot: int) -> None:
        """A worker that holds nothing. Raises ValueError if the slot is taken or not below `max_slots`."""
        if slot >= self._max_slots or self._bits[slot] or slot in self._waiting:
            raise ValueError(f"slot {slot} is taken or not below {self._max_slots}")
        self._bind(slot)

    def remove_worker(self, slot: int) -> None:
        """Forgets the worker and frees its slot; nothing if it is not there."""
        self._unbind(slot)
        self._waiting.discard(slot)

    def forget(self, slot: int) -> None:
        """The worker holds nothing now, at once; see `accepts`."""
        if self._held[slot]:
            self._unbind(slot)
            self._bind(slot)

    def accepts(self, slot: int) -> bool:
        """Whether blocks can be stored for the worker: not while it waits for the sweep."""
        return self._bits[slot] != 0

    def blocks_of(self, slot: int) -> int:
        return self._held[slot]

    def holds(self, slot: int, key: int) -> bool:
        return self._masks[self._set_of(key)] & self._bits[slot] != 0

    def is_held(self, key: int, among: int) -> bool:
        """Whether any worker of this mask of slots holds the block."""
        return self._slots_in(self._set_of(key)) & among != 0

    def levels(self, keys: "array[int]", among: int) -> list[Level]:
        """Leading blocks held, as `PrefixIndex.levels` tells it, by the workers of this mask of slots only."""
        found: list[Level] = []
        last = len(keys) - 1
        if last >= 0:
            first_set = self._set_of(keys[0])
            holders = self._slots_in(first_set) & among
            if holders:
                last_set = self._set_of(keys[last]) if last else first_set
                left = self._slots_in(last_set) & holders
                if left:
                    found.append(Level(last + 1, left))
                if left != holders:
                    self._find_changes(keys, 0, first_set, holders, last, last_set, left, found)
        return found

    def depth(self, slot: int, keys: "array[int]") -> int:
        """How many leading blocks one worker holds."""
        levels = self.levels(keys, 1 << slot)
        return levels[0].blocks if levels else 0

    def stored(self, slot: int, parent: int | None, keys: "array[int]") -> int:
        """The worker holds this run of blocks now. Returns how many were taken; the rest is refused and counted.

        All are refused while it does not hold `parent`; one that finds no room is refused with all that follow it.
        """
        bit = self._bits[slot]
        if not bit or (parent is not None and not self._masks[self._set_of(parent)] & bit):
            self.orphan_blocks += len(keys)
            return 0
        taken = self._put(slot, bit, keys)
        self.full_blocks += len(keys) - taken
        return taken

    def removed(self, slot: int, keys: "array[int]") -> None:
        """The worker holds none of these any more; those that it did not hold change nothing."""
        bit = self._bits[slot]
        masks, users, tables = self._masks, self._users, self._tables
        before, after, gone = NO_ROOM, NOBODY, 0
        for key in keys:
            places, tag = tables[key & SHARD_MASK], key >> SHARD_BITS & TAG_MASK or 1
            at = place_of(places, tag)
            old = places[at] & SET_MASK
            if not masks[old] & bit:
                continue
            if old != before:
                before, after = old, self._less(old, bit)
            new = after
            if new == NO_ROOM:
                self._lose(old, bit)
                new = NOBODY
            places[at] = tag << SET_BITS | new
            gone += 1
            users[new] += 1
            if new == NOBODY:
                self.blocks -= 1
            self._leave(old)
        self._held[slot] -= gone

    def sweep(self, places: int) -> bool:
        """Goes on with taking forgotten workers out, through about so many places. Whether there is more to do."""
        if not self._dirty:
            return False
        if not self._sweeping:
            self._sweeping, self._at = self._dirty, 0
        while places > 0 and self._at < SHARDS:
            if self._filled[self._at]:
                places -= len(self._tables[self._at])
                self._rebuild(self._at)
            places -= 1
            self._at += 1
        if self._at == SHARDS:
            self._dirty ^= self._sweeping
            self._sweeping = 0
            for slot in sorted(self._waiting):
                self._waiting.discard(slot)
                self._bind(slot)
        return self._dirty != 0

    def _bind(self, slot: int) -> None:
        low, high = 1 << slot, 1 << self._max_slots + slot
        if not low & self._dirty:
            self._bits[slot] = low
            self._low |= low
        elif not high & self._dirty:
            self._bits[slot] = high
            self._high |= high
        else:
            self._waiting.add(slot)

    def _unbind(self, slot: int) -> None:
        bit = self._bits[slot]
        self._low &= ~bit
        self._high &= ~bit
        if self._held[slot]:
            self._dirty |= bit
        self._bits[slot] = self._held[slot] = 0

    def _find_changes(
        self, keys: "array[int]", low: int, low_set: int, holders: int, high: int, high_set: int, left: int,
        found: list[Level],
    ) -> None:  # fmt: skip
        """Appends the levels between two blocks, deeper ones first: `holders` hold the first of them, `left` of those the
        second."""
        while high - low > 1:
            middle = (low + high) // 2
            number = self._set_of(keys[middle])
            if number == low_set:
                low = middle
                continue
            if number == high_set:
                high = middle
                continue
            some = (self._slots_in(number) & holders) | left
            if some == left:
                high, high_set = middle, number
            elif some == holders:
                low, low_set = middle, number
            else:
                self._find_changes(keys, middle, number, some, high, high_set, left, found)
                high, high_set, left = middle, number, some
        found.append(Level(high, holders))

    def _slots_in(self, number: int) -> int:
        """The slots of a set's members, as a mask."""
        mask = self._masks[number]
        if self._high:
            return mask & self._low | (mask & self._high) >> self._max_slots
        return mask & self._low

    def _set_of(self, key: int) -> int:
        places = self._tables[key & SHARD_MASK]
        return places[place_of(places, key >> SHARD_BITS & TAG_MASK or 1)] & SET_MASK

    def _put(self, slot: int, bit: int, keys: "array[int]") -> int:
        masks, users, tables, filled = self._masks, self._users, self._tables, self._filled
        before, after, taken, fresh = NO_ROOM, NOBODY, 0, 0
        for key in keys:
            shard, tag = key & SHARD_MASK, key >> SHARD_BITS & TAG_MASK or 1
            places = tables[shard]
            at = place_of(places, tag)
            entry = places[at]
            if not entry and filled[shard] >= limit_of(len(places)):
                self._rebuild(shard)
                places = tables[shard]
                if filled[shard] >= limit_of(len(places)):
                    break
                at = place_of(places, tag)
                before = NO_ROOM  # its sets may be others now
            old = entry & SET_MASK
            if not masks[old] & bit:
                if old != before:
                    before, after = old, self._set(masks[old] & ~self._dirty | bit, self.limit_bytes)
                    if after == NO_ROOM:
                        break
                places[at] = tag << SET_BITS | after
                if not entry:
                    filled[shard] += 1
                if old == NOBODY:
                    self.blocks += 1
                fresh += 1
                users[after] += 1
                self._leave(old)
            taken += 1
        self._held[slot] += fresh
        return taken

    def _set(self, mask: int, limit_bytes: int) -> int:
        """The number of the set with these bits; NO_ROOM if it would be one too many."""
        number = self._sets.get(mask)
        if number is not None:
            return number
        if not mask:
            return NOBODY
        if self.bytes + self._set_bytes > limit_bytes or len(self._sets) >= self._max_sets:
            return NO_ROOM
        if self._free_sets:
            number = self._free_sets.pop()
            self._masks[number] = mask
        else:
            number = len(self._masks)
            self._masks.append(mask)
            self._users.append(0)
        self._sets[mask] = number
        self.bytes += self._set_bytes
        return number

    def _less(self, number: int, bits: int) -> int:
        """The set without these and without forgotten members, or NO_ROOM."""
        return self._set(self._masks[number] & ~self._dirty & ~bits, self.limit_bytes + self.limit_bytes // PARTING_SHARE)

    def _lose(self, number: int, but: int) -> None:
        """A block goes for all members of its set; those with the bit `but` are not counted."""
        for slot in slots_of(self._slots_in(number)):
            if self._bits[slot] != but:
                self._held[slot] -= 1
                self.full_blocks += 1

    def _leave(self, number: int) -> None:
        """One entry less has the set; one that none has is no more."""
        users = self._users[number] - 1
        self._users[number] = users
        if users <= 0 and number:
            del self._sets[self._masks[number]]
            self._masks[number] = 0
            self._free_sets.append(number)
            self.bytes -= self._set_bytes

    def _rebuild(self, shard: int) -> None:
        """The table without dead entries and forgotten holders, in the size that fits, but not larger than bytes allow."""
        masks, users, dirty, table = self._masks, self._users, self._dirty, self._tables[shard]
        kept: list[int] = []
        before, after = NO_ROOM, NOBODY
        for entry in table:
            old = entry & SET_MASK
            if masks[old] & dirty:
                if old != before:
                    before, after = old, self._less(old, 0)
                new = after
                if new == NO_ROOM:
                    self._lose(old, 0)
                    new = NOBODY
                if new == NOBODY:
                    self.blocks -= 1
                entry += new - old
                users[new] += 1
                self._leave(old)
                old = new
            if old != NOBODY:
                kept.append(entry)
        size, current = size_for(shard, len(kept) + len(kept) // 8 + 1), len(table)
        more = 8 * (size - current) if table is not EMPTY else 8 * size + SHARD_BYTES
        if more > 0 and self.bytes + more > self.limit_bytes:
            size, more = current, 0
        self.bytes += more
        if size > 1:
            self._tables[shard] = filled_table(size, kept)
            self._filled[shard] = len(kept)


def limit_of(size: int) -> int:
    """Entries that a table takes: a hit then looks at two places on average, a miss at six."""
    return size * 7 // 10


def filled_table(size: int, entries: list[int]) -> "array[int]":
    places = array("Q", bytes(8 * size))
    for entry in entries:
        place = (entry >> SET_BITS) % size
        while places[place]:
            place += 1
            if place == size:
                place = 0
        places[place] = entry
    return places


def place_of(places: "array[int]", tag: int) -> int:
    """Where the entry with this tag is, or where it would be put."""
    size = len(places)
    place = tag % size
    while True:
        entry = places[place]
        if not entry or entry >> SET_BITS == tag:
            return place
        place += 1
        if place == size:
            place = 0


def size_for(shard: int, entries: int) -> int:
    """Places of its table: half as many more at each step, from a start of its own so that shards grow one after another."""
    size = FIRST_PLACES + shard % 8
    while limit_of(size) < entries:
        size += size >> 1
    return size
