"""Writes a LoRA adapter for the tiny model as PEFT and Unsloth save them.

Run by the Python of an engine's environment: `python tests/live/tiny_adapter.py MODEL FOLDER SEED`. Its weights are
random, large enough to change what the model answers.
"""

import json
import sys
from pathlib import Path

RANK = 8
MODULES = ("q_proj", "v_proj")


def write_adapter(model: Path, target: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    rows = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden, generator=random)
            weights[f"{name}.lora_B.weight"] = torch.randn(rows[module], RANK, generator=random)
    target.mkdir(parents=True, exist_ok=True)
    save_file(weights, target / "adapter_model.safetensors")
    (target / "adapter_config.json").write_text(json.dumps(adapter_config(model)))


def adapter_config(model: Path) -> dict[str, object]:
    return {
        "base_model_name_or_path": str(model),
        "bias": "none",
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
    }


if __name__ == "__main__":
    write_adapter(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
