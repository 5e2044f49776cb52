"""loadtest.demo.screen: what a person reads."""

import io
import json
import shlex

from rich.console import Console

from loadtest.demo.conversations import Step
from loadtest.demo.driver import Exchange
from loadtest.demo.figures import Figures
from loadtest.demo.screen import LiveFigures, figures_table, next_steps, progress_bar, ratio, routes_table


def figures(policy: str, cached_tokens: int, ttft_s: float, route: str) -> Figures:
    return Figures(
        policy=policy,
        requests=4,
        prompt_tokens=1000,
        cached_tokens=cached_tokens,
        completion_tokens=80,
        ttft_p50_s=ttft_s,
        ttft_p90_s=2 * ttft_s,
        wall_s=10.0,
        routes={"shop-1": route.split()},
        last_request_id="r1",
    )


RUNS = (figures("round-robin", 400, 2.0, "A B A B"), figures("warm", 800, 0.5, "A A A A"))


def printed(*what: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(*what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_figures_table_shows_each_policy_and_the_gain() -> None:
    """One row per policy and a last row that divides the last by the first; 80 columns are enough."""
    lines = printed(figures_table(RUNS)).splitlines()
    rows = [line.split() for line in lines]
    assert ["round-robin", "40.0%", "600", "2.00", "s", "4.00", "s", "8.0", "10.0", "s"] in rows
    assert ["warm", "÷", "round-robin", "2.00×", "0.33×", "0.25×", "0.25×", "1.00×", "1.00×"] in rows


def test_single_policy_has_no_gain_row() -> None:
    """One policy alone is compared with nothing."""
    assert "÷" not in printed(figures_table(RUNS[:1]))


def test_ratio_with_nothing() -> None:
    """A first policy that cached nothing gives no ratio instead of an error."""
    assert (ratio(1.0, 0.0), ratio(3.0, 2.0)) == ("–", "1.50×")


def test_routes_table_puts_policies_side_by_side() -> None:
    """Each conversation's engines, turn by turn, one column per policy."""
    text = printed(routes_table(RUNS))
    (row,) = [line for line in text.splitlines() if "shop-1" in line]
    assert "A B A B" in row and "A A A A" in row


def test_live_figures_advance_the_bar() -> None:
    """Each answer moves the bar by one and updates share and TTFT beside it."""
    progress = progress_bar(Console(file=io.StringIO(), width=120))
    bar = progress.add_task("warm", total=2, note="")
    live = LiveFigures(progress, bar)
    live(Exchange(Step("a", 0), "r", 100, 25, 5, 0.5, 1.0, "text"))
    assert progress.tasks[0].completed == 1
    assert progress.tasks[0].fields["note"] == "cached  25%  TTFT p50  0.50 s"


def test_next_steps_can_be_pasted() -> None:
    """The curl line is one shell command whose body is a valid streaming chat request."""
    text = next_steps("http://127.0.0.1:1", "http://127.0.0.1:2", "smol", "req-7")
    (curl,) = [line for line in text.splitlines() if line.startswith("curl -N")]
    words = shlex.split(curl)
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "smol" and body["stream"] is True and body["messages"][0]["role"] == "user"
    assert words[2] == "http://127.0.0.1:1/v1/chat/completions"
    assert "warmline explain req-7 --admin http://127.0.0.1:2" in text.splitlines()
