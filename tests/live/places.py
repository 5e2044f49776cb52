"""Where the engines' environments and model folders are: below the folder that ENGINES names (see the Makefile)."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from engines.starters.vllm import PYTHON
from engines.tiny_gguf import cached_tiny_gguf

VARIABLE = "ENGINES"
ADAPTERS = {"red": 1, "blue": 2}  # name → seed of its weights
SCRIPTS = Path(__file__).parent
TRITON_MODELS = SCRIPTS / "triton_models"


@dataclass(frozen=True)
class Places:
    root: Path

    @classmethod
    def prepared(cls) -> Self:
        """With the model folders made if need be (20 s). Raises KeyError where the Makefile did not set the variable."""
        places = cls(Path(os.environ[VARIABLE]))
        if not places.model.is_dir():
            places._run("tiny_checkpoint.py", cached_tiny_gguf(), places.model)
        for name, seed in ADAPTERS.items():
            if not places.adapter(name).is_dir():
                places._run("tiny_adapter.py", places.model, places.adapter(name), seed)
        return places

    @property
    def vllm(self) -> Path:
        return self.root / "vllm"

    @property
    def sglang(self) -> Path:
        return self.root / "sglang"

    @property
    def deepspeed(self) -> Path:
        return self.root / "deepspeed"

    @property
    def triton(self) -> Path:
        return self.root / "triton"

    @property
    def model(self) -> Path:
        """The tiny model as a folder; the same weights as in the GGUF file whose name it has."""
        return self.root / "models" / cached_tiny_gguf().stem

    def named(self, name: str) -> Path:
        """The same folder under another name, for a server that calls its model by its path."""
        link = self.root / "models" / "names" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self.model.resolve())
        return link

    def adapter(self, name: str) -> Path:
        return self.model.with_name(f"{self.model.name}-{name}")

    def _run(self, script: str, *arguments: object) -> None:
        """With the Python of the vLLM environment, which the others build upon."""
        argv = [str(self.vllm / PYTHON), str(SCRIPTS / script), *map(str, arguments)]
        subprocess.run(argv, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
