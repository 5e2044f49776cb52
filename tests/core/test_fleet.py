from typing import Any

import pytest

from router.core.fleet import MAX_CACHED_SETS, Fleet, FleetChange, Worker, adapter_name
from router.core.types import Lifecycle, Truth, WorkerId
from router.errors import InvalidField, ModelNotFound, NoWorker
from router.settings import EngineSpec, FleetSettings
from tests.core.builders import ready_fleet, report, spec


def ids(workers: tuple[Worker, ...]) -> list[str]:
    return [worker.id for worker in workers]


class Watcher:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def joined(self, worker: Worker) -> None:
        self.heard.append(("joined", worker.id))

    def left(self, worker: Worker) -> None:
        self.heard.append(("left", worker.id))

    def restarted(self, worker: Worker) -> None:
        self.heard.append(("restarted", worker.id))

    def reloaded(self, worker: Worker) -> None:
        self.heard.append(("reloaded", worker.id))

    def retold(self, worker: Worker) -> None:
        self.heard.append(("retold", worker.id))


def test_workers_are_known_once_and_not_without_end() -> None:
    """Adding refuses a second one of the same id and one above max_workers."""
    fleet = Fleet(FleetSettings(max_workers=2))
    fleet.add(spec(1), 0.0)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1:8000 is known"):
        fleet.add(spec(1), 0.0)
    fleet.add(spec(2), 0.0)
    with pytest.raises(ValueError, match="max_workers 2"):
        fleet.add(spec(3), 0.0)
    assert len(fleet) == 2 and fleet.get("10.0.0.2:8000") is fleet.workers[1] and fleet.get("x") is None


def test_slots_stay_small() -> None:
    """A removed worker's slot goes to the next one that joins, so that masks do not grow with time."""
    fleet = ready_fleet(3)
    removed = fleet.remove("10.0.0.2:8000")
    assert removed is not None and (removed.lifecycle, removed.life) == (Lifecycle.DOWN, 1)
    assert fleet.slots[1] is None
    assert fleet.add(spec(9), 0.0).slot == 1
    assert fleet.add(spec(8), 0.0).slot == 3
    assert fleet.remove("10.0.0.2:8000") is None


def test_watchers_hear_of_every_worker_and_restart() -> None:
    """Those present are told first; a first generation and an equal one are no restart."""
    fleet = ready_fleet(1)
    watcher = Watcher()
    fleet.watch(watcher)
    worker = fleet.workers[0]
    fleet.apply(report(worker, 1.0), 1.0)
    fleet.apply(report(worker, 2.0, generation=""), 2.0)
    changes = fleet.apply(report(worker, 3.0, generation="g2"), 3.0)
    assert [(change.what, change.before, change.after) for change in changes] == [("generation", "g1", "g2")]
    assert worker.life == 1
    fleet.apply(report(worker, 4.0, generation="g2", capacity_tokens=5000), 4.0)
    fleet.remove(worker.id)
    assert [what for what, _ in watcher.heard] == ["joined", "restarted", "retold", "left"]


@pytest.mark.parametrize(
    ("lifecycle", "drained", "expected"),
    [
        (Lifecycle.READY, False, Lifecycle.READY),
        (Lifecycle.READY, True, Lifecycle.DRAINING),
        (Lifecycle.LOADING, True, Lifecycle.LOADING),
        (Lifecycle.DRAINING, False, Lifecycle.DRAINING),
        (Lifecycle.DOWN, True, Lifecycle.DOWN),
    ],
)
def test_only_ready_workers_are_candidates(lifecycle: Lifecycle, drained: bool, expected: Lifecycle) -> None:
    """A drained worker takes no new requests; drain does not hide that a worker is down or loading."""
    fleet = ready_fleet(2)
    worker = fleet.workers[0]
    if drained:
        fleet.drain(worker.id)
    fleet.apply(report(worker, 1.0, lifecycle, detail="why"), 1.0)
    assert worker.lifecycle is expected
    assert (worker in fleet.candidates("m")) is (expected is Lifecycle.READY)
    fleet.resume(worker.id)
    assert worker.lifecycle is lifecycle
    assert worker.down_reason == ("" if lifecycle is Lifecycle.READY else "why")


def test_drain_of_an_unknown_worker_is_an_error() -> None:
    """The admin port answers 404 from it."""
    with pytest.raises(KeyError):
        ready_fleet(1).drain("x")


def test_a_worker_found_gone_stays_down_until_a_newer_report_says_ready() -> None:
    """A probe that was under way when the connection was refused does not bring the worker back."""
    fleet = ready_fleet(2)
    worker = fleet.workers[0]
    changes = fleet.mark_down(worker.id, "connection refused", 5.0)
    assert [(change.what, change.after, change.detail) for change in changes] == [("lifecycle", "down", "connection refused")]
    assert fleet.mark_down(worker.id, "connection refused", 5.0) == []
    fleet.apply(report(worker, 4.9), 5.1)
    assert (worker.lifecycle, worker.down_reason) == (Lifecycle.DOWN, "connection refused")
    fleet.apply(report(worker, 5.2), 5.3)
    assert (worker.lifecycle, worker.down_reason) == (Lifecycle.READY, "")
    assert fleet.mark_down("x", "connection refused", 5.0) == []


def test_reports_of_strangers_and_late_ones_change_nothing() -> None:
    """A report may outlive its worker, or be overtaken by a newer one."""
    fleet = ready_fleet(1)
    worker = fleet.workers[0]
    fleet.apply(report(worker, 5.0), 5.0)
    assert fleet.apply(report(worker, 4.0, Lifecycle.DOWN), 5.0) == []
    fleet.remove(worker.id)
    assert fleet.apply(report(worker, 6.0), 6.0) == []


def test_what_the_operator_says_wins_over_what_is_learned() -> None:
    """`model=` and `capacity_tokens=` of --engine hold whatever the engine reports."""
    fleet = Fleet(FleetSettings())
    told = fleet.add(spec(1, model="mine", capacity_tokens=777), 0.0)
    learned = fleet.add(spec(2), 0.0)
    facts: dict[str, Any] = {"models": ("theirs",), "capacity_tokens": 5000, "block_tokens": 32}
    for worker in (told, learned):
        fleet.apply(report(worker, 1.0, truth=Truth.NONE, truth_reason="no cache", **facts), 1.0)
    assert (told.models, told.capacity_tokens) == (frozenset(("mine",)), 777)
    assert (learned.models, learned.capacity_tokens) == (frozenset(("theirs",)), 5000)
    assert (learned.truth, learned.truth_reason, learned.block_tokens) == (Truth.NONE, "no cache", 32)
    fleet.apply(report(learned, 2.0, models=None, capacity_tokens=None, block_tokens=None, truth=Truth.NONE), 2.0)
    assert (learned.models, learned.capacity_tokens, learned.block_tokens) == (frozenset(("theirs",)), 5000, 32)


@pytest.mark.parametrize(
    ("kind", "told", "reused"),
    [("vllm", None, 16), ("vllm", 64, 64), ("sglang", 1, 1), ("llama.cpp", None, 1), ("openai", 32, 1)],
)
def test_hits_are_whole_blocks_where_the_kind_has_such(kind: str, told: int | None, reused: int) -> None:
    """vLLM and SGLang serve blocks or pages of the size that they tell; others any number of tokens."""
    fleet = Fleet(FleetSettings())
    worker = fleet.add(EngineSpec(kind, "http://10.0.0.1:8000"), 0.0)
    fleet.apply(report(worker, 1.0, block_tokens=told), 1.0)
    assert worker.reuse_tokens == reused and worker.block_tokens == (told or 16)


@pytest.mark.parametrize(
    ("told", "in_sync", "doubts", "truth", "reason"),
    [
        pytest.param(Truth.EXACT, True, "", Truth.EXACT, "told", id="events"),
        pytest.param(Truth.EXACT, True, "history", Truth.EXACT, "told", id="events, whatever history is worth"),
        pytest.param(Truth.EXACT, False, "", Truth.MODELLED, "exact as soon as", id="no snapshot yet"),
        pytest.param(Truth.EXACT, False, "history", Truth.UNTRUSTED, "routed by its load only; history", id="nor history"),
        pytest.param(Truth.EXACT, True, "events", Truth.UNTRUSTED, "routed by own history; events", id="wrong events"),
        pytest.param(Truth.EXACT, True, "events history", Truth.UNTRUSTED, "routed by its load only; history", id="all wrong"),
        pytest.param(Truth.MODELLED, False, "", Truth.MODELLED, "told", id="history"),
        pytest.param(Truth.MODELLED, False, "events", Truth.MODELLED, "told", id="history once more"),
        pytest.param(Truth.MODELLED, False, "history", Truth.UNTRUSTED, "routed by its load only", id="wrong history"),
        pytest.param(Truth.UNTRUSTED, True, "", Truth.UNTRUSTED, "told", id="as its sidecar says"),
        pytest.param(Truth.NONE, True, "events history", Truth.NONE, "told", id="no cache"),
    ],
)
def test_the_truth_that_follows(told: Truth, in_sync: bool, doubts: str, truth: Truth, reason: str) -> None:
    """Events where they are followed and predict well, else history, else nothing; one change is told, with its reason."""
    fleet = ready_fleet(1)
    heard: list[FleetChange] = []
    fleet.on_change = heard.append
    worker = fleet.workers[0]
    worker.in_sync = in_sync
    for source in doubts.split():
        getattr(worker.trust, source).doubt = source
    changes = fleet.apply(report(worker, 1.0, truth=told, truth_reason="told"), 1.0)
    assert worker.truth is truth and worker.truth_reason.startswith(reason)
    assert changes == heard == [] if truth is Truth.MODELLED else [heard[0].after] == [truth.value]
    assert fleet.judge(worker) == []


@pytest.mark.parametrize(
    ("workers", "model", "expected"),
    [
        pytest.param([("a", Lifecycle.READY)], "b", ModelNotFound, id="known not to serve it"),
        pytest.param([("a", Lifecycle.READY), (None, Lifecycle.DOWN)], "b", NoWorker, id="unknown models may"),
        pytest.param([("a", Lifecycle.READY), ("b", Lifecycle.DOWN)], "b", NoWorker, id="served it last"),
        pytest.param([("a", Lifecycle.READY), ("b", Lifecycle.LOADING)], "b", NoWorker, id="will serve it"),
        pytest.param([("a", Lifecycle.DOWN)], "b", ModelNotFound, id="down, but known not to serve it"),
        pytest.param([], "b", NoWorker, id="no worker at all"),
        pytest.param([("a", Lifecycle.READY), ("b", Lifecycle.READY)], None, InvalidField, id="which one?"),
        pytest.param([("a", Lifecycle.DOWN)], None, NoWorker, id="none ready"),
        pytest.param([(None, Lifecycle.READY)], "anything", ["10.0.0.0:8000"], id="engine without a model list"),
        pytest.param([("a", Lifecycle.READY), ("a", Lifecycle.READY)], None, ["10.0.0.0:8000", "10.0.0.1:8000"], id="one set"),
        pytest.param([("b", Lifecycle.READY), ("a", Lifecycle.READY)], "a", ["10.0.0.1:8000"], id="its own"),
    ],
)
def test_candidates(workers: list[tuple[str | None, Lifecycle]], model: str | None, expected: object) -> None:
    """404 only if no worker can ever serve the model as far as is known; otherwise 503; 400 if it must be named."""
    fleet = Fleet(FleetSettings())
    for number, (name, lifecycle) in enumerate(workers):
        worker = fleet.add(spec(number), 0.0)
        fleet.apply(report(worker, 1.0, Lifecycle.READY, models=None if name is None else (name,)), 1.0)
        fleet.apply(report(worker, 2.0, lifecycle, models=None), 2.0)
    if isinstance(expected, list):
        assert ids(fleet.candidates(model)) == expected
    else:
        assert isinstance(expected, type)
        with pytest.raises(expected):
            fleet.candidates(model)


def test_tried_workers_are_left_out() -> None:
    """A retry goes to another worker, or to none."""
    fleet = ready_fleet(3)
    tried = [WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.3:8000")]
    assert ids(fleet.candidates("m", tried)) == ["10.0.0.2:8000"]
    with pytest.raises(NoWorker, match="tried"):
        fleet.candidates("m", [*tried, WorkerId("10.0.0.2:8000")])


def test_candidate_sets_are_the_same_tuple_until_the_fleet_changes() -> None:
    """The tuple is cached by model and epoch; every lifecycle, model or membership change makes a new epoch."""
    fleet = ready_fleet(2)
    first = fleet.candidates("m")
    assert fleet.candidates("m") is first
    epoch = fleet.epoch
    fleet.apply(report(fleet.workers[0], 1.0, waiting=3), 1.0)
    assert fleet.epoch == epoch and fleet.candidates("m") is first
    fleet.apply(report(fleet.workers[0], 2.0, models=("m", "n")), 2.0)
    assert fleet.epoch > epoch
    assert ids(fleet.candidates("n")) == ["10.0.0.1:8000"]
    assert len(fleet.candidates("m")) == 2


def test_model_names_from_clients_do_not_fill_memory() -> None:
    """Where an engine serves any name, the cache of candidate sets is still bounded."""
    fleet = Fleet(FleetSettings())
    fleet.apply(report(fleet.add(spec(1), 0.0), models=None), 0.0)
    for number in range(MAX_CACHED_SETS + 10):
        fleet.candidates(f"name-{number}")
    assert len(fleet._sets) <= MAX_CACHED_SETS


def test_models_are_the_union_over_ready_workers_in_stable_order() -> None:
    """One worker down, loading or silent about its models takes nothing from the others' (P34)."""
    fleet = Fleet(FleetSettings())
    for number, (models, lifecycle) in enumerate(
        [(("z", "a"), Lifecycle.READY), (("down",), Lifecycle.DOWN), (None, Lifecycle.READY), (("b", "a"), Lifecycle.READY)]
    ):
        fleet.apply(report(fleet.add(spec(number), 0.0), 1.0, lifecycle, models=models), 1.0)
    named = fleet.add(EngineSpec("openai", "http://h:1", model="mine"), 0.0)
    fleet.apply(report(named, 1.0, models=("theirs",)), 1.0)
    assert fleet.models() == ("z", "a", "b", "mine")


def test_prediction_means_follow_what_engines_report() -> None:
    """Moving averages of predicted and actual hits and of the distance between them, a twentieth each time."""
    worker = ready_fleet(1).workers[0]
    worker.note_prediction(100.0, 60)
    worker.note_prediction(0.0, 40)
    assert worker.predicted_tokens_mean == pytest.approx(100 * 0.05 * 0.95)
    assert worker.actual_tokens_mean == pytest.approx(60 * 0.05 * 0.95 + 40 * 0.05)
    assert worker.error_tokens_mean == pytest.approx(40 * 0.05 * 0.95 + 40 * 0.05)


def lora_fleet(*told: tuple[tuple[str, ...], tuple[str, ...]]) -> Fleet:
    """Ready workers that serve model m and these adapters, with those loaded."""
    fleet = ready_fleet(len(told))
    for worker, (adapters, loaded) in zip(fleet.workers, told, strict=True):
        names = tuple(text.partition("@")[0] for text in adapters)
        fleet.apply(report(worker, 1.0, models=("m", *names), adapters=adapters, loaded_adapters=loaded), 1.0)
    return fleet


def test_requests_for_an_adapter_go_to_workers_that_serve_it() -> None:
    """Whether it is loaded or only can be; 404 where nobody has it. Its chains are rooted in base and version."""
    fleet = lora_fleet((("legal@v1",), ("legal",)), ((), ()), (("legal@v1", "med"), ()))
    assert [worker.slot for worker in fleet.candidates("legal")] == [0, 2]
    assert [worker.slot for worker in fleet.candidates("med")] == [2]
    assert [worker.slot for worker in fleet.candidates("m")] == [0, 1, 2]
    with pytest.raises(ModelNotFound):
        fleet.candidates("tax")
    assert fleet.adapters == {"legal": 0b001, "med": 0}
    assert fleet.namespaces == {"legal": ("m", "legal@v1"), "med": ("m", "med")}
    assert fleet.models() == ("m", "legal", "med")


def test_adapters_are_loaded_and_unloaded() -> None:
    """A report that does not know what is loaded changes nothing; a removed worker has nothing loaded."""
    fleet = lora_fleet((("a", "b"), ("a",)), (("a",), ("a@1",)))
    assert fleet.adapters == {"a": 0b11, "b": 0}
    worker = fleet.workers[0]
    fleet.apply(report(worker, 2.0, models=("m", "a", "b"), loaded_adapters=("b", "unheard")), 2.0)
    assert fleet.adapters == {"a": 0b10, "b": 0b01}
    fleet.apply(report(worker, 3.0, models=("m", "a", "b")), 3.0)
    assert fleet.adapters == {"a": 0b10, "b": 0b01}
    fleet.remove(worker.id)
    assert (fleet.adapters, fleet.namespaces) == ({"a": 0b10}, {"a": ("m", "a")})
    fleet.remove(fleet.workers[0].id)
    assert not fleet.adapters and not fleet.namespaces


def test_other_names_of_a_model_are_keyed_as_its_first() -> None:
    """An engine has one cache whatever name a request uses, and its events are keyed by the first one that it lists."""
    fleet = ready_fleet(2)
    one, two = fleet.workers
    fleet.apply(report(one, 1.0, models=("m", "gpt", "legal"), adapters=("legal@v1",)), 1.0)
    assert fleet.namespaces == {"gpt": ("m", None), "legal": ("m", "legal@v1")}
    fleet.apply(report(two, 1.0, models=("n", "gpt")), 1.0)
    assert fleet.namespaces["gpt"] == ("m", None), "the first worker decides"
    fleet.apply(report(two, 2.0, models=("gpt", "n")), 2.0)
    assert "gpt" not in fleet.namespaces and fleet.namespaces["n"] == ("gpt", None), "a first name is no other name"
    fleet.remove(two.id)
    assert fleet.namespaces == {"gpt": ("m", None), "legal": ("m", "legal@v1")}


def test_several_models_of_one_server_stay_apart() -> None:
    """Where a kind may serve several models, two names are two models; what the operator names is the only name."""
    fleet = Fleet(FleetSettings())
    for worker in (fleet.add(EngineSpec("triton", "http://a"), 0.0), fleet.add(spec(1, model="mine"), 0.0)):
        fleet.apply(report(worker, 1.0, models=("m", "n")), 1.0)
    assert not fleet.namespaces


@pytest.mark.parametrize(
    ("text", "models", "name"),
    [
        ("legal", ("m", "legal"), "legal"),
        ("legal@v2", ("m", "legal"), "legal"),
        ("legal@3", ("m", "legal@3"), "legal@3"),
        ("legal@3@v2", ("m", "legal@3"), "legal@3"),
        ("@odd", ("m",), "@odd"),
    ],
)
def test_names_of_adapters(text: str, models: tuple[str, ...], name: str) -> None:
    """NAME or NAME@VERSION, where names may hold an @ themselves (new weights under a new name)."""
    assert adapter_name(text, models) == name


def test_a_reloaded_adapter_voids_what_it_left() -> None:
    """Other weights under the same name: its watchers hear of it, requests in flight leave nothing, its chains get a new
    root; a new adapter or one that goes is no reload. What the operator says of the base model holds."""
    fleet = Fleet(FleetSettings())
    worker = fleet.add(spec(1, model="mine"), 0.0)
    watcher = Watcher()
    fleet.watch(watcher)
    for at_s, adapters in enumerate([("a@1",), ("a@1", "b"), ("a@2", "b"), ("b",)]):
        changes = fleet.apply(report(worker, float(at_s), models=("other", "a", "b"), adapters=adapters), 0.0)
        assert [change.what for change in changes if change.what == "adapters"] == ["adapters"]
        if at_s == 2:
            assert fleet.namespaces["a"] == ("mine", "a@2")
    assert worker.life == 1 and [what for what, _ in watcher.heard].count("reloaded") == 1
    assert fleet.candidates("b") == (worker,) and fleet.models() == ("mine", "b")
