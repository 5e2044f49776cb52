"""loadtest.demo.stage: two engines and a router that start together and stop together."""

from pathlib import Path

import pytest

from engines.launch import is_healthy
from engines.tiny_gguf import cached_tiny_gguf
from loadtest.demo.conversations import Step
from loadtest.demo.driver import Exchange
from loadtest.demo.router_process import RouterStartError
from loadtest.demo.stage import ENGINE_LETTERS, open_stage


def test_stage_opens_ready_and_leaves_nothing(tmp_path: Path) -> None:
    """Both engines are ready behind the router and have letters; afterwards all three processes are gone."""
    with open_stage("warm", tmp_path, cached_tiny_gguf()) as stage:
        assert stage.router.ready_workers() == 2
        assert sorted(stage.letters.values()) == list(ENGINE_LETTERS)
        processes = [stage.router.process, *(engine.process for engine in stage.engines)]
        with pytest.raises(KeyError, match="no decision for request never-sent"):
            stage.letters_of([Exchange(Step("shop-1", 0), "never-sent", 1, 0, 1, 0.1, 0.1, "")])
    assert not any(process.is_running for process in processes)
    assert not any(is_healthy(engine.url) for engine in stage.engines)


def test_failed_start_stops_what_ran(tmp_path: Path) -> None:
    """When the router refuses to start, the engines started before it are stopped, and the error is the router's."""
    with pytest.raises(RouterStartError, match="no-such-policy"):
        open_stage("no-such-policy", tmp_path, cached_tiny_gguf())
    urls = [
        line.split()[-1]
        for log in tmp_path.glob("*engine*.log")
        for line in log.read_text().splitlines()
        if "listening on" in line
    ]
    assert len(urls) == 2 and not any(is_healthy(url) for url in urls)
