"""A kind's Prometheus page read by meaning: the names that a number had over the releases, newest first."""

import math
from collections.abc import Mapping

from engines.fetch import Answer, BadAnswer
from router.wire.metrics_text import MetricReader, Samples, total

START = "process_start_time_seconds"
STARTED = "process start"  # its meaning


class MetricPage:
    """`names`: meaning → the series that tell it, newest name first. One per kind."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        self.names = names
        self._reader = MetricReader([name for alternatives in names.values() for name in alternatives])

    def read(self, answer: Answer) -> Samples | None:
        """Meaning → samples of the first of its names with a finite value; None when the page is switched off.

        Meanings that the page does not tell are absent. Raises BadAnswer when the page fails.
        """
        if answer.unknown_route or answer.refuses_key:
            return None
        if not answer.ok:
            raise BadAnswer(f"{answer.path} answered {answer.status}")
        found = self._reader.read(answer.body)
        samples = {}
        for meaning, names in self.names.items():
            for name in names:
                finite = [sample for sample in found.get(name, ()) if math.isfinite(sample.value)]
                if finite:
                    samples[meaning] = finite
                    break
        return samples


def counters(samples: Samples, *meanings: str) -> dict[str, float]:
    """The sums of those counters that the page tells."""
    return {meaning: value for meaning in meanings if (value := total(samples, meaning)) is not None}


def start_marker(samples: Samples) -> dict[str, str]:
    """The start of the process, as a marker of a Look; empty when the page does not tell it."""
    start = total(samples, STARTED)
    return {} if start is None else {START: repr(start)}


def label_count(text: str | None) -> int | None:
    """A count that stands in a label: a plain number above 0, else None."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 15:
        return None
    return int(text) or None
