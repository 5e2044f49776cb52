"""What follows from verdicts and counts: what prompts are keyed from, and when that changes."""

import logging

import pytest

from router.core.fleet import Fleet, Worker
from router.core.token_tally import TokenTally
from router.core.types import Lifecycle, Truth
from router.settings import TokenSettings
from router.tokens.key_sources import KeySource, ModelKeys, Shape, ShapeKeys
from router.tokens.parity import ModelParity, Witness, choose
from router.tokens.pre_tokenizers import GPT2
from router.tokens.probes import Verdict
from tests.core.builders import ready_fleet, report
from tests.tokens.vocabularies import byte_level, entry_of

ENTRY = entry_of(byte_level((GPT2,)))
SAME, OTHER, SILENT = Verdict(True, "", 1), Verdict(False, "the chat template differs", 2), Verdict(None, "no route")
THIRD = Verdict(False, "the chat template differs elsewhere", 3)
SETTINGS = TokenSettings(recheck_tokens_s=100.0)


def witness(worker: Worker, verdict: Verdict, *, untold: bool = False) -> Witness:
    made = Witness(worker)
    made.probed = {Shape.CHAT: verdict}
    if untold:
        made.untold[Shape.CHAT] = 1.0
    return made


@pytest.mark.parametrize(
    ("verdicts", "truths", "source", "asked"),
    [
        pytest.param([], [], "tokenizer", [], id="nobody"),
        pytest.param([SAME, SAME], "mm", "tokenizer", [], id="all match"),
        pytest.param([SILENT, SAME], "mm", "tokenizer", [], id="one is silent"),
        pytest.param([OTHER], "m", "engine", [0], id="differs"),
        pytest.param([OTHER, OTHER], "mm", "engine", [0, 1], id="both differ alike"),
        pytest.param([OTHER, THIRD, OTHER], "mmm", "engine", [0, 2], id="differ in two ways"),
        pytest.param([OTHER, SILENT], "mm", "engine", [0], id="differs beside a silent one"),
        pytest.param([OTHER, SAME], "mm", "tokenizer", [], id="history is known in any tokens"),
        pytest.param([OTHER, SAME], "em", "engine", [0], id="exact truth is known in its own"),
        pytest.param([OTHER, SAME], "um", "engine", [0], id="so is one that is not trusted now"),
        pytest.param([OTHER, SAME], "me", "tokenizer", [], id="the exact one matches"),
    ],
)
def test_choice(verdicts: list[Verdict], truths: str, source: str, asked: list[int]) -> None:
    """See the module's first lines."""
    fleet = ready_fleet(len(verdicts))
    named = {"m": Truth.MODELLED, "e": Truth.EXACT, "u": Truth.UNTRUSTED}
    witnesses = []
    for worker, verdict, truth in zip(fleet.workers, verdicts, truths, strict=True):
        fleet.apply(report(worker, 1.0, truth=named[truth]), 1.0)
        witnesses.append(witness(worker, verdict))
    choice = choose(Shape.CHAT, witnesses)
    assert (choice.source.value, list(choice.askable)) == (source, [fleet.workers[place].id for place in asked])
    assert bool(choice.why) is (OTHER in verdicts)
    assert choice.tokens == (2 if asked else 0)


def test_who_cannot_tell_is_not_asked() -> None:
    """Found to differ by its counts alone, or telling other tokens than it counts, an engine leaves only the text."""
    (worker,) = ready_fleet(1).workers
    by_counts = witness(worker, SILENT)
    by_counts.counted[Shape.CHAT] = 9.0, Verdict(False, "it counts other tokens")
    assert choose(Shape.CHAT, [by_counts]).source is KeySource.TEXT
    choice = choose(Shape.CHAT, [witness(worker, OTHER, untold=True)])
    assert choice.source is KeySource.TEXT and "not those it counts" in choice.why
    assert "1 more worker" in choose(Shape.CHAT, [by_counts, witness(worker, OTHER)]).why


class Bench:
    """A model with two workers, and a clock."""

    def __init__(self, count: int = 2) -> None:
        self.fleet: Fleet = ready_fleet(count)
        self.keys = ModelKeys(ENTRY)
        self.parity = ModelParity("m", self.keys, SETTINGS)
        self.parity.serve(self.fleet.workers)
        self.now_s = 10.0

    def told(self, *verdicts: Verdict, shape: Shape = Shape.CHAT) -> None:
        """By each worker in turn; the other shapes match."""
        for worker, verdict in zip(self.fleet.workers, verdicts, strict=True):
            self.parity.told(worker.id, {**dict.fromkeys(Shape, SAME), shape: verdict})
        self.settle()

    def settle(self) -> None:
        self.parity.settle(self.now_s)

    def count(
        self, place: int, here: int, there: int, times: int = 1, *, shape: Shape = Shape.CHAT, asked: bool = False
    ) -> None:
        keys = self.keys.by_shape(shape)
        tally: TokenTally = keys.asked if asked else keys.counted
        for _ in range(times):
            tally.note(self.fleet.workers[place].id, here, there)
        self.settle()

    def sources(self) -> list[str]:
        return [keys.source.value for _, keys in self.keys.shapes()]

    @property
    def chat(self) -> ShapeKeys:
        return self.keys.chat


def test_only_the_shape_that_differs_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Chats with tools may differ alone; what changes is said once, in words, and again when it changes back."""
    bench = Bench(1)
    with caplog.at_level(logging.INFO):
        bench.told(OTHER, shape=Shape.TOOLS)
        assert bench.sources() == ["tokenizer", "tokenizer", "engine", "tokenizer"]
        assert bench.keys.tools.askable == (bench.fleet.workers[0].id,)
        bench.settle()
        bench.told(THIRD, shape=Shape.TOOLS)
        bench.told(SAME)
    assert bench.sources() == ["tokenizer"] * 4 and bench.keys.tools.why == ""
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "model 'm': chats with tools are keyed by asking an engine for their tokens: "
            "worker 10.0.0.1:8000 (vllm): the chat template differs",
        ),
        ("INFO", "model 'm': chats with tools are keyed by the tokenizer here: its tokens are those of the engines again"),
    ]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [(SAME, "the tokenizer here makes the tokens of its engines"), (SILENT, "no engine tells its tokens")],
)
def test_the_first_result_is_said(verdict: Verdict, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once all ready workers were asked, one line tells that nothing differs, or that it cannot be known."""
    bench = Bench(2)
    with caplog.at_level(logging.INFO):
        bench.settle()
        bench.parity.told(bench.fleet.workers[0].id, dict.fromkeys(Shape, verdict))
        bench.settle()
        assert not caplog.records
        bench.parity.told(bench.fleet.workers[1].id, dict.fromkeys(Shape, verdict))
        bench.settle()
        bench.settle()
    assert [words in record.getMessage() for record in caplog.records] == [True]
    assert bench.sources() == ["tokenizer"] * 4


def test_shapes_that_change_together_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """One line per change, however many shapes it concerns."""
    bench = Bench(1)
    bench.parity.told(bench.fleet.workers[0].id, dict.fromkeys(Shape, OTHER))
    bench.settle()
    assert [record.getMessage() for record in caplog.records] == [
        "model 'm': chats, chats in parts, chats with tools, texts are keyed by asking an engine for their tokens: "
        "worker 10.0.0.1:8000 (vllm): the chat template differs"
    ]


def test_counts_that_differ_outweigh_probes_for_a_time() -> None:
    """Above the share a worker differs, whatever its probes said; after the time its tokens are tried again."""
    bench = Bench(1)
    bench.told(SAME)
    bench.count(0, 100, 103, 6)
    assert bench.sources()[0] == "tokenizer"
    bench.count(0, 100, 103, 1)
    assert bench.sources()[0] == "engine"
    assert "it counts other tokens in 52% of the latest prompts, 103 for 100 of the last one" in bench.chat.why
    bench.now_s += 99.0
    bench.settle()
    assert bench.sources()[0] == "engine"
    bench.now_s += 2.0
    bench.settle()
    assert bench.sources()[0] == "tokenizer" and not bench.chat.counted.differences
    bench.count(0, 100, 103, 20)
    assert bench.sources()[0] == "engine"


def test_told_tokens_that_count_otherwise_are_not_asked_for() -> None:
    """If the tokens that an engine tells are not those it counts, asking is no use, for the same time."""
    bench = Bench(1)
    bench.told(OTHER)
    bench.count(0, 100, 103, 20, asked=True)
    bench.settle()
    assert bench.sources()[0] == "text"
    bench.now_s += 101.0
    bench.settle()
    assert bench.sources()[0] == "engine" and not bench.chat.asked.differences


def test_counts_of_engines_that_cannot_be_asked() -> None:
    """Where no route tells tokens, counts that differ leave only the text."""
    bench = Bench(1)
    bench.told(SILENT)
    bench.count(0, 10, 11, 20)
    assert bench.sources()[0] == "text"


def test_other_workers_counts_prove_nothing_of_the_asked() -> None:
    """In a mixed pool what one engine tells need not be what another counts."""
    bench = Bench(2)
    bench.fleet.apply(report(bench.fleet.workers[0], 1.0, truth=Truth.EXACT), 1.0)
    bench.told(OTHER, SAME)
    assert bench.chat.askable == (bench.fleet.workers[0].id,)
    bench.count(1, 100, 103, 20, asked=True)
    assert bench.sources()[0] == "engine"


def test_a_restart_forgets_counts_and_keeps_verdicts_until_new_ones() -> None:
    """The engine may have come back with the same template: nothing changes to and fro before it was asked."""
    bench = Bench(1)
    bench.told(OTHER)
    bench.count(0, 1, 2, 20)
    bench.parity.restarted(bench.fleet.workers[0].id)
    bench.parity.restarted("gone")  # type: ignore[arg-type]
    bench.settle()
    assert bench.sources()[0] == "engine" and bench.chat.why.endswith("the chat template differs")
    assert not bench.chat.counted.differences
    bench.told(SAME)
    assert bench.sources()[0] == "tokenizer"


def test_workers_that_left_or_are_down_do_not_count() -> None:
    """A differing worker that is gone leaves a matching model; while nobody is ready nothing changes."""
    bench = Bench(2)
    first, second = bench.fleet.workers
    bench.told(OTHER, OTHER)
    for worker in (first, second):
        bench.fleet.apply(report(worker, 2.0, Lifecycle.DOWN), 2.0)
    bench.parity.serve(bench.fleet.workers)
    bench.settle()
    assert bench.sources()[0] == "engine" and len(bench.chat.askable) == 2
    bench.fleet.apply(report(second, 3.0), 3.0)
    bench.parity.told(second.id, dict.fromkeys(Shape, SAME))
    bench.settle()
    assert bench.sources()[0] == "tokenizer"
    bench.count(0, 1, 2, 20)
    bench.parity.serve([second])
    assert not bench.chat.counted.differences and list(bench.parity.witnesses) == [second.id]
    bench.parity.told(first.id, dict.fromkeys(Shape, OTHER))
    bench.settle()
    assert bench.sources()[0] == "tokenizer"


def test_a_worker_under_an_old_name_is_a_new_one() -> None:
    """Removed and added again, it is asked again."""
    bench = Bench(1)
    bench.told(OTHER)
    (old,) = bench.fleet.workers
    bench.fleet.remove(old.id)
    new = bench.fleet.add(old.spec, 1.0)
    bench.parity.serve([new])
    assert bench.parity.witnesses[new.id].probed == {}
