"""How a local Triton Inference Server is started on the CPU: the binary in PyTriton's wheel, with its Python backend."""

import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = Path("lib", f"python{sysconfig.get_python_version()}", "site-packages")


@dataclass(frozen=True)
class TritonOptions:
    """What one Triton is started with.

    `environment_path` is a virtual environment with nvidia-pytriton, `repository_path` its model repository, `alias` the
    model to be asked for. Metrics are on a port of their own, /metrics there; `metrics_port` must be free.
    """

    environment_path: Path
    repository_path: Path
    alias: str
    metrics_port: int
    port: int = 0
    flags: tuple[str, ...] = ()
    kind: str = "triton"
    reports_url: bool = False
    health_path: str = "/v2/health/ready"

    @property
    def server_path(self) -> Path:
        return self.environment_path / PACKAGES / "pytriton" / "tritonserver"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def argv(self, port: int) -> list[str]:
        return [
            str(self.server_path / "bin" / "tritonserver"),
            f"--model-repository={self.repository_path}",
            f"--backend-directory={self.server_path / 'backends'}",
            *("--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={self.metrics_port}", "--allow-gpu-metrics=false"),
            *self.flags,
        ]

    def environment(self) -> Mapping[str, str]:
        """The Python backend loads the shared library of Python and takes the packages of the first python3 in PATH."""
        libraries = [str(self.environment_path / PACKAGES / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
        programs = [str(self.environment_path / "bin"), os.environ.get("PATH", os.defpath)]
        return {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "PATH": os.pathsep.join(programs)}

    def missing(self) -> str | None:
        if not os.access(self.server_path / "bin" / "tritonserver", os.X_OK):
            return f"no environment at {self.environment_path}"
        return None if self.repository_path.is_dir() else f"no model repository at {self.repository_path}"
