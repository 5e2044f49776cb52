"""Writes a GGUF model as a folder that vLLM, SGLang and DeepSpeed load: same weights, vocabulary and chat template.

Run by the Python of an engine's environment, which has torch: `python tests/live/tiny_checkpoint.py MODEL.gguf FOLDER`.
The conversion is transformers' own, so a tokenizer that differs from the router's reading of the same file shows.
"""

import shutil
import sys
from pathlib import Path


def write_checkpoint(source: Path, target: Path) -> None:
    """`target` appears whole or not at all. Overwrites an unfinished try."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(unfinished)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(unfinished)
    unfinished.replace(target)


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
