"""Facts of a run."""

import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from loadtest.bench.machine import busy_cpu_s, busy_warning, compiled_state, git, run_facts, stale_warning


def test_facts_name_commit_machine_and_versions() -> None:
    """A reader can tell what ran on what."""
    facts = run_facts({"nginx": "1.22.1"})
    assert set(facts["machine"]) == {"cpu", "cores", "kernel", "python", "python_optimised"}
    assert isinstance(facts["router_compiled"], bool)
    assert facts["versions"]["nginx"] == "1.22.1" and facts["versions"]["uvloop"]
    assert facts["commit"] and isinstance(facts["dirty"], bool)


def test_a_compiled_module_older_than_its_source_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the figures of an earlier build for those of the sources."""
    source, binary = tmp_path / "exchange.py", tmp_path / "exchange.cpython-311-x86_64-linux-gnu.so"
    for path, made_at in ((binary, 100), (source, 200)):
        path.touch()
        os.utime(path, (made_at, made_at))
    spec = ModuleSpec("router.proxy.exchange", None, origin=str(binary))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name.endswith("exchange") else None)
    assert compiled_state() == (True, ["router.proxy.exchange"])
    assert "rebuild" in (stale_warning(["router.proxy.exchange"]) or "")
    os.utime(binary, (300, 300))
    assert compiled_state() == (True, [])
    assert stale_warning([]) is None


def test_git_outside_a_repository_is_silent() -> None:
    """A tree without history still gets a bench, with an unknown commit."""
    assert git("no-such-command") == ""


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (0.5, False), (1.7, True)])
def test_a_busy_machine_is_warned_of(load: float, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures taken beside other work say so."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    assert (busy_warning() is not None) is warned


def test_busy_time_only_grows() -> None:
    """The machine's CPU time is a counter in seconds."""
    first = busy_cpu_s()
    assert 0 < first <= busy_cpu_s()
