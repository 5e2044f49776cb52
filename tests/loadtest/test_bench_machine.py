"""Facts of a run."""

import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from loadtest.bench.machine import busy_cpu_s, busy_warning, company_warning, compiled_state, git, run_facts, stale_warning


def test_facts_name_commit_machine_and_versions() -> None:
    """A reader can tell what ran on what."""
    facts = run_facts({"nginx": "1.22.1"})
    assert set(facts["machine"]) == {"cpu", "cores", "kernel", "python", "python_optimised"}
    assert isinstance(facts["router_compiled"], bool)
    assert facts["versions"]["nginx"] == "1.22.1" and facts["versions"]["uvloop"]
    assert facts["commit"] and isinstance(facts["dirty"], bool)


HOT = "router.proxy.exchange"


@pytest.mark.parametrize(
    ("installed", "source_age_s", "stale"),
    [
        (None, 300, False),  # built in place, after the last change
        (None, 100, True),
        ("same", 100, False),  # installed elsewhere from these sources
        ("other", 300, True),
    ],
)
def test_a_build_from_other_sources_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, source_age_s: int, stale: bool
) -> None:
    """Nobody takes the figures of an earlier build for those of the sources."""
    folder = tmp_path / "tree" / "router" / "proxy"
    folder.mkdir(parents=True)
    (folder / "exchange.py").write_text("same")
    place = folder
    if installed is not None:
        place = tmp_path
        (place / "exchange.py").write_text(installed)
    binary = place / "exchange.cpython-311-x86_64-linux-gnu.so"
    binary.touch()
    now_s = binary.stat().st_mtime
    os.utime(binary, (now_s, now_s - 200))
    os.utime(folder / "exchange.py", (now_s, now_s - source_age_s))
    spec = ModuleSpec(HOT, None, origin=str(binary))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == HOT else None)
    assert compiled_state(tmp_path / "tree") == (True, [HOT] if stale else [])
    assert bool(stale_warning([HOT] if stale else [])) is stale


def test_git_outside_a_repository_is_silent() -> None:
    """A tree without history still gets a bench, with an unknown commit."""
    assert git("no-such-command") == ""


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (0.5, False), (1.7, True)])
def test_a_busy_machine_is_warned_of(load: float, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures taken beside other work say so."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    assert (busy_warning() is not None) is warned


@pytest.mark.parametrize(("shares", "warned"), [([], False), ([0.0, 0.15], False), ([0.02, 1.3], True)])
def test_company_while_measuring_is_warned_of(shares: list[float], warned: bool) -> None:
    """The worst figure decides; a little of the system's own work is no company."""
    assert (company_warning(shares) is not None) is warned


def test_busy_time_only_grows() -> None:
    """The machine's CPU time is a counter in seconds."""
    first = busy_cpu_s()
    assert 0 < first <= busy_cpu_s()
