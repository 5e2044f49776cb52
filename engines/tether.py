"""Runs a command that ends with its parent: `python -m engines.tether PARENT_PID COMMAND ARGUMENT…`.

The process asks the kernel for SIGTERM at its parent's death and then becomes the command (same process id), so a
parent killed with SIGKILL leaves nothing behind. The kernel watches the parent's *thread* that started the child:
start children from a thread that outlives them. Where there is no such call (macOS) the command just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie_to_parent(parent_pid: int) -> None:
    """From now on SIGTERM comes when the parent dies; exits at once when it is dead already."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        raise SystemExit("tether: the parent is gone already")


def main(argv: list[str]) -> None:
    """Does not return: the process becomes the command, or exits."""
    if len(argv) < 2 or not argv[0].isdigit():
        raise SystemExit("usage: python -m engines.tether PARENT_PID COMMAND [ARGUMENT ...]")
    tie_to_parent(int(argv[0]))
    try:
        os.execvp(argv[1], argv[1:])
    except OSError as error:
        raise SystemExit(f"tether: {argv[1]}: {error.strerror}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
