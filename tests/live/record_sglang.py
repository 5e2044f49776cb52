"""Records what a real SGLang says: `make golden-sglang`. Pages of 16 tokens with a small cache in two lives, then pages of 1.

Adapters are not in it: without a GPU's memory allocator its LoRA layers cannot be made."""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from engines.launch import LocalEngine, free_port, launch
from engines.starters.sglang import SglangOptions
from tests.live.places import Places
from tests.live.recording import Recording, ask, seconds_until, under_load
from tests.live.session import (
    CHAT,
    START_DEADLINE_S,
    TEXT,
    Session,
    chat,
    completion,
    launch_watched,
    record_abort,
    record_answers,
    record_errors,
    record_load,
)
from tests.live.tap import Tap

RUNNING, WAITING = "sglang:num_running_reqs", "sglang:num_queue_reqs"
LOADS = "/v1/loads?include=core,queues&format=json"
PAGES = ("/health", "/ready", "/v1/models", LOADS, "/model_info", "/metrics", "/no-such-route")
INFO = ("kv_events", "kv_events_config", "max_running_requests", "max_total_num_tokens", "page_size", "random_seed", "version")


def record_events(session: Session) -> None:
    """All that a page can go through: stored, found, shared, generated, computed twice, salted, evicted, cleared."""
    session.record.step = "start"
    session.record.frames("events", session.tap.heard())
    session.step("store", CHAT, chat("When do we plant the leeks?"))
    session.step("same again", CHAT, chat("When do we plant the leeks?"))
    session.step("shared prefix", CHAT, chat("Who brings the cake in May?"))
    session.step("generated pages", TEXT, completion(list(range(1000, 1040)), max_tokens=60))
    session.step("aligned", TEXT, completion(list(range(2000, 2064))))
    session.step("aligned again", TEXT, completion(list(range(2000, 2064))))
    session.step("salted", CHAT, chat("When do we plant the leeks?", cache_salt="tenant-a"))
    session.step("extra key", CHAT, chat("When do we plant the leeks?", extra_key="tenant-b"))
    for number in range(4):
        session.step(f"evict {number}", TEXT, completion(list(range(3000 + 200 * number, 3200 + 200 * number))))
    session.step("after eviction", CHAT, chat("When do we plant the leeks?"))
    session.step("clear", "/flush_cache", b"")
    session.step("after clearing", TEXT, completion(list(range(2000, 2064))))
    session.replay("replay", 11)
    session.replay("replay beyond the end", 10_000)


def record_pages(engine: LocalEngine, record: Recording) -> None:
    record.step = "idle"
    for path in PAGES:
        began = time.monotonic()
        record.ask(engine.url, path)
        record.note(path=path, took_s=round(time.monotonic() - began, 2))
    record.ask(engine.url, "/server_info", only=INFO)
    record_answers(engine, record)
    record_errors(engine, record)
    record_load(engine, record, WAITING, "/metrics", LOADS, "/flush_cache")
    for stream in (True, False):
        record_abort(engine, record, RUNNING, stream=stream)


def record_overload(engine: LocalEngine, record: Recording) -> None:
    """A full queue of one, streamed and not."""
    record.step = "overload"
    with under_load(engine, TEXT, [completion([number] * 40, max_tokens=200) for number in range(100, 102)]):
        if seconds_until(lambda: waiting(engine) == 1, 20.0) is None:
            raise SystemExit("two requests never made a queue")
        record.ask(engine.url, TEXT, completion("One too many"))
        record.ask(engine.url, CHAT, chat("One too many", stream=True))


def waiting(engine: LocalEngine) -> int:
    return int(ask(engine.url, LOADS).json()["loads"][0]["num_waiting_reqs"])


def record_single_tokens(session: Session) -> None:
    """Pages of one token: every token is a block."""
    session.record.step = "start"
    session.record.frames("events", session.tap.heard())
    session.step("store", TEXT, completion(list(range(1000, 1030)), max_tokens=4))
    session.step("same again", TEXT, completion(list(range(1000, 1030)), max_tokens=4))
    session.step("branch", TEXT, completion([*range(1000, 1020), *range(5000, 5010)], max_tokens=4))
    session.step("go on", TEXT, completion([*range(1000, 1030), *range(6000, 6010)], max_tokens=1))
    for number in range(2):
        session.step(f"evict {number}", TEXT, completion(list(range(3000 + 120 * number, 3120 + 120 * number))))
    session.step("after eviction", TEXT, completion(list(range(1000, 1030)), max_tokens=4))
    session.step("clear", "/flush_cache", b"")
    session.replay("replay", 0)


def main(target: Path) -> None:
    places = Places.prepared()
    with tempfile.TemporaryDirectory(prefix="kv") as scratch:
        events, replay, log = f"ipc://{scratch}/events", f"ipc://{scratch}/replay", Path(scratch) / "log"
        folders = {scratch: "/run/kv", str(places.root): "/engines"}
        http, kv, single = (Recording(target / f"{name}.jsonl", folders) for name in ("http", "events", "events-page1"))
        options = SglangOptions(
            places.sglang, places.model, "tiny", port=free_port(), context_tokens=512, cache_tokens=768,
            events=events, replay=replay, topic="kv",
        )  # fmt: skip
        with Tap(events, replay) as tap:
            with launch_watched(options, log, http) as engine:
                record_events(Session(engine, tap, kv))
                record_pages(engine, http)
                tap.heard()
            flags = ("--max-queued-requests", "1")
            second = replace(options, max_requests=1, flags=flags)
            with launch(second, log, START_DEADLINE_S) as engine:
                session = Session(engine, tap, kv)
                session.step("restarted", CHAT, chat("When do we plant the leeks?"))
                session.replay("replay after the restart", 0)
                record_overload(engine, http)
        with (
            Tap(events, replay) as tap,
            launch(replace(options, page_tokens=1, cache_tokens=256), log, START_DEADLINE_S) as engine,
        ):
            record_single_tokens(Session(engine, tap, single))
        for recording in (http, kv, single):
            recording.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
