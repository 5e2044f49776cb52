"""The command line of `python -m engines.deepspeed_backend`."""

import argparse
from pathlib import Path

DESCRIPTION = """A DeepSpeed model behind MII's gRPC service, for MII's OpenAI server to stand before:
python -m mii.entrypoints.openai_api_server --model DIR --load-balancer HOST:PORT. Tell the router of both:
--engine deepspeed=http://HOST:8000,metrics=http://HOST:METRICS_PORT/metrics. The ports have no authentication."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m engines.deepspeed_backend", description=DESCRIPTION)
    made.add_argument("--model", type=Path, required=True, help="folder of a transformers model")
    made.add_argument("--host", default="127.0.0.1", help="address of both ports")
    made.add_argument("--port", type=int, default=50050, help="gRPC, MII's --load-balancer")
    made.add_argument("--metrics-port", type=int, default=50052, help="HTTP, GET /metrics; answers once the model is loaded")
    made.add_argument("--max-waiting", type=positive, default=32, help="requests that may wait; further ones are refused")
    made.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of weights and arithmetic"
    )
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value
