"""loadtest.demo.assistants: the texts must make the comparison that the demo claims to make."""

from loadtest.demo.assistants import ASSISTANTS
from loadtest.demo.stage import ENGINE_LETTERS, SLOTS


def test_instructions_differ_from_their_beginning() -> None:
    """No two assistants share a prefix: what a cache may reuse is one assistant's instructions, never another's."""
    assert len({assistant.name for assistant in ASSISTANTS}) == len(ASSISTANTS)
    openings = {assistant.instructions[:24] for assistant in ASSISTANTS}
    assert len(openings) == len(ASSISTANTS)


def test_no_engine_can_hold_every_assistant() -> None:
    """More assistants than an engine has slots, but no more than both have together: placing them is what matters."""
    assert SLOTS < len(ASSISTANTS) <= SLOTS * len(ENGINE_LETTERS)


def test_instructions_are_shared_and_of_usual_length() -> None:
    """Some assistants have several conversations, all with the same number of turns; texts are plain sentences."""
    assert max(len(assistant.conversations) for assistant in ASSISTANTS) > 1
    assert {len(turns) for assistant in ASSISTANTS for turns in assistant.conversations} == {4}
    for assistant in ASSISTANTS:
        assert 200 <= len(assistant.instructions.split()) <= 350, assistant.name
        questions = [question for turns in assistant.conversations for question in turns]
        assert len(set(questions)) == len(questions)
        assert all("  " not in question and question == question.strip() for question in questions)
