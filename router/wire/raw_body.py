"""Model and stream flag of a body that is not parsed: JSON above the size limit, and multipart forms. Best effort, bounded."""

import re
from typing import NamedTuple

import orjson

WINDOW_BYTES = 64 * 1024  # searched at either end of the body

_token = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_model = re.compile(rb'(?<!\\)"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_stream = re.compile(rb'(?<!\\)"stream"\s*:\s*(true|false)')
# Possessive throughout: without backtracking a hostile body costs what it weighs, not its square.
_part = re.compile(rb'name="(model|stream)"[^\r\n]{0,1024}+\r\n(?:[^\r\n]{1,1024}+\r\n){0,8}+\r\n([^\r\n]{0,1024})\r\n')


class ScannedBody(NamedTuple):
    model: str | None
    stream: bool


def scan_json_head(body: bytes) -> ScannedBody:
    """Top-level `model` and `stream` from the first 64 KB; else their last mention in the last 64 KB."""
    found = top_level_scalars(body[:WINDOW_BYTES])
    tail = body[-WINDOW_BYTES:]
    model, stream = found.get(b'"model"'), found.get(b'"stream"')
    if model is None:
        model = last_match(_model, tail)
    if stream is None:
        stream = last_match(_stream, tail)
    return ScannedBody(json_text(model), stream == b"true")


def top_level_scalars(head: bytes) -> dict[bytes, bytes]:
    """Quoted name → raw scalar for the fields of the outermost object that the window shows whole."""
    found: dict[bytes, bytes] = {}
    depth = 0
    before = previous = b""
    for match in _token.finditer(head):
        token = match.group()
        if token == b'"':  # a string that the window cuts: what follows is its inside
            break
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and previous == b":" and match.end() < len(head):
            found.setdefault(before, token)
        before, previous = previous, token
    return found


def last_match(pattern: "re.Pattern[bytes]", window: bytes) -> bytes | None:
    value = None
    for match in pattern.finditer(window):
        value = match.group(1)
    return value


def json_text(raw: bytes | None) -> str | None:
    """The string that a raw JSON token spells, None if it is no string."""
    if raw is None:
        return None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, str) else None


def scan_multipart(body: bytes) -> ScannedBody:
    """The `model` and `stream` parts of a form, looked for in the first and the last 64 KB."""
    windows = body if len(body) <= 2 * WINDOW_BYTES else body[:WINDOW_BYTES] + body[-WINDOW_BYTES:]
    found = {name: value for name, value in _part.findall(windows)}
    model = found.get(b"model", b"").decode("utf-8", "replace").strip()
    return ScannedBody(model or None, found.get(b"stream", b"").strip().lower() == b"true")
