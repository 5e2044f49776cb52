"""How contenders are started."""

import shutil
import subprocess
from pathlib import Path

import pytest

from loadtest.bench import contenders
from loadtest.bench.contenders import (
    CONTENDERS,
    PEERS,
    Site,
    Unavailable,
    install_peers,
    nginx,
    peer,
    smollm2_gguf,
    warmline_tokens,
)
from loadtest.bench.load import request_bytes, run_load
from loadtest.bench.servers import HOST, Engines, fake_engines, running

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Engines(0, [7001, 7002]), tmp_path)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_nginx_balances_over_the_engines(tmp_path: Path) -> None:
    """Our nginx, from its own folder: chats come back whole, every engine gets some, each is in the access log."""
    with fake_engines(2, tmp_path) as engines, running(nginx(Site(engines, tmp_path)), tmp_path) as server:
        requests = [request_bytes(f"{HOST}:{server.port}", b'{"stream":true}')] * 4
        result = await run_load(HOST, server.port, requests, concurrency=2, is_stream=True)
        assert result.events == {64: 4}
    assert len((tmp_path / "nginx" / "nginx-access.log").read_text().splitlines()) == 4


def test_without_nginx_the_row_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is a reason in the report, not a crash."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="nginx-light"):
        nginx(site)


def test_without_a_tokenizer_there_are_no_token_keys(site: Site) -> None:
    """The second router row needs a GGUF file."""
    with pytest.raises(Unavailable, match="tokenizer"):
        warmline_tokens(site)


@pytest.mark.parametrize("name", PEERS)
def test_peers_listen_on_loopback_only_and_route_by_cache(name: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some peers bind 0.0.0.0 by default: both addresses are given, and their cache-aware policy is on."""
    monkeypatch.setattr(contenders, "peer_python", lambda _: ("/python", "9.9"))
    launch = peer(name)(site)
    command = list(launch.command)
    assert command[command.index("--host") + 1] == HOST
    assert command[command.index("--prometheus-host") + 1] == HOST
    assert command[command.index("--policy") + 1] == "cache_aware"
    assert command[command.index("--worker-urls") + 1 :][:2] == ["http://127.0.0.1:7001", "http://127.0.0.1:7002"]
    assert str(launch.port) in command and launch.version == "9.9"


def test_every_contender_has_a_name_of_its_own(site: Site) -> None:
    """Log files and figures are kept by name."""
    assert set(CONTENDERS) >= {"nginx", "warmline", "warmline-tokens", *PEERS}


def test_peers_that_cannot_be_installed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package index the bench goes on without peers and leaves the installer's output in the log."""

    def nobody(name: str) -> tuple[str, str]:
        raise Unavailable(name)

    def fails(*_: object, **__: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(contenders, "peer_python", nobody)
    monkeypatch.setattr(contenders, "PEER_FOLDER", tmp_path / "venv")
    monkeypatch.setattr("subprocess.run", fails)
    assert install_peers(tmp_path / "log") == list(PEERS)


def test_the_gguf_is_found_inside_its_package() -> None:
    """Where the model package is installed its file is found without importing the package."""
    path = smollm2_gguf()
    assert path is None or path.endswith(".gguf")
