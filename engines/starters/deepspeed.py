"""How the DeepSpeed back end of this project is started on the CPU; MII's server (`engines.starters.mii`) stands before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.starters.vllm import PYTHON, missing_of

SOURCES = Path(__file__).parents[2]


@dataclass(frozen=True)
class BackEndOptions:
    """What one `engines.deepspeed_backend` is started with: gRPC on `grpc_port`, its page of metrics on `port`."""

    environment_path: Path
    model_path: Path
    grpc_port: int
    port: int = 0
    max_waiting: int = 16
    kind: str = "deepspeed"
    alias: str = "DeepSpeed"
    reports_url: bool = False
    health_path: str = "/metrics"

    @property
    def address(self) -> str:
        """As MII's server takes it."""
        return f"127.0.0.1:{self.grpc_port}"

    def argv(self, port: int) -> list[str]:
        return [
            *(str(self.environment_path / PYTHON), "-P", "-m", "engines.deepspeed_backend"),
            *("--model", str(self.model_path), "--host", "127.0.0.1", "--port", str(self.grpc_port)),
            *("--metrics-port", str(port), "--max-waiting", str(self.max_waiting)),
        ]

    def environment(self) -> Mapping[str, str]:
        """Its own Python has DeepSpeed but not this project: that is found by PYTHONPATH."""
        return {"HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCES)}

    def missing(self) -> str | None:
        return missing_of(self.environment_path, self.model_path)
