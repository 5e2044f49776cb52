"""How DeepSpeed-MII's OpenAI server is started on the CPU, in front of a gRPC back end that generates."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.starters.vllm import PYTHON, missing_of


@dataclass(frozen=True)
class MiiOptions:
    """What one MII server is started with. `back_end` is HOST:PORT of a process that speaks MII's gRPC protocol.

    MII calls its model by the path it was given, so it is started beside the folder: the model's name is the folder's.
    """

    environment_path: Path
    model_path: Path
    back_end: str
    port: int = 0
    kind: str = "deepspeed"
    reports_url: bool = False
    health_path: str = "/health"  # says ok whether or not the back end is there

    @property
    def alias(self) -> str:
        return self.model_path.name

    def argv(self, port: int) -> list[str]:
        return [
            *("sh", "-c", 'cd "$0" && exec "$@"', str(self.model_path.parent)),
            *(str(self.environment_path / PYTHON), "-P", "-m", "mii.entrypoints.openai_api_server"),
            *("--model", self.alias, "--load-balancer", self.back_end, "--host", "127.0.0.1", "--port", str(port)),
        ]

    def environment(self) -> Mapping[str, str]:
        return {"HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}

    def missing(self) -> str | None:
        return missing_of(self.environment_path, self.model_path)
