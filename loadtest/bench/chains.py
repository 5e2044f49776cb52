"""Block chains of made-up multi-turn traffic, without text or hashing: for timing the index alone."""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

SYSTEM_PROMPTS = 64
SYSTEM_BLOCKS = 64  # about 1,000 tokens
TURN_BLOCKS = (8, 48)  # blocks that a turn (question and the answer before it) adds: 128 to 768 tokens
TURNS = 6
STICKY_SHARE = 0.9  # turns that go where the conversation was


def fresh(rng: random.Random, blocks: int) -> "array[int]":
    """Keys that nobody has seen."""
    return array("Q", rng.randbytes(8 * blocks))


@dataclass(slots=True)
class Conversation:
    keys: "array[int]"
    worker: int
    turns_left: int = TURNS


@dataclass
class Traffic:
    """Endless interleaved conversations over `workers` workers; every item is a turn: (worker, the whole chain)."""

    workers: int
    seed: int
    active: int = 256
    systems: "list[array[int]]" = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"chains/{self.workers}/{self.seed}")
        self.systems = [fresh(self.rng, SYSTEM_BLOCKS) for _ in range(SYSTEM_PROMPTS)]

    def start(self) -> Conversation:
        rng = self.rng
        return Conversation(rng.choice(self.systems)[:], rng.randrange(self.workers))

    def turns(self) -> "Iterator[tuple[int, array[int]]]":
        rng = self.rng
        conversations = [self.start() for _ in range(self.active)]
        while True:
            at = rng.randrange(self.active)
            conversation = conversations[at]
            conversation.keys += fresh(rng, rng.randint(*TURN_BLOCKS))
            if rng.random() > STICKY_SHARE:
                conversation.worker = rng.randrange(self.workers)
            yield conversation.worker, conversation.keys[:]
            conversation.turns_left -= 1
            if not conversation.turns_left:
                conversations[at] = self.start()
