"""router.kinds: one row makes a kind known everywhere."""

import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from router.kinds import KINDS, ROWS, Kind

ROOT = Path(__file__).parent.parent
ADAPTER = '''"""An engine that this test made up."""

from engines.openai import OpenAi


class Novel(OpenAi):
    """Looks at it like at any other."""
'''
ROW = """    Kind(
        name="novel",
        engine="Novel",
        load="none",
        cache="none",
        loading="503",
        overload="429",
        errors="none",
        cancel="none",
        adapter="engines.novel:Novel",
        reuses_prefixes=False,
    ),
"""
USE = """
from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.kinds_text import kinds_table
from engines.sidecar.portrait import Portrait
from router.core.fleet import Fleet
from router.settings import FleetSettings, parse_engine

spec = parse_engine("novel=http://10.0.0.1:8000")
print(type(adapter_of(spec.kind, EngineHttp(spec, 1.0))).__name__)
print(Portrait(spec).report(0.0, {}).truth, Fleet(FleetSettings()).add(spec, 0.0).kind)
print("| `novel` | Novel |" in kinds_table(("Kind", "Engine")))
"""


def test_a_new_kind_is_one_file_and_one_row(tmp_path: Path) -> None:
    """With one file in engines/ and one row in router/kinds.py, --engine takes the kind and everything else knows it."""
    for package in ("router", "engines"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "engines" / "novel.py").write_text(ADAPTER, "utf-8")
    table = tmp_path / "router" / "kinds.py"
    table.write_text(table.read_text("utf-8").replace("ROWS = (\n", "ROWS = (\n" + ROW), "utf-8")
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["Novel", "none novel", "True"]


def test_rows_are_whole() -> None:
    """Each kind has its own name and says a line about everything, in words that fit a cell of a table."""
    assert len(KINDS) == len(ROWS)
    for row in ROWS:
        for field in fields(Kind):
            text = str(getattr(row, field.name))
            assert text and not set("|\n") & set(text), f"{row.name}.{field.name}: {text!r}"
