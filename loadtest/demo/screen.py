"""What the demo shows: progress while it runs, tables at the end, what was gained, and what to try next. Prints only."""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.demo.driver import Exchange
from loadtest.demo.figures import Figures, percentile
from loadtest.demo.verdict import verdict

LINE_EACH = 5  # answers between two lines of progress where there is no terminal for a bar
LEGEND = (
    "cached: prompt tokens the engine did not have to compute; computed: the rest.\n"
    "TTFT: seconds to the first token, p50 the median, p90 all but the slowest tenth."
)
NARROWEST = 80


@contextmanager
def progress_of(console: Console, policy: str, requests: int) -> "Iterator[LiveFigures]":
    """To be called with each answer; shows a bar on a terminal, a line every few answers elsewhere."""
    if not console.is_terminal:
        yield LiveFigures(lambda done, note: print_line(console, policy, done, requests, note))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(TextColumn("{task.description:<12}"), *columns, console=console) as progress:
        bar = progress.add_task(policy, total=requests, note="")
        yield LiveFigures(lambda done, note: progress.update(bar, completed=done, note=note))


def print_line(console: Console, policy: str, done: int, requests: int, note: str) -> None:
    if done % LINE_EACH == 0 or done == requests:
        console.print(f"{policy:<12} {done:>3}/{requests}  {note}", markup=False, highlight=False)


class LiveFigures:
    """Adds up the answers so far and shows them: how many there are, and a note."""

    def __init__(self, show: Callable[[int, str], None]) -> None:
        self._show = show
        self._seen: list[Exchange] = []

    def __call__(self, exchange: Exchange) -> None:
        self._seen.append(exchange)
        self._show(len(self._seen), self.note())

    def note(self) -> str:
        prompt_tokens = sum(exchange.prompt_tokens for exchange in self._seen)
        cached_tokens = sum(exchange.cached_tokens for exchange in self._seen)
        ttft_s = percentile([exchange.ttft_s for exchange in self._seen], 50)
        return f"cached {cached_tokens / max(prompt_tokens, 1):4.0%}  TTFT p50 {ttft_s:5.2f} s"


def print_results(console: Console, runs: Sequence[Figures]) -> None:
    """The tables, what their columns mean, and the gain in a sentence. A figure is never cut, however narrow the terminal."""
    console.width = max(console.width, NARROWEST)  # rich would cut; a narrower terminal folds
    console.print(figures_table(runs))
    console.print(LEGEND, style="dim", highlight=False)
    console.print()
    console.print(routes_table(runs))
    if len(runs) > 1:
        console.print(verdict(runs[0], runs[-1]), style="bold", markup=False, highlight=False)


def figures_table(runs: Sequence[Figures]) -> Table:
    """One row per policy and, below, the last divided by the first."""
    table = Table(title="What each policy cost", title_justify="left", title_style="bold", box=box.SIMPLE_HEAVY)
    table.add_column("policy")
    for heading in ("cached\ntokens", "computed\ntokens", "TTFT\np50, s", "TTFT\np90, s", "tokens\nper s", "time\ns"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.policy,
            f"{run.cached_share:.1%}",
            f"{run.computed_tokens:,}",
            f"{run.ttft_p50_s:.2f}",
            f"{run.ttft_p90_s:.2f}",
            f"{run.tokens_per_s:.1f}",
            f"{run.wall_s:.1f}",
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


def warmline_command(python: str, folder: Path) -> str:
    """How a shell in `folder` runs the `warmline` that belongs to this Python; as a module where there is no such script."""
    script = Path(python).parent / "warmline"
    if not script.is_file():
        return f"{shlex.quote(python)} -m router.cli"
    found = shutil.which("warmline")
    if found is not None and Path(found) == script:
        return "warmline"
    return shlex.quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))


def next_steps(url: str, admin_url: str, model: str, request_id: str, warmline: str) -> str:
    """Commands to paste; each is one line. `warmline`: how that program is run here."""
    question = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 60}
    body = json.dumps({**question, "stream": True})
    return "\n".join(
        [
            f"Serving at {url} (admin {admin_url}); Ctrl-C stops everything.",
            "Try, in another terminal in this folder:",
            "",
            f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
            f"{warmline} workers --admin {admin_url}",
            f"{warmline} explain {request_id} --admin {admin_url}",
            f"curl {admin_url}/metrics",
        ]
    )
