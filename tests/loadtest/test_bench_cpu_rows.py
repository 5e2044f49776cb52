"""CPU rows: rounds, turns, and contenders that fail."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.bodies import KINDS
from loadtest.bench.cpu_rows import CPU, ROWS, CpuRow, foreign_share, run_row
from loadtest.bench.results import Results
from loadtest.bench.servers import Engines, Launch, Running, fake_engines


@pytest.mark.parametrize(
    ("before", "after", "wall_s", "share"),
    [((10, 5), (12, 6), 2.0, 0.5), ((10, 5), (10.9, 6), 1.0, 0.0), ((0, 0), (1, 0), 0.0, 0.0)],
)
def test_foreign_cpu_is_what_others_used(
    before: tuple[float, float], after: tuple[float, float], wall_s: float, share: float
) -> None:
    """CPU of the machine that is neither ours nor our children's, never below zero."""
    assert foreign_share(before, after, wall_s) == share


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rounds_bring_fresh_bodies_unless_they_repeat(row: CpuRow) -> None:
    """Only the repeated row sends the same prompts again."""
    assert (row.bodies(1, quick=True) == row.bodies(2, quick=True)) is row.repeat
    assert len(row.bodies(1, quick=True)) == row.quick_requests < row.requests


def as_contender(name: str, engines: Engines, place: int, tmp_path: Path) -> Running:
    """A fake engine posing as a proxy."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return Running(Launch(name, [], engines.ports[place]), process, tmp_path / name)


async def test_contenders_take_turns_and_a_failing_one_drops_out(tmp_path: Path) -> None:
    """Every round measures each contender on the same bodies; one that does not answer is left out with the reason."""
    row = CpuRow("chat2k", "2 KB chat", KINDS["chat2k"], requests=0, quick_requests=20, concurrency=4)
    steps: list[str] = []
    with fake_engines(2, tmp_path) as engines:
        servers = [as_contender("one", engines, 0, tmp_path), as_contender("two", engines, 1, tmp_path)]
        servers.append(Running(Launch("gone", [], 1), servers[0].process, tmp_path / "gone"))
        results = Results()
        try:
            await run_row(row, servers, 3, results, steps.append, quick=True)
        finally:
            for server in servers[:2]:
                await asyncio.to_thread(server.process.communicate)
    assert results.contenders("chat2k") == ["one", "two"]
    figure = results.find("chat2k", CPU, "two")
    assert figure is not None and len(figure.rounds) == 3
    assert "cannot reach" in results.absent["chat2k/gone"]
    assert [step.rpartition(" ")[2] for step in steps] == ["one", "two", "gone", "two", "one", "one", "two", "two", "one"]
