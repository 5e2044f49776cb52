"""`python -m loadtest.demo`: the same conversations through round robin and through warm routing, on real engines."""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from engines.launch import EngineStartError
from engines.tiny_gguf import NoModelFile
from loadtest.demo.conversations import conversations, interleave
from loadtest.demo.driver import DemoFailed, Driver
from loadtest.demo.figures import Figures, add_up, as_json
from loadtest.demo.router_process import RouterStartError
from loadtest.demo.screen import next_steps, print_results, progress_of, warmline_command
from loadtest.demo.stage import ENGINE_LETTERS, MODEL, SLOT_CONTEXT_TOKENS, SLOTS, Stage, open_stage

POLICIES = ("round-robin", "warm")
SEED = 7  # round robin caches about as much here as on average over seeds
CONCURRENCY = 2
ALIVE_INTERVAL_S = 0.5
MINUTES_PER_POLICY = 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--once", action="store_true", help="exit after the tables instead of serving on")
    parser.add_argument("--policy", action="append", metavar="POLICY", help="a policy to run, repeatable (round-robin, warm)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"order of the conversations' turns ({SEED})")
    parser.add_argument("--model", type=Path, help="another GGUF file than the packaged SmolLM2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 something did not start or answer, 130 stopped by Ctrl-C, SIGTERM or SIGHUP."""
    arguments = make_parser().parse_args(argv)
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C: what runs is stopped on the way out
    logs = Path(tempfile.mkdtemp(prefix="warmline-demo-"))
    try:
        run_demo(arguments, console, logs)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (EngineStartError, RouterStartError, NoModelFile, DemoFailed) as error:
        console.print(f"The demo failed: {error}", style="red", markup=False)
        return 1
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    return 0


def run_demo(arguments: argparse.Namespace, console: Console, logs: Path) -> None:
    """Every policy on engines of its own, then the tables; the last policy's processes go on serving unless `--once`."""
    policies = arguments.policy or POLICIES
    introduce(console, arguments.seed, len(policies))
    runs: list[Figures] = []
    with contextlib.ExitStack() as processes:
        for policy in policies:
            processes.close()
            console.print(f"Starting engines and router for {policy} …", style="dim", markup=False, highlight=False)
            stage = processes.enter_context(open_stage(policy, logs, arguments.model))
            runs.append(play(policy, stage, arguments.seed, console))
        if arguments.once:
            processes.close()
        print_results(console, runs)
        if arguments.json:
            arguments.json.write_text(json.dumps({"seed": arguments.seed, "runs": [as_json(run) for run in runs]}, indent=2))
        if not arguments.once:
            command = warmline_command(sys.executable, Path.cwd())
            hint = next_steps(stage.router.url, stage.router.admin_url, MODEL, runs[-1].last_request_id, command)
            console.print(hint, markup=False, highlight=False, soft_wrap=True)
            serve_on(stage)


def introduce(console: Console, seed: int, policies: int) -> None:
    talks = conversations()
    requests = sum(len(talk.questions) for talk in talks.values())
    assistants = len({talk.assistant.name for talk in talks.values()})
    console.print(
        f"{len(talks)} conversations with {assistants} assistants: {requests} requests, {CONCURRENCY} at a time,\n"
        f"in random order (seed {seed}). {len(ENGINE_LETTERS)} llama.cpp engines with SmolLM2-135M, one thread and\n"
        f"{SLOTS} slots of {SLOT_CONTEXT_TOKENS} tokens each, started cold for every policy.\n"
        f"Takes about {policies * MINUTES_PER_POLICY:g} minutes on two idle cores, longer on busy ones.",
        highlight=False,
    )


def play(policy: str, stage: Stage, seed: int, console: Console) -> Figures:
    """Drive the whole schedule through the stage's router."""
    talks = conversations()
    steps = interleave(talks, random.Random(seed))
    driver = Driver(stage.router.url + "/v1", MODEL, talks, steps)
    with progress_of(console, policy, len(steps)) as live:
        started_at = time.perf_counter()
        exchanges = asyncio.run(driver.play(CONCURRENCY, live))
        wall_s = time.perf_counter() - started_at
    return add_up(policy, exchanges, stage.letters_of(exchanges), wall_s)


def serve_on(stage: Stage) -> None:
    """Until Ctrl-C. Raises DemoFailed when one of the processes ends by itself."""
    while True:
        for name, process in (("the router", stage.router.process), *(("an engine", e.process) for e in stage.engines)):
            if not process.is_running:
                raise DemoFailed(f"{name} ended with {process.exit_code}:\n{process.log_tail()}")
        time.sleep(ALIVE_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
