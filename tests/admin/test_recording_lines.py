"""What a line of a recording tells, and that nothing in it can be compared with anything outside it."""

import os
import subprocess
import sys
from array import array
from base64 import b64decode
from typing import Any

import orjson
import pytest

from router.admin import recording_lines
from router.admin.recording_lines import LineMaker, Salt
from router.core.load import Lease
from router.core.types import KeyForm, PromptKeys, Usage
from tests.admin.stage import NOW_S, Stage, figures

SECRET = bytes(range(32))
WALL_S = 1_785_000_123.0


def finished(stage: Stage, request_id: str = "secret-id", usage: Usage | None = None) -> Lease:
    lease = stage.send(request_id)
    stage.placement.first_token(lease, lease.sent_s + 0.25)
    stage.placement.finish(lease, lease.sent_s + 1.5, usage, "ok", 200)
    return lease


def keys_in(line: bytes) -> "array[int]":
    return array("q", b64decode(orjson.loads(line)["keys"]))


def test_a_request_tells_what_is_measured() -> None:
    """Lengths and cached tokens are the engine's where it told, times are milliseconds from the start of the recording."""
    stage = Stage()
    stage.ready()
    usage = Usage(101, 48, 7)
    told = orjson.loads(LineMaker(NOW_S, Salt(SECRET)).request(finished(stage, usage=usage), usage))
    keys, session, model = told.pop("keys"), told.pop("session"), told.pop("model")
    assert len(b64decode(keys)) == 6 * 8 and session != model
    assert told == {
        "timestamp": 2000.0,
        "input_length": 101,
        "output_length": 7,
        "key_form": "tokens",
        "partial": False,
        "worker": 0,
        "ttft_ms": 250.0,
        "duration_ms": 1500.0,
        "cached_tokens": 48,
        "predicted_cached_tokens": 0,
        "reason": "only_candidate",
        "stream": True,
        "outcome": "ok",
        "status": 200,
    }


def test_what_the_engine_did_not_tell_is_not_known() -> None:
    """Without usage the router's own count of the prompt stands, the output and the cached tokens are null."""
    stage = Stage()
    stage.ready()
    lease = finished(stage)
    lease.prompt = PromptKeys(array("Q", [5]), 100, KeyForm.TEXT, complete=False)
    lease.decision.session = None
    told = orjson.loads(LineMaker(NOW_S, Salt(SECRET)).request(lease, None))
    assert (told["input_length"], told["output_length"], told["cached_tokens"], told["session"]) == (100, None, None, None)
    assert told["partial"] and told["key_form"] == "text"
    lease.decision.prompt_tokens = 0
    assert orjson.loads(LineMaker(NOW_S, Salt(SECRET)).request(lease, None))["input_length"] is None


def test_equal_keys_stay_equal_within_a_recording_only() -> None:
    """Within one recording a key is always the same number; under another secret it is another, and never the key itself."""
    stage = Stage()
    stage.ready()
    one, again = (finished(stage, name) for name in "ab")
    lines = LineMaker(NOW_S, Salt(SECRET))
    first, second = lines.request(one, None), lines.request(again, None)
    other = LineMaker(NOW_S, Salt(os.urandom(32))).request(one, None)
    assert keys_in(first) == keys_in(second) and len(set(keys_in(first))) == 6
    assert not set(keys_in(first)) & set(keys_in(other))
    assert not {key % 2**64 for key in keys_in(first)} & set(one.prompt.keys)
    names = [(orjson.loads(line)["session"], orjson.loads(line)["model"]) for line in (first, second, other)]
    assert names[0] == names[1] and not set(names[0]) & set(names[2])


def test_nothing_readable_leaves_the_router() -> None:
    """No request id, session, model, adapter, worker address, raw key or price is in any line."""
    stage = Stage()
    worker_id = stage.ready("http://secret-host.example:8000")
    lease = finished(stage)
    lease.decision.session = "secret-session"
    lease.decision.model = "secret-model"
    known = figures(worker_id, models=("secret-model",), adapters=("secret-lora",), why="secret-why", truth_reason="secret")
    lines = LineMaker(NOW_S, Salt(SECRET))
    text = b"".join((lines.header("warm", [known], WALL_S), lines.request(lease, None), lines.state(NOW_S, 0, [known])))
    assert b"secret" not in text and b"8000" not in text
    for key in lease.prompt.keys:
        assert key.to_bytes(8, "little") not in b64decode(orjson.loads(lines.request(lease, None))["keys"])
        assert b'"%d"' % key not in text


def test_the_hash_of_keys_depends_on_the_secret_even_if_that_of_the_process_is_known() -> None:
    """PYTHONHASHSEED=0 fixes Python's own secret: the recording's still decides."""
    code = (
        "import sys; from array import array; from router.admin.recording_lines import Salt\n"
        "print([Salt(bytes([n]) * 32).of_keys(array('Q', [1, 2])).tolist() for n in (1, 1, 2)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True, env=environment)
    one, again, other = orjson.loads(done.stdout)
    assert one == again and not set(one) & set(other)
    assert sys.hash_info.algorithm.startswith("siphash") and sys.hash_info.width == 64


def test_the_head_tells_workers_without_names_and_the_hour() -> None:
    """Kind, truth, sizes, speed and weight of each worker; the time of day to the hour."""
    head = orjson.loads(LineMaker(NOW_S, Salt(SECRET)).header("warm", [figures()], WALL_S))
    (row,) = head.pop("workers")
    assert head == {"warmline_recording": 1, "block_tokens": 16, "policy": "warm", "recorded_at": "2026-07-25T17:00Z"}
    assert row == {
        "kind": "vllm",
        "truth": "modelled",
        "capacity_tokens": 16000,
        "block_tokens": 16,
        "prefill_tokens_per_s": 2500.0,
        "weight": 1.0,
    }


def workers_of(line: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orjson.loads(line)["state"]["workers"]
    return rows


def test_workers_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that joins gets the next number at its first request or at the next telling; one that leaves keeps its own."""
    monkeypatch.setattr(recording_lines, "MAX_NUMBERED_WORKERS", 3)
    stage = Stage(max_workers=8)
    lines = LineMaker(NOW_S, Salt(SECRET))
    lines.header("warm", [figures("gone:1", prefill_tokens_per_s=7.0)], WALL_S)
    stage.ready("http://new:1")
    lease = finished(stage)
    assert not lines.has_new_worker
    assert orjson.loads(lines.request(lease, None))["worker"] == 1 and lines.has_new_worker
    rows = workers_of(lines.state(NOW_S, 0, [figures("later:1", weight=3.0)]))
    assert [row["weight"] for row in rows] == [1.0, 1.0, 3.0] and not lines.has_new_worker
    assert [row["prefill_tokens_per_s"] for row in rows] == [7.0, None, 2500.0]
    rows = workers_of(lines.state(NOW_S, 0, [figures("new:1", prefill_tokens_per_s=9.0), figures("toomuch:1")]))
    assert [row["prefill_tokens_per_s"] for row in rows] == [7.0, 9.0, 2500.0]
    stage.fleet.remove("new:1")
    stage.ready("http://beyond:1")
    assert orjson.loads(lines.request(finished(stage, "b"), None))["worker"] is None


def test_the_state_tells_time_and_drops() -> None:
    """Workers are told with it only when they are to be."""
    line = LineMaker(NOW_S, Salt(SECRET)).state(NOW_S + 2.5, 3, None)
    assert orjson.loads(line) == {"state": {"timestamp": 2500.0, "dropped": 3}}
