"""What the demo shows: a progress bar while it runs, tables at the end, and what to try next. Prints only."""

import json
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.demo.driver import Exchange
from loadtest.demo.figures import Figures, percentile


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )


class LiveFigures:
    """Keeps one bar of the progress display up to date with the answers so far."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar
        self._seen: list[Exchange] = []

    def __call__(self, exchange: Exchange) -> None:
        self._seen.append(exchange)
        self._progress.update(self._bar, advance=1, note=self.note())

    def note(self) -> str:
        prompt_tokens = sum(exchange.prompt_tokens for exchange in self._seen)
        cached_tokens = sum(exchange.cached_tokens for exchange in self._seen)
        ttft_s = percentile([exchange.ttft_s for exchange in self._seen], 50)
        return f"cached {cached_tokens / max(prompt_tokens, 1):4.0%}  TTFT p50 {ttft_s:5.2f} s"


def figures_table(runs: Sequence[Figures]) -> Table:
    """One row per policy and, below, what the last gained over the first."""
    table = Table(title="What each policy cost", title_justify="left", title_style="bold", box=box.SIMPLE_HEAVY)
    table.add_column("policy", no_wrap=True)
    for heading in ("cached\ntokens", "computed\ntokens", "TTFT\np50", "TTFT\np90", "tokens/s", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.policy,
            f"{run.cached_share:.1%}",
            f"{run.computed_tokens:,}",
            f"{run.ttft_p50_s:.2f} s",
            f"{run.ttft_p90_s:.2f} s",
            f"{run.tokens_per_s:.1f}",
            f"{run.wall_s:.1f} s",
        )
    if len(runs) > 1:
        first, last = runs[0], runs[-1]
        table.add_section()
        table.add_row(
            f"{last.policy} ÷ {first.policy}",
            ratio(last.cached_share, first.cached_share),
            ratio(last.computed_tokens, first.computed_tokens),
            ratio(last.ttft_p50_s, first.ttft_p50_s),
            ratio(last.ttft_p90_s, first.ttft_p90_s),
            ratio(last.tokens_per_s, first.tokens_per_s),
            ratio(last.wall_s, first.wall_s),
            style="bold",
        )
    return table


def ratio(new: float, old: float) -> str:
    return f"{new / old:.2f}×" if old else "–"


def routes_table(runs: Sequence[Figures]) -> Table:
    """Where each conversation went: one letter per turn, one column per policy."""
    table = Table(title="Engine of each turn", title_justify="left", title_style="bold", box=box.SIMPLE_HEAVY)
    table.add_column("conversation")
    for run in runs:
        table.add_column(run.policy)
    for conversation in runs[0].routes:
        table.add_row(conversation, *(" ".join(run.routes.get(conversation, ())) for run in runs))
    return table


def next_steps(url: str, admin_url: str, model: str, request_id: str) -> str:
    """Commands to paste; each is one line."""
    question = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 60}
    body = json.dumps({**question, "stream": True})
    return "\n".join(
        [
            f"Serving at {url} (admin {admin_url}); Ctrl-C stops everything. Try:",
            "",
            f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
            f"warmline workers --admin {admin_url}",
            f"warmline explain {request_id} --admin {admin_url}",
            f"curl {admin_url}/metrics",
        ]
    )
