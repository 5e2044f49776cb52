"""engines.deepspeed_backend.arguments: its command line."""

from pathlib import Path

import pytest

from engines.deepspeed_backend.arguments import parser


def test_defaults_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the model must be named; ports are on loopback unless told otherwise, and the line has a place at least."""
    options = parser().parse_args(["--model", "/m"])
    assert (options.model, options.host, options.port, options.max_waiting) == (Path("/m"), "127.0.0.1", 50050, 32)
    for wrong in (["--model", "/m", "--max-waiting", "0"], []):
        with pytest.raises(SystemExit):
            parser().parse_args(wrong)
    assert "0 is not at least 1" in capsys.readouterr().err
