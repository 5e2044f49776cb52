"""One request of a trace: when, how long, and what its prompt shares with others."""

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class TraceRequest:
    """`keys`: one 64-bit id for each full block of 16 tokens of the prompt; equal ids mean an equal block after an equal
    start. Times are seconds from the start of the trace."""

    at_s: float
    keys: "array[int]"
    prompt_tokens: int
    output_tokens: int
    session: str | None = None
    think_s: float | None = None  # of the client, between the end of the session's turn before and this one
    measured: "Measured | None" = None


@dataclass(slots=True, frozen=True)
class Measured:
    """What a recording knows of how the request went. None: not known."""

    worker: int
    ttft_s: float | None
    duration_s: float | None
    cached_tokens: int | None


@dataclass(slots=True)
class Trace:
    """Requests in order of arrival."""

    name: str
    requests: list[TraceRequest] = field(default_factory=list)
