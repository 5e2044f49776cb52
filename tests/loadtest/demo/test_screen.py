"""loadtest.demo.screen: what a person reads."""

import dataclasses
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.demo.conversations import Step
from loadtest.demo.driver import Exchange
from loadtest.demo.figures import Figures
from loadtest.demo.screen import (
    LINE_EACH,
    figures_table,
    next_steps,
    print_results,
    progress_of,
    ratio,
    routes_table,
    warmline_command,
)


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
    assert ["round-robin", "40.0%", "600", "2.00", "4.00", "8.0", "10.0"] in rows
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


LARGE = (
    dataclasses.replace(figures("round-robin", 0, 110.03, "A"), prompt_tokens=1_234_567, wall_s=1145.1),
    dataclasses.replace(figures("least-queue", 0, 10.03, "B"), prompt_tokens=1_234_567, wall_s=1045.1),
)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_figures_are_never_cut(width: int) -> None:
    """Long policy names fold before a digit is lost, and a narrow terminal wraps lines rather than losing some."""
    console = Console(file=io.StringIO(), width=width)
    print_results(console, LARGE)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text and all(number in text for number in ("1,234,567", "110.03", "220.06", "1145.1", "1045.1"))


def test_results_end_with_what_was_gained() -> None:
    """Columns are explained, and the last sentence tells the gain in words; one policy alone has none."""
    console = Console(file=io.StringIO(), width=400)
    print_results(console, RUNS)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "cached: prompt tokens the engine did not have to compute" in text
    assert text.splitlines()[-1].startswith("Compared with round-robin, warm gave the first token 4.0 times sooner")
    print_results(console, RUNS[:1])
    assert console.file.getvalue().count("Compared with") == 1


def answer(number: int) -> Exchange:
    return Exchange(Step("a", number), "r", 100, 25, 5, 0.5, 1.0, "text")


def test_progress_on_a_terminal_is_a_bar() -> None:
    """Each answer moves the bar by one and updates share and TTFT beside it."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with progress_of(console, "warm", 2) as live:
        live(answer(0))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "1/2" in shown and "cached  25%  TTFT p50  0.50 s" in shown


def test_progress_elsewhere_is_a_line_every_few_answers() -> None:
    """In a log file or a CI job the demo shows that it lives, in whole lines."""
    console = Console(file=io.StringIO(), width=80)
    with progress_of(console, "warm", LINE_EACH + 2) as live:
        for number in range(LINE_EACH + 2):
            live(answer(number))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        f"warm           {done}/{LINE_EACH + 2}  cached  25%  TTFT p50  0.50 s" for done in (LINE_EACH, LINE_EACH + 2)
    ]


def test_command_is_the_one_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script beside the interpreter, as short as it works: by name, from the folder, by its path, else the module."""
    folder = tmp_path / "with space" / "bin"
    folder.mkdir(parents=True)
    python, script = str(folder / "python"), folder / "warmline"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert warmline_command(python, tmp_path) == f"'{python}' -m router.cli"
    script.touch(mode=0o755)
    assert warmline_command(python, folder.parent) == "bin/warmline"
    assert warmline_command(python, tmp_path / "elsewhere") == f"'{script}'"
    monkeypatch.setenv("PATH", str(folder))
    assert warmline_command(python, tmp_path) == "warmline"


def test_next_steps_can_be_pasted() -> None:
    """The curl line is one shell command whose body is a valid streaming chat request."""
    text = next_steps("http://127.0.0.1:1", "http://127.0.0.1:2", "smol", "req-7", ".venv/bin/warmline")
    (curl,) = [line for line in text.splitlines() if line.startswith("curl -N")]
    words = shlex.split(curl)
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "smol" and body["stream"] is True and body["messages"][0]["role"] == "user"
    assert words[2] == "http://127.0.0.1:1/v1/chat/completions"
    assert ".venv/bin/warmline explain req-7 --admin http://127.0.0.1:2" in text.splitlines()
