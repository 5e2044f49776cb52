"""router.admin.exposition: families to text, cut into pieces."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from router.admin.exposition import SAMPLES_PER_PIECE, pieces


def gauge(name: str, start: int, count: int) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, "Help \\ with\nbreaks", labels=("worker",))
    for number in range(start, start + count):
        family.add_metric([f'w"{number}\\'], number)
    return family


def test_pieces_make_one_page() -> None:
    """A large family is cut, also one that comes as several of a name; together they parse as one, in order, comments once."""
    families = [gauge("a", 0, 1000), gauge("b", 0, 10), gauge("b", 10, 900), CounterMetricFamily("c", "none", labels=("x",))]
    cut = list(pieces(families))
    assert all(piece.count(b"\n") <= SAMPLES_PER_PIECE + 2 for piece in cut)
    page = b"".join(cut).decode()
    assert page.count("# TYPE") == page.count("# HELP") == 3
    parsed = {family.name: family for family in text_string_to_metric_families(page)}
    assert [sample.value for sample in parsed["a"].samples] == list(range(1000))
    assert [sample.value for sample in parsed["b"].samples] == list(range(910))
    assert parsed["a"].samples[3].labels == {"worker": 'w"3\\'}
    assert parsed["c"].samples == []


def test_nothing_makes_nothing() -> None:
    """No families, no bytes."""
    assert list(pieces([])) == []
