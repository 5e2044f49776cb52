"""Facts of the run: commit, machine, versions, and how busy the machine is with other things."""

import importlib.util
import os
import platform
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

BUSY_LOAD = 0.5  # one-minute load average above which figures are suspect
MAX_FOREIGN_SHARE = 0.15  # of one core, by processes that are not the bench's
HOT_MODULES = ("router.proxy.exchange", "router.proxy.listener", "router.core.placement", "router.core.prefix_index")
LIBRARIES = ("uvloop", "httptools", "orjson", "xxhash", "tokenizers")


def git(*arguments: str) -> str:
    """Output of a git command; empty outside a repository or without git."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def library_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def compiled_state(tree: Path) -> tuple[bool, list[str]]:
    """Whether the router's request path runs compiled, and modules compiled from other sources than those in `tree`."""
    compiled = False
    stale = []
    for name in HOT_MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or spec.origin.endswith(".py"):
            continue
        compiled = True
        if is_stale(Path(spec.origin), tree.joinpath(*name.split(".")).with_suffix(".py")):
            stale.append(name)
    return compiled, stale


def is_stale(binary: Path, source: Path) -> bool:
    """A build beside its source is stale when older, one elsewhere when the source installed with it differs."""
    if not source.exists():
        return False
    installed = binary.with_name(source.name)
    if installed.resolve() == source.resolve():
        return source.stat().st_mtime > binary.stat().st_mtime
    return installed.exists() and installed.read_bytes() != source.read_bytes()


def stale_warning(stale: Sequence[str]) -> str | None:
    """A text when what runs is not what the sources say."""
    if not stale:
        return None
    return f"compiled from another source: {', '.join(stale)}; rebuild, or the figures are those of an earlier router"


def run_facts(contenders: Mapping[str, str]) -> dict[str, Any]:
    """What a reader needs to judge the figures; `contenders` maps names to versions."""
    return {
        "commit": git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no", "--", "router", "engines", "loadtest/bench")),
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "python_optimised": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        },
        "versions": {**library_versions(), **contenders},
        "router_compiled": compiled_state(Path.cwd())[0],
        "load_average_before": os.getloadavg()[0],
    }


def busy_warning() -> str | None:
    """A text when something else seems to use the machine."""
    load = os.getloadavg()[0]
    if load <= BUSY_LOAD:
        return None
    return f"load average {load:.2f} before the first measurement: something else is running, the figures are noise"


def company_warning(foreign_shares: Sequence[float]) -> str | None:
    """A text when other processes took much CPU while measuring; shares of one core, one per measured figure."""
    worst = max(foreign_shares, default=0.0)
    if worst <= MAX_FOREIGN_SHARE:
        return None
    return f"other processes used up to {worst:.1f} cores while measuring: the figures are noise"


def busy_cpu_s() -> float:
    """CPU seconds that all processes of the machine have used, all cores, since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
