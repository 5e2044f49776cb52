"""What the router reads in an engine's answer as it passes: event boundaries, the first token, usage."""

import re
from typing import Final

from router.core.types import Usage

# First non-empty piece of generated content in OpenAI-family chunks (openai_api §3): a chat delta's content, reasoning or
# tool call, or a completion's text. Native llama.cpp streams use "content" too, Triton generate "text_output".
FIRST_TOKEN = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|text_output|arguments)":\s*"(?!")'
    rb'|"tool_calls":\s*\[\s*\{'
    rb'|"type":\s*"(?:content_block_delta|response\.output_text\.delta)"'
)
TAIL_BYTES = 4 * 1024  # usage and timings stand at the end of an answer
SPACE: Final = 32
COLON: Final = 58
MAX_DIGITS = 12


def whole_events(data: bytes) -> int:
    """Length of the leading part of `data` that ends with a whole SSE event; 0 when no event ends in it.

    An event ends with a blank line, LF or CRLF (HTML standard, server-sent events).
    """
    if data.endswith((b"\n\n", b"\r\n\r\n")):
        return len(data)
    after_lf, after_crlf = data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 3 else 0)


def has_first_token(data: bytes) -> bool:
    """True when `data` holds generated content; a chunk with only the role or a ping does not count."""
    return FIRST_TOKEN.search(data) is not None


def read_usage(tail: bytes) -> Usage | None:
    """Token counts from the end of an answer, the last of each kind; None when there are none.

    OpenAI `usage`, Anthropic `usage` (whose input_tokens leave cached ones out), llama.cpp `timings`.
    """
    start = max(tail.rfind(b'"usage"'), 0)
    if start and (timings := tail.rfind(b'"timings"', 0, start)) >= 0:
        start = timings
    prompt, cached = count(tail, b'"prompt_tokens"', start), count(tail, b'"cached_tokens"', start)
    completion = count(tail, b'"completion_tokens"', start)
    if prompt is None:
        prompt, read = count(tail, b'"input_tokens"', start), count(tail, b'"cache_read_input_tokens"', start)
        if prompt is not None:
            cached = cached if read is None else read
            prompt, completion = prompt + (read or 0), count(tail, b'"output_tokens"', start)
    if cached is None:
        cached = count(tail, b'"cache_n"', 0)
        processed = count(tail, b'"prompt_n"', 0)
        if prompt is None and cached is not None and processed is not None:
            prompt, completion = cached + processed, count(tail, b'"predicted_n"', 0)
    if prompt is None and cached is None and completion is None:
        return None
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def count(data: bytes, name: bytes, start: int) -> int | None:
    """The last value of a JSON member that is a plain count, from `start` on; None without one.

    Text of the answer that looks like one does not count: its quotes are escaped, so the name's closing quote has a
    backslash before it. Searching by hand costs 1 us for all counts of an answer; one regular expression cost 4.
    """
    at = data.rfind(name, start)
    if at < 0:
        return None
    at += len(name)
    while at < len(data) and (data[at] == COLON or data[at] == SPACE):
        at += 1
    value, first = 0, at
    while at < len(data) and at - first < MAX_DIGITS and 48 <= data[at] <= 57:
        value = value * 10 + data[at] - 48
        at += 1
    return value if at > first else None
