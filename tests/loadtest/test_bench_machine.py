"""Facts of a run."""

import os

import pytest

from loadtest.bench.machine import busy_cpu_s, busy_warning, git, run_facts


def test_facts_name_commit_machine_and_versions() -> None:
    """A reader can tell what ran on what."""
    facts = run_facts({"nginx": "1.22.1"})
    assert set(facts["machine"]) == {"cpu", "cores", "kernel", "python"}
    assert facts["versions"]["nginx"] == "1.22.1" and facts["versions"]["uvloop"]
    assert facts["commit"] and isinstance(facts["dirty"], bool)


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
