"""What was gained, in words with their direction: the demo's last sentence. Pure."""

from loadtest.demo.figures import Figures

ABOUT = 0.05  # ratios nearer to 1 than this are called the same


def verdict(first: Figures, last: Figures) -> str:
    """One sentence that compares the last policy with the first; what got worse is said to be worse."""
    p50 = sooner_or_later(first.ttft_p50_s, last.ttft_p50_s)
    p90 = sooner_or_later(first.ttft_p90_s, last.ttft_p90_s)
    computed = more_or_fewer(first.computed_tokens, last.computed_tokens)
    took = more_or_less_time(first.wall_s, last.wall_s)
    return (
        f"Compared with {first.policy}, {last.policy} gave the first token {p50} (median; p90 {p90}), "
        f"computed {computed} prompt tokens, and took {took} in all."
    )


def is_same(old: float, new: float) -> bool:
    return old <= 0 or new <= 0 or abs(new / old - 1) < ABOUT


def sooner_or_later(old: float, new: float) -> str:
    if is_same(old, new):
        return "about as soon"
    return f"{old / new:.1f} times sooner" if new < old else f"{new / old:.1f} times LATER"


def more_or_fewer(old: float, new: float) -> str:
    if is_same(old, new):
        return "about as many"
    return f"{1 - new / old:.0%} fewer" if new < old else f"{new / old - 1:.0%} MORE"


def more_or_less_time(old: float, new: float) -> str:
    if is_same(old, new):
        return "about as long"
    return f"{1 - new / old:.0%} less time" if new < old else f"{new / old - 1:.0%} MORE time"
