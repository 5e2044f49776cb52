"""Finished requests on their way to who records them: bounded, counted, and nothing while nobody listens."""

from array import array

import pytest

from router.admin.recordings import ENTRY_BYTES, MAX_RECORDINGS, SETTLE_S, Recording, TooManyRecordings
from router.core.stats import Stats
from router.core.types import PromptKeys
from tests.admin.stage import NOW_S, Stage

END_S = NOW_S + 3


def test_requests_are_heard_only_while_somebody_records() -> None:
    """The request path is told when the first recording begins and when the last one ended."""
    stage = Stage()
    assert not stage.listens
    with stage.recordings.recording():
        with stage.recordings.recording():
            assert stage.listens and stage.stats.recordings == 2
        assert stage.listens
    assert not stage.listens and stage.stats.recordings == 0


def test_number_of_recordings_is_bounded() -> None:
    """One more than `MAX_RECORDINGS` is refused with 409, and there is room again once one has ended, also by a failure."""
    stage = Stage()
    contexts = [stage.recordings.recording() for _ in range(MAX_RECORDINGS)]
    for context in contexts:
        context.__enter__()
    with pytest.raises(TooManyRecordings) as refused, stage.recordings.recording():
        pass
    assert refused.value.status == 409
    contexts[0].__exit__(None, None, None)
    with pytest.raises(RuntimeError), stage.recordings.recording():
        raise RuntimeError
    with stage.recordings.recording():
        assert stage.stats.recordings == MAX_RECORDINGS


def test_each_recording_gets_each_request() -> None:
    """Two listeners do not take requests from each other."""
    stage = Stage()
    stage.ready()
    with stage.recordings.recording() as one, stage.recordings.recording() as other:
        stage.recordings.note(stage.send("a"), None)
        for recording in (one, other):
            finished = recording.take(END_S)
            assert finished is not None and finished.lease.decision.request_id == "a"
            assert recording.take(END_S) is None


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """Memory that waits is bounded by the prompts' keys too; what is taken makes room."""
    stage = Stage()
    stage.ready()
    lease = stage.send("a")
    size_bytes = ENTRY_BYTES + 8 * 6
    recording = Recording(2 * size_bytes, NOW_S, stage.stats)
    for _ in range(3):
        recording.add(lease, None)
    assert (recording.dropped, stage.stats.recording_dropped, recording.waiting_bytes) == (1, 1, 2 * size_bytes)
    assert recording.take(END_S) is not None
    recording.add(lease, None)
    assert (recording.dropped, recording.waiting_bytes) == (1, 2 * size_bytes)
    while recording.take(END_S) is not None:
        pass
    assert recording.waiting_bytes == 0
    long = PromptKeys(array("Q", [1]), 16 * 10_000, complete=False)
    lease.prompt = long
    recording.add(lease, None)
    assert recording.dropped == 2, "the keys of its tail may come while it waits"


def test_requests_sent_before_the_start_are_left_out() -> None:
    """A trace begins with an arrival: what was in flight already is not in it."""
    stage = Stage()
    stage.ready()
    lease = stage.send("a")
    recording = Recording(1 << 20, lease.sent_s + 0.001, Stats())
    recording.add(lease, None)
    assert recording.take(END_S) is None and recording.dropped == 0


def test_a_tail_that_is_being_keyed_is_waited_for_but_not_for_long() -> None:
    """A prompt keyed after its request ended comes with all its keys; one that never is does not stop those behind it."""
    stage = Stage()
    stage.ready()
    lease, other = stage.send("a"), stage.send("b")
    lease.prompt = PromptKeys(array("Q", [1, 2]), 100, complete=False)
    recording = Recording(1 << 20, NOW_S, Stats())
    recording.add(lease, None)
    recording.add(other, None)
    ended_s = lease.sent_s
    assert recording.take(ended_s + SETTLE_S / 2) is None
    stage.placement.extend(lease, PromptKeys(array("Q", range(1, 7)), 100))
    finished = recording.take(ended_s + SETTLE_S / 2)
    assert finished is not None and len(finished.lease.prompt.keys) == 6
    other.prompt = PromptKeys(array("Q", [1, 2]), 100, complete=False)
    assert recording.take(ended_s + SETTLE_S / 2) is None
    assert recording.take(ended_s + SETTLE_S) is not None


def test_waiting_memory_is_that_of_the_fullest() -> None:
    """The bound is each recording's own, so the fullest is shown against it."""
    stage = Stage()
    stage.ready()
    assert stage.recordings.waiting_bytes() == 0
    with stage.recordings.recording() as one:
        stage.recordings.note(stage.send("a"), None)
        with stage.recordings.recording():
            assert stage.recordings.waiting_bytes() == one.waiting_bytes > 0
