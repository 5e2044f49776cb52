"""router.admin.app: every route over a real socket, on a real fleet."""

import json

import pytest

from router.core.types import Lifecycle
from tests.admin.stage import AdminClient, Answer, Stage, admin_port


def assert_error(answer: Answer, status: int, code: str, param: str | None = None) -> str:
    """The answer is the JSON error it should be; returns its message."""
    assert (answer.status, answer.body["error"]["code"], answer.body["error"]["param"]) == (status, code, param)
    assert answer.body["request_id"] == answer.headers["X-Request-Id"]
    return str(answer.body["error"]["message"])


async def test_alive_without_any_worker() -> None:
    """/healthz speaks for the process alone; /readyz says why there is nothing to send requests to."""
    async with admin_port(Stage()) as client:
        alive = await client.get("/healthz")
        assert (alive.status, alive.body) == (200, {"status": "ok"})
        ready = await client.get("/readyz")
        assert ready.status == 503
        assert ready.body == {
            "ready": False,
            "workers": {"loading": 0, "ready": 0, "draining": 0, "down": 0},
            "reasons": ["no workers"],
        }


async def test_ready_follows_the_workers() -> None:
    """One ready worker is enough; drained and down ones do not count, and each says why; at shutdown nothing is ready."""
    stage = Stage()
    stage.ready("http://10.0.0.2:8000", Lifecycle.DOWN, "connection refused")
    async with admin_port(stage) as client:
        worker = stage.ready()
        assert (await client.get("/readyz")).status == 200
        await client.post(f"/workers/{worker}/drain")
        answer = await client.get("/readyz")
        assert answer.status == 503
        assert answer.body["reasons"] == ["10.0.0.2:8000 is down: connection refused", "10.0.0.1:8000 is draining"]
        await client.post(f"/workers/{worker}/resume")
        assert (await client.get("/readyz")).status == 200
        stage.is_closing = True
        answer = await client.get("/readyz")
        assert (answer.status, answer.body["reasons"]) == (503, ["the router is shutting down"])


async def test_workers_are_shown_without_keys() -> None:
    """GET /workers is an object with one row per worker; no key of an engine is in any answer of the port."""
    stage = Stage()
    worker = stage.ready()
    stage.send("r1")
    async with admin_port(stage) as client:
        listed = await client.get("/workers")
        (row,) = listed.body["workers"]
        assert (row["id"], row["url"], row["lifecycle"], row["models"], row["in_flight"]) == (
            worker,
            "http://10.0.0.1:8000",
            "ready",
            ["m"],
            1,
        )
        assert {"truth", "why", "blocks_held", "prefill_tokens_per_s", "report_age_s", "weight", "kind"} <= set(row)
        for path in ("/workers", f"/workers/{worker}", "/decisions", "/decisions/r1", "/metrics", "/readyz"):
            answer = await client.get(path)
            assert answer.status == 200 and "s3cret" not in answer.text


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000", "10.0.0.1%3A8000"),
        ("http://10.0.0.1:8000/llm/a", "10.0.0.1:8000/llm/a"),
        ("http://10.0.0.1:8000/llm/a", "10.0.0.1%3A8000%2Fllm%2Fa"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://[::1]:8000", "%5B%3A%3A1%5D%3A8000"),
    ],
)
async def test_worker_ids_in_paths(url: str, path: str) -> None:
    """Ids hold colons, brackets and slashes; encoded or not, every worker route finds its worker."""
    stage = Stage()
    worker = stage.ready(url)
    async with admin_port(stage) as client:
        assert (await client.get(f"/workers/{path}")).body["id"] == worker
        assert (await client.post(f"/workers/{path}/drain")).body["lifecycle"] == "draining"
        assert (await client.post(f"/workers/{path}/resume")).body["lifecycle"] == "ready"
        assert (await client.ask("DELETE", f"/workers/{path}")).body == {"id": worker, "removed": True, "in_flight": 0}
        assert stage.workers() == []


async def test_models_are_shown() -> None:
    """Of each model with a tokenizer: what its prompts are keyed from, and what each worker's tokens are."""
    async with admin_port(Stage()) as admin:
        answer = await admin.get("/models")
        worker = {"id": "10.0.0.1:8000", "kind": "vllm", "matches": False, "why": "the chat template differs"}
        shape = {"shape": "chat", "keys_from": "engine", "why": "worker 10.0.0.1:8000 (vllm): the chat template differs"}
        expected = {**shape, "workers": [{**worker, "differing_share": 0.25}]}
        assert answer.body == {"models": [{"model": "m", "tokenizer": "llama", "prompts": [expected]}]}


async def test_unknown_worker() -> None:
    """A worker that is not there is 404 on every route, as JSON."""
    async with admin_port(Stage()) as client:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/drain"), ("POST", "/resume")):
            answer = await client.ask(method, f"/workers/10.9.9.9:1{path}")
            assert assert_error(answer, 404, "worker_not_found") == "No worker 10.9.9.9:1"


async def add(client: AdminClient, engine: object) -> Answer:
    return await client.post("/workers", json.dumps({"engine": engine}).encode())


async def test_add_and_remove() -> None:
    """A worker added at run time is watched at once and shown; a second time it is 409; removed, it may come again."""
    stage = Stage()
    async with admin_port(stage) as client:
        added = await add(client, "llama.cpp=http://10.0.0.7:9/,weight=2,api_key=s3cret")
        assert (added.status, added.body["id"], added.body["lifecycle"]) == (201, "10.0.0.7:9", "loading")
        assert "s3cret" not in added.text
        assert [(spec.kind, spec.weight, spec.api_key) for spec in stage.watched] == [("llama.cpp", 2.0, "s3cret")]
        again = await add(client, "vllm=http://10.0.0.7:9")
        assert assert_error(again, 409, "worker_exists", "engine") == "Worker 10.0.0.7:9 is in the fleet already"
        await client.ask("DELETE", "/workers/10.0.0.7:9")
        assert (await add(client, "vllm=http://10.0.0.7:9")).status == 201


async def test_full_fleet() -> None:
    """Beyond max_workers the answer names the bound."""
    async with admin_port(Stage(max_workers=1)) as client:
        await add(client, "vllm=http://10.0.0.1:1")
        assert "max_workers 1" in assert_error(await add(client, "vllm=http://10.0.0.2:1"), 400, "invalid_field", "engine")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "is not KIND=URL"),
        ("ollama=http://10.0.0.1:1", "kind 'ollama' is not one of"),
        ("vllm=https://10.0.0.1:1", "is not http://HOST"),
        ("vllm=http://10.0.0.1:1,colour=red", "'colour' is not one of"),
        ("vllm=http://10.0.0.1:1,weight=heavy", "'heavy' is not a number"),
        (7, 'an object like {"engine": "KIND=URL"}'),
        (None, 'an object like {"engine": "KIND=URL"}'),
    ],
)
async def test_add_refuses_bad_text(engine: object, words: str) -> None:
    """What `--engine` would refuse is 400 with the same words, and nothing is added."""
    stage = Stage()
    async with admin_port(stage) as client:
        assert words in assert_error(await add(client, engine), 400, "invalid_field", "engine")
        assert stage.watched == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"engine=vllm"])
async def test_add_refuses_other_bodies(body: bytes) -> None:
    """A body that is not JSON is 400 malformed_json."""
    async with admin_port(Stage()) as client:
        assert_error(await client.post("/workers", body), 400, "malformed_json")


async def test_add_refuses_lists() -> None:
    """JSON of another shape is 400 invalid_field."""
    async with admin_port(Stage()) as client:
        assert_error(await client.post("/workers", b"[1]"), 400, "invalid_field", "engine")


async def test_decision_is_explained() -> None:
    """GET /decisions/{id} has the choice with all candidates' numbers, and later what came of it; internals stay inside."""
    stage = Stage()
    stage.ready("http://10.0.0.1:8000")
    stage.ready("http://10.0.0.2:8000")
    lease = stage.send("chat/1 ä")
    async with admin_port(stage) as client:
        running = (await client.get("/decisions/chat%2F1%20%C3%A4")).body
        assert (running["worker"], running["model"], running["prompt_tokens"], running["outcome"]) == (
            lease.worker.id,
            "m",
            100,
            None,
        )
        assert {row["worker"] for row in running["candidates"]} == {"10.0.0.1:8000", "10.0.0.2:8000"}
        assert {"cost_s", "matched_tokens", "backlog_s", "price", "home", "session"} <= set(running["candidates"][0])
        assert not {"priced", "homes", "hinted"} & set(running)
        stage.placement.finish(lease, 103.0, None, "ok", 200)
        done = (await client.get("/decisions/chat%2F1%20%C3%A4")).body
        assert (done["outcome"], done["status"], done["duration_s"]) == ("ok", 200, 1.0)


async def test_unknown_decision() -> None:
    """A request that is not in the log is 404 and names the knob that bounds it."""
    async with admin_port(Stage()) as client:
        assert "decision_log_size" in assert_error(await client.get("/decisions/nope"), 404, "decision_not_found")


async def test_latest_decisions() -> None:
    """GET /decisions lists the newest first, as many as asked for, within a bound."""
    stage = Stage()
    stage.ready()
    for number in range(30):
        stage.send(f"r{number}")
    async with admin_port(stage) as client:
        ids = [row["request_id"] for row in (await client.get("/decisions?limit=2")).body["decisions"]]
        assert ids == ["r29", "r28"]
        assert len((await client.get("/decisions")).body["decisions"]) == 20
        for limit in ("0", "201", "x", "-1", "", "9" * 5000, "%C2%B2"):
            assert_error(await client.get(f"/decisions?limit={limit}"), 400, "invalid_field", "limit")


async def test_metrics_follow_the_fleet() -> None:
    """/metrics is Prometheus text; a removed worker's series are gone at once, whatever they counted."""
    stage = Stage()
    worker = stage.ready()
    stage.stats.ttft_of(worker).observe(0.1)
    stage.stats.requests["chat", worker, 200] += 1
    async with admin_port(stage) as client:
        page = await client.get("/metrics")
        assert page.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert f'warmline_worker_up{{worker="{worker}"}} 1.0' in page.text
        assert f'warmline_requests_total{{route="chat",status="200",worker="{worker}"}} 1.0' in page.text
        await client.ask("DELETE", f"/workers/{worker}")
        assert worker not in (await client.get("/metrics")).text
