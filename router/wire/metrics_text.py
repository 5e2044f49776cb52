"""Prometheus text exposition → samples, for the few names a reader asks for. Pure; tolerant of everything else.

An engine's page has thousands of histogram lines and is read four times a second: one compiled pattern finds the
wanted lines in C, labels are split only there. Lines that do not parse are skipped, as are timestamps and exemplars.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_QUOTED = rb'"(?:[^"\\\n]|\\.)*+"'
_LABELS = rb'\{((?:[^"}\n]|' + _QUOTED + rb")*+)\}"
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page. `value` may be infinite or NaN, as the format allows."""

    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, list[Sample]]


class MetricReader:
    """Reads the samples of a fixed set of names; make one per kind of engine, not per page.

    A colon of a name may stand as an underscore on the page, as exporters write it that take no colons: `sglang_x` is read
    as `sglang:x`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.encode().replace(b":", b"_"): name for name in names}
        longest_first = sorted((name.encode() for name in self._names.values()), key=len, reverse=True)
        any_name = b"|".join(re.escape(name).replace(b":", b"[:_]") for name in longest_first)
        self._line = re.compile(rb"\n(" + any_name + rb")(?:" + _LABELS + rb")?[ \t]+(\S+)")

    def read(self, page: bytes) -> dict[str, list[Sample]]:
        """Name → samples in page order; a name without a readable sample is absent."""
        found: dict[str, list[Sample]] = {}
        for name, labels, number in self._line.findall(b"\n" + page):  # a literal \n is found faster than ^
            try:
                value = float(number)
            except ValueError:
                continue
            found.setdefault(self._names[name.replace(b":", b"_")], []).append(Sample(read_labels(labels), value))
        return found


def read_labels(text: bytes) -> dict[str, str]:
    r"""`a="x",b="y"` to a dict, with `\\`, `\"` and `\n` undone; bytes that are not UTF-8 are replaced."""
    return {name.decode(): _unescaped(value.decode("utf-8", "replace")) for name, value in _LABEL.findall(text)}


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def total(samples: Samples, *names: str) -> float | None:
    """Sum over all series of the first name that has a finite value; None when none has (unknown, not 0)."""
    values = _finite(samples, names)
    return sum(values) if values else None


def mean(samples: Samples, *names: str) -> float | None:
    """Mean over all series of the first name that has a finite value; None when none has."""
    values = _finite(samples, names)
    return sum(values) / len(values) if values else None


def _finite(samples: Samples, names: tuple[str, ...]) -> list[float]:
    for name in names:
        values = [sample.value for sample in samples.get(name, ()) if math.isfinite(sample.value)]
        if values:
            return values
    return []
