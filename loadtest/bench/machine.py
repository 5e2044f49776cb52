"""Facts of the run: commit, machine, versions, and how busy the machine is with other things."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

BUSY_LOAD = 0.5  # one-minute load average above which figures are suspect
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
        },
        "versions": {**library_versions(), **contenders},
        "load_average_before": os.getloadavg()[0],
    }


def busy_warning() -> str | None:
    """A text when something else seems to use the machine."""
    load = os.getloadavg()[0]
    if load <= BUSY_LOAD:
        return None
    return f"load average {load:.2f} before the first measurement: something else is running, the figures are noise"


def busy_cpu_s() -> float:
    """CPU seconds that all processes of the machine have used, all cores, since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
