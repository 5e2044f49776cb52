"""What one llama.cpp server has cached: its slots and its RAM prompt cache, by the rules of its server-context and server-task.

A request takes the idle slot whose content shares most with its prompt, if that is more than a tenth of the prompt, else the
idle slot that was used longest ago. Where less than half of the content would stay, it is saved to the RAM cache and the
best entry there is moved into the slot: one that keeps at least a quarter of itself and beats the slot's content in the part
kept and in the part of the prompt. Each request that starts also saves all idle slots; with one KV cache for all slots
(`unified`) it clears them too. The RAM cache drops its oldest entries first.

Blocks tell how much is shared up to 15 tokens, which may be the template's opening or all of a small prompt; and of requests
that begin or end within milliseconds of each other only the server knows the order. So contents are at times in other slots
than here. Given the server's own order this model is right for 96 to 100 of 100 mixed requests, four at a time; with the order
seen here for 89 to 98. Sorting what ends together by slot, or what begins together by length, or setting contents right by
what answers tell, makes nothing better on recorded traffic: the RAM cache has nearly all of it anyway.
"""

from array import array
from collections import deque
from typing import Final

from router.core.prefix_node import common_blocks
from router.core.types import BLOCK_TOKENS, PromptKeys

LEAST_SIMILARITY: Final = 0.1  # --slot-prompt-similarity
SAVED_BELOW: Final = 0.5
LEAST_KEPT: Final = 0.25
MAX_ENTRIES: Final = 128  # of the RAM cache that are modelled: each choice looks at all of them
MAX_COVERED: Final = 8
FADE: Final = 0.1  # weight of the newest turn in the share of prompts that go on with the answer
SLACK_TOKENS: Final = 2 * BLOCK_TOKENS  # predicted and actual hits are the same within this
SHRINK_SHARE: Final = 8  # a miss takes one part in this many from a size of the RAM cache that was learned before
RAM_SPREAD: Final = 16  # a learned size stays below this factor of the one it began with


class Kept:
    """A prompt and its answer as they lie in a slot or in the RAM cache."""

    __slots__ = ("covered", "is_hot", "keys", "order", "reach", "serial", "tokens")

    def __init__(self, prompt: PromptKeys, serial: int, is_hot: bool) -> None:
        self.keys: array[int] = prompt.keys  # of the prompt's whole blocks
        self.tokens = prompt.prompt_tokens  # the answer's too when its request is over
        self.reach = 0  # tokens that a longer prompt with the same whole blocks is expected to share
        self.serial = serial
        self.order = 0  # among what was saved to the RAM cache
        self.covered: tuple[int, ...] = ()  # serials of what is wholly within this
        self.is_hot = is_hot  # its beginning was reused: it goes on from an earlier one

    def shared_blocks(self, keys: "array[int]") -> int:
        run = self.keys
        if not run or not keys or run[0] != keys[0]:
            return 0
        return common_blocks(run, keys, 0, len(keys))

    def overlap(self, prompt: PromptKeys) -> int:
        """Leading tokens that the prompt shares with this, as far as blocks tell: at most 15 too few."""
        blocks = self.shared_blocks(prompt.keys)
        if not blocks:
            return 0
        known = blocks * BLOCK_TOKENS
        if blocks == len(prompt.keys) and prompt.complete:  # the prompt ends within this
            most = prompt.prompt_tokens - 1  # an engine computes at least the last token
            return most if most < self.tokens else self.tokens
        if blocks == len(self.keys) and prompt.prompt_tokens > self.tokens and self.reach > known:
            return self.reach
        return known

    def may_go_on_in(self, prompt: PromptKeys) -> bool:
        """Whether the prompt may be this prompt, its answer and more: blocks alone do not tell."""
        return self.tokens < prompt.prompt_tokens and 0 < len(self.keys) == self.shared_blocks(prompt.keys)


NOTHING: Final[list[Kept]] = []


class Turn:
    """One request on one server, from its choice to its end."""

    __slots__ = ("asks", "before", "kept", "newer_tokens", "overlap", "slot", "source")

    def __init__(self) -> None:
        self.slot = -1  # -1: it waits for one
        self.kept: Kept | None = None
        self.before: Kept | None = None  # what was in the slot
        self.source: Kept | None = None  # what is reused: that, or an entry of the RAM cache
        self.overlap = 0
        self.asks = False  # its end will tell whether its source goes on in it
        self.newer_tokens = 0  # of the RAM cache's entries that were newer than its source


class Slot:
    """`used_at`: when its latest request ended; -1 before the first."""

    __slots__ = ("kept", "turn", "used_at")

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.turn: Turn | None = None  # whose request it works on
        self.used_at = -1


class Plan:
    """What a request would find. `slot` -1: none is idle."""

    __slots__ = ("lost_tokens", "overlap", "renews", "slot", "source")

    def __init__(self, slot: int, source: Kept | None, overlap: int, renews: bool) -> None:
        self.slot = slot
        self.source = source
        self.overlap = overlap
        self.renews = renews  # the slot's content goes to the RAM cache, and the best entry comes from there
        self.lost_tokens = 0  # of a hot content that is overwritten and saved nowhere


class SlotModel:
    """`ram_tokens` is what the RAM cache is thought to hold; where it `learns`, hits and misses correct that."""

    def __init__(self, slots: int, ram_tokens: int, learns: bool) -> None:
        self.ram_tokens = ram_tokens
        self.unified = False
        self.slots = [Slot() for _ in range(slots)]
        self._learns = learns
        self._first_ram_tokens = ram_tokens
        self._ram: list[Kept] = []  # oldest first
        self._ram_by_start: dict[int, list[Kept]] = {}  # the same by their first key
        self._ram_used = 0
        self._held: dict[int, int] = {}  # serial → entries of the RAM cache that are this content or cover it
        self._saves = 0
        self._lost: deque[Kept] = deque(maxlen=MAX_ENTRIES)  # dropped from it lately, oldest first
        self._waiting: list[tuple[Turn, PromptKeys]] = []
        self._clock = 0
        self._goes_on = 1.0  # share of prompts that hold the answer too, among those that may

    def plan(self, prompt: PromptKeys) -> Plan:
        """What a request that starts now would find. Changes nothing."""
        similar, most = -1, 0
        oldest, oldest_at = -1, 0
        least = LEAST_SIMILARITY * prompt.prompt_tokens
        for at, slot in enumerate(self.slots):
            if slot.turn is not None:
                continue
            if slot.kept is not None:
                overlap = slot.kept.overlap(prompt)
                if overlap > most and overlap > least:
                    similar, most = at, overlap
            if oldest < 0 or slot.used_at <= oldest_at:
                oldest, oldest_at = at, slot.used_at
        if oldest < 0:
            return Plan(-1, None, self._best_anywhere(prompt), False)
        kept = self.slots[similar if similar >= 0 else oldest].kept
        if similar < 0:
            plan = Plan(oldest, kept, 0 if kept is None else kept.overlap(prompt), True)
        else:
            assert kept is not None
            plan = Plan(similar, kept, most, most < SAVED_BELOW * kept.tokens)
        if plan.renews:
            self._better_in_ram(plan, prompt)
        if kept is not None and kept.is_hot and not self._holds(kept):
            is_saved = plan.renews and kept.tokens <= self.ram_tokens
            plan.lost_tokens = 0 if is_saved else kept.tokens - (plan.overlap if plan.source is kept else 0)
        return plan

    def start(self, prompt: PromptKeys) -> Turn:
        """The request is sent: it takes its slot, or waits for one."""
        turn = Turn()
        plan = self.plan(prompt)
        if plan.slot < 0:
            self._waiting.append((turn, prompt))
        else:
            self._launch(turn, prompt, plan)
        return turn

    def finish(self, turn: Turn, prompt: PromptKeys, cached_tokens: int | None, answer_tokens: int | None) -> None:
        """The request is over: its whole prompt and its answer stay in its slot. None is what the engine did not tell."""
        kept = turn.kept
        if kept is None:
            self._stop_waiting(turn)
            return
        kept.keys = prompt.keys
        kept.tokens = prompt.prompt_tokens
        if answer_tokens is not None and answer_tokens > 1:
            kept.tokens += answer_tokens - 1  # the last one is never computed
        went_on = cached_tokens is not None and self._learn(turn, prompt, kept, cached_tokens)
        if went_on or self._goes_on >= 0.5:
            kept.reach = kept.tokens
        self._release(turn)

    def undo(self, turn: Turn) -> None:
        """Nothing ran there."""
        if turn.kept is None:
            self._stop_waiting(turn)
            return
        self.slots[turn.slot].kept = turn.before
        self._release(turn)

    def _launch(self, turn: Turn, prompt: PromptKeys, plan: Plan) -> None:
        slot, source = self.slots[plan.slot], plan.source
        turn.slot, turn.source, turn.overlap, turn.before = plan.slot, source, plan.overlap, slot.kept
        turn.asks = source is not None and source.may_go_on_in(prompt)
        if plan.renews and slot.kept is not None:
            self._save(slot.kept)
        if source is not None and source is not turn.before:
            self._take_out(turn, source)
        self._clock += 1
        turn.kept = slot.kept = Kept(prompt, self._clock, plan.overlap >= BLOCK_TOKENS)
        slot.turn = turn
        for other in self.slots:
            if other.turn is None and other.kept is not None:
                self._save(other.kept)
                if self.unified:
                    other.kept = None

    def _release(self, turn: Turn) -> None:
        slot = self.slots[turn.slot]
        self._clock += 1
        slot.turn, slot.used_at = None, self._clock
        if self._waiting:
            waiting, prompt = self._waiting.pop(0)
            self._launch(waiting, prompt, self.plan(prompt))

    def _stop_waiting(self, turn: Turn) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] is not turn]

    def _best_anywhere(self, prompt: PromptKeys) -> int:
        """For a request that must wait: which slot will be idle first is not known."""
        most = 0
        for kept in [*[slot.kept for slot in self.slots if slot.kept is not None], *self._with_start_of(prompt)]:
            overlap = kept.overlap(prompt)
            if overlap > most:
                most = overlap
        return most

    # The RAM cache

    def _better_in_ram(self, plan: Plan, prompt: PromptKeys) -> None:
        """Puts the entry into the plan that the server would move into the slot, if there is one."""
        kept = self.slots[plan.slot].kept
        share = -1.0
        dropped = 0  # entries up to this order make room for what is saved,
        covered: tuple[int, ...] = ()  # and these are within it
        if kept is not None:
            share = plan.overlap / kept.tokens if kept.tokens else 0.0
            if kept.tokens <= self.ram_tokens and not self._holds(kept):
                dropped, covered = self._dropped_for(kept), kept.covered
        keys = prompt.keys
        for entry in self._with_start_of(prompt):
            run, at = entry.keys, plan.overlap // BLOCK_TOKENS
            if at < len(run) and at < len(keys) and run[at] != keys[at]:
                continue  # it has no more of the prompt than what was found
            if entry.order <= dropped or entry.serial in covered:
                continue
            overlap = entry.overlap(prompt)
            kept_share = overlap / entry.tokens
            if kept_share >= LEAST_KEPT and kept_share > share and overlap > plan.overlap:
                share, plan.overlap, plan.source = kept_share, overlap, entry

    def _with_start_of(self, prompt: PromptKeys) -> list[Kept]:
        """All of the RAM cache that shares a block with the prompt, oldest first."""
        return self._ram_by_start.get(prompt.keys[0], NOTHING) if prompt.keys else NOTHING

    def _dropped_for(self, kept: Kept) -> int:
        """Up to which order entries would be dropped if this was saved."""
        tokens, entries = self._ram_used + kept.tokens, len(self._ram) + 1
        order = 0
        if tokens <= self.ram_tokens and entries <= MAX_ENTRIES:
            return order
        covered = [entry for entry in self._ram if entry.serial in kept.covered] if kept.covered else []
        tokens -= sum([entry.tokens for entry in covered])
        entries -= len(covered)
        for entry in self._ram:
            if tokens <= self.ram_tokens and entries <= MAX_ENTRIES:
                break
            if entry not in covered:
                order = entry.order
                tokens -= entry.tokens
                entries -= 1
        return order

    def _holds(self, kept: Kept) -> bool:
        return kept.serial in self._held

    def _save(self, kept: Kept) -> None:
        if kept.tokens > self.ram_tokens or self._holds(kept):
            return
        for covered in [entry for entry in self._ram if entry.serial in kept.covered] if kept.covered else ():
            self._remove(covered)
        self._saves += 1
        kept.order = self._saves
        self._ram.append(kept)
        self._ram_used += kept.tokens
        if kept.keys:
            self._ram_by_start.setdefault(kept.keys[0], []).append(kept)
        for serial in (kept.serial, *kept.covered):
            self._held[serial] = self._held.get(serial, 0) + 1
        self._shrink()

    def _shrink(self) -> None:
        """Drops the oldest entries beyond what the RAM cache holds."""
        while self._ram_used > self.ram_tokens or len(self._ram) > MAX_ENTRIES:
            dropped = self._ram[0]
            self._remove(dropped)
            self._lost.append(dropped)

    def _take_out(self, turn: Turn, source: Kept) -> None:
        turn.newer_tokens = sum([entry.tokens for entry in self._ram if entry.order > source.order])
        self._remove(source)

    def _remove(self, entry: Kept) -> None:
        self._ram.remove(entry)
        self._ram_used -= entry.tokens
        if entry.keys:
            same_start = self._ram_by_start[entry.keys[0]]
            same_start.remove(entry)
            if not same_start:
                del self._ram_by_start[entry.keys[0]]
        for serial in (entry.serial, *entry.covered):
            if self._held[serial] > 1:
                self._held[serial] -= 1
            else:
                del self._held[serial]

    # What answers tell

    def _learn(self, turn: Turn, prompt: PromptKeys, kept: Kept, cached_tokens: int) -> bool:
        """Takes in how much was reused; True when the prompt held its source's answer too."""
        source = turn.source
        went_on = False
        if source is not None:
            if cached_tokens >= source.tokens:
                kept.covered = (source.serial, *source.covered)[:MAX_COVERED]
            shared = source.shared_blocks(prompt.keys) * BLOCK_TOKENS
            if turn.asks and cached_tokens >= shared:
                went_on = 2 * cached_tokens > shared + source.tokens
                self._goes_on += ((1.0 if went_on else 0.0) - self._goes_on) * FADE
                source.reach = min(cached_tokens, source.tokens)
        if self._learns:
            if turn.newer_tokens and cached_tokens < BLOCK_TOKENS and turn.overlap > SLACK_TOKENS:
                is_first = self.ram_tokens == self._first_ram_tokens
                least = 0 if is_first else self.ram_tokens - self.ram_tokens // SHRINK_SHARE
                self.ram_tokens = max(turn.newer_tokens, least)
                self._shrink()
            elif cached_tokens > turn.overlap + SLACK_TOKENS:
                self._grow(prompt, cached_tokens)
        return went_on

    def _grow(self, prompt: PromptKeys, cached_tokens: int) -> None:
        """A hit on what was thought dropped: the RAM cache holds at least all that is newer."""
        needed = self._ram_used
        for entry in reversed(self._lost):
            needed += entry.tokens
            if entry.overlap(prompt) + SLACK_TOKENS >= cached_tokens:
                self.ram_tokens = min(needed, 2 * self.ram_tokens + 1, self._first_ram_tokens * RAM_SPREAD)
                return
