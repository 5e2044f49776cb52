"""Shares of prompts that engines count otherwise."""

import pytest

from router.core.token_tally import FADE, TokenTally
from router.core.types import KeyForm, PromptKeys, Usage
from tests.core.builders import chain
from tests.core.test_placement import World


def test_a_share_grows_with_differences_and_fades_with_agreement() -> None:
    """Seven prompts in a row that differ make more than a half, and as many that agree half of that again."""
    tally = TokenTally()
    for _ in range(7):
        tally.note("w", 10, 12)
    found = tally.differences["w"]
    assert (found.here, found.there) == (10, 12)
    assert found.share == pytest.approx(1 - (1 - FADE) ** 7) and found.share > 0.5
    for _ in range(7):
        tally.note("w", 10, 10)
    assert found.share < 0.26


def test_agreement_leaves_no_trace() -> None:
    """Workers that always agree have no entry, and one whose share has faded loses it: each is forgotten when told so."""
    tally = TokenTally()
    tally.note("a", 5, 5)
    assert not tally.differences
    tally.note("b", 5, 6)
    tally.note("a", 5, 5)
    assert list(tally.differences) == ["b"]
    for _ in range(40):
        tally.note("b", 5, 5)
    assert not tally.differences
    tally.note("b", 5, 6)
    tally.forget("b")
    tally.forget("never seen")
    assert not tally.differences


def test_workers_that_are_gone_are_forgotten() -> None:
    """Only those that are there keep their shares."""
    tally = TokenTally()
    for worker in "abc":
        tally.note(worker, 1, 2)
    tally.keep({"b": 1})
    assert list(tally.differences) == ["b"]


@pytest.mark.parametrize(
    ("usage", "status", "expected"),
    [
        pytest.param(Usage(90, None, 1), 200, (84, 90), id="differs"),
        pytest.param(Usage(84, 0, 1), 200, None, id="the same"),
        pytest.param(Usage(None, 0, 1), 200, None, id="not told"),
        pytest.param(None, 200, None, id="no usage"),
        pytest.param(Usage(90, None, 1), 400, None, id="refused"),
    ],
)
def test_finished_requests_are_compared(usage: Usage | None, status: int, expected: tuple[int, int] | None) -> None:
    """The count behind a prompt's keys meets the engine's when the request ends, if both are there."""
    world = World(count=1)
    tally = TokenTally()
    keys = PromptKeys(chain(range(5)), 84, KeyForm.TOKENS, tally=tally)
    world.finish(world.choose(keys), usage, status=status)
    world.finish(world.choose(PromptKeys(chain(range(5)), 84)), Usage(1, None, 1))
    found = tally.differences.get(world.fleet.workers[0].id)
    assert (None if found is None else (found.here, found.there)) == expected
