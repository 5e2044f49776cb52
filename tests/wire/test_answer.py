"""What the router reads from a passing answer: event ends, first token, usage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.types import Usage
from router.wire.answer import has_first_token, read_usage, whole_events


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (b"data: a", 0),
        (b"data: a\n", 0),
        (b"data: a\n\n", 9),
        (b"data: a\n\ndata: b", 9),
        (b"data: a\r\n\r\ndata: b", 11),
        (b"data: a\r\n\r\n", 11),
        (b"\n\nx", 2),
        (b"a\r\n\r\nb\n\nc", 8),
    ],
)
def test_whole_events(data: bytes, length: int) -> None:
    """Only whole events count: LF or CRLF blank lines end one."""
    assert whole_events(data) == length


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"data: x\n\n", b"\r\n\r\n"]), max_size=12))
def test_what_is_left_over_holds_no_event_end(parts: list[bytes]) -> None:
    """After the cut no blank line remains, so nothing complete is ever held back."""
    data = b"".join(parts)
    rest = data[whole_events(data) :]
    assert b"\n\n" not in rest and b"\r\n\r\n" not in rest


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, False),
        ({"choices": [{"delta": {"content": "Hi"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "Hm"}}]}, True),
        ({"choices": [{"delta": {"reasoning": "Hm"}}]}, True),
        ({"choices": [{"text": "x"}]}, True),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]}, True),
        ({"choices": [{"delta": {"tool_calls": []}}]}, False),
        ({"choices": [], "usage": {"prompt_tokens": 3}}, False),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, True),
    ],
)
def test_first_token(event: object, counts: bool) -> None:
    """TTFT ends with generated content, not with the role chunk engines send early (openai_api §3)."""
    assert has_first_token(b"data: " + json.dumps(event).encode() + b"\n\n") is counts
    assert has_first_token(json.dumps(event, separators=(",", ":")).encode()) is counts


OPENAI = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8}}


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"choices":[]}', None),
        (json.dumps({"usage": OPENAI}).encode(), Usage(12, 8, 3)),
        (json.dumps({"usage": {"prompt_tokens": 4, "completion_tokens": 1}}).encode(), Usage(4, None, 1)),
        (b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":2}}\n\n', Usage(2, None, None)),
        (b'data: {"timings":{"cache_n":8,"prompt_n":4,"predicted_n":2},"usage":null}', Usage(12, 8, 2)),
        (b'{"timings":{"cache_n":8,"prompt_n":4,"predicted_n":2}}', Usage(12, 8, 2)),
        (b'{"timings":{"cache_n":8}}', Usage(None, 8, None)),
        (b'{"timings":{"cache_n":8,"prompt_n":4},"usage":{"prompt_tokens":12,"completion_tokens":9}}', Usage(12, 8, 9)),
        (b'x"usage":{"prompt_tokens":12,"completion_tokens":9},"timings":{"cache_n":8,"prompt_n":4}', Usage(12, 8, 9)),
        (b'{"usage":{"input_tokens":4,"cache_read_input_tokens":8,"output_tokens":2}}', Usage(12, 8, 2)),
        (b'{"usage":{"input_tokens":4,"output_tokens":2}}', Usage(4, None, 2)),
        (b'{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":5},"output_tokens":2}}', Usage(9, 5, 2)),
        (json.dumps({"choices": [{"text": '"cached_tokens": 99'}], "usage": OPENAI}).encode(), Usage(12, 8, 3)),
        (json.dumps({"choices": [{"text": '"cached_tokens": 99'}]}).encode(), None),
    ],
)  # fmt: skip
def test_read_usage(answer: bytes, usage: Usage | None) -> None:
    """Counts come from `usage` or llama.cpp's `timings`; a model that writes such text does not forge them."""
    assert read_usage(answer) == usage
