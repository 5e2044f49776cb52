"""The LoRA adapters of one engine, and a version of each that changes when other weights may have come under its name. Pure."""

from collections.abc import Iterable, Mapping

from xxhash import xxh3_64_hexdigest

from engines.adapter import MAX_MODELS

VERSION_CHARACTERS = 8


class Adapters:
    """`given` are adapters that the engine serves but does not list.

    A version is made from the path that the engine loaded the weights from, so that engines with the same weights agree,
    and from how often an adapter was seen to go and come back: engines differ in whether they then use cached blocks of
    the old weights (vLLM does, loaded in place from the same path; SGLang does not). Weights that change under the same
    name and path while nobody looks away cannot be told from outside: give new weights a new name.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._given = tuple(given)
        self._listed: dict[str, str] = {}
        self._gone: dict[str, int] = {}  # name → times it came back, of those that are not listed now
        self._returns: dict[str, int] = {}

    def saw(self, listed: Mapping[str, str]) -> None:
        """`listed`: name → path of its weights, "" where that is not told."""
        for name in self._listed:
            if name not in listed:
                self._gone[name] = self._returns.pop(name, 0) + 1
        for name in listed:
            if name in self._gone:
                self._returns[name] = self._gone.pop(name)
        for name in list(self._gone)[: max(0, len(self._gone) - MAX_MODELS)]:
            del self._gone[name]
        self._listed = dict(listed)

    def told(self) -> tuple[str, ...]:
        """NAME, or NAME@VERSION, of each."""
        listed = [versioned(name, path, self._returns.get(name, 0)) for name, path in self._listed.items()]
        return (*listed, *(name for name in self._given if name not in self._listed))


def versioned(name: str, path: str, returns: int) -> str:
    if not path and not returns:
        return name
    version = xxh3_64_hexdigest(path.encode("utf-8", "surrogatepass"))[:VERSION_CHARACTERS] if path else ""
    return f"{name}@{version}" + (f".{returns}" if returns else "")
