"""The recordings themselves: whole, gapless, and free of what belongs to the machine they were made on."""

import json
from pathlib import Path

import pytest

from tests.golden.recorded import FOLDER, frames, lines

RECORDINGS = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.jsonl"))
EVENTS = [name for name in RECORDINGS if Path(name).name.startswith("events")]
LARGEST_BYTES = 120_000


def sequences(recording: str) -> list[int]:
    return [int.from_bytes(message[1], "big") for message in frames(recording)]


@pytest.mark.parametrize("recording", RECORDINGS)
def test_lines_are_whole(recording: str) -> None:
    """Every line has its kind and step, every answer its request, and files stay small."""
    assert (FOLDER / f"{recording}.jsonl").stat().st_size < LARGEST_BYTES
    for line in lines(recording):
        assert line["step"] and line["what"] in ("answer", "frames", "note")
        if line["what"] == "answer":
            assert line["request"]["path"].startswith("/") and isinstance(line["status"], int)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_machine_is_not_in_it(recording: str) -> None:
    """Folders of the recording machine have their short names."""
    text = json.dumps(lines(recording))
    assert "/work/" not in text and "/tmp/" not in text and "/root/" not in text


@pytest.mark.parametrize("recording", EVENTS)
def test_no_batch_was_missed(recording: str) -> None:
    """Sequence numbers follow each other; they begin again once for each restart that was recorded."""
    found = sequences(recording)
    starts = [number for number, before in zip(found[1:], found, strict=False) if number != before + 1]
    restarts = [line for line in lines(recording, what="answer") if line["step"] == "restarted"]
    assert len(starts) == len(restarts) and all(start <= found[0] for start in starts), found
