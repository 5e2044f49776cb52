"""Rows 5, 7, 8 and 9 in a process of their own, so that memory and garbage of one row do not disturb another.

`python -m loadtest.bench.inprocess ROW [--quick] [--tokenizer FILE]` prints the row's figures as one JSON line.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from loadtest.bench.decision_rows import decision_row
from loadtest.bench.event_rows import event_row
from loadtest.bench.index_rows import index_row
from loadtest.bench.results import Figure
from loadtest.bench.scale_rows import scale_row
from loadtest.bench.servers import clean_environment, die_with_parent, same_python

DEADLINE_S = 240.0
ROWS: dict[str, Callable[[str | None, bool], list[Figure]]] = {
    "decision": lambda tokenizer, quick: decision_row(tokenizer, quick=quick),
    "index": lambda _, quick: index_row(quick=quick),
    "events": lambda _, quick: event_row(quick=quick),
    "scale": lambda _, quick: scale_row(quick=quick),
}


class RowFailed(Exception):
    """The row's process ended without figures; the message ends with what it said."""


def measure_apart(row: str, tokenizer: str | None, *, quick: bool) -> list[Figure]:
    """The figures of a row, measured in a fresh Python process."""
    command = [*same_python(), "-m", "loadtest.bench.inprocess", row]
    command += ["--quick"] if quick else []
    command += ["--tokenizer", tokenizer] if tokenizer else []
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=clean_environment(),
            check=False,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise RowFailed(f"{row} took more than {DEADLINE_S:g} s") from None
    if answer.returncode:
        raise RowFailed(f"{row} ended with {answer.returncode}: {' / '.join(answer.stderr.strip().splitlines()[-3:])}")
    return [from_json(fields) for fields in json.loads(answer.stdout.splitlines()[-1])]


def from_json(fields: dict[str, object]) -> Figure:
    figure = Figure(**fields)  # type: ignore[arg-type]
    return Figure(figure.row, figure.what, figure.contender, figure.unit, figure.value, tuple(figure.rounds), figure.detail)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.inprocess", description=__doc__)
    parser.add_argument("row", choices=sorted(ROWS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tokenizer")
    arguments = parser.parse_args(argv)
    figures = ROWS[arguments.row](arguments.tokenizer, arguments.quick)
    print(json.dumps([asdict(figure) for figure in figures]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
