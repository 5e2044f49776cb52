"""CPU time and listening sockets of other processes, from the kernel's own accounting."""

import time
from contextlib import suppress
from pathlib import Path


class ProcessGone(Exception):
    """A process that should be measured has ended."""


def process_tree(pid: int) -> list[int]:
    """The process and all of its living descendants."""
    tree = [pid]
    for parent in tree:
        try:
            threads = list(Path(f"/proc/{parent}/task").iterdir())
        except FileNotFoundError:
            continue
        for thread in threads:
            try:
                tree.extend(int(child) for child in (thread / "children").read_text().split())
            except FileNotFoundError:
                continue
    return tree


def cpu_clock(pid: int) -> int:
    """The clock id of a process's CPU time, as clock_getcpuclockid(3) makes it (utime + stime of all threads, in ns)."""
    return (~pid << 3) | 2


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree so far, all threads, children that ended not included.

    Read from the processes' CPU clocks: the same count as utime + stime in /proc/PID/stat, which has steps of 10 ms.
    """
    total_ns = 0
    for member in process_tree(pid):
        try:
            total_ns += time.clock_gettime_ns(cpu_clock(member))
        except OSError:
            if member == pid:
                raise ProcessGone(f"process {pid} has ended") from None
    return total_ns / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of a process tree; shared pages count once per process."""
    pages = 0
    for member in process_tree(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except FileNotFoundError:
            continue
    return pages * 4096


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on a TCP port of this machine, any address."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def open_sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; empty when it is gone or not ours to look at."""
    inodes: set[str] = set()
    with suppress(FileNotFoundError, PermissionError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def listens(pid: int, port: int) -> bool:
    """Whether the process tree, and nobody else, listens on the port."""
    wanted = listening_inodes(port)
    held: set[str] = set().union(*(open_sockets(member) for member in process_tree(pid)))
    return bool(wanted) and wanted <= held
