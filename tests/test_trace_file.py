"""A file of lines: bounded, whole when closed, readable to its last flush when it never is."""

import gzip
import random
from pathlib import Path

import pytest

from router.trace_file import FLUSH_BYTES, TraceFile

RESERVE_BYTES = 512


def noise(rng: random.Random, length: int = 400) -> str:
    """A line that does not compress well."""
    return rng.randbytes(length // 2).hex() + "\n"


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl"])
def test_lines_come_back(name: str, tmp_path: Path) -> None:
    """Gzipped where the name says so, plain elsewhere; the size is that of the file once it is closed."""
    with TraceFile(tmp_path / name, 1 << 20) as file:
        for number in range(1000):
            file.write(f"{number}\n")
    data = (tmp_path / name).read_bytes()
    assert file.size_bytes == len(data)
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert text.split() == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl"])
@pytest.mark.parametrize("noisy", [True, False])
def test_size_is_bounded_and_used(name: str, noisy: bool, tmp_path: Path) -> None:
    """Lines are refused before the file gets larger than it may, with room for the last one, and not long before."""
    rng = random.Random(3)
    limit = 64 * 1024
    with TraceFile(tmp_path / name, limit) as file:
        count = 0
        while file.has_room(line := noise(rng) if noisy else f"{count}" * 50 + "\n", RESERVE_BYTES):
            file.write(line)
            count += 1
            assert count < 100_000
        file.write("x" * 400 + "\n")
    size = (tmp_path / name).stat().st_size
    assert limit - 2 * RESERVE_BYTES - 2000 < size <= limit, size


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    """Whoever gives the name of another recording keeps that."""
    path = tmp_path / "t.jsonl.gz"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        TraceFile(path, 1 << 20)
    assert path.read_text() == "precious"


def test_what_was_flushed_can_be_read(tmp_path: Path) -> None:
    """A recorder that is killed loses only what it wrote since: nothing of it was closed."""
    path = tmp_path / "t.jsonl.gz"
    with TraceFile(path, 1 << 20) as file:
        file.write("one\n")
        file.flush()
        with gzip.open(path) as read:
            assert read.readline() == b"one\n"
            with pytest.raises(EOFError):
                read.read()


def test_many_lines_are_flushed_unasked(tmp_path: Path) -> None:
    """What waits to be compressed is bounded."""
    path = tmp_path / "t.jsonl.gz"
    with TraceFile(path, 1 << 30) as file:
        for _ in range(FLUSH_BYTES // 1000 + 1):
            file.write("a" * 1000 + "\n")
        assert file.size_bytes < FLUSH_BYTES < FLUSH_BYTES + path.stat().st_size


def test_the_file_tells_nothing_of_its_maker(tmp_path: Path) -> None:
    """Neither name nor time of day is in gzip's own head: equal lines make equal bytes."""
    for name in ("secret.jsonl.gz", "other.jsonl.gz"):
        with TraceFile(tmp_path / name, 1 << 20) as file:
            file.write("one\n")
    data = (tmp_path / "secret.jsonl.gz").read_bytes()
    assert b"secret" not in data and data[4:8] == bytes(4) and data == (tmp_path / "other.jsonl.gz").read_bytes()
