"""Traces from files: arrival, lengths and shared blocks survive scaling and cutting, and what is no trace is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.traces import read
from loadtest.traces.read import Cut, TraceError, block_tokens_of, read_trace


def written(folder: Path, *records: dict[str, Any], name: str = "mooncake.jsonl.gz") -> Path:
    path = folder / name
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def record(at_ms: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 8, "hash_ids": ids, **more}


def test_the_first_request_is_at_nought_and_order_is_that_of_arrival(tmp_path: Path) -> None:
    """Times are seconds from the first arrival, divided by the speed."""
    path = written(tmp_path, record(9000, 600, [1]), record(5000, 600, [2]))
    assert [request.at_s for request in read_trace(path, Cut(speed=2)).requests] == [0.0, 2.0]


@pytest.mark.parametrize(("scale", "keys", "tokens"), [(1, 64, 1030), (8, 8, 129), (64, 1, 16)])
def test_scaling_shortens_prompt_and_blocks_alike(tmp_path: Path, scale: float, keys: int, tokens: int) -> None:
    """A prompt has a key for each full block of 16 of its scaled tokens that the ids reach."""
    (request,) = read_trace(written(tmp_path, record(0, 1030, [7, 8, 9])), Cut(scale=scale)).requests
    assert (len(request.keys), request.prompt_tokens) == (keys, tokens)
    assert len(set(request.keys)) == keys


@pytest.mark.parametrize("scale", [1, 4, 8, 48])
def test_equal_ids_are_equal_keys(tmp_path: Path, scale: float) -> None:
    """Prompts share exactly as many leading keys as their shared ids fill at that scale."""
    path = written(tmp_path, record(0, 2048, [1, 2, 3, 4]), record(1, 2048, [1, 2, 5, 6]))
    first, second = read_trace(path, Cut(scale=scale)).requests
    same = [one == other for one, other in zip(first.keys, second.keys, strict=True)]
    shared = same.index(False)
    assert same[:shared] == [True] * shared and not any(same[shared:])
    assert shared == int(1024 / scale) // 16


def test_runs_are_the_same_list_of_ids(tmp_path: Path) -> None:
    """`hash_runs` names consecutive ids by their first and their number."""
    runs = {"timestamp": 1, "input_length": 2048, "output_length": 8, "hash_runs": [[5, 3], [9, 1]]}
    one, other = read_trace(written(tmp_path, record(0, 2048, [5, 6, 7, 9]), runs)).requests
    assert one.keys == other.keys


def test_bailian_times_are_seconds(tmp_path: Path) -> None:
    """Records with `parent_chat_id` are stamped in seconds."""
    lines = [record(at, 32, [1, 2], parent_chat_id=-1) for at in (1.5, 4.0)]
    path = written(tmp_path, *lines, name="bailian.jsonl")
    assert read_trace(path).requests[1].at_s == 2.5


def test_sessions_keep_their_shape_at_new_starts(tmp_path: Path) -> None:
    """Redrawn starts move a session as a whole: times within it stay, and other seeds give other starts."""
    lines = [record(at, 64, [at], session=name) for name, at in (("a", 0), ("a", 3000), ("b", 5000), ("b", 9000))]
    path = written(tmp_path, *lines, name="agentic.jsonl")
    found = []
    for seed in (1, 2):
        requests = read_trace(path, Cut(redraw_starts_s=100, seed=seed)).requests
        times = {name: [request.at_s for request in requests if request.session == name] for name in "ab"}
        assert times["a"][1] - times["a"][0] == pytest.approx(3.0)
        assert times["b"][1] - times["b"][0] == pytest.approx(4.0)
        found.append(times["b"][0] - times["a"][0])
    assert found[0] != pytest.approx(found[1])


def test_a_part_can_be_cut_out(tmp_path: Path) -> None:
    """`first` and `requests` count records of the file; answers are capped."""
    path = written(tmp_path, *(record(at, 600 + at, [at]) for at in range(5)))
    found = read_trace(path, Cut(first=1, requests=2, max_output_tokens=3)).requests
    assert [(request.prompt_tokens, request.output_tokens) for request in found] == [(601, 3), (602, 3)]


@pytest.mark.parametrize(
    "text", ["[1]\n", "{\n", '{"timestamp": 1}\n', '{"timestamp": "x", "input_length": 1, "output_length": 1}\n', ""]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    """TraceError names the file."""
    path = tmp_path / "mooncake.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match="mooncake"):
        read_trace(path)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """A gzip file that ends too early is no shorter trace."""
    path = written(tmp_path, *(record(at, 600, [at]) for at in range(500)))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(TraceError, match="mooncake"):
        read_trace(path)


def test_a_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    """Bytes that do not unpack are told as what they are."""
    path = written(tmp_path, *(record(at, 600, [at]) for at in range(500)))
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(TraceError, match="mooncake"):
        read_trace(path)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short line cannot say that a prompt has more blocks than any has, and a line has a longest length."""
    runs = {"timestamp": 1, "input_length": 2048, "output_length": 8, "hash_runs": [[0, 10**15]]}
    with pytest.raises(TraceError, match="line 1: hash_runs has more blocks than a prompt"):
        read_trace(written(tmp_path, runs))
    monkeypatch.setattr(read, "MAX_LINE_BYTES", 1000)
    with pytest.raises(TraceError, match="line 2: longer than 1000 bytes"):
        read_trace(written(tmp_path, record(0, 600, [1]), record(1, 600, list(range(1000)))))


def test_unknown_names_need_the_size_of_their_blocks() -> None:
    """The tokens of a block are no part of the file: without a known name they must be given."""
    assert block_tokens_of(Path("qwen_traceA.jsonl")) == 16
    with pytest.raises(TraceError, match="--block-tokens"):
        block_tokens_of(Path("mine.jsonl"))
