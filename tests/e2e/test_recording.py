"""The real command against a real router with real engines: what was asked is in the file, without a word of it."""

import gzip
import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from engines.process import ChildProcess
from loadtest.demo.router_process import LocalRouter, start_router
from loadtest.traces.recorded import is_recording, read_recording
from tests.e2e.cluster import MODEL, Cluster, until
from tests.e2e.test_warm_routing import words

TALKS = 4
TURNS = 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl.gz"


@contextmanager
def recorder(router: LocalRouter, file: Path, *flags: str) -> Iterator[ChildProcess]:
    """The command as users run it, from when its file has begun."""
    argv = [sys.executable, "-m", "router.cli", "record", "--admin", router.admin_url, "--out", str(file), *flags]
    with ChildProcess(argv, file.with_name("record.log")) as process:
        until(lambda: file.exists() and file.stat().st_size, "the recording begins")
        assert recordings(router) == 1
        yield process


def recordings(router: LocalRouter) -> int:
    """How many go on, by the router's metrics."""
    with urllib.request.urlopen(router.admin_url + "/metrics", timeout=10) as answer:
        page = answer.read().decode()
    (value,) = [line.split()[1] for line in page.splitlines() if line.startswith("warmline_recordings ")]
    return int(float(value))


def ask_twenty(client: openai.OpenAI) -> list[int]:
    """Talks that get longer, turn by turn; the prompts' tokens as the engines counted."""
    prompt_tokens: list[int] = []
    for turn in range(TURNS):
        for talk in range(TALKS):
            text = words(f"recorded{talk}-", 60 + 20 * turn)
            raw = client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": text}],
                max_tokens=4,
                temperature=0,
                extra_headers={"X-Session-Id": f"secret-session-{talk}"},
            )
            usage = raw.parse().usage
            assert usage is not None
            prompt_tokens.append(usage.prompt_tokens)
    return prompt_tokens


def test_twenty_requests_are_recorded(client: openai.OpenAI, cluster: Cluster, file: Path) -> None:
    """Each request is in the file with its lengths, its times, its worker and what it shares; no word, name or address is."""
    with recorder(cluster.router, file, "--max-requests", str(TALKS * TURNS)) as process:
        prompt_tokens = ask_twenty(client)
        assert process.wait(deadline_s=20) == 0, process.log_tail()
    until(lambda: recordings(cluster.router) == 0, "the router's recording ends")

    data = gzip.decompress(file.read_bytes()).decode()
    for word in ("recorded0", "secret-session", MODEL, "127.0.0.1", "http"):
        assert word not in data
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[0]["warmline_trace"] == 1 and len(lines[0]["workers"]) == 2
    assert (lines[-1]["requests"], lines[-1]["dropped"], lines[-1]["ended"]) == (TALKS * TURNS, 0, "max_requests")

    assert is_recording(file)
    trace, header = read_recording(file)
    assert [worker.kind for worker in header.workers] == ["llama.cpp", "llama.cpp"] and header.policy == "warm"
    assert [request.prompt_tokens for request in trace.requests] == prompt_tokens
    for number, request in enumerate(trace.requests):
        talk = number % TALKS
        before = trace.requests[number - TALKS] if number >= TALKS else None
        assert request.session == str(talk) and request.measured is not None and request.output_tokens >= 1
        assert request.measured.duration_s is not None and request.measured.duration_s > 0
        assert request.measured.worker in (0, 1)
        if before is not None:
            shared = shared_blocks(list(before.keys), list(request.keys))
            assert shared >= len(before.keys) - 2 > 0, "a longer prompt begins as the one before"
            assert request.measured.cached_tokens is not None and before.measured is not None
    first = [request.keys for request in trace.requests[:TALKS]]
    assert shared_blocks(list(first[0]), list(first[1])) < len(first[0]) / 2


def shared_blocks(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def last_line(file: Path) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()).splitlines()[-1])
    return line


def test_ctrl_c_ends_it(tmp_path: Path, file: Path) -> None:
    """The recorder ends at once with a whole file; the router goes on and takes the next recording."""
    with start_router([], tmp_path / "router.log") as router:
        for name in ("one.jsonl.gz", "two.jsonl.gz"):
            with recorder(router, file.with_name(name)) as process:
                process.interrupt()
                assert process.wait(deadline_s=20) == 0, process.log_tail()
            assert last_line(file.with_name(name))["ended"] == "interrupted"
            until(lambda: recordings(router) == 0, "the router's recording ends")


@pytest.mark.parametrize(("kills", "ended"), [(True, "router_lost"), (False, "router_stopped")])
def test_ends_with_the_router(kills: bool, ended: str, tmp_path: Path, file: Path) -> None:
    """A router that dies, or is stopped, ends the recording with a whole file and status 1."""
    with start_router([], tmp_path / "router.log") as router, recorder(router, file) as process:
        router.process.kill() if kills else router.stop()
        assert process.wait(deadline_s=20) == 1, process.log_tail()
    assert last_line(file)["ended"] == ended
