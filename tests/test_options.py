"""Flags, variables and TOML all set the same knobs, in that order, and every mistake is told with its place."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import SettingsError
from router.kinds import KINDS
from router.options import (
    FIELDS,
    Given,
    Layer,
    Resolved,
    add_flags,
    flag_of,
    from_flags,
    from_toml,
    from_variables,
    is_list,
    read_size,
    resolve,
    show_value,
    split_list,
    unknown_variables,
    variable_of,
)
from router.settings import Settings, knobs


def flags(*argv: str) -> Layer:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return from_flags(parser.parse_args(argv))


def toml(folder: Path, text: str) -> Layer:
    path = folder / "warmline.toml"
    path.write_text(text, "utf-8")
    return from_toml(path)


def value_of(resolved: Resolved, name: str) -> Any:
    section = next(section for section, f in knobs() if f.name == name)
    return getattr(getattr(resolved.settings, section), name)


def another_value(name: str) -> Any:
    """An allowed value that is not the default."""
    f: Any = FIELDS[name]
    if is_list(f):
        return ("a", "b=c")
    if f.metadata["choices"]:
        return f.metadata["choices"][-1] if f.default != f.metadata["choices"][-1] else f.metadata["choices"][0]
    if f.type is bool:
        return not f.default
    if f.type is str:
        return "redis://other" if name == "redis" else "other"
    middle = (f.default + f.metadata["low"]) / 2
    value: float = int(middle) if f.type is int else middle
    return value if value != f.default else f.default + 1


def toml_text(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f"'{entry}'" for entry in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("name", FIELDS)
def test_every_knob_has_three_spellings(name: str, tmp_path: Path) -> None:
    """A knob set by flag, by variable or in the file comes out as the same value, with its source."""
    value = another_value(name)
    if isinstance(value, tuple):
        argv = [part for entry in value for part in (flag_of(name), entry)]
    elif isinstance(value, bool):
        argv = [flag_of(name) if value else flag_of("no_" + name)]
    else:
        argv = [f"{flag_of(name)}={value}"]
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    by_flag = resolve(flags(*argv))
    by_variable = resolve(from_variables({variable_of(name): text}))
    by_file = resolve(toml(tmp_path, f"{name} = {toml_text(value)}"))
    assert [value_of(way, name) for way in (by_flag, by_variable, by_file)] == [value] * 3
    assert by_flag.settings == by_variable.settings == by_file.settings != Settings()
    assert by_flag.sources == {name: argv[0].partition("=")[0]}
    assert by_variable.sources == {name: variable_of(name)}
    assert by_file.sources == {name: str(tmp_path / "warmline.toml")}


def test_spellings_are_made_from_the_name() -> None:
    """No table of spellings: the name alone gives flag and variable."""
    assert flag_of("max_body_bytes") == "--max-body-bytes"
    assert variable_of("max_body_bytes") == "WARMLINE_MAX_BODY_BYTES"


def test_nothing_given_is_the_default() -> None:
    """Without flags, variables and file the settings are the defaults, and no source is claimed."""
    assert resolve(flags(), from_variables({}), {}) == Resolved(Settings())


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    """The first layer that has a knob decides, knob by knob; the others fill in."""
    file = toml(tmp_path, "port = 1\nadmin_port = 1001\nmax_retries = 1\n")
    variables = from_variables({"WARMLINE_PORT": "2", "WARMLINE_ADMIN_PORT": "1002"})
    settings = resolve(flags("--port", "3"), variables, file).settings
    assert (settings.listen.port, settings.listen.admin_port, settings.upstream.max_retries) == (3, 1002, 1)


def test_a_flag_mends_a_bad_variable() -> None:
    """Only the value that counts is parsed, so one can always override what somebody else has set wrong."""
    assert resolve(flags("--port", "3"), from_variables({"WARMLINE_PORT": "x"})).settings.listen.port == 3


def test_lists_are_replaced_whole(tmp_path: Path) -> None:
    """Engines of a flag are all engines: lists of two layers are not mixed."""
    file = toml(tmp_path, "engine = ['vllm=http://a', 'vllm=http://b']")
    assert [e.worker_id for e in resolve(file).settings.engines] == ["a", "b"]
    assert [e.worker_id for e in resolve(flags("--engine", "vllm=http://c"), file).settings.engines] == ["c"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("  a  b,c=d ", ["a", "b,c=d"]),
        ("a b\nc d\n", ["a b", "c d"]),
        ("a b\n", ["a b"]),
        ("\n\n a \r\n", ["a"]),
    ],
)
def test_lists_in_variables(text: str, entries: list[str]) -> None:
    """Entries stand between spaces, or on lines of their own when one holds a space; commas belong to engines."""
    assert split_list(text) == entries


SIZES = [("0", 0), ("1000", 1000), ("10_000", 10_000), ("64k", 65_536), ("64K", 65_536), ("1m", 1024**2), ("2G", 2 * 1024**3)]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_sizes(text: str, size: int) -> None:
    """Sizes as nginx takes them: plain bytes or powers of 1024."""
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "1t", "1kb", "1.5m", "-1", "1 m", "٣", "0x10"])
def test_bad_sizes(text: str) -> None:
    """No guessing at other spellings."""
    with pytest.raises(ValueError):
        read_size(text)


@given(st.integers(0, 2**50))
def test_shown_sizes_read_back(size: int) -> None:
    """What help texts and the README show as a size can be given as one."""
    assert read_size(show_value("max_body_bytes", size)) == size


def test_sizes_are_for_bytes_only(tmp_path: Path) -> None:
    """`64k` connections is not a thing, in no spelling; sizes work in all three."""
    for layer in (flags("--max-connections", "64k"), toml(tmp_path, "max_connections = '64k'")):
        with pytest.raises(SettingsError, match="max_connections: '64k' is not an integer at least 1"):
            resolve(layer)
    for layer in (
        flags("--max-body-bytes", "1m"),
        toml(tmp_path, "max_body_bytes = '1m'"),
        toml(tmp_path, "max_body_bytes=1048576"),
    ):
        assert resolve(layer).settings.limits.max_body_bytes == 1024**2


@pytest.mark.parametrize("text", ["true", "Yes", "ON", "1"])
def test_true_words(text: str) -> None:
    """Truth values in variables are the words people use."""
    assert resolve(from_variables({"WARMLINE_ACCESS_LOG": text})).settings.log.access_log is True
    opposite = {"true": "false", "Yes": "No", "ON": "OFF", "1": "0"}[text]
    assert resolve(from_variables({"WARMLINE_ACCESS_LOG": opposite})).settings.log.access_log is False


BAD_VARIABLES = [
    ("WARMLINE_PORT", "eighty", "port: 'eighty' is not an integer between 0 and 65535 (from WARMLINE_PORT)"),
    ("WARMLINE_PORT", "", "port: '' is not an integer between 0 and 65535 (from WARMLINE_PORT)"),
    ("WARMLINE_PORT", "70000", "port: 70000 is not between 0 and 65535 (from WARMLINE_PORT)"),
    (
        "WARMLINE_POLICY",
        "best",
        "policy: 'best' is not one of warm, ring, least-queue, round-robin, random (from WARMLINE_POLICY)",
    ),
    ("WARMLINE_RETRY_BUDGET", "nan", "retry_budget: nan is not a number between 0 and 1 (from WARMLINE_RETRY_BUDGET)"),
    ("WARMLINE_IDLE_TIMEOUT_S", "inf", "idle_timeout_s: inf is not a number at least 0.05 (from WARMLINE_IDLE_TIMEOUT_S)"),
    ("WARMLINE_IDLE_TIMEOUT_S", "2s", "idle_timeout_s: '2s' is not a number at least 0.05 (from WARMLINE_IDLE_TIMEOUT_S)"),
    ("WARMLINE_ACCESS_LOG", "maybe", "access_log: 'maybe' is not a true/false value (from WARMLINE_ACCESS_LOG)"),
    (
        "WARMLINE_MAX_BODY_BYTES",
        "1t",
        "max_body_bytes: '1t' is not a number of bytes such as 65536, 64k, 1m or 2g at least 1 (from WARMLINE_MAX_BODY_BYTES)",
    ),
    (
        "WARMLINE_ENGINE",
        "ollama=http://a",
        f"engine: kind 'ollama' is not one of {', '.join(KINDS)} (from WARMLINE_ENGINE)",
    ),
]


@pytest.mark.parametrize(("name", "text", "problem"), BAD_VARIABLES)
def test_bad_values_tell_what_and_where(name: str, text: str, problem: str) -> None:
    """Knob, value, what is allowed and where it stood."""
    with pytest.raises(SettingsError) as caught:
        resolve(from_variables({name: text}))
    assert str(caught.value) == problem


BAD_FILES = [
    ("port = 80.0", "port: 80.0 is not an integer"),
    ("port = true", "port: True is not an integer"),
    ("port = '80x'", "port: '80x' is not an integer between 0 and 65535"),
    ("access_log = 1", "access_log: 1 is not a true/false value"),
    ("host = 1", "host: 1 is not a text"),
    ("idle_timeout_s = inf", "idle_timeout_s: inf is not a number at least 0.05"),
    ("idle_timeout_s = true", "idle_timeout_s: True is not a number"),
    ("tokenizer = [1]", "tokenizer: [1] is not a list of texts"),
    ("tokenizer = ['']", "tokenizer: '' is not PATH or MODEL=PATH"),
    ("engine = 5", "engine: 5 is not a list of texts"),
    ("prot = 1", "prot: no such setting; did you mean port?"),
    ("engines = []", "engines: no such setting; did you mean engine?"),
    ("max-body-bytes = 1", "max-body-bytes: no such setting; did you mean max_body_bytes?"),
    ("zzz = 1", "zzz: no such setting (in "),
    ("[listen]\nport = 1", "[listen]: sections are not read; every setting stands at the top level, like port = 8080"),
    ("[[engine]]\nkind = 'vllm'", 'engine: tables are not read here; write engine = ["KIND=URL", …]'),
    ("[engine]\nkind = 'vllm'", 'engine: tables are not read here; write engine = ["KIND=URL", …]'),
    ("port =", "is not TOML: "),
    ("port = 1\nport = 2", "is not TOML: "),
]


@pytest.mark.parametrize(("text", "problem"), BAD_FILES)
def test_bad_files(text: str, problem: str, tmp_path: Path) -> None:
    """A file is read strictly: unknown keys get the nearest name, and the error names the file."""
    with pytest.raises(SettingsError) as caught:
        resolve(toml(tmp_path, text))
    assert problem in str(caught.value)
    assert "warmline.toml" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file, a folder or a binary file is told as such."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, problem in (("gone", "No such file"), (".", "Is a directory"), ("binary", "is not UTF-8 text")):
        with pytest.raises(SettingsError, match=problem):
            from_toml(tmp_path / name)


def test_all_mistakes_at_once() -> None:
    """Nobody has to mend settings one run at a time."""
    with pytest.raises(SettingsError) as caught:
        resolve(flags("--port", "x", "--policy", "y", "--engine", "z"))
    assert len(str(caught.value).splitlines()) == 3


def test_one_entry_needs_no_list(tmp_path: Path) -> None:
    """`engine = "…"` in the file is a list of one."""
    assert len(resolve(toml(tmp_path, "engine = 'vllm=http://a'")).settings.engines) == 1


def test_checks_over_several_knobs_name_a_source() -> None:
    """Engines given twice and ports that are the same are found before anything listens."""
    with pytest.raises(SettingsError, match=r"'http://a' is given twice \(from --engine\)"):
        resolve(flags("--engine", "vllm=http://a", "--engine", "vllm=http://a"))
    with pytest.raises(SettingsError, match=r"admin_port: 8081 is not different from port \(from --port\)"):
        resolve(flags("--port", "8081"))
    assert resolve(flags("--port", "0", "--admin-port", "0")).settings.listen.admin_port == 0


def test_kubernetes_service_links() -> None:
    """What Kubernetes sets beside a Service named warmline is no typo, and WARMLINE_PORT=tcp://… says how to go on."""
    links = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8080_TCP", "PORT_8080_TCP_ADDR", "ADMIN_SERVICE_HOST"]
    assert unknown_variables({f"WARMLINE_{link}": "x" for link in links}) == []
    with pytest.raises(SettingsError, match=r"Kubernetes sets it so .* enableServiceLinks: false"):
        resolve(from_variables({"WARMLINE_PORT": "tcp://10.0.0.1:8080"}))


def test_unknown_variables_are_told() -> None:
    """A misspelt variable does nothing, so it is told with the nearest name; known ones and others' are not."""
    environ = {"WARMLINE_POTR": "1", "WARMLINE_PORT": "1", "WARMLINE_CONFIG": "x", "WARMLINE_ADMIN": "y", "PATH": "z"}
    assert unknown_variables(environ) == ["WARMLINE_POTR: no such setting; did you mean WARMLINE_PORT?"]


def test_help_shows_default_and_percent_signs(capsys: pytest.CaptureFixture[str]) -> None:
    """Help is made from the knobs: text and default of each, and it prints."""
    parser = argparse.ArgumentParser(prog="x")
    add_flags(parser)
    text = " ".join(parser.format_help().split())
    for _, f in knobs():
        assert f.metadata["help"].split(";")[0] in text
    assert "request body (default 64m)" in text and "--prefill-tokens-per-s X" in text


def test_given_keeps_value_and_place() -> None:
    """A layer holds what was written, unparsed, with its place."""
    assert flags("--port", "x")["port"] == Given("x", "--port")
    assert flags("--no-access-log")["access_log"] == Given(False, "--no-access-log")
