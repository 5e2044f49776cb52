"""Commands for one exchange with Redis, by lane, each with what to do with its answer. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Command = tuple[str | bytes | int | float, ...]
OnAnswer = Callable[[Any], None]  # given the exception where there was no answer
FULL_SIZE: Final = 2048  # units of a command, or of 2 KiB of one
UNIT_BYTES: Final = 2048


class Batch:
    """Commands of a lane are answered in their order."""

    def __init__(self) -> None:
        self.plan: dict[int, list[Command]] = {}
        self._on_answers: dict[int, list[OnAnswer | None]] = {}
        self.size = 0

    @property
    def is_full(self) -> bool:
        """With more it might not be done within an exchange's limit."""
        return self.size >= FULL_SIZE

    def add(self, lane: int, command: Command, on_answer: OnAnswer | None = None, payload_bytes: int = 0) -> None:
        self.plan.setdefault(lane, []).append(command)
        self._on_answers.setdefault(lane, []).append(on_answer)
        self.size += 1 + payload_bytes // UNIT_BYTES

    def deliver(self, answers: Mapping[int, Sequence[Any]]) -> None:
        for lane, on_answers in self._on_answers.items():
            for on_answer, answer in zip(on_answers, answers[lane], strict=True):
                if on_answer is not None:
                    on_answer(answer)
