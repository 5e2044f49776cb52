"""Lanes to the tokenizer threads: urgent before later, begun before waiting, and nothing after close."""

import asyncio
import threading
from collections.abc import Callable

from router.tokens.encode_lanes import EncodeLanes


class Slices:
    """A job of so many slices, all of one lane; writes down what happens to it."""

    def __init__(self, lanes: EncodeLanes, log: list[str], name: str, slices: int = 1, urgent: bool = False) -> None:
        self.lanes, self.log, self.name, self.left, self.urgent = lanes, log, name, slices, urgent
        self.gate: threading.Event | None = None
        self.fails = False
        self.ended = asyncio.get_running_loop().create_future()

    def next_slice(self) -> Callable[[], list[bytes]] | None:
        if not self.left:
            self.log.append(f"{self.name} idle")
            self.ended.set_result(None)
            return None
        return self.work

    def work(self) -> list[bytes]:
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.fails:
            raise ValueError(self.name)
        return [self.name.encode()]

    def take(self, encoded: list[bytes] | None) -> None:
        self.log.append(self.name if encoded else f"{self.name} failed")
        self.left -= 1
        if self.left and encoded:
            self.lanes.offer(self, urgent=self.urgent, again=True)
        else:
            self.ended.set_result(None)


async def test_urgent_work_goes_first_and_begun_work_goes_on() -> None:
    """An urgent job waits for one slice at most; a tail that has begun ends before the next one begins."""
    lanes, log = EncodeLanes(1), list[str]()
    first, second, hurry = Slices(lanes, log, "first", 2), Slices(lanes, log, "second"), Slices(lanes, log, "hurry", 2, True)
    first.gate = threading.Event()
    for job in (first, second, hurry):
        lanes.offer(job, urgent=job.urgent)
    first.gate.set()
    await asyncio.gather(first.ended, second.ended, hurry.ended)
    lanes.close()
    assert log == ["first", "hurry", "hurry", "first", "second"]


async def test_a_job_nobody_wants_costs_nothing() -> None:
    """next_slice of None passes on to the next job at once."""
    lanes, log = EncodeLanes(1), list[str]()
    idle, busy = Slices(lanes, log, "idle", 0), Slices(lanes, log, "busy")
    lanes.offer(idle, urgent=False)
    lanes.offer(busy, urgent=False)
    await asyncio.gather(idle.ended, busy.ended)
    lanes.close()
    assert log == ["idle idle", "busy"]


async def test_a_failing_slice_frees_its_thread() -> None:
    """A tokenizer that raises ends its own job only."""
    lanes, log = EncodeLanes(1), list[str]()
    bad, good = Slices(lanes, log, "bad"), Slices(lanes, log, "good")
    bad.fails = True
    lanes.offer(bad, urgent=False)
    lanes.offer(good, urgent=False)
    await asyncio.gather(bad.ended, good.ended)
    lanes.close()
    assert log == ["bad failed", "good"]


async def test_no_more_slices_at_a_time_than_threads() -> None:
    """Two threads take two slices; the third job waits though it is urgent."""
    lanes, log = EncodeLanes(2), list[str]()
    jobs = [Slices(lanes, log, name) for name in ("a", "b")]
    late = Slices(lanes, log, "late", 1, True)
    for job in jobs:
        job.gate = threading.Event()
        lanes.offer(job, urgent=False)
    lanes.offer(late, urgent=True)
    jobs[1].gate.set()  # type: ignore[union-attr]
    await asyncio.gather(jobs[1].ended, late.ended)
    jobs[0].gate.set()  # type: ignore[union-attr]
    await jobs[0].ended
    lanes.close()
    assert log == ["b", "late", "a"]


async def test_close_forgets_what_is_queued() -> None:
    """After close nothing is started; the slice in a thread still comes back."""
    lanes, log = EncodeLanes(1), list[str]()
    running, queued, late = (Slices(lanes, log, name) for name in ("running", "queued", "late"))
    running.gate = threading.Event()
    lanes.offer(running, urgent=False)
    lanes.offer(queued, urgent=False)
    lanes.close()
    lanes.offer(late, urgent=True)
    running.gate.set()
    await running.ended
    assert log == ["running"]
