"""The kinds of engines, one row each. A new kind is one file in engines/ with its adapter, and one row here.

Names, help texts, the adapter of a worker and docs/engines.md are all made from these rows. What they say was read from
the engines' sources and, where that is possible without a GPU, seen on the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One row; all but the first and the last six fields are words for people, a line each.

    `adapter` is `module:class` of the engines.adapter.Adapter that looks at such an engine. Without `reuses_prefixes` an
    engine never gets credit for a prompt that it has seen. `has_slots`: its cache is one content per slot, as llama.cpp's.
    `has_ranks`: a request reaches one of several data-parallel engines behind its URL by a header. `tells_events`: it says
    itself where it publishes KV events. `one_model`: the names it lists, adapters aside, are names of one model.
    """

    name: str
    engine: str
    load: str  # where running and waiting requests and cache use are read
    cache: str  # how its cache is known
    loading: str  # what its health route means while the model loads
    overload: str  # what it answers when it has too much to do
    errors: str  # the form of its error bodies
    cancel: str  # what it does when a client hangs up
    adapter: str
    reuses_prefixes: bool = True
    has_slots: bool = False
    has_ranks: bool = False
    tells_events: bool = False
    one_model: bool = False


ROWS = (
    Kind(
        name="vllm",
        engine="vLLM",
        load="`/metrics`; data-parallel ranks by label `engine`",
        cache="KV events (`--kv-events-config`), else what was sent to it and cached tokens (`--enable-prompt-tokens-details`)",
        loading="its port refuses or hangs; `/health` 503 means that the engine core died",
        overload="503 if a queue limit was set (`--max-num-queued-reqs`), else requests wait without bound",
        errors='`{"error":{"message","type","param","code"}}`, code a number; a wrong key: `{"error":"Unauthorized"}`',
        cancel="aborts at once, streamed or not",
        adapter="engines.vllm:Vllm",
        has_ranks=True,
        tells_events=True,
        one_model=True,
    ),
    Kind(
        name="sglang",
        engine="SGLang",
        load="`/v1/loads`, in older releases `/metrics` (`--enable-metrics`); data-parallel ranks by `dp_rank`",
        cache="KV events (`--kv-events-config`), else what was sent to it and cached tokens (`--enable-cache-report`)",
        loading="the port opens when the scheduler runs; `/health` is 503 until its warm-up has passed, and at shutdown",
        overload="503 if `--max-queued-requests` was set (a stream: 200 and an error as first event), else requests wait",
        errors='flat `{"object":"error","message","type","param","code"}`; in streams and on `/generate` nested in `error`',
        cancel="aborts plain requests, and streams about two seconds later",
        adapter="engines.sglang:Sglang",
        has_ranks=True,
        tells_events=True,
        one_model=True,
    ),
    Kind(
        name="llama.cpp",
        engine="llama.cpp server",
        load="`/metrics` (`--metrics`), else `/slots` (running requests only)",
        cache="what was sent to it through a model of its slots and RAM cache, corrected by the cached tokens of every answer",
        loading="`/health` 503 `Loading model`",
        overload="none: requests wait for a slot without bound",
        errors='`{"error":{"code","message","type"}}`, code a number',
        cancel="aborts at once, except requests with `X-Conversation-Id`",
        adapter="engines.llama_cpp:LlamaCpp",
        has_slots=True,
    ),
    Kind(
        name="deepspeed",
        engine="DeepSpeed-MII (OpenAI, plain and REST servers)",
        load="none of MII's own; `metrics=URL` of `engines.deepspeed_backend`",
        cache="none: it reuses no prefixes, so load alone decides",
        loading="`/health` always says ok; a request for one token each 30 s, or the page of `metrics=`, tells more",
        overload="none of MII's own: requests wait; the back end here refuses beyond its queue: 500, a stream is cut off",
        errors='flat `{"object":"error","message","code"}`, 400 for an unknown model too; a wrong key: nested in `detail`',
        cancel="goes on generating to its end; the back end here ends streams",
        adapter="engines.deepspeed:DeepSpeed",
        reuses_prefixes=False,
    ),
    Kind(
        name="tgi",
        engine="Text Generation Inference",
        load="`/metrics`",
        cache="what was sent to it; it never tells cached tokens, so nothing corrects that",
        loading="its port refuses until the shards are loaded; `/health` 503 means that generating failed",
        overload="429 at `--max-concurrent-requests` (a stream: 200 and an error as first event)",
        errors='flat `{"error":"text","error_type"}`',
        cancel="drops the request at the next step",
        adapter="engines.tgi:Tgi",
    ),
    Kind(
        name="triton",
        engine="Triton (generate endpoints, OpenAI front end), trtllm-serve",
        load="`/metrics` of the OpenAI front end, `/prometheus/metrics` of trtllm-serve; else `metrics=URL` (port 8002)",
        cache="what was sent to it, corrected by cached tokens where its back end reports them",
        loading="`/v2/health/ready` and `/health/ready` answer 400 until models are loaded, and 200 after one died",
        overload="503 if a model has a queue limit (`max_queue_size`), else requests wait",
        errors='`{"error":"text"}`; the OpenAI front end: `{"detail":"text"}`, 400 for an unknown model',
        cancel="`generate_stream` and trtllm-serve abort, `generate` and the OpenAI front end go on to the end",
        adapter="engines.triton:Triton",
    ),
    Kind(
        name="openai",
        engine="anything with `/v1/models`",
        load="none: what this router sent",
        cache="what was sent to it, corrected by the cached tokens it reports",
        loading="503",
        overload="its own",
        errors="its own",
        cancel="its own",
        adapter="engines.openai:OpenAi",
    ),
)
KINDS: Mapping[str, Kind] = {row.name: row for row in ROWS}
