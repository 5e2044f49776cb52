"""Log lines go out in order on a thread; a stuck or broken descriptor stalls, loses and counts lines, nothing else."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from router.line_writer import BATCH_LINES, LineWriter

Maker = Callable[..., LineWriter[str]]


def encoded(line: str) -> bytes:
    return line.encode() + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(reading end, writing end), closed afterwards where still open."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


@pytest.fixture
def dropped() -> list[int]:
    return []


def read_lines(fd: int, count: int) -> list[str]:
    """Blocks until `count` lines came."""
    data = b""
    while data.count(b"\n") < count:
        data += os.read(fd, 65536)
    return data.decode().splitlines()


def fill(fd: int) -> int:
    """Fills a pipe to the brim; returns the bytes in it."""
    os.set_blocking(fd, False)
    size = 0
    try:
        while True:
            size += os.write(fd, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(fd, True)
    return size


def test_lines_come_out_in_order(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Everything written comes out, in order, over several batches."""
    writer = LineWriter(pipe[1], encoded, 10 * BATCH_LINES, dropped.append)
    lines = [str(i) for i in range(2 * BATCH_LINES + 1)]
    for line in lines:
        writer.write(line)
    assert read_lines(pipe[0], len(lines)) == lines
    writer.close()
    assert dropped == [] and writer.waiting == 0 and writer.failure == ""


def test_lines_come_out_while_running(pipe: tuple[int, int], dropped: list[int]) -> None:
    """A line does not wait for the next one, nor for `close`."""
    writer = LineWriter(pipe[1], encoded, 10, dropped.append, delay_s=0.001)
    for line in ("a", "b", "c"):
        writer.write(line)
        assert read_lines(pipe[0], 1) == [line]
    writer.close()


def test_close_writes_what_waits(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines still waiting for their batch are written by `close` at once; later ones are dropped and counted."""
    writer = LineWriter(pipe[1], encoded, 1000, dropped.append, delay_s=3600)
    for i in range(3):
        writer.write(str(i))
    writer.close()
    assert read_lines(pipe[0], 3) == ["0", "1", "2"]
    writer.write("late")
    writer.close()
    assert dropped == [1]


def test_half_full_queue_is_written_before_its_time(pipe: tuple[int, int], dropped: list[int]) -> None:
    """A burst does not wait for the end of the batch time, so that a small bound is no reason to drop."""
    writer = LineWriter(pipe[1], encoded, 8, dropped.append, delay_s=3600)
    for i in range(5):
        writer.write(str(i))
    assert read_lines(pipe[0], 5) == ["0", "1", "2", "3", "4"]
    writer.close()


def test_full_pipe_never_blocks_the_caller(pipe: tuple[int, int], dropped: list[int]) -> None:
    """With nobody reading, `write` returns, keeps at most `max_lines`, counts the rest; `close` gives up in time."""
    fill(pipe[1])
    writer = LineWriter(pipe[1], encoded, 5, dropped.append)
    for i in range(100):
        writer.write(str(i))
        assert writer.waiting <= 5
    assert 90 <= sum(dropped) <= 95  # one batch of at most five may be in the stuck write
    writer.close(timeout_s=0.05)
    assert 95 <= sum(dropped) <= 100 and writer.waiting == 0  # 95 if the thread was just taking the last five
    os.close(pipe[0])  # frees the thread


def test_stuck_pipe_goes_on_when_it_is_read(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines that waited for a slow reader come out whole and in order."""
    size = fill(pipe[1])
    writer = LineWriter(pipe[1], encoded, 5, dropped.append)
    for i in range(5):
        writer.write(str(i))
    while size:
        size -= len(os.read(pipe[0], min(size, 65536)))
    assert read_lines(pipe[0], 5) == ["0", "1", "2", "3", "4"]
    writer.close()
    assert dropped == []


def test_descriptor_made_non_blocking_by_others(pipe: tuple[int, int], dropped: list[int]) -> None:
    """A shared terminal or pipe may be switched to non-blocking under us: nothing is lost or cut."""
    size = fill(pipe[1])
    os.set_blocking(pipe[1], False)
    writer = LineWriter(pipe[1], encoded, 5, dropped.append)
    long = "y" * 200_000  # larger than the pipe: several writes
    writer.write(long)
    while size:
        size -= len(os.read(pipe[0], min(size, 65536)))
    assert read_lines(pipe[0], 1) == [long]
    writer.close()
    assert dropped == []


def test_broken_pipe_is_counted(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines for a reader that is gone are lost and counted, the reason is known, and the caller goes on."""
    os.close(pipe[0])
    writer = LineWriter(pipe[1], encoded, 100, dropped.append)
    for i in range(10):
        writer.write(str(i))
    writer.close()
    assert sum(dropped) == 10
    assert writer.failure == "Broken pipe"


def test_lost_lines_are_reported_by_the_next_write(dropped: list[int]) -> None:
    """`on_drop` runs on the caller's thread only, so plain counters do; a thread's loss shows with the next line."""
    full = os.open("/dev/full", os.O_WRONLY)
    rendered = threading.Event()
    threads = set()

    def on_drop(lines: int) -> None:
        threads.add(threading.current_thread())
        dropped.append(lines)

    def render(line: str) -> bytes:
        if line == "second":
            rendered.set()
        return encoded(line)

    writer = LineWriter(full, render, 100, on_drop)
    writer.write("first")
    writer.write("second")
    assert rendered.wait(10)
    writer.close()
    os.close(full)
    assert sum(dropped) == 2 and threads == {threading.current_thread()}


def test_entry_that_cannot_be_rendered(pipe: tuple[int, int], dropped: list[int]) -> None:
    """One bad entry costs its own line only, also when a whole batch is bad."""

    def render(line: str) -> bytes:
        if line == "bad":
            raise ValueError(line)
        return encoded(line)

    writer = LineWriter(pipe[1], render, 10_000, dropped.append, delay_s=3600)
    for _ in range(BATCH_LINES + 5):
        writer.write("bad")
    writer.write("good")
    writer.close()
    assert read_lines(pipe[0], 1) == ["good"]
    assert sum(dropped) == BATCH_LINES + 5


def test_many_threads_write(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines of several threads are all there, each whole, each thread's in order."""
    writer = LineWriter(pipe[1], encoded, 10_000, dropped.append)

    def work(name: str) -> None:
        for i in range(200):
            writer.write(f"{name} {i}")

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in workers:
        thread.start()
    lines = read_lines(pipe[0], 800)
    for thread in workers:
        thread.join()
    writer.close()
    for name in "abcd":
        assert [line for line in lines if line[0] == name] == [f"{name} {i}" for i in range(200)]
