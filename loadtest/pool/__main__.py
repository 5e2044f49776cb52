"""`python -m loadtest.pool intake|chaos|cluster|footprint [--quick] [--out DIR]`: measures one, prints its figures."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from loadtest.bench.machine import run_facts
from loadtest.pool import chaos, footprint, intake
from loadtest.pool.stage import Failed


def measure(what: str, *, quick: bool) -> tuple[dict[str, Any], str]:
    """The figures, and their text for people. Raises Failed."""
    if what == "footprint":
        found = footprint.measure(3.0 if quick else 20.0, 3000)
        return found, footprint.show(found)
    if what == "intake":
        found = uvloop.run(intake.measure(20, 200, 2.0) if quick else intake.measure(1000, 200, 10.0))
        return found, intake.show(found)
    found = uvloop.run(chaos.measure(0.2 if quick else 1.0, cluster=what == "cluster"))
    return found, chaos.show(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pool", description=__doc__)
    parser.add_argument("what", choices=("intake", "chaos", "cluster", "footprint"))
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs, not what it costs")
    parser.add_argument("--out", type=Path, help="folder for the results as JSON")
    arguments = parser.parse_args(argv)
    facts = run_facts({})
    try:
        figures, text = measure(arguments.what, quick=arguments.quick)
    except Failed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        name = f"pool-{arguments.what}-{str(facts['commit'])[:12]}{'-dirty' if facts['dirty'] else ''}.json"
        (arguments.out / name).write_text(json.dumps({**facts, **figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
