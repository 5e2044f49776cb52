"""What the bench found: figures with their rounds, checks against budgets, and the file they are kept in."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one contender. `value` is the median of `rounds` unless the row says otherwise."""

    row: str
    what: str
    contender: str
    unit: str
    value: float
    rounds: tuple[float, ...] = ()
    detail: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One budget held against what was measured. `limit` is an upper bound unless `at_least`."""

    row: str
    what: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Results:
    """Everything one run of the bench collects."""

    figures: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # contender or row → why it was not measured
    warnings: list[str] = field(default_factory=list)

    def find(self, row: str, what: str, contender: str) -> Figure | None:
        for figure in self.figures:
            if (figure.row, figure.what, figure.contender) == (row, what, contender):
                return figure
        return None

    def contenders(self, row: str) -> list[str]:
        """Names that have a figure in the row, in order of measuring."""
        return list(dict.fromkeys(figure.contender for figure in self.figures if figure.row == row))


def median_figure(row: str, what: str, contender: str, unit: str, rounds: Sequence[float], **detail: float) -> Figure:
    return Figure(row, what, contender, unit, statistics.median(rounds), tuple(rounds), detail)


def paired_ratio(numerator: Figure, denominator: Figure) -> float:
    """Median of the round-by-round ratios: what slows a whole round of the machine cancels out."""
    if len(numerator.rounds) != len(denominator.rounds) or not numerator.rounds:
        return numerator.value / denominator.value
    return statistics.median(a / b for a, b in zip(numerator.rounds, denominator.rounds, strict=True))


def as_json(results: Results, facts: Mapping[str, Any]) -> str:
    """The kept form: facts of the run, then all figures with raw rounds, checks with their verdicts."""
    document = {
        **facts,
        "warnings": results.warnings,
        "absent": results.absent,
        "checks": [{**asdict(check), "passed": check.passed} for check in results.checks],
        "figures": [asdict(figure) for figure in results.figures],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def keep(results: Results, facts: Mapping[str, Any], folder: Path) -> Path:
    """Write `bench-<commit>.json`; `-dirty` in the name when the tree had changes."""
    folder.mkdir(parents=True, exist_ok=True)
    name = str(facts["commit"])[:12] + ("-dirty" if facts["dirty"] else "")
    path = folder / f"bench-{name}.json"
    path.write_text(as_json(results, facts))
    return path
