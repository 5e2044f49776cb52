"""Users and passwords, TLS, Sentinel: who is let in, who is not, and what the log says."""

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from loadtest.redis_server import RedisServer, redis_server
from loadtest.tcp_front import TcpFront
from router.settings import StateSettings
from router.state.redis_keys import COMMANDS
from tests.state.rig import RouterProcess, SidecarProcess, admin, changes_of_state, comes_right, eventually, running

SECRET = "open/sesame@1"
QUOTED = "open%2Fsesame%401"


@pytest.fixture
def guarded(redis: RedisServer) -> RedisServer:
    """A user that may do what the state needs, on one pool only."""
    commands = [f"+{command}" for command in COMMANDS]
    with admin(redis) as client:
        rules = ["on", f">{SECRET}", "~warmline:1:prod:*", "resetchannels", "&warmline:1:prod:*", "-@all", *commands]
        client.execute_command("ACL", "SETUSER", "warm", *rules)
        client.execute_command("ACL", "SETUSER", "default", "off")
    return redis


def settings_of(server: RedisServer, login: str, pool: str = "prod") -> StateSettings:
    return StateSettings(redis=f"redis://{login}@127.0.0.1:{server.port}", pool_name=pool)


async def test_a_user_with_the_documented_rights(guarded: RedisServer) -> None:
    """Nothing more is needed than the commands and the keys that are named."""
    settings = settings_of(guarded, f"warm:{QUOTED}")
    sidecar, router, other = SidecarProcess(settings, "a"), RouterProcess(settings, "1"), RouterProcess(settings, "2")
    async with running(sidecar, router, other):
        await comes_right(sidecar, router)
        await eventually(lambda: router.loads.routers == 1, 2.0)
        sidecar.engines.clear()
        sidecar.publisher.leave(next(iter(router.picture.reports)))
        await comes_right(sidecar, router)
    assert not router.health.errors and not sidecar.health.errors


@pytest.mark.parametrize(
    ("login", "pool", "says"),
    [
        (f"warm:{QUOTED}x", "prod", "user 'warm' is not let in"),
        (f"stranger:{QUOTED}", "prod", "user 'stranger' is not let in"),
        (f":{QUOTED}", "prod", "the default user is not let in"),
        ("warm", "prod", "user 'warm' is not let in"),
        (f"warm:{QUOTED}", "test", "no permissions|No permissions"),
    ],
)
async def test_who_is_not_let_in_is_told(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture, login: str, pool: str, says: str
) -> None:
    """Once, with the user's name and without the password; the loops go on, so that it heals when somebody mends it."""
    caplog.set_level(logging.DEBUG)
    settings = settings_of(guarded, login, pool)
    sidecar, router = SidecarProcess(settings, "a"), RouterProcess(settings)
    async with running(sidecar, router) as tasks:
        await eventually(lambda: router.health.is_lost and sidecar.health.is_lost, 2.0)
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in tasks)
    lines = changes_of_state(caplog)
    assert len(lines) == 2 and all(any(word in line for word in says.split("|")) for line in lines), lines
    assert SECRET not in caplog.text and QUOTED not in caplog.text


async def test_tls(redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the right authority and an own certificate; a server of another authority is refused."""
    ca, stranger = trustme.CA(), trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.verify_mode = ssl.CERT_REQUIRED
    ca.issue_cert("localhost").configure_cert(tls)
    ca.configure_trust(tls)
    front = TcpFront(redis.port, tls=tls)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    ca.issue_cert("sidecar.example").private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    async with front.open():
        files = {"redis_ca_file": str(tmp_path / "ca.pem"), "redis_cert_file": str(tmp_path / "own.pem")}
        settings = StateSettings(redis=f"rediss://localhost:{front.port}", **files)  # type: ignore[arg-type]
        sidecar, router = SidecarProcess(settings, "a"), RouterProcess(settings)
        async with running(sidecar, router):
            await comes_right(sidecar, router)
        assert not router.health.errors
        files["redis_ca_file"] = str(tmp_path / "stranger.pem")
        strange = RouterProcess(StateSettings(redis=settings.redis, **files))  # type: ignore[arg-type]
        async with running(strange):
            await eventually(lambda: strange.health.is_lost, 2.0)
    assert "certificate verify failed" in caplog.text


@pytest.fixture
def watched_masters(tmp_path: Path) -> Iterator[tuple[RedisServer, int]]:
    """A master, its replica, and the port of a Sentinel that promotes the replica when the master is gone."""
    with ExitStack() as stack:
        master = stack.enter_context(redis_server())
        stack.enter_context(redis_server("--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0"))
        sentinel = RedisServer(
            tmp_path,
            sentinel=f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
        )
        stack.callback(sentinel.kill)
        sentinel.start()
        yield master, sentinel.port


async def test_sentinel_finds_the_next_master(
    watched_masters: tuple[RedisServer, int], caplog: pytest.LogCaptureFixture
) -> None:
    """When the master dies the replica takes its place; nobody is lost, and all is right with the new one."""
    caplog.set_level(logging.INFO, "warmline.state")
    master, port = watched_masters
    settings = StateSettings(redis=f"redis+sentinel://127.0.0.1:{port}/main")
    sidecar, router = SidecarProcess(settings, "a"), RouterProcess(settings)
    async with running(sidecar, router):
        await comes_right(sidecar, router)
        await asyncio.sleep(1.0)
        master.kill()
        await eventually(lambda: router.health.is_lost, 3.0)
        await eventually(lambda: not router.health.is_lost and not sidecar.health.is_lost, 15.0)
        await comes_right(sidecar, router)
        assert not router.picture.lost_workers
    assert len(changes_of_state(caplog)) == 4
