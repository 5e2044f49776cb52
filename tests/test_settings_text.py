"""Settings as people see them: the output of --check is a file to use, the README's table is made from the code."""

import argparse
from pathlib import Path

import pytest

from router.options import FIELDS, add_flags, flag_of, from_flags, from_toml, resolve
from router.settings import Settings, parse_engine
from router.settings_text import BEGIN, END, check_text, engine_text, main, markdown, renew

README = Path(__file__).parent.parent / "README.md"


def resolved_from(*argv: str) -> str:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return check_text(resolve(from_flags(parser.parse_args(argv))))


def test_check_text_is_a_settings_file(tmp_path: Path) -> None:
    """What --check prints can be saved and given as --config: the same settings come out."""
    argv = ["--engine=vllm=http://a,weight=2,model=m", '--tokenizer=m=/x y\\"z', "--max-body-bytes=5000", "--memo-bytes=3m"]
    path = tmp_path / "printed.toml"
    path.write_text(resolved_from(*argv), "utf-8")
    settings = resolve(from_toml(path)).settings
    assert settings.engines == (parse_engine("vllm=http://a,weight=2,model=m"),)
    assert settings.tokens.tokenizer == ('m=/x y\\"z',)
    assert (settings.limits.max_body_bytes, settings.tokens.memo_bytes) == (5000, 3 * 1024**2)


def test_check_text_of_nothing_is_the_defaults(tmp_path: Path) -> None:
    """Every knob is printed, each as a default, sizes with their unit, and together they are the defaults."""
    text = resolved_from()
    assert "# from" not in text and all(line.endswith("  # default") for line in text.splitlines() if " = " in line)
    assert '\nmax_body_bytes = "64m"  # default\n' in text and '\nindex_bytes = "1g"  # default\n' in text
    assert all(f"\n{name} = " in text for name in FIELDS)
    path = tmp_path / "printed.toml"
    path.write_text(text, "utf-8")
    assert resolve(from_toml(path)).settings == Settings()


def test_check_text_tells_where_values_come_from() -> None:
    """A value that was set carries its source."""
    lines = resolved_from("--port=9000", "--no-access-log").splitlines()
    assert "port = 9000  # from --port" in lines
    assert "access_log = false  # from --no-access-log" in lines
    assert sum("# from" in line for line in lines) == 2


def test_secrets_are_masked() -> None:
    """An engine is shown as it was given, but for its key."""
    text = engine_text(parse_engine("vllm=http://a,api_key=secret,capacity_tokens=5,weight=1.5"))
    assert text == "vllm=http://a,capacity_tokens=5,api_key=***,weight=1.5"
    assert engine_text(parse_engine("tgi=http://a,adapters=x+y,ram_tokens=0")) == "tgi=http://a,ram_tokens=0,adapters=x+y"
    assert engine_text(parse_engine("vllm=http://a,ranks=2")) == "vllm=http://a,ranks=2"
    assert "secret" not in resolved_from("--engine=vllm=http://a,api_key=secret")
    lines = resolved_from("--redis=redis+sentinel://u:secret@h/m?sentinel_password=secret").splitlines()
    assert 'redis = "redis+sentinel://u:***@h/m?sentinel_password=***"  # from --redis' in lines
    assert 'redis = ""  # default' in resolved_from().splitlines()


def test_readme_table_is_current() -> None:
    """The README's table is the generated one; `make format` renews it."""
    assert markdown() in README.read_text("utf-8"), "run: python -m router.settings_text README.md"


def test_table_has_a_row_of_four_cells_for_every_knob() -> None:
    """No knob is missing, and no text breaks the table."""
    rows = [line for line in markdown().splitlines() if line.startswith("|")]
    assert all(line.count("|") == 5 for line in rows)
    for name in ("engine", *FIELDS):
        assert sum(line.startswith(f"| `{flag_of(name)}` |") for line in rows) == 1


def test_renew_replaces_what_is_between_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text around the table stays, an old table goes; a file without markers is refused and kept."""
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    main([str(path)])
    assert path.read_text("utf-8") == f"before\n{markdown()}\nafter\n" == renew(path.read_text("utf-8"))
    with pytest.raises(ValueError):
        renew("no markers")
    main([])
    assert capsys.readouterr().out == markdown() + "\n"
