"""Recorded traces: what is read, what is made up where nothing is known, and that odd files are told by their line."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces import read, recorded
from loadtest.traces.read import TraceError
from loadtest.traces.recorded import RecordedWorker, is_recording, read_recording
from loadtest.traces.request import TraceRequest

WORKER = {
    "kind": "vllm",
    "truth": "exact",
    "capacity_tokens": 1000,
    "block_tokens": 16,
    "prefill_tokens_per_s": None,
    "weight": 1.0,
}
HEAD = {"warmline_trace": 1, "block_tokens": 16, "policy": "warm", "recorded_at": "2026-12-01T06:00Z", "workers": [WORKER]}
FAST = {**WORKER, "prefill_tokens_per_s": 9000.0}
END = {"warmline_trace_end": 1, "ended": "duration", "requests": 1, "dropped": 5, "workers": [FAST]}


def asked(at_ms: float = 1000.0, ids: Any = (0, 1), **changes: Any) -> dict[str, Any]:
    return {
        "timestamp": at_ms,
        "input_length": 40,
        "output_length": 11,
        "hash_ids": list(ids),
        "key_form": "tokens",
        "session": None,
        "model": 0,
        "worker": 0,
        "ttft_ms": 100.0,
        "duration_ms": 300.0,
        "cached_tokens": 16,
        "predicted_cached_tokens": 16,
        "reason": "warm_prefix",
        "stream": True,
        "outcome": "ok",
        "status": 200,
        **changes,
    }


def written(path: Path, *lines: Any) -> Path:
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.jsonl.gz"


def requests_of(path: Path, *lines: Any) -> list[TraceRequest]:
    return read_recording(written(path, HEAD, *lines, END))[0].requests


def test_what_a_recording_says(path: Path) -> None:
    """Requests come in order of arrival from 0 s, with what was measured; the file tells of workers, drops and its end."""
    late, early = asked(5000.0, (0, 2), session=7, worker=1), asked(2000.0)
    trace, header = read_recording(written(path, HEAD, late, early, END))
    assert (header.policy, header.recorded_at, header.ended, header.dropped) == ("warm", "2026-12-01T06:00Z", "duration", 5)
    assert header.workers == (RecordedWorker("vllm", "exact", 1000, 16, 9000.0, 1.0),) and header.estimated_outputs == 0
    one, two = trace.requests
    assert trace.name == "mine" and [one.at_s, two.at_s] == [0.0, 3.0] and [one.session, two.session] == [None, "7"]
    assert (one.prompt_tokens, one.output_tokens, len(one.keys)) == (40, 11, 2)
    assert one.keys[0] == two.keys[0] and one.keys[1] != two.keys[1]
    measured = two.measured
    assert measured is not None and (measured.worker, measured.cached_tokens) == (1, 16)
    assert (measured.ttft_s, measured.duration_s) == (0.1, 0.3)


def test_recordings_are_told_from_other_traces(path: Path, tmp_path: Path) -> None:
    """By the first line, gzipped or not; what is no trace at all is none."""
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps(HEAD) + "\n")
    assert is_recording(written(path, HEAD)) and is_recording(plain)
    assert not is_recording(written(path, {"timestamp": 0, "hash_ids": [1]}))
    plain.write_text("hello\n")
    assert not is_recording(plain)
    plain.write_bytes(b"")
    assert not is_recording(plain)


def test_runs_are_the_same_as_ids(path: Path) -> None:
    """Both ways to write blocks give the same keys."""
    prompt = {"input_length": 16 * 6}
    runs = asked(ids=(), **prompt) | {"hash_runs": [[3, 4], [0, 2]]}
    one, two = requests_of(path, asked(ids=(3, 4, 5, 6, 0, 1), **prompt), runs)
    assert list(one.keys) == list(two.keys) and len(set(one.keys)) == 6


def test_unknown_blocks_are_shared_with_nobody(path: Path) -> None:
    """A prompt has a key for each of its full blocks; those the router did not know are unlike all others."""
    one, two = requests_of(path, asked(ids=(0,), input_length=64), asked(ids=(0,), input_length=64, partial=True))
    assert len(one.keys) == len(two.keys) == 4 and one.keys[0] == two.keys[0]
    assert len({*one.keys[1:], *two.keys[1:]}) == 6
    (none,) = requests_of(path, asked(ids=(), key_form="none", input_length=None))
    assert (len(none.keys), none.prompt_tokens) == (0, 1)
    (more,) = requests_of(path, asked(ids=range(9), input_length=40))
    assert len(more.keys) == 2, "no more keys than full blocks"


@given(st.integers(8, 60), st.integers(0, 60), st.integers(10, 22))
def test_text_that_is_shared_stays_shared(shared: int, more: int, block: int) -> None:
    """Blocks of text have about 16 tokens: whatever they have in a file, prompts that begin alike have keys that do."""
    prompts = (list(range(shared)), [*range(shared), *range(1000, 1000 + more)])
    lines = [asked(ids=ids, key_form="text", input_length=round(len(ids) * block)) for ids in prompts]
    with TemporaryDirectory() as folder:
        one, two = requests_of(Path(folder, "t.jsonl.gz"), *lines)
    assert len(one.keys) == one.prompt_tokens // 16 and len(two.keys) == two.prompt_tokens // 16
    assert list(two.keys[: len(one.keys)]) == list(one.keys)
    assert len(set(two.keys)) == len(two.keys)


def test_times_of_whole_answers_are_no_ttft(path: Path) -> None:
    """Where the answer did not stream its first byte tells nothing of the prefill."""
    (request,) = requests_of(path, asked(stream=False))
    assert request.measured is not None and request.measured.ttft_s is None and request.measured.duration_s == 0.3


def test_output_that_is_not_known_is_taken_from_the_time(path: Path) -> None:
    """At the pace of the requests whose output is known, and at a usual one where there is none of these."""
    known = asked(output_length=11, ttft_ms=100.0, duration_ms=300.0)  # 20 ms a token
    unknown = asked(output_length=None, ttft_ms=100.0, duration_ms=1100.0)
    trace, header = read_recording(written(path, HEAD, known, unknown, END))
    assert [request.output_tokens for request in trace.requests] == [11, 51] and header.estimated_outputs == 1
    (alone,) = requests_of(path, unknown)
    assert alone.output_tokens == 1 + round(1.0 / recorded.TOKEN_S)
    (never,) = requests_of(path, asked(output_length=None, ttft_ms=None, duration_ms=None))
    assert never.output_tokens == 1


def test_only_prompts_that_a_worker_took_are_read(path: Path) -> None:
    """What was refused or failed cost no prefill; what the client left behind did."""
    lines = [
        asked(1000.0, status=400),
        asked(2000.0, status=502, outcome="upstream_refused"),
        asked(3000.0, status=None, outcome="upstream_timeout"),
        asked(4000.0, status=None, outcome="client_gone"),
        asked(5000.0, outcome="upstream_broken"),
    ]
    assert [request.at_s for request in requests_of(path, *lines)] == [0.0, 1.0]
    with pytest.raises(TraceError, match="no request"):
        requests_of(path, *lines[:3])


def test_clients_that_think(path: Path) -> None:
    """Between the end of a session's turn and its next one its client thought; not where the turns overlap."""
    lines = [
        asked(1000.0, session=1),
        asked(1200.0, session=1),
        asked(1000.0, session=2),
        asked(2000.0, session=2),
        asked(9000.0),
    ]
    thought = {(request.session, round(request.at_s, 6)): request.think_s for request in requests_of(path, *lines)}
    assert thought[("1", 0.2)] is None and thought[("2", 1.0)] == pytest.approx(0.7)
    assert [value for value in thought.values() if value is not None] == [thought[("2", 1.0)]]


def test_a_file_that_was_cut_off_is_read_up_to_there(path: Path) -> None:
    """A recorder that was killed leaves no end: wherever its file stops, the whole lines before that count."""
    lines = [asked(1000.0 * number, (number, number + 1, number * number)) for number in range(200)]
    whole = written(path, HEAD, *lines, END).read_bytes()
    counts = []
    for size in range(len(whole) // 4, len(whole) - 8, 97):
        path.write_bytes(whole[:size])
        trace, header = read_recording(path)
        assert header.ended is None or len(trace.requests) == 200
        counts.append(len(trace.requests))
    assert counts == sorted(counts) and counts[0] < 200 <= counts[-1] + 20
    path.write_bytes(whole[:5])
    with pytest.raises(TraceError, match="empty"):
        read_recording(path)


def test_a_plain_file_that_was_cut_off(path: Path) -> None:
    """The same without gzip: a line without its end is left out."""
    text = "".join(json.dumps(line) + "\n" for line in (HEAD, asked(), asked()))
    path.write_text(text[:-5])
    assert len(read_recording(path)[0].requests) == 1


ODD_LINES: list[Any] = [
    [1],
    {},
    asked(timestamp=None),
    asked(timestamp="x"),
    asked(timestamp=-1),
    asked(timestamp=float("nan")),
    asked(timestamp=float("inf")),
    asked(input_length=-1),
    asked(input_length=10**9),
    asked(input_length=1.5),
    asked(output_length="7"),
    asked(worker="10.0.0.1"),
    asked(session="joe"),
    asked(cached_tokens=True),
    asked(ttft_ms=[]),
    asked(status="200"),
    asked() | {"hash_ids": 3},
    asked(ids=("a",)),
    asked(ids=(-1,)),
    asked(ids=(1.5,)),
    asked(ids=(2**60,)),
    asked() | {"hash_runs": 3},
    asked() | {"hash_runs": [[1]]},
    asked() | {"hash_runs": [[1, 2, 3]]},
    asked() | {"hash_runs": [[0, 10**15]]},
    asked() | {"hash_runs": [["a", 2]]},
    asked() | {"hash_runs": [[2**53 - 1, 10]]},
    {"warmline_trace_end": 1},
    {**END, "workers": 3},
    {**END, "workers": [{**WORKER, "weight": "x"}]},
]


@pytest.mark.parametrize("odd", ODD_LINES, ids=str)
def test_odd_lines_are_told_by_their_number(odd: Any, path: Path) -> None:
    """A line that is not of the form ends the reading with its number, whatever is wrong with it."""
    with pytest.raises(TraceError, match="line 3"):
        read_recording(written(path, HEAD, asked(), odd, asked()))


@pytest.mark.parametrize(
    "head",
    [
        {"warmline_trace": 2},
        {"block_tokens": 32},
        {"policy": None},
        {"workers": None},
        {"workers": [{"kind": 3}]},
    ],
)
def test_odd_heads_are_told(head: dict[str, Any], path: Path) -> None:
    """A later version, or what is none, is refused at its first line."""
    with pytest.raises(TraceError, match="line 1"):
        read_recording(written(path, {**HEAD, **head}, asked()))


def test_lines_after_the_end_are_odd(path: Path) -> None:
    """Two recordings in one file are no recording: their numbers mean different things."""
    with pytest.raises(TraceError, match="line 4: a line after the last"):
        read_recording(written(path, HEAD, asked(), END, HEAD))


def test_json_that_is_none_is_told_by_its_number(path: Path) -> None:
    """Neither broken JSON nor a pile of brackets gets further than its line."""
    for odd in (b"{", b"[" * 100_000, b"\xff"):
        path.write_bytes(json.dumps(HEAD).encode() + b"\n" + odd + b"\n")
        with pytest.raises(TraceError, match="line 2"):
            read_recording(path)


def test_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file can say that it is a large trace: blocks, requests and the length of a line have bounds."""
    many = asked(ids=(), input_length=16_000)
    with pytest.raises(TraceError, match="line 5: the prompts of the file have more blocks"):
        read_recording(written(path, HEAD, *[many] * 9), max_blocks=3000)
    monkeypatch.setattr(recorded, "MAX_REQUESTS", 2)
    with pytest.raises(TraceError, match="line 4: more than 2 requests"):
        read_recording(written(path, HEAD, *[asked()] * 3))
    monkeypatch.setattr(read, "MAX_LINE_BYTES", 1000)
    with pytest.raises(TraceError, match="line 2: longer than 1000 bytes"):
        read_recording(written(path, HEAD, asked(ids=range(1000))))
