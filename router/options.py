"""From flags, WARMLINE_* variables and a TOML file to Settings; every spelling is made from `settings.knobs()`.

A knob takes its value from the first of: flag, variable, file, default. Only that value is parsed, so a flag can
mend a bad variable. All problems are reported at once, each with knob, value, what is allowed and where it stood.
"""

import argparse
import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.errors import SettingsError
from router.settings import (
    ENGINE_OPTIONS,
    EngineSpec,
    Settings,
    a_or_an,
    allowed_range,
    build,
    check,
    knobs,
    parse_engine,
    type_name,
)

ENGINE = "engine"
PREFIX = "WARMLINE_"
OTHER_VARIABLES = frozenset({"WARMLINE_CONFIG", "WARMLINE_ADMIN"})  # read by cli.py, not knobs
SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
# Kubernetes sets such variables in every pod beside a Service named warmline or warmline-…
SERVICE_LINK = re.compile(r"WARMLINE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
ENGINE_HELP = f"KIND=URL[,key=value…]: an engine to route to; repeatable. Keys: {', '.join(ENGINE_OPTIONS)}"

KnobField = dataclasses.Field[Any]
FIELDS: Mapping[str, KnobField] = {f.name: f for _, f in knobs()}


@dataclass(frozen=True)
class Given:
    """One value as it was written, and where: `--port`, `WARMLINE_PORT` or `warmline.toml`."""

    value: Any
    source: str


Layer = Mapping[str, Given]


@dataclass(frozen=True)
class Resolved:
    """`sources` holds the knobs (and `engine`) that were set; all others stand at their default."""

    settings: Settings
    sources: Mapping[str, str] = field(default_factory=dict)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def all_flags() -> list[str]:
    """Every flag of a setting, in both forms where it is a truth value."""
    negated = [flag_of(f"no_{f.name}") for f in FIELDS.values() if f.type is bool]
    return [*(flag_of(name) for name in (ENGINE, *FIELDS)), *negated]


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def is_list(f: KnobField) -> bool:
    return not isinstance(f.type, type)


def is_size(name: str) -> bool:
    """Knobs that count bytes accept 64k, 1m and 2g."""
    return name.endswith("_bytes")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per knob, in a group per section. Values stay text until `resolve`; an absent flag sets nothing."""
    engines = parser.add_argument_group("engines")
    engines.add_argument("--engine", action="append", default=argparse.SUPPRESS, metavar="KIND=URL", help=ENGINE_HELP)
    groups: dict[str, Any] = {}
    for section, f in knobs():
        group = groups.get(section) or groups.setdefault(section, parser.add_argument_group(section))
        help_text = f"{f.metadata['help']} ({describe_default(f)})".replace("%", "%%")
        if f.type is bool:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(flag_of(f.name), action=action, default=argparse.SUPPRESS, help=help_text)
        else:
            action = "append" if is_list(f) else "store"
            metavar = "|".join(f.metadata["choices"]) if f.metadata["choices"] else metavar_of(f)
            group.add_argument(flag_of(f.name), action=action, default=argparse.SUPPRESS, metavar=metavar, help=help_text)


def metavar_of(f: KnobField) -> str:
    if is_size(f.name):
        return "BYTES"
    if f.name.endswith("_s") and not f.name.endswith("_per_s"):
        return "SECONDS"
    return {int: "N", float: "X", str: "TEXT"}.get(f.type, f.name.upper())  # type: ignore[arg-type]


def describe_default(f: KnobField) -> str:
    if f.default in ("", ()):
        return "none"
    return f"default {show_value(f.name, f.default)}"


def show_value(name: str, value: Any) -> str:
    """A knob's value as a flag would take it: sizes with their unit, truth values as true and false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_size(name) and value:
        for unit in ("g", "m", "k"):
            if value % SIZE_UNITS[unit] == 0:
                return f"{value // SIZE_UNITS[unit]}{unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def from_flags(arguments: argparse.Namespace) -> Layer:
    given = vars(arguments)
    return {
        name: Given(given[name], flag_of(f"no_{name}" if given[name] is False else name))
        for name in (ENGINE, *FIELDS)
        if name in given
    }


def from_variables(environ: Mapping[str, str]) -> Layer:
    """Lists (`WARMLINE_ENGINE`, `WARMLINE_TOKENIZER`): entries on lines of their own, or between spaces on one line."""
    layer = {}
    for name in (ENGINE, *FIELDS):
        text = environ.get(variable_of(name))
        if text is None:
            continue
        listed = name == ENGINE or is_list(FIELDS[name])
        layer[name] = Given(split_list(text) if listed else text, variable_of(name))
    return layer


def split_list(text: str) -> list[str]:
    entries = text.splitlines() if "\n" in text else text.split()
    return [entry.strip() for entry in entries if entry.strip()]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A warning per WARMLINE_* variable that sets nothing. The environment is shared, so this is no error."""
    known = {variable_of(name) for name in (ENGINE, *FIELDS)} | OTHER_VARIABLES
    strangers = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    return [f"{name}: no such setting{suggestion(name, known)}" for name in strangers if not SERVICE_LINK.fullmatch(name)]


def suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def from_toml(path: Path) -> Layer:
    """Flat keys, one per knob, plus `engine`. Raises SettingsError on what is not TOML, unknown keys and sections."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"config: {str(path)!r} is not a readable file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"config: {str(path)!r} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"config: {str(path)!r} is not TOML: {error}") from None
    problems = [problem for key, value in table.items() if (problem := toml_problem(key, value))]
    if problems:
        raise SettingsError("\n".join(f"{problem} (in {path})" for problem in problems))
    return {
        key: Given([value] if takes_list(key) and isinstance(value, str) else value, str(path)) for key, value in table.items()
    }


def takes_list(name: str) -> bool:
    return name == ENGINE or is_list(FIELDS[name])


def toml_problem(key: str, value: Any) -> str | None:
    tables = value if isinstance(value, list) else [value]
    if key == ENGINE and any(isinstance(entry, dict) for entry in tables):
        return 'engine: tables are not read here; write engine = ["KIND=URL", …]'
    if isinstance(value, dict):
        return f"[{key}]: sections are not read; every setting stands at the top level, like port = 8080"
    if key != ENGINE and key not in FIELDS:
        return f"{key}: no such setting{suggestion(key, (ENGINE, *FIELDS))}"
    return None


def resolve(*layers: Layer) -> Resolved:
    """Settings from layers, strongest first. SettingsError lists every bad value, one a line."""
    chosen: dict[str, Given] = {}
    for layer in reversed(layers):
        chosen.update(layer)
    problems: list[str] = []
    engines: list[EngineSpec] = []
    values: dict[str, Any] = {}
    for name, given in chosen.items():
        try:
            if name == ENGINE:
                engines = read_engines(given.value)
            else:
                values[name] = read_value(FIELDS[name], given.value)
        except SettingsError as error:
            problems.append(f"{error} (from {given.source})")
    if problems:
        raise SettingsError("\n".join(problems))
    return Resolved(join(values, engines, chosen), {name: given.source for name, given in chosen.items()})


def join(values: Mapping[str, Any], engines: Iterable[EngineSpec], chosen: Layer) -> Settings:
    """Checks that need more than one knob; each single value is known to be good."""
    try:
        settings = build(values, tuple(engines))
    except SettingsError as error:
        raise SettingsError(f"{error} (from {chosen[ENGINE].source})") from None
    if settings.listen.port == settings.listen.admin_port != 0:
        source = (chosen.get("admin_port") or chosen["port"]).source
        raise SettingsError(f"admin_port: {settings.listen.admin_port} is not different from port (from {source})")
    return settings


def read_engines(value: Any) -> list[EngineSpec]:
    return [parse_engine(text) for text in read_texts(ENGINE, value)]


def read_texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise SettingsError(f"{name}: {value!r} is not a list of texts")
    return value


def read_value(f: KnobField, value: Any) -> Any:
    """A value as written (text, or a TOML value) to the knob's own type, checked. Raises SettingsError."""
    if is_list(f):
        value = tuple(read_texts(f.name, value))
        if not all(value):
            raise SettingsError(f"{f.name}: '' is not {f.metadata['help'].split(':')[0]}")
    elif isinstance(value, str):
        value = read_text(f, value.strip())
    if f.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{f.name}: {value!r} is not {describe_allowed(f)}")
    check(f, value)
    return value


def read_text(f: KnobField, text: str) -> Any:
    try:
        if f.type is bool:
            return TRUTHS[text.lower()]
        if f.type is int:
            return read_size(text) if is_size(f.name) else int(text)
        return float(text) if f.type is float else text
    except (ValueError, KeyError):
        hint = ""
        if f.name in ("port", "admin_port") and text.startswith("tcp://"):
            hint = "; Kubernetes sets it so for a Service of that name: give the flag, or set enableServiceLinks: false"
        raise SettingsError(f"{f.name}: {text!r} is not {describe_allowed(f)}{hint}") from None


def read_size(text: str) -> int:
    """`65536`, `64k`, `1m` or `2g` (powers of 1024, either case) to bytes. Raises ValueError."""
    matched = re.fullmatch(r"([0-9][0-9_]*)([kmg]?)", text.lower())
    if matched is None:
        raise ValueError(text)
    return int(matched[1]) * SIZE_UNITS[matched[2]]


def describe_allowed(f: KnobField) -> str:
    """What a knob takes, to follow "is not": "an integer between 0 and 65535"."""
    low, high = f.metadata["low"], f.metadata["high"]
    noun = "number of bytes such as 65536, 64k, 1m or 2g" if is_size(f.name) else type_name(f)
    text = a_or_an(noun)
    return text if low is None and high is None else f"{text} {allowed_range(low, high)}"
