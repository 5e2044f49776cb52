"""How a local SGLang is started on the CPU, from an environment of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.starters.vllm import PYTHON, events_config, missing_of


@dataclass(frozen=True)
class SglangOptions:
    """What one SGLang is started with.

    `environment_path` is a virtual environment with SGLang, `model_path` a folder that transformers can load. A page is its
    block; its own default is 1 token. `cache_tokens` is all that the cache holds. The events are bound at `events`, e.g.
    `ipc:///run/kv`; see `engines.starters.vllm` for TCP.
    """

    environment_path: Path
    model_path: Path
    alias: str
    port: int = 0
    page_tokens: int = 16
    context_tokens: int = 4096
    max_requests: int = 4
    cache_tokens: int = 16_384
    threads: int = 1
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    flags: tuple[str, ...] = ()
    kind: str = "sglang"
    reports_url: bool = False
    health_path: str = "/health"  # generates a token, so it takes a second and proves that all of it works

    def argv(self, port: int) -> list[str]:
        """Plain torch in place of kernels that need AVX-512 or a GPU."""
        return [
            *(str(self.environment_path / PYTHON), "-P", "-m", "sglang.launch_server"),
            *("--model-path", str(self.model_path), "--served-model-name", self.alias),
            *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule"),
            *("--context-length", str(self.context_tokens), "--max-running-requests", str(self.max_requests)),
            *("--max-total-tokens", str(self.cache_tokens), "--mem-fraction-static", "0.1"),
            *("--page-size", str(self.page_tokens), "--skip-server-warmup", "--enable-metrics", "--enable-cache-report"),
            *(() if self.events is None else ("--kv-events-config", events_config(self.events, self.replay, self.topic))),
            *self.flags,
        ]

    def environment(self) -> Mapping[str, str]:
        return {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(self.threads)}

    def missing(self) -> str | None:
        return missing_of(self.environment_path, self.model_path)
