"""What all exchanges share."""

from router.core.types import WorkerId
from router.settings import EngineSpec
from tests.proxy.rig import chat, rig, split_answer


async def test_request_ids_are_unique_over_planes() -> None:
    """Two processes never make the same id."""
    async with rig() as one, rig() as two:
        ids = {made.plane.new_request_id() for made in (one, two) for _ in range(100)}
        assert len(ids) == 200


async def test_a_removed_worker_leaves_nothing() -> None:
    """Endpoint, idle connections and series of a removed worker are gone, and a new one of the same name starts afresh."""
    async with rig() as made:
        await made.post(chat())
        worker_id = WorkerId(made.engines[0].worker_id)
        worker = made.plane.fleet.get(worker_id)
        assert worker is not None and made.plane.endpoint(worker) is made.plane.endpoint(worker)
        made.plane.fleet.remove(worker_id)
        made.plane.forget_worker(worker_id)
        assert made.plane.pool.idle_count(worker_id) == 0
        assert not [row for row in made.plane.stats.requests if row[1] == worker_id]
        made.plane.fleet.add(EngineSpec("openai", f"http://{worker_id}", api_key="new"), 0.0)
        made.report(0)
        assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        assert made.engines[0].requests[-1].header("authorization") == "Bearer new"


async def test_refused_input_is_logged_and_counted() -> None:
    """A request that never became whole has an id, a log line and a count like any other."""
    async with rig() as made:
        answer = await made.send(b"nonsense\r\n\r\n")
        given = split_answer(answer)[1]["x-request-id"]
        entry = made.log.entries[-1]
        assert (entry.request_id, entry.status, entry.outcome) == (given, 400, "bad_framing")
        assert made.plane.stats.errors["bad_framing"] == 1
        assert made.plane.stats.requests[("other", "", 400)] == 1
