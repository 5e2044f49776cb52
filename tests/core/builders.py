"""Small worlds for the tests of core: chained keys, prompts, reports, fleets."""

from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from router.core.fleet import Fleet, Worker
from router.core.prefix_node import Level
from router.core.types import KeyForm, Lifecycle, PromptKeys, Truth, WorkerId, WorkerReport
from router.settings import EngineSpec, FleetSettings


def chain(blocks: Sequence[int]) -> "array[int]":
    """Chained keys of a prompt whose blocks are these numbers: equal heads give equal heads."""
    keys = array("Q")
    key = 0
    for block in blocks:
        key = xxh3_64_intdigest(block.to_bytes(8, "little"), key)
        keys.append(key)
    return keys


def prompt(blocks: Sequence[int], tokens: int | None = None, form: KeyForm = KeyForm.TOKENS) -> PromptKeys:
    """A prompt of these blocks and a rest of 4 tokens, or of so many tokens."""
    return PromptKeys(chain(blocks), 16 * len(blocks) + 4 if tokens is None else tokens, form)


def spec(number: int, **options: object) -> EngineSpec:
    return EngineSpec("vllm", f"http://10.0.0.{number}:8000", **options)  # type: ignore[arg-type]


def report(worker: Worker, at_s: float = 0.0, lifecycle: Lifecycle = Lifecycle.READY, **facts: object) -> WorkerReport:
    values: dict[str, object] = {"generation": "g1", "models": ("m",), **facts}
    return WorkerReport(
        worker=WorkerId(worker.id),
        kind=worker.kind,
        url=worker.spec.url,
        lifecycle=lifecycle,
        reported_at_s=at_s,
        **values,  # type: ignore[arg-type]
    )


def ready_fleet(count: int, *, truth: Truth = Truth.MODELLED, max_workers: int = 2048, **options: object) -> Fleet:
    """Ready workers 10.0.0.1:8000 and so on, serving model "m"."""
    fleet = Fleet(FleetSettings(max_workers=max_workers))
    for number in range(1, count + 1):
        worker = fleet.add(spec(number, **options), 0.0)
        fleet.apply(report(worker, truth=truth), 0.0)
    return fleet


def levels(*pairs: tuple[int, int]) -> list[Level]:
    """Of (leading blocks, mask of their holders), deepest first."""
    return [Level(blocks, mask) for blocks, mask in pairs]


class Dice:
    """Chance that a test decides: gives the numbers in turn, over and over."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = numbers or (0.0,)
        self._at = -1

    def random(self) -> float:
        self._at = (self._at + 1) % len(self._numbers)
        return self._numbers[self._at]
