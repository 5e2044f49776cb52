"""engines.sidecar.kv.sequence: next, duplicate, gap or another life."""

import pytest

from engines.sidecar.kv.sequence import Sequence, Verdict


def taken(*digests: int, remembered: int = 8) -> Sequence:
    """A sequence that took in batches 0, 1, … with these digests."""
    sequence = Sequence(remembered)
    for number, digest in enumerate(digests):
        assert sequence.offer(number, digest) is Verdict.NEXT
    return sequence


@pytest.mark.parametrize(
    ("number", "digest", "verdict", "following"),
    [
        pytest.param(3, 99, Verdict.NEXT, 4, id="the next one"),
        pytest.param(4, 99, Verdict.GAP, 3, id="one is missing"),
        pytest.param(1, 11, Verdict.DUPLICATE, 3, id="the same again"),
        pytest.param(1, 99, Verdict.RESTART, 3, id="another batch under an old number"),
        pytest.param(0, 0, Verdict.RESTART, 3, id="number 0 again, as after a restart"),
    ],
)
def test_verdicts(number: int, digest: int, verdict: Verdict, following: int) -> None:
    """A number below the next is a duplicate only with the same bytes."""
    sequence = taken(10, 11, 12)
    assert sequence.offer(number, digest) is verdict
    assert sequence.next == following


def test_memory_is_bounded() -> None:
    """A batch further back than remembered counts as another life: queues hold no such."""
    sequence = taken(*range(100, 120), remembered=8)
    assert sequence.is_known(12, 112) and not sequence.is_known(11, 111)
    assert sequence.offer(11, 111) is Verdict.RESTART


def test_beginning_anew() -> None:
    """A new life forgets the batches of the old one, also where a number and an unset digest would fit."""
    sequence = taken(10, 11, 12)
    sequence.begin()
    assert sequence.offer(1, 11) is Verdict.GAP
    sequence.begin(50)
    assert sequence.next == 50 and sequence.offer(2, 12) is Verdict.RESTART
    assert sequence.offer(50, 1) is Verdict.NEXT
