"""The process of one local llama.cpp engine: `python -m engines.llama_cpp_server --model FILE --alias NAME`.

Serves on 127.0.0.1 until SIGTERM or SIGINT. When the model is loaded and the port bound it writes one JSON line,
`{"url": "http://127.0.0.1:PORT"}`, to standard output and nothing else ever; llama.cpp's own lines go to standard error.
"""

import argparse
import json
import os
import signal
import sys
from typing import Any


def arguments() -> argparse.ArgumentParser:
    """The one place where an engine's defaults live; `engines.launch` passes every value."""
    parser = argparse.ArgumentParser(prog="python -m engines.llama_cpp_server", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model name that clients send")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=4, help="requests at a time; each has a cache of its own")
    parser.add_argument("--slot-context-tokens", type=int, default=4096, help="prompt and answer of one request")
    parser.add_argument("--threads", type=int, default=1, help="more than one only on idle cores: they spin for each other")
    parser.add_argument("--cache-ram-mib", type=int, default=0, help="prompts kept in memory beside the slots; 0 is none")
    parser.add_argument("--unified-kv", action="store_true", help="one cache for all slots, as llama-server has without -np")
    return parser


def parameters(options: argparse.Namespace) -> Any:
    """xllamacpp's CommonParams for one loopback engine with every observation route on."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.slot_context_tokens  # llama.cpp divides it between the slots
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = options.cache_ram_mib
    params.kv_unified = options.unified_kv
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.use_jinja = True
    params.offline = True
    params.ui = False
    params.fit_params = False  # the sizes above are meant; nothing is shrunk to fit
    return params


def main(argv: list[str] | None = None) -> None:
    options = arguments().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # ends the process at once, even inside llama.cpp's loading
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        raise SystemExit(f"llama.cpp did not start: {error}") from None
    with report:
        report.write(json.dumps({"url": server.listening_address}) + "\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
