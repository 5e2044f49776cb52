"""The model under `deepspeed.init_inference`: prompts in, text out, one at a time. Needs torch, transformers and deepspeed."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.deepspeed_backend.calls import Outcome
from engines.deepspeed_backend.options import Options
from engines.deepspeed_backend.text_flow import TextFlow

UNBOUNDED_TOKENS = 1 << 20  # what some tokenizers say when they know no limit is far above it


class DeepSpeedGenerator:
    """Loads at birth, which takes its time. One process, no parallelism: start MII's own engine for that."""

    def __init__(self, model_path: Path, dtype: str) -> None:
        set_single_process()
        import deepspeed
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
        kind = getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=kind)
        self._engine: Any = deepspeed.init_inference(model, dtype=kind, replace_with_kernel_inject=False)
        context = getattr(model.config, "max_position_embeddings", None) or UNBOUNDED_TOKENS
        self._context_tokens = min(int(context), UNBOUNDED_TOKENS)
        eos = model.generation_config.eos_token_id
        self._eos = set(eos) if isinstance(eos, list) else {eos} - {None}

    def generate(
        self, prompt: str, options: Options, send: Callable[[str, int, int], None], is_cancelled: Callable[[], bool]
    ) -> Outcome:
        inputs = self._tokenizer(prompt, return_tensors="pt").to(self._engine.module.device)
        prompt_tokens = int(inputs["input_ids"].shape[1])
        new_tokens = options.new_tokens(prompt_tokens, self._context_tokens)
        answer = Answer(self._tokenizer, TextFlow(options.stops), prompt_tokens, send)

        def should_stop(input_ids: Any, scores: Any, **_: Any) -> Any:
            stop = answer.flow.stopped or is_cancelled()
            return self._torch.full((input_ids.shape[0],), stop, dtype=self._torch.bool, device=input_ids.device)

        with self._torch.inference_mode():
            self._engine.module.generate(
                **inputs,
                **sampling(options, new_tokens),
                streamer=answer,
                stopping_criteria=[should_stop],
                pad_token_id=min(self._eos, default=0),
            )
        ended = answer.flow.stopped or bool(self._eos & set(answer.ids[-1:]))
        return Outcome(answer.flow.text, "stop" if ended else "length", prompt_tokens, len(answer.ids))


class Answer:
    """A streamer of transformers: gets the prompt's ids, then those of each new token, then the end."""

    def __init__(self, tokenizer: Any, flow: TextFlow, prompt_tokens: int, send: Callable[[str, int, int], None]) -> None:
        self.ids: list[int] = []
        self.flow = flow
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._send = send
        self._has_prompt = False

    def put(self, value: Any) -> None:
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.ids.extend(value.reshape(-1).tolist())
        self._tell(final=False)

    def end(self) -> None:
        self._tell(final=True)

    def _tell(self, *, final: bool) -> None:
        whole = self._tokenizer.decode(self.ids, skip_special_tokens=True)
        piece = self.flow.feed(whole, final=final)
        if piece:
            self._send(piece, self._prompt_tokens, len(self.ids))


def sampling(options: Options, new_tokens: int) -> dict[str, Any]:
    """Arguments of transformers' generate."""
    least = new_tokens if options.ignore_eos else min(options.min_new_tokens, new_tokens)
    chosen: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": least, "do_sample": options.temperature > 0}
    if options.temperature > 0:
        chosen |= {"temperature": options.temperature, "top_p": max(options.top_p, 1e-6), "top_k": options.top_k}
    return chosen


def set_single_process() -> None:
    """What DeepSpeed's launcher would set for one process, where it did not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        os.environ.setdefault(name, value)
