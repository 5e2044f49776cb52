"""engines.deepspeed_backend.options: what MII's servers pass on becomes checked options."""

from typing import Any

import pytest

from engines.deepspeed_backend.options import BadArgument, Options, read_options

CHAT = {  # as mii.entrypoints.openai_api_server 0.3.3 sends it
    "ignore_eos": False,
    "do_sample": True,
    "return_full_text": False,
    "max_new_tokens": 128,
    "top_p": 0.9,
    "temperature": 0.7,
    "stream": True,
}


def test_arguments_of_miis_servers() -> None:
    """A chat's arguments, a completion's with its total length, and none at all."""
    assert read_options(CHAT) == Options(128, temperature=0.7, top_p=0.9)
    assert read_options({**CHAT, "max_length": 4096, "stop": "\n"}).max_tokens == 4096
    assert read_options({}) == Options()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"do_sample": False, "temperature": 0.7}, Options(temperature=0.0)),
        ({"temperature": 0}, Options(temperature=0.0)),
        ({"top_k": -1}, Options()),
        ({"top_k": 5, "min_new_tokens": 3}, Options(top_k=5, min_new_tokens=3)),
        ({"stop": ["a", "", "b"]}, Options(stops=("a", "b"))),
        ({"ignore_eos": True, "unknown": object()}, Options(ignore_eos=True)),
    ],
)
def test_single_arguments(arguments: dict[str, Any], options: Options) -> None:
    """0 is no chance, -1 is all of the vocabulary; what is not known is not refused."""
    assert read_options(arguments) == options


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: 0 is not a whole number of at least 1"),
        ({"max_new_tokens": True}, "max_new_tokens: True is not a whole number"),
        ({"min_new_tokens": "3"}, "min_new_tokens: '3' is not a whole number"),
        ({"temperature": -0.1}, "temperature: -0.1 is not a number between 0 and 100"),
        ({"temperature": float("nan")}, "temperature: nan is not"),
        ({"top_p": 1.5}, "top_p: 1.5 is not"),
        ({"stop": 5}, "stop: 5 is not a text"),
        ({"stop": ["x"] * 17}, "is not a text, nor a list of at most 16"),
        ({"stop": {"a": 1}}, "is not a text"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    """Refused with the argument's name, its value and what is allowed."""
    with pytest.raises(BadArgument) as caught:
        read_options(arguments)
    assert text in str(caught.value)


def test_room_for_new_tokens() -> None:
    """An answer ends where the context or the total length does; a prompt that fills it is refused."""
    assert Options(max_new_tokens=100).new_tokens(10, 1000) == 100
    assert Options(max_new_tokens=100).new_tokens(950, 1000) == 50
    assert Options(max_new_tokens=100, max_tokens=40).new_tokens(10, 1000) == 30
    with pytest.raises(BadArgument, match="the prompt has 1000 tokens, and prompt and answer may have 1000"):
        Options().new_tokens(1000, 1000)
