"""The table of engine kinds. A new kind is one file with an Adapter, one row here and its name in settings.KINDS."""

from collections.abc import Callable, Mapping

from engines.adapter import Adapter
from engines.fetch import EngineHttp
from engines.llama_cpp import LlamaCpp
from engines.openai import OpenAi
from engines.sglang import Sglang
from engines.vllm import Vllm

ADAPTERS: Mapping[str, Callable[[EngineHttp], Adapter]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "llama.cpp": LlamaCpp,
    "openai": OpenAi,
}


def adapter_of(kind: str, http: EngineHttp) -> Adapter:
    """A fresh adapter; it may remember what its engine cannot do, so each worker has its own."""
    return ADAPTERS[kind](http)
