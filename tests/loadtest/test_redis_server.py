"""A real Redis for tests: started, paused, killed, and gone in the end."""

import contextlib
import socket
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError
from redis.retry import Retry

from loadtest.redis_server import RedisServer, binary, redis_server


def answers(server: RedisServer) -> bool:
    with Redis(port=server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)) as client, contextlib.suppress(TimeoutError):
        return bool(client.ping())
    return False


def test_it_lives_as_long_as_the_block() -> None:
    """Killed it is gone at once, started again it is another one on the same port, empty."""
    with redis_server("--maxmemory", "10mb") as server:
        assert server.url == f"redis://127.0.0.1:{server.port}" and answers(server)
        with Redis(port=server.port) as client:
            client.set("a", 1)
            assert client.config_get("maxmemory")["maxmemory"] == str(10 * 1024**2)
        first = server.pid
        server.pause()
        assert not answers(server)
        server.resume()
        assert answers(server)
        server.kill()
        server.kill()
        server.start()
        with Redis(port=server.port) as client:
            assert server.pid != first and client.dbsize() == 0
        folder = server.folder
    assert not folder.exists()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.port), 0.5):
        pass


def test_one_that_does_not_start_tells_why(tmp_path: Path) -> None:
    """The error ends with what it said."""
    with pytest.raises(RuntimeError, match=r"(?s)did not start.*nonsense"):
        RedisServer(tmp_path, "--nonsense", "1").start()


def test_without_a_redis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's own server comes first, then one that is installed."""
    assert Path(binary()).is_file()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/redis-server")
    assert binary() == "/usr/bin/redis-server"
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="install the test extra"):
        binary()
