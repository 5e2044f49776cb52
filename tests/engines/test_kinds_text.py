"""engines.kinds_text: README and docs are made from the table."""

from pathlib import Path

import pytest

from engines.kinds_text import kinds_table, main, metrics_table, renew
from router.kinds import KINDS

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", ["README.md", "docs/engines.md"])
def test_files_are_up_to_date(name: str) -> None:
    """What people read is what the code says; `make format` renews it."""
    text = (ROOT / name).read_text("utf-8")
    assert "<!-- " in text and renew(text) == text, f"run: python -m engines.kinds_text {name}"


def test_tables_name_everything() -> None:
    """A row per kind, and a row per meaning of each kind's page."""
    table = kinds_table(("Kind", "Engine"))
    assert all(f"| `{name}` | {row.engine} |" in table for name, row in KINDS.items())
    assert "| `vllm` | KV use | `vllm:kv_cache_usage_perc`, `vllm:gpu_cache_usage_perc` |" in metrics_table()


def test_renewing(tmp_path: Path) -> None:
    """Text around the markers stays; a table without its end is refused rather than cut."""
    path = tmp_path / "x.md"
    path.write_text("a\n<!-- metrics: begin -->\nold\n<!-- metrics: end -->\nb\n", "utf-8")
    main([str(path)])
    text = path.read_text("utf-8")
    assert text.startswith("a\n<!-- metrics: begin") and text.endswith("end -->\nb\n") and "old" not in text
    assert renew(text) == text and renew("nothing") == "nothing"
    with pytest.raises(ValueError):
        renew("<!-- metrics: begin -->")
