"""The bench for people: tables of figures with ratios, then every budget with its verdict."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench.contenders import NGINX, WARMLINE
from loadtest.bench.cpu_rows import CPU, ROWS
from loadtest.bench.results import Figure, Results, paired_ratio

MIN_WIDTH = 128  # of output that goes to a file or a pipe


def make_console() -> Console:
    """Wide enough for the tables when nobody's terminal says otherwise."""
    console = Console()
    return console if console.is_terminal else Console(width=MIN_WIDTH)


def number(value: float) -> str:
    """Three figures or so: 4.21, 38.4, 1,204."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def ratio(figure: Figure, base: Figure | None) -> str:
    return "" if base is None or base.value == 0 else f"{paired_ratio(figure, base):.2f}×"


def cpu_table(results: Results, row: str, title: str) -> Table | None:
    """One traffic shape: CPU, ratios to nginx and to Warmline, throughput, first byte under load."""
    names = results.contenders(row)
    if not names:
        return None
    table = Table(title=title, title_justify="left")
    for heading in (
        "contender",
        "CPU µs/request",
        "÷ nginx",
        "warmline ÷ it",
        "rounds µs",
        "requests/s",
        "first byte p50 ms",
        "others’ cores",
    ):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    nginx, warmline = results.find(row, CPU, NGINX), results.find(row, CPU, WARMLINE)
    for name in names:
        figure = results.find(row, CPU, name)
        if figure is None:
            continue
        table.add_row(
            name,
            number(figure.value),
            ratio(figure, nginx),
            ratio(warmline, figure) if warmline is not None else "",
            f"{number(min(figure.rounds))}-{number(max(figure.rounds))}",
            number(figure.detail["requests_per_s"]),
            number(figure.detail["first_byte_p50_ms"]),
            f"{figure.detail['foreign_cpu_share']:.2f}",
        )
    return table


def pivot_table(results: Results, row: str, title: str) -> Table | None:
    """A row with several quantities: a line per contender, a column per quantity."""
    figures = [figure for figure in results.figures if figure.row == row]
    if not figures:
        return None
    columns = list(dict.fromkeys((figure.what, figure.unit) for figure in figures))
    table = Table("contender", title=title, title_justify="left")
    for what, unit in columns:
        table.add_column(f"{what}, {unit}", justify="right")
    for name in results.contenders(row):
        found = [results.find(row, what, name) for what, _ in columns]
        table.add_row(name, *("" if figure is None else with_worst(figure) for figure in found))
    return table


def with_worst(figure: Figure) -> str:
    """The value, and the worst round where a row keeps rounds."""
    return number(figure.value) + (f" (worst {number(max(figure.rounds))})" if figure.rounds else "")


def figure_table(results: Results, rows: Sequence[str], title: str) -> Table | None:
    """Plain figures of some rows, one line each."""
    figures = [figure for figure in results.figures if figure.row in rows]
    if not figures:
        return None
    table = Table("row", "what", title=title, title_justify="left")
    table.add_column("value", justify="right")
    table.add_column("detail")
    for figure in figures:
        detail = ", ".join(f"{name} {number(value)}" for name, value in figure.detail.items())
        table.add_row(figure.row, figure.what, f"{number(figure.value)} {figure.unit}", detail)
    return table


def check_table(results: Results) -> Table:
    """Budgets: measured, allowed, verdict."""
    table = Table("row", "budget", title="Budgets", title_justify="left")
    table.add_column("measured", justify="right")
    table.add_column("allowed", justify="right")
    table.add_column("")
    for check in results.checks:
        sign = "≥" if check.at_least else "≤"
        verdict = "[green]pass[/]" if check.passed else "[bold red]MISS[/]"
        measured, limit = f"{number(check.value)} {check.unit}", f"{sign} {number(check.limit)} {check.unit}"
        table.add_row(check.row, check.what, measured, limit, verdict)
    return table


def headline(facts: dict[str, Any]) -> str:
    """Commit, machine and build in one line."""
    machine = facts["machine"]
    python = f"Python {machine['python']}{'' if machine['python_optimised'] else ' (built without PGO)'}"
    return (
        f"\ncommit {facts['commit'][:12]}{' + changes' if facts['dirty'] else ''}; {machine['cores']} × {machine['cpu']}, "
        f"Linux {machine['kernel']}, {python}, router {'compiled' if facts['router_compiled'] else 'not compiled'}"
    )


def show(results: Results, facts: dict[str, Any], console: Console) -> None:
    """Everything on the console."""
    console.print(headline(facts))
    console.print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()), style="dim")
    tables = [cpu_table(results, row.name, row.title) for row in ROWS]
    tables.append(pivot_table(results, "first-byte", "First byte when idle: direct, and what each adds"))
    tables.append(pivot_table(results, "unseen", "Never-seen prompt of 100 k tokens"))
    tables.append(figure_table(results, ("decision", "index", "events", "scale"), "Decisions and index (in-process)"))
    for table in tables:
        if table is not None:
            console.print(table)
    if results.checks:
        console.print(check_table(results))
    for name, why in results.absent.items():
        console.print(f"[yellow]not measured:[/] {name}: {why}")
    for warning in results.warnings:
        console.print(f"[yellow]warning:[/] {warning}")
