"""A file of lines that is whole whenever it is closed, of a bounded size, and readable to its last flush if it never is."""

import gzip
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

FLUSH_BYTES: Final = 256 * 1024  # of lines


class TraceFile:
    """Gzipped if its name ends in .gz. At most `max_bytes` on disk, of which the last line may need what `reserve` says.

    Raises OSError: FileExistsError for a file that is there.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file = path.open("xb")
        self._packed: gzip.GzipFile | None = None
        if path.name.endswith(".gz"):
            self._packed = gzip.GzipFile("", "wb", 6, self._file, mtime=0)  # nothing of this machine or hour in its head
        self._out: IO[bytes] | gzip.GzipFile = self._packed or self._file
        self._waiting_bytes = 0  # of lines since the last flush
        self._closed_bytes: int | None = None

    def write(self, text: str) -> None:
        """Whatever the size gets to be."""
        data = text.encode()
        self._out.write(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > FLUSH_BYTES:
            self.flush()

    def has_room(self, text: str, reserve_bytes: int) -> bool:
        """Whether this line and `reserve_bytes` more surely fit."""
        needed = len(text.encode()) + reserve_bytes
        if self.size_bytes + needed > self._max_bytes:
            self.flush()
        return self.size_bytes + needed <= self._max_bytes

    @property
    def size_bytes(self) -> int:
        """On disk at most: what waits to be compressed counts whole. Exact once closed."""
        if self._closed_bytes is not None:
            return self._closed_bytes
        return self._file.tell() + self._waiting_bytes

    def flush(self) -> None:
        """Everything so far can be read by others from now on."""
        if self._waiting_bytes:
            self._out.flush()
            self._file.flush()
            self._waiting_bytes = 0

    def close(self) -> None:
        try:
            if self._packed is not None:
                self._packed.close()
            self._closed_bytes = self._file.tell()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
