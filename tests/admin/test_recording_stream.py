"""`GET /recording` on a real port: lines as requests end, its limits, and that nothing is left when a listener goes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from router.admin import recording_stream
from router.admin.app import make_app
from router.admin.recordings import MAX_RECORDINGS
from tests.admin.stage import Stage, admin_port


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_stream, "TICK_S", 0.01)


@asynccontextmanager
async def port(stage: Stage) -> AsyncIterator[tuple[web.AppRunner, str]]:
    runner = web.AppRunner(make_app(stage, stage, stage.stats, stage.recordings), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner, f"http://127.0.0.1:{runner.addresses[0][1]}/recording"
    finally:
        await runner.cleanup()


async def next_line(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    line: dict[str, Any] = orjson.loads(await asyncio.wait_for(answer.content.readline(), 10))
    return line


async def next_request(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    while "state" in (line := await next_line(answer)):
        pass
    return line


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def end_one(stage: Stage, request_id: str) -> None:
    """A request from its choice to its end, as the data plane tells of it."""
    lease = stage.send(request_id)
    stage.placement.finish(lease, lease.sent_s + 1, None, "ok", 200)
    if stage.listens:
        stage.recordings.note(lease, None)


async def test_requests_are_told_as_they_end() -> None:
    """A head first, then a line for each request that ends; the request before the recording is not in it."""
    stage = Stage()
    stage.ready()
    end_one(stage, "before")
    async with port(stage) as (_, url), aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200 and answer.content_type == "application/x-ndjson" and answer.headers["X-Request-Id"]
        head = await next_line(answer)
        assert head["warmline_recording"] == 1 and head["policy"] == "warm" and len(head["workers"]) == 1
        for _ in range(3):
            end_one(stage, "a")
            assert (await next_request(answer))["worker"] == 0
        assert stage.recordings.waiting_bytes() == 0 and stage.stats.recordings == 1


async def test_time_goes_on_where_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent router still says that it is there, what was dropped, and from time to time how its workers are."""
    monkeypatch.setattr(recording_stream, "STATE_S", 1.0)
    stage = Stage()
    stage.ready()
    async with port(stage) as (_, url), aiohttp.ClientSession() as session, session.get(url) as answer:
        await next_line(answer)
        stage.now_s += 1.0
        assert (await next_line(answer))["state"] == {"timestamp": 1000.0, "dropped": 0}
        stage.now_s += recording_stream.WORKERS_S
        assert len((await next_line(answer))["state"]["workers"]) == 1


async def test_a_listener_that_goes_frees_what_waits() -> None:
    """The connection breaks, and the request path is told that nobody listens any more."""
    stage = Stage()
    stage.ready()
    async with port(stage) as (_, url), aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            await next_line(answer)
            assert stage.listens
        await until(lambda: not stage.listens)
        assert stage.stats.recordings == 0


async def test_a_listener_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves unread is bounded: further requests are dropped and counted, and after a while it is cut off."""
    monkeypatch.setattr(recording_stream, "WRITE_TIMEOUT_S", 0.2)
    stage = Stage()
    stage.ready()
    async with port(stage) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]), limit=1024)
        writer.write(b"GET /recording HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        deadline_s = time.monotonic() + 20
        while stage.listens:
            assert time.monotonic() < deadline_s
            for _ in range(64):
                end_one(stage, "a")
            assert stage.recordings.waiting_bytes() <= 64 * 1024
            await asyncio.sleep(0)
        assert stage.stats.recording_dropped > 0 and stage.stats.recordings == 0
        writer.close()


async def test_too_many_listeners_get_409() -> None:
    """Each costs CPU beside the traffic, so there are few; the answer says what to do."""
    stage = Stage()
    async with port(stage) as (_, url), aiohttp.ClientSession() as session:
        answers = [await session.get(url) for _ in range(MAX_RECORDINGS)]
        async with session.get(url) as refused:
            assert refused.status == 409
            error = (await refused.json())["error"]
            assert error["code"] == "too_many_recordings" and "end one" in error["message"]
        for answer in answers:
            answer.close()
        await until(lambda: not stage.listens)


async def test_a_page_of_another_site_cannot_begin_one() -> None:
    """A browser on the operator's machine reaches the loopback port: what it asks for another site is refused."""
    stage = Stage()
    async with admin_port(stage) as admin:
        answer = await admin.ask("GET", "/recording", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status == 403 and answer.body["error"]["code"] == "foreign_page"
        assert (await admin.ask("POST", "/recording")).status == 405


async def test_the_router_that_ends_says_so() -> None:
    """What was asked until then is told, the latest numbers of the workers, and that this is the end."""
    stage = Stage()
    stage.ready()
    async with port(stage) as (runner, url), aiohttp.ClientSession() as session, session.get(url) as answer:
        await next_line(answer)
        end_one(stage, "last")
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.cleanup())
            rest = [orjson.loads(line) for line in (await asyncio.wait_for(answer.content.read(), 10)).splitlines()]
        requests = [line for line in rest if "timestamp" in line]
        assert len(requests) == 1 and "workers" in rest[-2]["state"] and rest[-1] == {"end": "router_stopped"}
        assert not stage.listens


async def test_a_failure_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """A line that cannot be made cuts the answer off, is logged, and leaves no listener."""
    stage = Stage()
    stage.ready()
    async with port(stage) as (_, url), aiohttp.ClientSession() as session, session.get(url) as answer:
        await next_line(answer)
        lease = stage.send("odd")
        stage.recordings.note(lease, None)
        lease.decision.reason = "\ud800"  # no text that could be written
        with pytest.raises(aiohttp.ClientPayloadError):
            while await asyncio.wait_for(answer.content.readline(), 10):
                pass
        await until(lambda: not stage.listens)
        assert "a recording failed" in caplog.text
