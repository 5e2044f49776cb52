"""How a local vLLM is started on the CPU. It lives in an environment of its own: 2 GB that the router never imports."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path("bin/python")


@dataclass(frozen=True)
class VllmOptions:
    """What one vLLM is started with.

    `environment_path` is a virtual environment with vLLM, `model_path` a folder that transformers can load. The events
    are bound at `events`, e.g. `ipc:///run/kv`: of TCP endpoints vLLM binds only those with a wildcard, and connects to others.
    `cache_blocks` makes the cache small, so that it evicts soon. `developer` opens /reset_prefix_cache and the like.
    """

    environment_path: Path
    model_path: Path
    alias: str
    port: int = 0
    block_tokens: int = 32  # on the CPU a multiple of 32
    context_tokens: int = 4096
    max_requests: int = 8
    cache_gib: int = 1
    cache_blocks: int | None = None
    threads: int = 1
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    developer: bool = False
    adapters: tuple[tuple[str, Path], ...] = ()  # (name, PEFT folder), loaded at the start; others may be at run time then
    flags: tuple[str, ...] = ()
    kind: str = "vllm"
    reports_url: bool = False
    health_path: str = "/health"

    def argv(self, port: int) -> list[str]:
        """float32: without AVX-512 bfloat16 is some five times slower. Eager: nothing is compiled at the start."""
        return [
            # -P keeps the folder this is started in out of the engine's imports
            *(str(self.environment_path / PYTHON), "-P", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model_path), "--served-model-name", self.alias, "--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(self.context_tokens), "--max-num-seqs", str(self.max_requests)),
            *("--dtype", "float32", "--enforce-eager", "--block-size", str(self.block_tokens)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *(() if self.cache_blocks is None else ("--num-gpu-blocks-override", str(self.cache_blocks))),
            *(
                ()
                if self.events is None
                else ("--kv-events-config", events_config(self.events, self.replay, self.topic, enable_kv_cache_events=True))
            ),
            *self._adapter_flags(),
            *self.flags,
        ]

    def environment(self) -> Mapping[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self.threads),
            **({"VLLM_SERVER_DEV_MODE": "1"} if self.developer else {}),
            **({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if self.adapters else {}),
        }

    def missing(self) -> str | None:
        return missing_of(self.environment_path, self.model_path)

    def _adapter_flags(self) -> list[str]:
        if not self.adapters:
            return []
        return ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in self.adapters)]


def events_config(events: str, replay: str | None, topic: str, **more: bool) -> str:
    """The value of `--kv-events-config`, which vLLM and SGLang share but for what vLLM needs more."""
    return json.dumps({**more, "publisher": "zmq", "endpoint": events, "replay_endpoint": replay, "topic": topic})


def missing_of(environment_path: Path, model_path: Path) -> str | None:
    """What an engine with a Python of its own and a model folder lacks, for people."""
    if not os.access(environment_path / PYTHON, os.X_OK):
        return f"no environment at {environment_path}"
    if not (model_path / "config.json").is_file():
        return f"no model folder at {model_path}"
    return None
