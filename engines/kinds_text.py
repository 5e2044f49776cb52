"""The kinds of engines for people: the tables of README.md and docs/engines.md, made from the rows and the adapters.

`python -m engines.kinds_text FILE…` renews the tables between the markers of those files.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from engines.metric_page import MetricPage
from router.kinds import ROWS

COLUMNS: Mapping[str, str] = {
    "Kind": "name",
    "Engine": "engine",
    "Load from": "load",
    "Cache known by": "cache",
    "While it loads": "loading",
    "Overloaded": "overload",
    "Errors": "errors",
    "Client gone": "cancel",
}
SHORT = ("Kind", "Engine", "Load from", "Cache known by")


def marked(name: str, text: str) -> str:
    return f"<!-- {name}: begin (python -m engines.kinds_text) -->\n{text}\n<!-- {name}: end -->"


def kinds_table(columns: Sequence[str]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in ROWS:
        cells = [str(getattr(row, COLUMNS[column])) for column in columns]
        lines.append(f"| `{cells[0]}` | {' | '.join(cells[1:])} |")
    return "\n".join(lines)


def pages() -> Iterator[tuple[str, MetricPage]]:
    """(kind, its Prometheus page) of the kinds that have one."""
    for row in ROWS:
        page = getattr(import_module(row.adapter.partition(":")[0]), "METRICS", None)
        if page is not None:
            yield row.name, page


def metrics_table() -> str:
    lines = ["| Kind | Meaning | Series, newest name first |", "|---|---|---|"]
    for kind, page in pages():
        for meaning, names in page.names.items():
            lines.append(f"| `{kind}` | {meaning} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


TABLES = {
    "kinds": lambda: kinds_table(SHORT),
    "all about kinds": lambda: kinds_table(tuple(COLUMNS)),
    "metrics": metrics_table,
}


def renew(text: str) -> str:
    """`text` with every table between its markers made anew. Raises ValueError when an end is missing."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: begin", f"<!-- {name}: end -->"
        if begin in text:
            before, after = text.index(begin), text.index(end) + len(end)
            text = text[:before] + marked(name, make()) + text[after:]
    return text


def main(files: list[str]) -> None:
    for file in files:
        path = Path(file)
        path.write_text(renew(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
