"""From a router's lines to a file's: dense numbers in the order first seen, and nothing but numbers and code words."""

import json
from array import array
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.trace_lines import NotARecording, Numbers, TraceLines, runs_of

WORKER = {
    "kind": "vllm",
    "truth": "exact",
    "capacity_tokens": 1000,
    "block_tokens": 16,
    "prefill_tokens_per_s": 2500.0,
    "weight": 1.0,
}
HEAD = {
    "warmline_recording": 1,
    "block_tokens": 16,
    "policy": "least-queue",
    "recorded_at": "2026-12-01T06:00Z",
    "workers": [WORKER],
}


def packed(*keys: int) -> str:
    return b64encode(array("q", keys).tobytes()).decode()


def asked(*keys: int, **changes: Any) -> dict[str, Any]:
    return {
        "timestamp": 12.5,
        "input_length": 40,
        "output_length": 3,
        "keys": packed(*keys),
        "key_form": "tokens",
        "partial": False,
        "session": "a1",
        "model": "b2",
        "worker": 0,
        "ttft_ms": 1.5,
        "duration_ms": 20.0,
        "cached_tokens": 16,
        "predicted_cached_tokens": 32,
        "reason": "warm_prefix",
        "stream": True,
        "outcome": "ok",
        "status": 200,
        **changes,
    }


def begun(max_blocks: int = 1000) -> TraceLines:
    lines = TraceLines(max_blocks)
    lines.header(HEAD)
    return lines


def test_a_request_becomes_numbers() -> None:
    """Blocks, session and model are numbered from 0; everything measured stands as the router told it."""
    lines = begun()
    assert json.loads(lines.request(asked(-5, 77))) == {
        "timestamp": 12.5,
        "input_length": 40,
        "output_length": 3,
        "hash_ids": [0, 1],
        "key_form": "tokens",
        "session": 0,
        "model": 0,
        "worker": 0,
        "ttft_ms": 1.5,
        "duration_ms": 20.0,
        "cached_tokens": 16,
        "predicted_cached_tokens": 32,
        "reason": "warm_prefix",
        "stream": True,
        "outcome": "ok",
        "status": 200,
    }
    told = json.loads(lines.request(asked(-5, 78, session="a2", model=None, output_length=None, partial=True)))
    assert (told["hash_ids"], told["session"], told["model"], told["output_length"]) == ([0, 2], 1, None, None)
    assert told["partial"] is True


def test_long_stretches_are_written_as_runs() -> None:
    """Runs are used where they are shorter, and say the same."""
    lines = begun()
    assert json.loads(lines.request(asked(*range(100, 140))))["hash_runs"] == [[0, 40]]
    assert json.loads(lines.request(asked(*range(100, 120), *range(500, 520))))["hash_runs"] == [[0, 20], [40, 20]]
    assert json.loads(lines.request(asked(500, 100)))["hash_ids"] == [40, 0]
    assert json.loads(lines.request(asked()))["hash_ids"] == []


@given(st.lists(st.integers(0, 30)))
def test_runs_hold_every_number_in_order(numbers: list[int]) -> None:
    """Unfolded, runs are the list they were made from; no two neighbours could be one."""
    runs = runs_of(numbers)
    assert [value for first, count in runs for value in range(first, first + count)] == numbers
    assert all(one[0] + one[1] != other[0] for one, other in pairwise(runs))


@given(st.lists(st.lists(st.integers(-3, 3), max_size=6)))
def test_numbers_are_dense_in_the_order_first_seen(prompts: list[list[int]]) -> None:
    """With room for all, equal keys have equal numbers, and the numbers first seen are 0, 1, 2 …"""
    numbers = Numbers(1000)
    made = [number for prompt in prompts for number in numbers.of(prompt)]
    keys = [key for prompt in prompts for key in prompt]
    assert list(dict.fromkeys(made)) == list(range(len(set(keys)))) and numbers.next == len(set(keys))
    assert len(set(zip(keys, made, strict=True))) == len(set(keys))


def test_numbers_forget_what_was_not_asked_for_longest() -> None:
    """Memory is bounded; what is asked for again stays, what is forgotten is counted and gets a new number."""
    numbers = Numbers(8)
    assert numbers.of(range(4)) == [0, 1, 2, 3]
    assert numbers.of((0, 10, 11, 12)) == [0, 4, 5, 6]
    assert numbers.forgotten == 3
    assert numbers.of((0, 1)) == [0, 7]
    for at in range(1000):
        numbers.of((0, 1000 + at))
        assert len(numbers._young) + len(numbers._old) <= 8 + 2
    assert numbers.of((0,)) == [0]


def test_the_start_of_a_prompt_outlives_its_end() -> None:
    """A block whose number is still known has the blocks before it known too."""
    numbers = Numbers(8)
    numbers.of(range(6))
    numbers.of((0, 1, 2, 20))
    assert numbers.of(range(3)) == [0, 1, 2]
    assert numbers.forgotten >= 3


def test_the_head_and_the_end() -> None:
    """The head says what the file is and of whom, the end how many there were, what is missing, and why it ended."""
    lines = TraceLines(1000)
    assert json.loads(lines.header({**HEAD, "recorded_at": "12 o'clock, says Joe"})) == {
        "warmline_trace": 1,
        "block_tokens": 16,
        "policy": "least-queue",
        "workers": [WORKER],
        "recorded_at": None,
    }
    assert json.loads(begun().header(HEAD))["recorded_at"] == "2026-12-01T06:00Z"
    lines.request(asked(1))
    lines.state({"timestamp": 99.0, "dropped": 2, "workers": [WORKER, {**WORKER, "weight": 2}]})
    lines.state({"timestamp": 100.0, "dropped": 4})
    assert json.loads(lines.footer("duration")) == {
        "warmline_trace_end": 1,
        "ended": "duration",
        "duration_ms": 100.0,
        "requests": 1,
        "dropped": 4,
        "blocks": 1,
        "forgotten_blocks": 0,
        "workers": [WORKER, {**WORKER, "weight": 2}],
    }


def test_names_and_unknown_fields_do_not_get_into_the_file() -> None:
    """Whatever else a router might send of a request, a worker or itself is left out."""
    lines = TraceLines(1000)
    text = lines.header({**HEAD, "secret": "secret", "workers": [{**WORKER, "url": "http://secret:1"}]})
    text += lines.request(asked(1, session="secret-session", model="secret-model", prompt="secret", key="secret"))
    text += lines.footer("duration")
    assert "secret" not in text


BAD_REQUESTS: list[tuple[str, Any]] = [
    ("keys", "no base64!"),
    ("keys", "AAAA"),
    ("keys", None),
    ("keys", [1, 2]),
    ("timestamp", "soon"),
    ("timestamp", -1),
    ("timestamp", True),
    ("timestamp", float("nan")),
    ("timestamp", float("inf")),
    ("input_length", -1),
    ("input_length", 1.5),
    ("input_length", True),
    ("input_length", 2**53),
    ("output_length", "many"),
    ("session", 7),
    ("model", ["m"]),
    ("worker", "10.0.0.1:8000"),
    ("reason", "Dear Sir or Madam"),
    ("reason", "a" * 41),
    ("outcome", 3),
    ("status", "200 OK"),
]


@pytest.mark.parametrize(("name", "value"), BAD_REQUESTS)
def test_what_is_no_number_or_code_word_is_refused(name: str, value: Any) -> None:
    """A text can get into the file through no field, and what is no recording is told from one."""
    with pytest.raises(NotARecording):
        begun().request(asked(1, **{name: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"warmline_recording": 2},
        {"warmline_recording": None},
        {"workers": None},
        {"workers": ["10.0.0.1:8000"]},
        {"workers": [{"kind": "http://10.0.0.1:8000"}]},
        {"policy": "two words"},
    ],
)
def test_a_head_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    """Anything else that answers on the port, or a later version, is not written down."""
    with pytest.raises(NotARecording):
        TraceLines(1000).header({**HEAD, **changes})


@pytest.mark.parametrize("state", [None, [], {"dropped": -1}, {"timestamp": "x"}, {"workers": 3}])
def test_a_state_that_is_none_is_refused(state: Any) -> None:
    """The state is read as strictly as the rest."""
    with pytest.raises(NotARecording):
        begun().state(state)
