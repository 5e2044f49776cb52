"""The demo's workload: which conversation speaks when, and what each request says. Pure: no network, no clock."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.demo.assistants import ASSISTANTS, Assistant

Message = dict[str, str]
GAP = 2  # turns of others between two of one conversation: its user reads and types


@dataclass(frozen=True)
class Step:
    """One request: turn `turn` (from 0) of a conversation."""

    conversation: str
    turn: int


@dataclass
class Conversation:
    """One user's talk with an assistant; `messages` grows with every answer."""

    name: str
    assistant: Assistant
    questions: Sequence[str]
    messages: list[Message] = field(default_factory=list)

    def ask(self, turn: int) -> list[Message]:
        """The messages of the request of `turn`. Raises ValueError when the turn before it has no answer yet."""
        if len(self.messages) != 2 * turn:
            raise ValueError(f"{self.name}: turn {turn} asked after {len(self.messages)} messages")
        opening = {"role": "system", "content": self.assistant.instructions}
        return [opening, *self.messages, {"role": "user", "content": self.questions[turn]}]

    def answered(self, turn: int, text: str) -> None:
        """Adds the question of `turn` and its answer to the history."""
        self.messages.append({"role": "user", "content": self.questions[turn]})
        self.messages.append({"role": "assistant", "content": text})


def conversations(assistants: Sequence[Assistant] = ASSISTANTS) -> dict[str, Conversation]:
    """Every conversation at its beginning, by name (`shop-1`, `shop-2`, …)."""
    started = [
        Conversation(f"{assistant.name}-{number}", assistant, questions)
        for assistant in assistants
        for number, questions in enumerate(assistant.conversations, start=1)
    ]
    return {conversation.name: conversation for conversation in started}


def interleave(talks: dict[str, Conversation], rng: random.Random) -> list[Step]:
    """All turns in random order: a conversation speaks again after GAP others, as long as that many have turns left.

    A fixed order (1, 2, 3, 1, 2, 3, …) would not do: with a count that divides by the number of engines it makes
    round robin look sticky.
    """
    left = {name: len(talk.questions) for name, talk in talks.items()}
    steps: list[Step] = []
    while left:
        latest = [step.conversation for step in steps[-GAP:]]
        names = [name for name in left if name not in latest] or [next(name for name in latest if name in left)]
        name = rng.choices(names, weights=[left[name] for name in names])[0]
        steps.append(Step(name, len(talks[name].questions) - left[name]))
        left[name] -= 1
        if not left[name]:
            del left[name]
    return steps


def next_ready(waiting: Sequence[Step], answered: dict[str, int]) -> int | None:
    """Position of the first waiting step whose conversation has had `turn` answers so far; None when all must wait."""
    for position, step in enumerate(waiting):
        if answered.get(step.conversation, 0) == step.turn:
            return position
    return None
