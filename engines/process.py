"""One child process: start it, read what it says when ready, stop it for certain. Knows nothing of what it does.

Children run in a session of their own, so that Ctrl-C in a terminal reaches only the parent, which stops them in
its own order; `engines.tether` ends them when the parent dies without doing so.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

REPORT_BYTES = 4096  # a longer first line is no report


class ChildProcess:
    """A running child. Its standard error goes to `log_path` (appended), its standard output to a pipe or the log."""

    def __init__(
        self, argv: Sequence[str], log_path: Path, *, reports: bool = False, env: Mapping[str, str] | None = None
    ) -> None:
        """Starts at once. `reports`: the child writes one line to standard output when ready, see `read_report`.

        Raises OSError when the log cannot be written; a command that cannot run exits with its reason in the log.
        """
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engines.tether", str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if reports else log,
                stderr=log,
                start_new_session=True,
                env=None if env is None else dict(env),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while running; negative: ended by that signal."""
        return self._process.poll()

    def read_report(self, deadline_s: float) -> str | None:
        """The first line of standard output, without its end; None when the child ended or `deadline_s` passed first."""
        pipe = self._process.stdout
        assert pipe is not None, "started without reports=True"
        ends_at, line = time.monotonic() + deadline_s, b""
        while b"\n" not in line:
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                return None
            piece = os.read(pipe.fileno(), REPORT_BYTES)
            line += piece
            if not piece or len(line) > REPORT_BYTES:
                return None
        return line.split(b"\n", 1)[0].decode(errors="replace")

    def stop(self, deadline_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after `deadline_s`. Returns when the process is gone; harmless when it already is."""
        self.terminate()
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            self._close_pipe()

    def kill(self) -> None:
        """SIGKILL, for the child and whatever it started. Returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._close_pipe()

    def terminate(self) -> None:
        """SIGTERM, without waiting for the end."""
        self._signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C in the child's own terminal would send."""
        self._signal(signal.SIGINT)

    def wait(self, deadline_s: float) -> int:
        """The exit code. Raises TimeoutError when the child still runs after `deadline_s`."""
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs after {deadline_s:g} s") from None

    def log_tail(self, lines: int = 12) -> str:
        """The end of the log, for error messages."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        """To the child's whole group: the child leads it. A reaped child's id may belong to others, so none is sent then."""
        if self.is_running:
            os.killpg(self.pid, number)

    def _close_pipe(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
