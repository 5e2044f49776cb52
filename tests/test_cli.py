"""The console script: commands, exit statuses, and errors as one line each."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import router.cli
from router.cli import main
from router.errors import SettingsError
from router.settings import Settings, parse_engine

ENGINE = "--engine=vllm=http://10.0.0.1:8000"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WARMLINE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Stands in for router.app: takes the settings instead of serving."""
    runs: list[Settings] = []
    replace_app(monkeypatch, lambda settings: runs.append(settings))
    return runs


def replace_app(monkeypatch: pytest.MonkeyPatch, run: Callable[[Settings], int | None]) -> None:
    app = ModuleType("router.app")
    app.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "router.app", app)
    monkeypatch.setattr(router, "app", app, raising=False)


def exit_status(argv: list[str]) -> int:
    """The status that the shell sees, from a return as well as from argparse's exit."""
    try:
        return main(argv)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        return leaving.code


def test_serve_runs_the_resolved_settings(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags, environment and file become one Settings, which is what runs."""
    file = tmp_path / "w.toml"
    file.write_text("port = 1\nmax_retries = 1\npolicy = 'ring'\n")
    monkeypatch.setenv("WARMLINE_PORT", "2")
    monkeypatch.setenv("WARMLINE_POLICY", "random")
    assert main(["serve", ENGINE, "--policy", "round-robin", "--config", str(file)]) == 0
    (settings,) = served
    assert settings.engines == (parse_engine("vllm=http://10.0.0.1:8000"),)
    assert (settings.listen.port, settings.upstream.max_retries, settings.routing.policy) == (2, 1, "round-robin")
    assert capsys.readouterr().err == ""


def test_config_from_the_environment(served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """WARMLINE_CONFIG names the file; --config beats it."""
    for name, port in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(f"port = {port}\n")
    monkeypatch.setenv("WARMLINE_CONFIG", str(tmp_path / "a"))
    main(["serve"])
    main(["serve", "--config", str(tmp_path / "b")])
    assert [settings.listen.port for settings in served] == [1, 2]


def test_check_prints_and_serves_nothing(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` prints the settings with their sources, secrets masked, and starts nothing."""
    assert main(["serve", "--check", ENGINE + ",api_key=secret", "--port=9000"]) == 0
    out = capsys.readouterr().out
    assert served == [] and "port = 9000  # from --port" in out and "secret" not in out


BAD_SETTINGS = [
    (["serve", "--port", "x"], "warmline: port: 'x' is not an integer between 0 and 65535 (from --port)\n"),
    (["serve", "--check", "--policy", "x"], "warmline: policy: 'x' is not one of"),
    (["serve", "--config", "/nowhere.toml"], "warmline: config: '/nowhere.toml' is not a readable file: No such file"),
    (["serve", "--check", "--tokenizer", "/nowhere"], "warmline: tokenizer: '/nowhere'"),
    (["serve", "--host", "a..b"], "warmline: host: 'a..b' is not a host name or address (from --host)\n"),
    (["serve", "--engine", "vllm"], "warmline: engine: 'vllm' is not KIND=URL"),
    (["serve", "--prot", "1"], "warmline serve: error: unrecognized arguments: --prot 1; did you mean --port?\n"),
    (["serve", "--polic=warm"], "unrecognized arguments: --polic=warm; did you mean --policy?"),
    (["serve", "--max_body_bytes=1"], "did you mean --max-body-bytes?"),
    (["serve", "--no-acces-log"], "did you mean --no-access-log?"),
    (["serve", "--zzz", "word"], "unrecognized arguments: --zzz word\n"),
    (["workers", "--jsn"], "warmline workers: error: unrecognized arguments: --jsn; did you mean --json?"),
    (["explain", "r", "extra"], "warmline explain: error: unrecognized arguments: extra\n"),
    (["serv"], "invalid choice: 'serv'"),
    ([], "the following arguments are required: COMMAND"),
    (["explain"], "the following arguments are required: REQUEST_ID"),
]


@pytest.mark.parametrize(("argv", "problem"), BAD_SETTINGS)
def test_bad_settings_end_with_2(
    argv: list[str], problem: str, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts on a mistake; the text says what to change."""
    assert exit_status(argv) == 2
    assert problem in capsys.readouterr().err
    assert served == []


def test_every_mistake_is_a_line(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    """Several mistakes are several lines, each with the program's name."""
    assert main(["serve", "--port=x", "--policy=y"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("warmline: p") for line in lines)


def test_unknown_variable_is_a_warning(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment is shared with others: a stranger there is told and does not stop the router."""
    monkeypatch.setenv("WARMLINE_POTR", "1")
    assert main(["serve", ENGINE]) == 0
    expected = "warmline: WARMLINE_POTR: no such setting; did you mean WARMLINE_PORT? (ignored)\n"
    assert capsys.readouterr().err == expected and len(served) == 1


def test_no_engine_is_a_warning(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    """A router may start empty and get its workers later, but whoever forgot them is told; the help does not demand one."""
    assert main(["serve"]) == 0
    expected = "warmline: warning: no engine given; add one with --engine or POST /workers\n"
    assert capsys.readouterr().err == expected and len(served) == 1
    assert exit_status(["serve", "--help"]) == 0
    assert "[--engine KIND=URL …]" in capsys.readouterr().out


def run_module(*argv: str, stdout: int) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", "router.cli", *argv], stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_real_port_in_use(flag: str) -> None:
    """With real sockets too, a taken port ends the router with the flag that names it."""
    other = "--admin-port" if flag == "--port" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with run_module("serve", ENGINE, f"{flag}={port}", f"{other}=0", stdout=subprocess.PIPE) as process:
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and f"cannot serve: {flag} {port} is in use on 127.0.0.1" in errors


def raising(error: BaseException) -> Callable[[Settings], int]:
    def run(settings: Settings) -> int:
        raise error

    return run


def bind_error(number: int, port: int, words: str) -> OSError:
    """As asyncio words it."""
    return OSError(number, f"error while attempting to bind on address ('127.0.0.1', {port}): {words}")


FAILURES = [
    (
        bind_error(errno.EADDRINUSE, 1, "address already in use"),
        1,
        "warmline: cannot serve: --port 1 is in use on h; choose another, or 0 for a free one\n",
    ),
    (
        bind_error(errno.EADDRINUSE, 2, "address already in use"),
        1,
        "warmline: cannot serve: --admin-port 2 is in use on h; choose another, or 0 for a free one\n",
    ),
    (
        bind_error(errno.EACCES, 1, "permission denied"),
        1,
        "warmline: cannot serve: --host h, --port 1: permission denied\n",
    ),
    (
        socket.gaierror(-2, "Name or service not known"),
        1,
        "warmline: cannot serve: --host h: Name or service not known\n",
    ),
    (OSError(24, "Too many open files"), 1, "warmline: cannot serve: Too many open files\n"),
    (OSError("odd"), 1, "warmline: cannot serve: odd\n"),
    (SettingsError("tokenizer: '/x' is not a folder"), 2, "warmline: tokenizer: '/x' is not a folder\n"),
    (KeyboardInterrupt(), 130, ""),
]


@pytest.mark.parametrize(("error", "status", "text"), FAILURES)
def test_failures_of_serving(
    error: BaseException, status: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A taken port, a bad tokenizer, Ctrl-C: a status and a line, no traceback."""
    replace_app(monkeypatch, raising(error))
    assert main(["serve", ENGINE, "--host=h", "--port=1", "--admin-port=2"]) == status
    assert capsys.readouterr().err == text


def test_status_of_the_router_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `run` returns is the exit status."""
    replace_app(monkeypatch, lambda settings: 3)
    assert main(["serve"]) == 3


def test_admin_address_comes_from_flag_or_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--admin beats WARMLINE_ADMIN; a router that is not there ends with 1."""
    monkeypatch.setenv("WARMLINE_ADMIN", "http://127.0.0.1:1")
    assert main(["workers"]) == 1
    assert "no router answers at http://127.0.0.1:1:" in capsys.readouterr().err
    assert main(["explain", "some-id", "--admin", "127.0.0.1:2"]) == 1
    assert "no router answers at http://127.0.0.1:2:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is the installed package's."""
    assert exit_status(["--version"]) == 0
    assert capsys.readouterr().out == f"warmline {metadata.version('warmline')}\n"


def test_reader_that_goes_away() -> None:
    """`warmline serve --check | head -1` ends quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    with run_module("serve", "--check", stdout=writing) as process:
        os.close(writing)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, "")


def test_runs_as_a_module_without_the_data_plane() -> None:
    """`python -m router.cli` is the same program, and checking settings loads neither uvloop nor aiohttp."""
    code = (
        "import sys; from router.cli import main; main(['serve', '--check']); print({'uvloop', 'aiohttp'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.endswith("\nset()\n")
    with run_module("--help", stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "warmline" in out
