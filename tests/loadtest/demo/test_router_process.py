"""loadtest.demo.router_process: a router in its own process, on free ports."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.demo.router_process import LocalRouter, RouterStartError, start_router

NOBODY = "llama.cpp=http://127.0.0.1:9"  # the discard port: refused at once


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRouter]:
    with start_router([NOBODY], tmp_path_factory.mktemp("router") / "log") as running:
        yield running


def test_both_ports_answer(router: LocalRouter) -> None:
    """Two different free ports were taken, and the process listens on both."""
    assert router.url != router.admin_url
    with urllib.request.urlopen(router.admin_url + "/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(router.url + "/v1/models", timeout=10) as answer:
        assert answer.status == 200


def test_workers_are_those_given(router: LocalRouter) -> None:
    """The worker of `engines` is known though nobody listens there, and is not ready."""
    (row,) = router.workers()
    assert row["url"] == "http://127.0.0.1:9" and router.ready_workers() == 0


def test_waiting_for_workers_ends(router: LocalRouter) -> None:
    """A deadline that passes names the workers and their state."""
    with pytest.raises(RouterStartError, match=r"not 1 ready workers after 0\.1 s: .*:9 "):
        router.await_workers(1, deadline_s=0.1)


def test_no_wait_for_what_is_there(router: LocalRouter) -> None:
    """Enough ready workers return at once."""
    router.await_workers(0, deadline_s=0.0)


def test_unknown_decision_is_an_answer(router: LocalRouter) -> None:
    """A request id that nobody sent gives the error's JSON, not an exception."""
    assert "error" in router.decision("no/such request")


def test_bad_flags_show_the_reason(tmp_path: Path) -> None:
    """A router that refuses its settings fails at once with its own words."""
    with pytest.raises(RouterStartError, match=r"(?s)the router ended with 2:.*no-such-policy"):
        start_router([NOBODY], tmp_path / "log", "--policy", "no-such-policy")


def test_late_router_is_ended(tmp_path: Path) -> None:
    """Not listening at the deadline is an error, and the process is gone."""
    with pytest.raises(RouterStartError, match="does not listen after 0 s"):
        start_router([NOBODY], tmp_path / "log", deadline_s=0.0)


def test_second_start_reads_its_own_lines(tmp_path: Path) -> None:
    """A log that an earlier router wrote to does not give away the earlier ports; stopping ends the process."""
    with start_router([NOBODY], tmp_path / "log") as first:
        pass
    assert first.process.exit_code == 0
    with start_router([NOBODY], tmp_path / "log") as second:
        assert second.ready_workers() == 0
    assert second.admin_url != first.admin_url or second.process.pid != first.process.pid
