"""The printed tables."""

from io import StringIO

import pytest
from rich.console import Console

from loadtest.bench.budgets import judge
from loadtest.bench.contenders import NGINX, WARMLINE
from loadtest.bench.cpu_rows import CPU
from loadtest.bench.report import number, show
from loadtest.bench.results import Figure, Results, median_figure

FACTS = {
    "commit": "0123456789abcdef",
    "dirty": True,
    "machine": {"cpu": "Some CPU", "cores": 2, "kernel": "6", "python": "3.11", "python_optimised": False},
    "router_compiled": True,
    "versions": {"nginx": "1.22.1"},
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0213, "0.021"), (-0.5, "-0.500"), (4.2, "4.20"), (38.44, "38.4"), (204.4, "204"), (1204.4, "1,204"), (0.0, "0.000")],
)
def test_numbers_show_about_three_figures(value: float, text: str) -> None:
    """Readable at any size."""
    assert number(value) == text


def test_everything_found_is_printed() -> None:
    """Figures with ratios, pivoted latencies, verdicts, what is missing and warnings."""
    detail = {"requests_per_s": 1000.0, "first_byte_p50_ms": 1.0, "foreign_cpu_share": 0.25}
    results = Results(
        [
            median_figure("chat2k", CPU, NGINX, "µs", [20.0, 21.0], **detail),
            median_figure("chat2k", CPU, WARMLINE, "µs", [70.0, 73.5], **detail),
            Figure("unseen", "own delay on its way to an engine", WARMLINE, "ms", 1.5, (1.0, 2.0)),
            Figure("index", "resident bytes per block", "", "B", 13.0, detail={"blocks": 5e6}),
        ],
        absent={"smg": "smg is not installed"},
        warnings=["load average 3.00"],
    )
    judge(results)
    console = Console(file=StringIO(), width=140)
    show(results, FACTS, console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    for piece in (
        "3.50×",
        "MISS",
        "1.50 (worst 2.00)",
        "13.0 B",
        "smg is not installed",
        "load average",
        "0123456789ab + changes",
    ):
        assert piece in text
