"""Command line of the bench: start the contenders, run the rows, judge, print, keep."""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.bench import budgets, cpu_rows, inprocess, latency_rows, report, results
from loadtest.bench.bodies import KINDS, bodies
from loadtest.bench.contenders import (
    CONTENDERS,
    NGINX,
    WARMLINE,
    WARMLINE_TOKENS,
    Site,
    Unavailable,
    install_peers,
    smollm2_gguf,
)
from loadtest.bench.load import LoadFailed, request_bytes, run_load
from loadtest.bench.machine import busy_warning, company_warning, compiled_state, run_facts, stale_warning
from loadtest.bench.results import Results
from loadtest.bench.servers import HOST, Engines, Running, ServerFailed, fake_engines, running

ENGINES = 4
READY_S = 30.0
LATENCY_CONTENDERS = (NGINX, WARMLINE, WARMLINE_TOKENS)
HTTP_ROWS = (*(row.name for row in cpu_rows.ROWS), "first-byte", "unseen")
ALL_ROWS = (*HTTP_ROWS, *inprocess.ROWS)


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rows: tuple[str, ...]
    contenders: tuple[str, ...]
    quick: bool

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 5

    @property
    def first_byte_batches(self) -> int:
        return 10 if self.quick else 40

    @property
    def unseen_prompts(self) -> int:
        return 4 if self.quick else 10

    def steps(self, started: int) -> int:
        """Steps of the progress bar with `started` contenders."""
        cpu = sum((self.rounds + 1) * started for row in cpu_rows.ROWS if row.name in self.rows)
        first_byte = self.first_byte_batches * (started + 1) if "first-byte" in self.rows else 0
        unseen = self.unseen_prompts * (len(LATENCY_CONTENDERS) + 1) if "unseen" in self.rows else 0
        return cpu + first_byte + unseen


async def answers(server: Running) -> None:
    """Return when a chat comes back complete: the contender knows its engines. LoadFailed when it is too late."""
    request = request_bytes(f"{HOST}:{server.port}", bodies(KINDS["chat2k"], 1, seed=-1)[0])
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            for _ in range(ENGINES):
                await run_load(HOST, server.port, [request], concurrency=1, deadline_s=5)
            return
        except LoadFailed:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.2)


def start_contenders(plan: Plan, site: Site, stack: contextlib.ExitStack, found: Results) -> list[Running]:
    """Every contender of the plan that can be had here; the others are noted with the reason."""
    servers = []
    for name in plan.contenders:
        try:
            server = stack.enter_context(running(CONTENDERS[name](site), site.folder))
            uvloop.run(answers(server))
            servers.append(server)
        except (Unavailable, ServerFailed, LoadFailed) as error:
            found.absent[name] = str(error)
    return servers


async def measure_http(
    plan: Plan, servers: Sequence[Running], engines: Engines, found: Results, step: Callable[[str], None]
) -> None:
    """Rows 1–4 and 6, over sockets."""
    for row in cpu_rows.ROWS:
        if row.name in plan.rows:
            await cpu_rows.run_row(row, servers, plan.rounds, found, step, quick=plan.quick)
    ports = {latency_rows.DIRECT: engines.ports[0], **{server.name: server.port for server in servers}}
    if "first-byte" in plan.rows:
        await latency_rows.first_byte_row(ports, plan.first_byte_batches, found, step)
    if "unseen" in plan.rows:
        few = {name: port for name, port in ports.items() if name in (latency_rows.DIRECT, *LATENCY_CONTENDERS)}
        await latency_rows.unseen_row(few, engines.ports, plan.unseen_prompts, found, step)


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:46}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, auto_refresh=False, transient=True)


def run_http_rows(plan: Plan, console: Console, found: Results) -> dict[str, str]:
    """Start everything, measure, stop everything; versions of the contenders that were measured."""
    with tempfile.TemporaryDirectory(prefix="warmline-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        engines = stack.enter_context(fake_engines(ENGINES, folder))
        console.print(f"starting {', '.join(plan.contenders)} in front of {ENGINES} fake engines", style="dim")
        servers = start_contenders(plan, Site(engines, folder, smollm2_gguf()), stack, found)
        progress = stack.enter_context(progress_bar(console))
        task = progress.add_task("", total=plan.steps(len(servers)))

        def step(text: str) -> None:
            progress.update(task, advance=1, description=text)
            progress.refresh()

        gc.freeze()
        uvloop.run(measure_http(plan, servers, engines, found, step))
        return {server.name: server.launch.version for server in servers}


def run_inprocess_rows(plan: Plan, console: Console, found: Results) -> None:
    """Rows 5, 7 and 8, one after the other; nothing else runs."""
    for row in inprocess.ROWS:
        if row in plan.rows:
            with console.status(f"in-process row: {row}"):
                try:
                    found.figures += inprocess.measure_apart(row, smollm2_gguf(), quick=plan.quick)
                except inprocess.RowFailed as error:
                    found.absent[row] = str(error)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests")
    parser.add_argument("--only", action="append", metavar="ROW", choices=ALL_ROWS, help=f"one of {', '.join(ALL_ROWS)}")
    parser.add_argument("--contender", action="append", choices=list(CONTENDERS), help="measure only these; repeatable")
    parser.add_argument("--out", type=Path, default=Path("loadtest/results"), metavar="DIR", help="folder of the JSON file")
    parser.add_argument("--no-install", action="store_true", help="do not install peers that are missing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when every budget measured is met, 3 when one is missed, 1 when nothing was measured, 130 on Ctrl-C."""
    arguments = parse(argv)
    console = report.make_console()
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # servers are stopped on both
    try:
        return bench(arguments, console)
    except KeyboardInterrupt:
        console.print("interrupted; everything started has been stopped")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def bench(arguments: argparse.Namespace, console: Console) -> int:
    """One run, from installing peers to the kept file; the exit status."""
    found = Results()
    plan = Plan(tuple(arguments.only or ALL_ROWS), tuple(arguments.contender or CONTENDERS), arguments.quick)
    if not arguments.no_install:
        console.print("peers: installing those that are missing (once)", style="dim")
        install_peers(Path(tempfile.gettempdir()) / "warmline-bench-install.log")
    for warning in filter(None, (busy_warning(), stale_warning(compiled_state(Path.cwd())[1]))):
        found.warnings.append(warning)
        console.print(f"[yellow]warning:[/] {warning}")
    facts = run_facts({})
    if set(plan.rows) & set(HTTP_ROWS):
        facts["versions"] |= run_http_rows(plan, console, found)
    run_inprocess_rows(plan, console, found)
    shares = [f.detail["foreign_cpu_share"] for f in found.figures if "foreign_cpu_share" in f.detail]
    found.warnings += filter(None, (company_warning(shares),))
    budgets.judge(found)
    report.show(found, facts, console)
    path = results.keep(found, facts, arguments.out)
    console.print(f"kept in {path}", style="dim")
    if not found.figures:
        return 1
    return 0 if all(check.passed for check in found.checks) else 3
