"""What the exchanges of one policy add up to. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.demo.driver import Exchange


@dataclass(frozen=True)
class Figures:
    """One policy's run in numbers."""

    policy: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_p50_s: float
    ttft_p90_s: float
    wall_s: float
    routes: Mapping[str, Sequence[str]]  # conversation → letter of the engine of each turn, in order
    last_request_id: str

    @property
    def cached_share(self) -> float:
        """Prompt tokens that an engine took from its cache, over all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that an engine had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over the time of the whole run."""
        return self.completion_tokens / self.wall_s if self.wall_s else 0.0


def add_up(policy: str, exchanges: Sequence[Exchange], letter_of: Mapping[str, str], wall_s: float) -> Figures:
    """`exchanges` in the order of their ends; `letter_of`: request id → engine, one that is missing shows as `?`."""
    ttfts = [exchange.ttft_s for exchange in exchanges]
    return Figures(
        policy=policy,
        requests=len(exchanges),
        prompt_tokens=sum(exchange.prompt_tokens for exchange in exchanges),
        cached_tokens=sum(exchange.cached_tokens for exchange in exchanges),
        completion_tokens=sum(exchange.completion_tokens for exchange in exchanges),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        wall_s=wall_s,
        routes=routes(exchanges, letter_of),
        last_request_id=exchanges[-1].request_id if exchanges else "",
    )


def routes(exchanges: Sequence[Exchange], letter_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Conversation → engine of each of its turns."""
    taken: dict[str, list[str]] = {}
    for exchange in sorted(exchanges, key=lambda exchange: (exchange.step.conversation, exchange.step.turn)):
        taken.setdefault(exchange.step.conversation, []).append(letter_of.get(exchange.request_id, "?"))
    return taken


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks; 0.0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def as_json(figures: Figures) -> dict[str, object]:
    """For `--json`: every number of the tables."""
    return {
        "policy": figures.policy,
        "requests": figures.requests,
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "cached_share": round(figures.cached_share, 4),
        "completion_tokens": figures.completion_tokens,
        "ttft_p50_s": round(figures.ttft_p50_s, 4),
        "ttft_p90_s": round(figures.ttft_p90_s, 4),
        "tokens_per_s": round(figures.tokens_per_s, 2),
        "wall_s": round(figures.wall_s, 2),
        "routes": {name: list(letters) for name, letters in figures.routes.items()},
    }
