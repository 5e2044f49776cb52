"""How a text is to be generated: from the arguments that MII's servers pass on, checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_NEW_TOKENS = 128  # what MII's servers fill in
MAX_STOPS = 16


class BadArgument(ValueError):
    """An argument of a wrong type or value; the text names it and is shown to the client."""


@dataclass(frozen=True)
class Options:
    """`max_tokens` counts prompt and answer together, None for no such limit."""

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    min_new_tokens: int = 0
    max_tokens: int | None = None
    temperature: float = 1.0  # 0: the most likely token always
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False

    def new_tokens(self, prompt_tokens: int, context_tokens: int) -> int:
        """How many there is room for. Raises BadArgument when there is none."""
        room = (context_tokens if self.max_tokens is None else min(context_tokens, self.max_tokens)) - prompt_tokens
        if room < 1:
            raise BadArgument(f"the prompt has {prompt_tokens} tokens, and prompt and answer may have {prompt_tokens + room}")
        return min(self.max_new_tokens, room)


def read_options(arguments: Mapping[str, Any]) -> Options:
    """Raises BadArgument. What is not known here is left to others, as MII does."""
    sampled = arguments.get("do_sample", True) is not False
    return Options(
        max_new_tokens=count(arguments, "max_new_tokens", DEFAULT_NEW_TOKENS, low=1),
        min_new_tokens=count(arguments, "min_new_tokens", 0, low=0),
        max_tokens=None if arguments.get("max_length") is None else count(arguments, "max_length", 0, low=1),
        temperature=number(arguments, "temperature", 1.0, low=0.0, high=100.0) if sampled else 0.0,
        top_p=number(arguments, "top_p", 1.0, low=0.0, high=1.0),
        top_k=max(0, count(arguments, "top_k", 0, low=-1)),  # -1 is all, too
        stops=stops_of(arguments.get("stop")),
        ignore_eos=arguments.get("ignore_eos") is True,
    )


def count(arguments: Mapping[str, Any], name: str, default: int, *, low: int) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise BadArgument(f"{name}: {value!r} is not a whole number of at least {low}")
    return value


def number(arguments: Mapping[str, Any], name: str, default: float, *, low: float, high: float) -> float:
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadArgument(f"{name}: {value!r} is not a number between {low:g} and {high:g}")
    return float(value)


def stops_of(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise BadArgument(f"stop: {value!r} is not a text, nor a list of at most {MAX_STOPS}")
    return tuple(stop for stop in stops if stop)
