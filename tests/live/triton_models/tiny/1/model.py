"""What Triton's Python backend runs: says the words of the prompt again and again, one every few milliseconds.

It stops when its client has left, and refuses a prompt that begins with "fail".
"""

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

WORD_S = 0.02
MAX_TOKENS = 16


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        """Decoupled: answers go to each request's sender, in a stream one for each word, else one in all."""
        for request in requests:
            self.answer(request, request.get_response_sender())

    def answer(self, request: Any, sender: Any) -> None:
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        words = text_of(request).split() or ["silence"]
        if words[0] == "fail":
            error = pb_utils.TritonError("the prompt asks for a failure", pb_utils.TritonError.INTERNAL)
            sender.send(pb_utils.InferenceResponse(error=error), flags=final)
            return
        said = []
        for number in range(int(option(request, "max_tokens", MAX_TOKENS))):
            if sender.is_cancelled():
                break
            time.sleep(WORD_S)
            said.append(words[number % len(words)])
            if option(request, "stream", False):
                sender.send(response(said[-1] + " "))
        if not option(request, "stream", False):
            sender.send(response(" ".join(said)))
        sender.send(flags=final)


def text_of(request: Any) -> str:
    return str(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().flat[0].decode())


def option(request: Any, name: str, default: Any) -> Any:
    """A tensor of that name, or a request parameter as vLLM's backend takes them, or the default."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is not None:
        return tensor.as_numpy().flat[0]
    return json.loads(request.parameters() or "{}").get(name, default)


def response(text: str) -> Any:
    tensor = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object))
    return pb_utils.InferenceResponse(output_tensors=[tensor])
