"""Records what a real vLLM says: `make golden-vllm`. About three minutes, two lives of one engine with a small cache."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from engines.launch import LocalEngine, free_port, launch
from engines.starters.vllm import VllmOptions
from tests.live.places import Places
from tests.live.recording import Recording, seconds_until, under_load
from tests.live.session import (
    CHAT,
    START_DEADLINE_S,
    TEXT,
    Session,
    chat,
    completion,
    gauge,
    launch_watched,
    record_abort,
    record_answers,
    record_errors,
    record_load,
)
from tests.live.tap import Tap

QUEUE_CAP = 3
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


def record_events(session: Session) -> None:
    """All that a block can go through: stored, found, shared, generated, computed twice, salted, repeated, evicted, cleared."""
    session.step("store", CHAT, chat("When do we plant the leeks?"))
    session.step("same again", CHAT, chat("When do we plant the leeks?"))
    session.step("shared prefix", CHAT, chat("Who brings the cake in May?"))
    session.step("generated blocks", TEXT, completion(list(range(1000, 1040)), max_tokens=60))
    session.step("aligned", TEXT, completion(list(range(2000, 2064))))
    session.step("aligned again", TEXT, completion(list(range(2000, 2064))))
    session.step("salted", CHAT, chat("When do we plant the leeks?", cache_salt="tenant-a"))
    session.step("full report", CHAT, chat("Who waters in July?", vllm_xargs={"kv_cache_report_mode": "full"}))
    for number in range(3):
        session.step(f"evict {number}", TEXT, completion(list(range(3000 + 200 * number, 3200 + 200 * number))))
    session.step("after eviction", CHAT, chat("When do we plant the leeks?"))
    session.step("clear", "/reset_prefix_cache", b"")
    session.step("after clearing", TEXT, completion(list(range(2000, 2064))))
    session.replay("replay", 11)
    session.replay("replay beyond the end", 10_000)


def record_pages(engine: LocalEngine, record: Recording) -> None:
    record.step = "idle"
    for path in ("/health", "/v1/models", "/version", "/load", "/kv_event_sources", "/metrics", "/no-such-route"):
        record.ask(engine.url, path)
    record_answers(engine, record)
    record_errors(engine, record)
    record_load(engine, record, WAITING, "/metrics")
    for stream in (True, False):
        record_abort(engine, record, RUNNING, stream=stream)


def record_overload(engine: LocalEngine, record: Recording) -> None:
    """Refusals at the cap of QUEUE_CAP, which counts running requests as well; streamed and not."""
    record.step = "overload"
    with under_load(engine, TEXT, [completion([n] * 40, max_tokens=300) for n in range(QUEUE_CAP)]):
        if seconds_until(lambda: gauge(engine, RUNNING) == QUEUE_CAP, 20.0) is None:
            raise SystemExit(f"{QUEUE_CAP} requests never ran at once")
        record.ask(engine.url, TEXT, completion("One too many"))
        record.ask(engine.url, CHAT, chat("One too many", stream=True))
    record.note(admission_rejections=gauge(engine, "vllm:admission_rejections_total"))


def record_adapters(session: Session) -> None:
    """The same prompt with an adapter, another one loaded at run time, the same name loaded again in place."""
    record, url = session.record, session.engine.url
    record.step = "adapters"
    record.ask(url, "/v1/models")
    session.step("adapter", CHAT, {**chat("When do we plant the leeks?"), "model": "red"})
    session.step("adapter again", CHAT, {**chat("When do we plant the leeks?"), "model": "red"})
    record.step = "adapter at run time"
    blue = str(Places.prepared().adapter("blue"))
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue})
    session.step("adapter at run time", CHAT, {**chat("When do we plant the leeks?"), "model": "blue"})
    record.ask(url, "/v1/models")
    record.step = "adapter in place"
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue, "load_inplace": True})
    session.step("adapter in place", CHAT, {**chat("When do we plant the leeks?"), "model": "blue"})
    record.step = "adapter errors"
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue})
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "green", "lora_path": "/nowhere"})
    record.ask(url, "/v1/unload_lora_adapter", {"lora_name": "green"})
    record.ask(url, "/v1/unload_lora_adapter", {"lora_name": "blue"})


def main(target: Path) -> None:
    places = Places.prepared()
    with tempfile.TemporaryDirectory(prefix="kv") as scratch:
        events, replay = f"ipc://{scratch}/events", f"ipc://{scratch}/replay"
        options = VllmOptions(
            places.vllm, places.model, "tiny", port=free_port(), context_tokens=512, cache_blocks=24,
            events=events, replay=replay, topic="kv@127.0.0.1:8000@tiny", developer=True,
        )  # fmt: skip
        folders = {scratch: "/run/kv", str(places.root): "/engines"}
        http, kv = Recording(target / "http.jsonl", folders), Recording(target / "events.jsonl", folders)
        with Tap(events, replay) as tap:
            with launch_watched(options, Path(scratch) / "log", http) as engine:
                record_events(Session(engine, tap, kv))
                record_pages(engine, http)
                tap.heard()
            queue = ("--max-num-queued-reqs", str(QUEUE_CAP))
            second = replace(options, adapters=(("red", places.adapter("red")),), flags=queue)
            with launch(second, Path(scratch) / "log", START_DEADLINE_S) as engine:
                session = Session(engine, tap, kv)
                session.step("restarted", CHAT, chat("When do we plant the leeks?"))
                session.replay("replay after the restart", 0)
                record_adapters(session)
                record_overload(engine, http)
        for recording in (http, kv):
            recording.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
