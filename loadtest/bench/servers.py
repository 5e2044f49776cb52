"""Start, check and stop the processes of the bench: nobody else's port, nobody else's process."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.accounting import listens

HOST = "127.0.0.1"
STOP_DEADLINE_S = 5.0
PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """A process did not come up on its port; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Launch:
    """How to start one server: `command` must make it listen on `port` of the loopback address."""

    name: str
    command: Sequence[str]
    port: int
    version: str = ""
    ready_deadline_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Running:
    """One server that we started and that holds its port."""

    launch: Launch
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def port(self) -> int:
        return self.launch.port

    @property
    def pid(self) -> int:
        return self.process.pid


def free_port() -> int:
    """A port nobody listens on now. Whoever takes it in between is found out by `listens`."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Runs in the child before exec: the kernel ends it when the bench is killed without a chance to clean up."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def last_lines(log: Path, count: int = 8) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return "(no log)"


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, then SIGKILL to its process group (made by us) after a deadline."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_DEADLINE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until_listening(server: Running) -> None:
    """Return once the process tree holds the port; ServerFailed when it ended, was too late or the port is another's."""
    deadline_s = time.monotonic() + server.launch.ready_deadline_s
    while time.monotonic() < deadline_s:
        code = server.process.poll()
        if code is not None:
            raise ServerFailed(f"{server.name} ended with {code}:\n{last_lines(server.log)}")
        if listens(server.pid, server.port):
            return
        time.sleep(0.05)
    raise ServerFailed(f"{server.name} does not hold port {server.port}:\n{last_lines(server.log)}")


def same_python() -> list[str]:
    """This interpreter, looking for modules as we do: with -P the folder we are in does not stand before PYTHONPATH."""
    return [sys.executable, *(["-P"] if sys.flags.safe_path else [])]


def clean_environment() -> dict[str, str]:
    """Our environment without the router's own settings: contenders run with their defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WARMLINE_")}


@contextmanager
def running(launch: Launch, folder: Path) -> Iterator[Running]:
    """The server, listening; stopped on leaving. Its output goes to a file in `folder`."""
    log = folder / f"{launch.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(launch.command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), **launch.environment},
            cwd=folder,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    server = Running(launch, process, log)
    try:
        wait_until_listening(server)
        yield server
    finally:
        stop(process)


@dataclass
class Engines:
    """The fake engines: one process, `ports` in order."""

    pid: int
    ports: list[int]

    @property
    def urls(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self.ports]


@contextmanager
def fake_engines(count: int, folder: Path) -> Iterator[Engines]:
    """`count` fake workers on free ports, in a process of their own."""
    ports = ",".join(["0"] * count)
    command = [*same_python(), "-m", "loadtest.bench.fake_engine", "--ports", ports]
    with (folder / "fake-engines.log").open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, preexec_fn=die_with_parent
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(f"fake engines did not start:\n{last_lines(folder / 'fake-engines.log')}")
        yield Engines(process.pid, json.loads(line)["ports"])
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()
