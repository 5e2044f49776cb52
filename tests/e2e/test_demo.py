"""`python -m loadtest.demo`, whole: with the tiny model in place of SmolLM2, everything else is as `make demo` runs it."""

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.process import ChildProcess
from engines.tiny_gguf import cached_tiny_gguf
from tests.e2e.cluster import post, until

DEMO = (sys.executable, "-m", "loadtest.demo", "--model", str(cached_tiny_gguf()))


def children_of(pid: int) -> set[int]:
    """Process ids below `pid`, by the kernel's own lists."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found |= {int(child)} | children_of(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[ChildProcess]:
    """A demo that serves on after its tables."""
    with ChildProcess([*DEMO, "--policy", "warm"], tmp_path / "demo.log") as running:
        yield running


def test_once_compares_the_policies(tmp_path: Path) -> None:
    """`--once` runs both policies, prints both tables, exits with 0; warm takes more tokens from caches than round robin."""
    with ChildProcess([*DEMO, "--once", "--json", str(tmp_path / "figures.json")], tmp_path / "demo.log") as demo:
        status = demo.wait(deadline_s=100)
    shown = demo.log_tail(lines=100)
    assert status == 0, shown
    figures = json.loads((tmp_path / "figures.json").read_text())
    round_robin, warm = figures["runs"]
    assert (round_robin["policy"], warm["policy"]) == ("round-robin", "warm")
    assert f"seed {figures['seed']}" in shown and "warm ÷ round-robin" in shown and "shop-1" in shown
    assert round_robin["requests"] == warm["requests"] == sum(len(turns) for turns in warm["routes"].values())
    assert {letter for turns in warm["routes"].values() for letter in turns} == {"A", "B"}, "one engine had it all"
    assert warm["cached_share"] > 1.2 * round_robin["cached_share"], figures


def test_serves_on_until_ctrl_c(demo: ChildProcess) -> None:
    """After the tables the printed curl line works; Ctrl-C ends the demo with 130 and leaves no process behind."""
    shown = until(lambda: text if "Ctrl-C stops" in (text := demo.log_tail(100)) else None, "the demo serves", 100)
    serving = re.search(r"curl -N (\S+) .* -d '(.*)'", shown)
    assert serving is not None, shown
    status, headers, body = post(serving[1], serving[2].encode())
    assert status == 200 and headers["content-type"] == "text/event-stream" and body.endswith(b"data: [DONE]\n\n")
    explained = re.search(r"warmline explain (\S+) --admin (\S+)", shown)
    assert explained is not None
    with urllib.request.urlopen(f"{explained[2]}/decisions/{explained[1]}", timeout=10) as answer:
        assert json.load(answer)["candidates"]
    family = children_of(demo.pid)
    assert len(family) == 3, "two engines and a router"
    demo.interrupt()
    assert demo.wait(deadline_s=20) == 130
    until(lambda: not any(is_alive(pid) for pid in family), "every process ends", 5)


def test_ctrl_c_in_mid_run(demo: ChildProcess) -> None:
    """Ctrl-C while conversations run ends everything as well, without a traceback."""
    family = until(lambda: found if len(found := children_of(demo.pid)) == 3 else None, "engines and router run", 60)
    demo.interrupt()
    assert demo.wait(deadline_s=20) == 130
    until(lambda: not any(is_alive(pid) for pid in family), "every process ends", 5)
    assert "Traceback" not in demo.log_tail(200)


def test_killed_demo_leaves_nothing(demo: ChildProcess) -> None:
    """Even SIGKILL of the demo ends its engines and its router."""
    family = until(lambda: found if len(found := children_of(demo.pid)) == 3 else None, "engines and router run", 60)
    demo.kill()
    until(lambda: not any(is_alive(pid) for pid in family), "every process ends", 10)


def test_failure_is_one_readable_error(tmp_path: Path) -> None:
    """A model file that is none ends the demo with status 1 and llama.cpp's own lines, not with a traceback."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with ChildProcess([sys.executable, "-m", "loadtest.demo", "--model", str(broken)], tmp_path / "demo.log") as demo:
        assert demo.wait(deadline_s=60) == 1
    shown = demo.log_tail(100)
    assert "The demo failed: engine" in shown and "Traceback" not in shown
