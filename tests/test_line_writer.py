"""Log lines go out in order on a thread; a stuck or broken descriptor stalls, loses and counts lines, nothing else."""

import os
import threading
from collections.abc import Iterator

import pytest

from router.line_writer import LineWriter


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


def line(text: object) -> bytes:
    return f"{text}\n".encode()


def test_lines_come_out_in_order(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Everything written comes out, in order, single lines and whole batches."""
    writer = LineWriter(pipe[1], 5000, dropped.append)
    lines = [str(i) for i in range(1000)]
    for one in lines[:500]:
        writer.write(line(one))
    writer.write(b"".join(line(one) for one in lines[500:]), 500)
    assert read_lines(pipe[0], len(lines)) == lines
    writer.close()
    assert dropped == [] and writer.waiting == 0 and writer.failure == ""


def test_lines_come_out_while_running(pipe: tuple[int, int], dropped: list[int]) -> None:
    """A line does not wait for the next one, nor for `close`."""
    writer = LineWriter(pipe[1], 10, dropped.append)
    for one in ("a", "b", "c"):
        writer.write(line(one))
        assert read_lines(pipe[0], 1) == [one]
    writer.close()


def test_close_writes_what_waits(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines still waiting are written by `close`; later ones are dropped and counted."""
    writer = LineWriter(pipe[1], 1000, dropped.append)
    for i in range(3):
        writer.write(line(i))
    writer.close()
    assert read_lines(pipe[0], 3) == ["0", "1", "2"]
    writer.write(line("late"))
    writer.close()
    assert dropped == [1]


def test_full_pipe_never_blocks_the_caller(pipe: tuple[int, int], dropped: list[int]) -> None:
    """With nobody reading, `write` returns, keeps at most `max_lines`, counts the rest; `close` gives up in time."""
    fill(pipe[1])
    writer = LineWriter(pipe[1], 5, dropped.append)
    for i in range(100):
        writer.write(line(i))
        assert writer.waiting <= 5
    writer.write(line("a") * 2, 2)
    assert sum(dropped) == 97
    writer.close(timeout_s=0.05)
    assert sum(dropped) == 102 and writer.waiting == 0
    os.close(pipe[0])  # frees the thread


def test_stuck_pipe_goes_on_when_it_is_read(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines that waited for a slow reader come out whole and in order."""
    size = fill(pipe[1])
    writer = LineWriter(pipe[1], 5, dropped.append)
    for i in range(5):
        writer.write(line(i))
    while size:
        size -= len(os.read(pipe[0], min(size, 65536)))
    assert read_lines(pipe[0], 5) == ["0", "1", "2", "3", "4"]
    writer.close()
    assert dropped == []


def test_descriptor_made_non_blocking_by_others(pipe: tuple[int, int], dropped: list[int]) -> None:
    """A shared terminal or pipe may be switched to non-blocking under us: nothing is lost or cut."""
    size = fill(pipe[1])
    os.set_blocking(pipe[1], False)
    writer = LineWriter(pipe[1], 5, dropped.append)
    long = "y" * 200_000  # larger than the pipe: several writes
    writer.write(line(long))
    while size:
        size -= len(os.read(pipe[0], min(size, 65536)))
    assert read_lines(pipe[0], 1) == [long]
    writer.close()
    assert dropped == []


def test_broken_pipe_is_counted(pipe: tuple[int, int], dropped: list[int]) -> None:
    """Lines for a reader that is gone are lost and counted, the reason is known, and the caller goes on."""
    os.close(pipe[0])
    writer = LineWriter(pipe[1], 100, dropped.append)
    for i in range(10):
        writer.write(line(i))
    writer.close()
    assert sum(dropped) == 10
    assert writer.failure == "Broken pipe"


def test_lost_lines_are_reported_on_the_callers_thread(dropped: list[int]) -> None:
    """`on_drop` runs on the caller's thread only, so plain counters do; a thread's loss shows with the next line."""
    full = os.open("/dev/full", os.O_WRONLY)
    threads = set()

    def on_drop(lines: int) -> None:
        threads.add(threading.current_thread())
        dropped.append(lines)

    writer = LineWriter(full, 100, on_drop)
    writer.write(line("first"))
    writer.write(line("second") * 3, 3)
    writer.close()
    os.close(full)
    assert sum(dropped) == 4 and threads == {threading.current_thread()}
