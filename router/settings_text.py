"""Settings for people: what `serve --check` prints, and the table in the README.

`python -m router.settings_text` prints the table; with a file name it renews the table between that file's markers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from router.options import ENGINE, ENGINE_HELP, FIELDS, KnobField, Resolved, flag_of, is_list, is_size, show_value
from router.settings import ENGINE_OPTIONS, EngineSpec, allowed_range, knobs

BEGIN = "<!-- settings: begin (python -m router.settings_text README.md) -->"
END = "<!-- settings: end -->"
MASK = "***"


def engine_text(engine: EngineSpec) -> str:
    """The engine as `--engine` takes it, its API key masked."""
    words = [f"{engine.kind}={engine.url}"]
    for key in ENGINE_OPTIONS:
        value = getattr(engine, key)
        if value is None or value == () or (key in ("weight", "ranks") and value == 1):
            continue
        shown = "+".join(value) if isinstance(value, tuple) else show_value(key, value)
        words.append(f"{key}={MASK if key == 'api_key' else shown}")
    return ",".join(words)


def knob_value(name: str, value: Any) -> str:
    """A knob's value in TOML, sizes with their unit as text ("64m"), secrets masked."""
    mask = FIELDS[name].metadata["mask"]
    if mask is not None:
        return toml_value(mask(value))
    shown = show_value(name, value) if is_size(name) else ""
    return toml_value(shown) if shown and not shown.isdigit() else toml_value(value)


def toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(entry) for entry in value) + "]"
    if isinstance(value, str):
        return orjson.dumps(value).decode()
    return ("true" if value else "false") if isinstance(value, bool) else repr(value)


def check_text(resolved: Resolved) -> str:
    """Every setting as a TOML file, secrets masked; a comment tells where each value came from."""
    entries = tuple(engine_text(engine) for engine in resolved.settings.engines)
    lines = [f"engine = {toml_value(entries)}{origin(resolved, ENGINE)}"]
    current = ""
    for section, f in knobs():
        if section != current:
            lines += ["", f"# {section}"]
            current = section
        value = getattr(getattr(resolved.settings, section), f.name)
        lines.append(f"{f.name} = {knob_value(f.name, value)}{origin(resolved, f.name)}")
    return "\n".join(lines)


def origin(resolved: Resolved, name: str) -> str:
    source = resolved.sources.get(name)
    return f"  # from {source}" if source else "  # default"


def table_rows() -> Iterator[str]:
    yield f"| `--{ENGINE}` | none | text | {ENGINE_HELP} |"
    current = ""
    for section, f in knobs():
        if section != current:
            yield f"| **{section}** | | | |"
            current = section
        default = "none" if f.default in ("", ()) else f"`{show_value(f.name, f.default)}`"
        yield f"| `{flag_of(f.name)}` | {default} | {allowed_text(f)} | {f.metadata['help']} |"


def allowed_text(f: KnobField) -> str:
    low, high, choices = (f.metadata[name] for name in ("low", "high", "choices"))
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if f.type is bool:
        return f"`{flag_of(f.name)}`, `{flag_of('no_' + f.name)}`"
    if is_list(f) or (low is None and high is None):
        return "text"
    if is_size(f.name) and high is None:
        return f"at least {show_value(f.name, low)}"
    return allowed_range(low, high)


def markdown() -> str:
    """The table of all settings between its markers."""
    head = ["| Flag | Default | Allowed | Meaning |", "|---|---|---|---|"]
    return "\n".join([BEGIN, *head, *table_rows(), END])


def renew(text: str) -> str:
    """`text` with the table between the markers made anew. Raises ValueError when a marker is missing."""
    before, after = text.index(BEGIN), text.index(END) + len(END)
    return text[:before] + markdown() + text[after:]


def main(arguments: list[str]) -> None:
    if arguments:
        path = Path(arguments[0])
        path.write_text(renew(path.read_text("utf-8")), "utf-8")
    else:
        print(markdown())


if __name__ == "__main__":
    main(sys.argv[1:])
