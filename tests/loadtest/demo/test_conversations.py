"""loadtest.demo.conversations: what is asked and in which order."""

import random

import pytest

from loadtest.demo.assistants import Assistant
from loadtest.demo.conversations import GAP, Step, conversations, interleave, next_ready

TWO = (
    Assistant("shop", "You sell.", (("a?", "b?"), ("c?", "d?"))),
    Assistant("tutor", "You teach.", (("e?", "f?"),)),
)


def test_history_grows_by_question_and_answer() -> None:
    """A turn's request is the instructions, all turns before it and the new question: the prefix of the next one."""
    talk = conversations(TWO)["shop-2"]
    first = talk.ask(0)
    assert first == [{"role": "system", "content": "You sell."}, {"role": "user", "content": "c?"}]
    talk.answered(0, "C!")
    assert talk.ask(1) == [*first, {"role": "assistant", "content": "C!"}, {"role": "user", "content": "d?"}]


def test_turn_before_its_answer_is_refused() -> None:
    """Asking ahead of the conversation is a mistake of the driver."""
    with pytest.raises(ValueError, match="shop-1: turn 1 asked after 0 messages"):
        conversations(TWO)["shop-1"].ask(1)


@pytest.mark.parametrize("seed", range(20))
def test_interleave_holds_every_turn_once_and_in_order(seed: int) -> None:
    """Each conversation's turns come in sequence, all of them, and the order is the same for the same seed."""
    talks = conversations()
    steps = interleave(talks, random.Random(seed))
    for name, talk in talks.items():
        assert [step.turn for step in steps if step.conversation == name] == list(range(len(talk.questions)))
    assert steps == interleave(conversations(), random.Random(seed))


@pytest.mark.parametrize("seed", range(20))
def test_interleave_leaves_time_to_type(seed: int) -> None:
    """Two others speak between two turns of a conversation, while there are two others with turns left."""
    steps = interleave(conversations(), random.Random(seed))
    for position in range(len(steps) - GAP):
        window = steps[position : position + GAP + 1]
        if len({step.conversation for step in steps[position:]}) > GAP:
            assert len({step.conversation for step in window}) == len(window), position


def test_interleave_is_no_rotation() -> None:
    """Round robin over two engines must not become sticky: each conversation has odd and even positions over the seeds."""
    for name in conversations():
        parities = {
            position % 2
            for seed in range(5)
            for position, step in enumerate(interleave(conversations(), random.Random(seed)))
            if step.conversation == name
        }
        assert parities == {0, 1}, name


@pytest.mark.parametrize(
    ("waiting", "answered", "expected"),
    [
        pytest.param([Step("a", 0), Step("b", 0)], {}, 0, id="first turns go at once"),
        pytest.param([Step("a", 1), Step("b", 0)], {}, 1, id="a later turn waits, the next conversation goes"),
        pytest.param([Step("a", 1), Step("a", 2)], {"a": 1}, 0, id="after the answer it goes"),
        pytest.param([Step("a", 1)], {}, None, id="all wait"),
        pytest.param([], {"a": 4}, None, id="nothing left"),
    ],
)
def test_next_ready(waiting: list[Step], answered: dict[str, int], expected: int | None) -> None:
    """The earliest step whose conversation has had all answers before it."""
    assert next_ready(waiting, answered) == expected
