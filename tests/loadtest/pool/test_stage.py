"""What a measurement starts is gone when it ends, and what does not start is told."""

import sys

import pytest

from loadtest.pool.stage import Failed, Stage


def test_all_is_gone_in_the_end() -> None:
    """Redis, children and the folder; a child's first line is its report."""
    with Stage() as stage:
        child, line = stage.started([sys.executable, "-c", "print('here'); input()"], "child", reports=True)
        assert line == "here" and stage.redis.pid and stage.folder.is_dir()
    assert not child.is_running and not stage.folder.exists()


def test_what_does_not_start_is_told() -> None:
    """With the end of its log."""
    with Stage() as stage, pytest.raises(Failed, match=r"(?s)child did not start.*no way"):
        stage.started([sys.executable, "-c", "raise SystemExit('no way')"], "child", reports=True)
