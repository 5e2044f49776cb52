"""The router as a whole in one process: start-up, reports, workers at run time, draining. Real ports, real engines' wire."""

import asyncio
import gc
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
import pytest

from router.app import Router, raise_file_limit
from router.core.stats import Stats
from router.core.types import WorkerId
from router.settings import EngineSpec, FleetSettings, LimitSettings, ListenSettings, Settings, TokenSettings
from router.tokens.book import TokenizerBook
from router.tokens.pre_tokenizers import GPT2
from router.wire.engine_tokens import NoTokens
from router.wire.openai_request import TextPrompt
from tests.proxy.rig import EngineRequest, ScriptedEngine, answer_ok, chat, error_of, post, sized, split_answer, until
from tests.tokens.vocabularies import byte_level, write_folder

FAST = FleetSettings(probe_interval_s=0.05, scrape_interval_s=0.05, probe_timeout_s=1.0)


async def openai_engine(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Enough of an OpenAI-compatible server to be probed; a chat that says "slow" takes a moment."""
    if request.target == "/v1/models":
        writer.write(sized(b'{"object":"list","data":[{"id":"m"}]}', "Content-Type: application/json"))
    elif request.target == "/health":
        writer.write(sized(b""))
    elif request.target == "/v1/chat/completions":
        if b"slow" in request.body:
            await asyncio.sleep(0.3)
        await answer_ok(request, reader, writer)
    else:
        writer.write(sized(b"{}", status="404 Not Found"))


class Running:
    def __init__(self, router: Router, port: int, admin_port: int, http: aiohttp.ClientSession) -> None:
        self.router, self.port, self.http = router, port, http
        self.admin = f"http://127.0.0.1:{admin_port}"

    async def send(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()

    async def chat(self, text: str = "hello") -> bytes:
        return await self.send(post(chat(text), "/v1/chat/completions", "Connection: close"))

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.admin + path) as answer:
            return answer.status, orjson.loads(await answer.read())

    async def ready(self, workers: int) -> None:
        await until(lambda: sum(w.lifecycle.value == "ready" for w in self.router.fleet.workers) == workers)


@asynccontextmanager
async def running(*urls: str, drain_timeout_s: float = 5.0, tokens: TokenSettings | None = None) -> AsyncIterator[Running]:
    settings = Settings(
        listen=ListenSettings(port=0, admin_port=0),
        limits=replace(LimitSettings(), drain_timeout_s=drain_timeout_s),
        fleet=FAST,
        tokens=tokens or TokenSettings(),
        engines=tuple(EngineSpec("openai", url) for url in urls),
    )
    router = Router(settings, Stats(), TokenizerBook(settings.tokens), None)
    bound: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    thresholds = gc.get_threshold()
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        serving = group.create_task(router.serve(lambda port, admin: bound.set_result((port, admin))))
        port, admin_port = await asyncio.wait_for(bound, 5)
        try:
            yield Running(router, port, admin_port, http)
        finally:
            if not router.plane.draining:
                router.stop()
            await asyncio.wait_for(serving, 10)
            gc.unfreeze()
            gc.set_threshold(*thresholds)


@asynccontextmanager
async def engine() -> AsyncIterator[ScriptedEngine]:
    made = ScriptedEngine(openai_engine)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_starts_with_a_worker_missing_and_takes_it_in_later() -> None:
    """One of two engines is not there: the other serves at once, the missing one joins when it comes (P34)."""
    missing = ScriptedEngine(openai_engine)
    await missing.start()
    port = missing.port
    await missing.stop()
    async with engine() as present, running(f"http://{present.worker_id}", f"http://127.0.0.1:{port}") as made:
        await made.ready(1)
        assert split_answer(await made.chat())[0] == b"HTTP/1.1 200 OK"
        await missing.start(port)
        await made.ready(2)
        await missing.stop()
        await made.ready(1)


async def test_ranks_of_one_engine_are_workers() -> None:
    """Each data-parallel rank is a worker of its own; a request names the rank it is for, and all are removed one by one."""
    async with engine() as present, running() as made:
        spec = f"vllm=http://{present.worker_id},ranks=2"
        async with made.http.post(f"{made.admin}/workers", json={"engine": spec}) as answer:
            assert answer.status == 201
            ids = [row["id"] for row in (await answer.json())["workers"]]
        assert ids == [f"{present.worker_id}#0", f"{present.worker_id}#1"]
        async with made.http.post(f"{made.admin}/workers", json={"engine": spec}) as answer:
            assert answer.status == 409
        await made.ready(2)
        assert split_answer(await made.chat())[0] == b"HTTP/1.1 200 OK"
        (sent,) = [r for r in present.requests if r.target == "/v1/chat/completions"]
        decision = made.router.placement.latest_decisions(1)[0]
        assert f"{present.worker_id}#{sent.header('x-data-parallel-rank')}" == decision.worker
        for worker_id in ids:
            async with made.http.delete(f"{made.admin}/workers/{quote(worker_id, safe='')}") as answer:
                assert answer.status == 200
        assert not made.router.fleet.workers
        many = f"vllm=http://{present.worker_id},ranks=3"
        made.router.settings = replace(made.router.settings, fleet=replace(FAST, max_workers=2))
        async with made.http.post(f"{made.admin}/workers", json={"engine": many}) as answer:
            assert answer.status == 400 and "max_workers 2 is reached" in await answer.text()
        assert not made.router.fleet.workers


async def test_no_worker_at_all_is_answered_at_once() -> None:
    """Without a ready worker requests get 503 with Retry-After, readiness says why, liveness holds."""
    async with running("http://127.0.0.1:9") as made:
        answer = await made.chat()
        assert error_of(answer) == (503, "no_worker") and "retry-after" in split_answer(answer)[1]
        assert (await made.get("/healthz"))[0] == 200
        status, body = await made.get("/readyz")
        assert status == 503 and body["reasons"]


async def test_workers_can_be_added_drained_and_removed() -> None:
    """The admin port changes the fleet while it serves; a drained worker gets nothing new, a removed one is unknown."""
    async with engine() as first, engine() as second, running(f"http://{first.worker_id}") as made:
        await made.ready(1)
        async with made.http.post(f"{made.admin}/workers", json={"engine": f"openai=http://{second.worker_id}"}) as answer:
            assert answer.status == 201
        await made.ready(2)
        async with made.http.post(f"{made.admin}/workers/{first.worker_id}/drain") as answer:
            assert (await answer.json())["lifecycle"] == "draining"
        before = sum(r.target == "/v1/chat/completions" for r in first.requests)
        for _ in range(4):
            assert split_answer(await made.chat())[0] == b"HTTP/1.1 200 OK"
        assert sum(r.target == "/v1/chat/completions" for r in first.requests) == before
        async with made.http.post(f"{made.admin}/workers/{first.worker_id}/resume") as answer:
            assert (await answer.json())["lifecycle"] == "ready"
        async with made.http.delete(f"{made.admin}/workers/{second.worker_id}") as answer:
            assert answer.status == 200
        _, body = await made.get("/workers")
        assert [row["id"] for row in body["workers"]] == [first.worker_id]
        assert split_answer(await made.chat())[0] == b"HTTP/1.1 200 OK"
        assert (await made.get(f"/workers/{second.worker_id}"))[0] == 404


async def test_every_decision_can_be_looked_up() -> None:
    """The id in an answer finds the decision with every candidate's numbers on the admin port."""
    async with engine() as one, engine() as two, running(f"http://{one.worker_id}", f"http://{two.worker_id}") as made:
        await made.ready(2)
        request_id = split_answer(await made.chat())[1]["x-request-id"]
        status, decision = await made.get(f"/decisions/{request_id}")
        assert status == 200 and decision["worker"] in (one.worker_id, two.worker_id)
        assert {row["worker"] for row in decision["candidates"]} == {one.worker_id, two.worker_id}
        assert decision["status"] == 200 and decision["outcome"] == "ok"


async def test_draining_lets_requests_end() -> None:
    """At shutdown a request in flight gets its whole answer, new connections are refused, then `serve` returns."""
    async with engine() as one, asyncio.TaskGroup() as group:
        async with running(f"http://{one.worker_id}") as made:
            await made.ready(1)
            late = group.create_task(made.chat("slow"))
            await until(lambda: any(b"slow" in request.body for request in one.requests))
            made.router.stop()
            await until(lambda: made.router.plane.draining)
            assert (await made.get("/readyz"))[0] == 503
            with pytest.raises(OSError):
                await made.chat()
        assert split_answer(await late)[0] == b"HTTP/1.1 200 OK"


async def test_draining_ends_at_its_limit() -> None:
    """A request that outlasts drain_timeout_s is cut, and nothing hangs."""
    async with engine() as one, asyncio.TaskGroup() as group:
        async with running(f"http://{one.worker_id}", drain_timeout_s=0.05) as made:
            await made.ready(1)

            async def cut() -> bytes:
                with suppress(ConnectionError):
                    return await made.chat("slow")
                return b""

            late = group.create_task(cut())
            await until(lambda: any(b"slow" in request.body for request in one.requests))
        assert await late == b""


async def test_a_taken_port_is_an_error() -> None:
    """A port that cannot be bound ends start-up with OSError: never a router on another port."""
    async with engine() as one, running(f"http://{one.worker_id}") as made:
        settings = Settings(listen=ListenSettings(port=made.port, admin_port=0))
        router = Router(settings, Stats(), TokenizerBook(settings.tokens), None)
        with pytest.raises(OSError):
            await router.serve()


async def test_closed_connections_leave_no_garbage() -> None:
    """A connection that was open across a freeze is freed when it closes: the collector never sees it again (P-leaks)."""
    async with engine() as one, running(f"http://{one.worker_id}") as made:
        await made.ready(1)
        gc.collect()
        for _ in range(3):
            opened = [await asyncio.open_connection("127.0.0.1", made.port) for _ in range(50)]
            await until(lambda: made.router.stats.connections_open >= 50)
            gc.freeze()
            for _, writer in opened:
                writer.close()
            await until(lambda: made.router.stats.connections_open == 0)
        gc.unfreeze()
        alive = sum(type(thing).__name__ == "RequestReader" for thing in gc.get_objects())
        assert alive <= 1


async def test_a_half_sent_admin_request_does_not_hold_up_the_end() -> None:
    """Shutdown waits for requests on the data port, not for an operator's connection."""
    async with running("http://127.0.0.1:9") as made:
        host, port = made.admin.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /workers HTTP/1.1\r\nHost: r\r\nContent-Length: 100\r\n\r\n{")
        await asyncio.sleep(0.05)
    writer.close()


def test_file_limit_is_raised_to_the_hard_limit() -> None:
    """All descriptors that the system grants are used; calling twice changes nothing."""
    raise_file_limit()
    raise_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


async def test_who_is_asked_for_tokens() -> None:
    """Workers whose kind has a route for it, while they are in the fleet; the session is not the one of the probes."""
    async with engine() as present, running(f"http://{present.worker_id}") as made:
        router = made.router
        (worker,) = router.fleet.workers
        assert router.token_routes(worker.id) is None
        router.add_worker(EngineSpec("vllm", "http://127.0.0.1:9"))
        asked = router.token_routes(WorkerId("127.0.0.1:9"))
        assert asked is not None
        with pytest.raises(NoTokens, match="no connection"):
            await asked.tokens(TextPrompt(("x",)), "m")
        router.remove_worker("127.0.0.1:9")
        assert router.token_routes(WorkerId("127.0.0.1:9")) is None


@pytest.mark.parametrize("check_tokens", [True, False])
async def test_tokens_are_compared_unless_told_not_to(check_tokens: bool, tmp_path: Path) -> None:
    """The loop follows the fleet only where comparing is on; both end with the router."""
    tokenizer = write_folder(tmp_path / "m", byte_level((GPT2,)))
    tokens = TokenSettings(tokenizer=(str(tokenizer),), check_tokens=check_tokens)
    async with engine() as present, running(f"http://{present.worker_id}", tokens=tokens) as made:
        await made.ready(1)
        if check_tokens:
            await until(lambda: "m" in made.router.parity.models)
        models = (await made.get("/models"))[1]["models"]
        assert [model["model"] for model in models] == (["m"] if check_tokens else [])


async def test_a_recording_lives_as_long_as_the_router() -> None:
    """While somebody records, requests are told to them; a router that ends closes the recording with its last requests."""
    async with engine() as one, running(f"http://{one.worker_id}") as made:
        await made.ready(1)
        assert made.router.plane.recorder is None
        async with made.http.get(made.admin + "/recording") as answer:
            head = orjson.loads(await answer.content.readline())
            assert head["policy"] == "warm" and len(head["workers"]) == 1 and made.router.plane.recorder is not None
            await made.chat()
            made.router.stop()
            lines = [orjson.loads(line) async for line in answer.content]
        assert len([line for line in lines if "input_length" in line]) == 1 and lines[-1] == {"end": "router_stopped"}
        await until(lambda: made.router.plane.recorder is None)
