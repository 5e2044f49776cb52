"""The loop that compares tokens with every worker's, once a life, and keeps the judgement of each model up to date."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router.core.fleet import Fleet, Worker
from router.core.types import Lifecycle, WorkerId
from router.settings import TokenSettings
from router.tokens.key_sources import KeySources, ModelKeys, Shape
from router.tokens.parity import ModelParity
from router.tokens.probes import Verdict, probe
from router.wire.engine_tokens import NoTokens, TokenRoutes

log = logging.getLogger("warmline.tokens")
ROUND_S = 0.5
CHECKS_PER_ROUND = 4  # workers asked at a time: about 20 questions each, 0.3 ms of the loop per question
CHECK_DEADLINE_S = 10.0  # of one worker
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
MAX_MODELS = 1024  # judged apart; further names share one judgement with those that nobody lists
MAX_MODELS_OF_WORKER = 16  # asked about
MAX_ALIKE = 16_384  # adapters keyed like their model; further ones like names that nobody lists
NO_ROUTE = Verdict(None, "engines of its kind have no route that tells tokens")

RoutesOf = Callable[[WorkerId], TokenRoutes | None]


@dataclass(slots=True)
class Check:
    """What a worker was asked about, or is to be. Another life or other models make another one."""

    generation: str
    models: tuple[str, ...]
    due_s: float = 0.0
    delay_s: float = FIRST_RETRY_S
    is_done: bool = False


class ParityWatch:
    """Follows the fleet. `models` holds every judged model by name; "" stands for workers that list none."""

    def __init__(
        self, settings: TokenSettings, fleet: Fleet, sources: KeySources, routes_of: RoutesOf, clock: Callable[[], float]
    ) -> None:
        self.models: dict[str, ModelParity] = {}
        self._settings = settings
        self._fleet = fleet
        self._sources = sources
        self._routes_of = routes_of
        self._clock = clock
        self._checks: dict[WorkerId, Check] = {}
        self._alike: set[str] = set()  # names put into the sources for the keys of another
        self._seen_epoch = -1
        self._is_stale = True  # who serves what has to be read anew
        fleet.watch(self)

    def verdict_on(self, worker: Worker) -> tuple[bool | None, str]:
        """Whether its tokens are those made here, for all its models and shapes of prompt, and what differs or is unknown."""
        unknown = ""
        matches: bool | None = None
        for model in self._names_of(worker):
            parity = self.models.get(model)
            witness = None if parity is None else parity.witnesses.get(worker.id)
            if witness is None:
                continue
            for shape in Shape:
                verdict = witness.verdict(shape)
                if verdict.matches is False:
                    return False, verdict.why
                matches = matches or verdict.matches
                unknown = unknown or verdict.why
        return matches, "" if matches else unknown

    async def run(self) -> None:
        """Until cancelled. Raises nothing else: a surprise is logged, and the next round goes on."""
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("surprise while comparing tokens with the engines'")
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """Reads who serves what, asks the workers that are due, and judges."""
        if self._is_stale or self._seen_epoch != self._fleet.epoch:
            self._follow()
            self._is_stale, self._seen_epoch = False, self._fleet.epoch
        now_s = self._clock()
        due = [worker for worker in self._fleet.workers if self._is_due(worker, now_s)][:CHECKS_PER_ROUND]
        async with asyncio.TaskGroup() as group:
            for worker in due:
                group.create_task(self._check(worker, self._checks[worker.id]))
        for parity in list(self.models.values()):
            parity.settle(self._clock())
            await asyncio.sleep(0)

    # The fleet's changes (FleetWatcher).

    def joined(self, worker: Worker) -> None:
        self._is_stale = True

    def left(self, worker: Worker) -> None:
        self._is_stale = True

    def restarted(self, worker: Worker) -> None:
        self._is_stale = True
        for parity in self.models.values():
            parity.restarted(worker.id)

    def reloaded(self, worker: Worker) -> None:
        """Other weights, the same tokens."""

    def retold(self, worker: Worker) -> None:
        for parity in self.models.values():
            parity.is_open = True

    # Parts of the above.

    def _names_of(self, worker: Worker) -> list[str]:
        """The models it is asked about: those that have a tokenizer, adapters only if it is their own."""
        if worker.models is None:
            names = ["", *self._sources.named]
        else:
            adapters = set(adapters_of(worker)).difference(self._sources.named)
            names = sorted(worker.models.difference(adapters))
        return [name for name in names if self._sources.of(name) is not None][:MAX_MODELS_OF_WORKER]

    def _follow(self) -> None:
        """Brings `models`, their workers and the checks up to date with the fleet."""
        for name in self._alike:
            self._sources.drop(name)
        serving: dict[str, list[Worker]] = {}
        checks: dict[WorkerId, Check] = {}
        for worker in self._fleet.workers:
            names = self._names_of(worker)
            for name in names:
                serving.setdefault(name, []).append(worker)
            before = self._checks.get(worker.id)
            same = before is not None and (before.generation, before.models) == (worker.generation, tuple(names))
            checks[worker.id] = before if before is not None and same else Check(worker.generation, tuple(names))
        self._checks = checks
        for name in [name for name in self.models if name not in serving]:
            del self.models[name]
            self._sources.drop(name)
        for name, workers in serving.items():
            parity = self.models.get(name) or self._new(name)
            if parity is not None:
                parity.serve(workers)
        if "" not in self.models:
            self._sources.renew_others()
        self._name_alike()

    def _new(self, name: str) -> ModelParity | None:
        keys = self._sources.of(name)
        if keys is None or len(self.models) >= MAX_MODELS:
            return None
        if name and keys is self._sources.others:
            keys = ModelKeys(keys.entry)
            self._sources.put(name, keys)
        parity = self.models[name] = ModelParity(name or "any", keys, self._settings)
        return parity

    def _name_alike(self) -> None:
        """Adapters are keyed like the model they build on, requests that name no model like the only one there is."""
        alike: dict[str, ModelKeys] = {}
        self._alike = set()
        others = self._sources.others
        if others is None:
            return
        if len(self.models) == 1 and "" not in self.models:
            alike[""] = next(iter(self.models.values())).keys
        for worker in self._fleet.workers:
            names = self._checks[worker.id].models
            base = next((self.models[name].keys for name in names if name in self.models), None)
            for adapter in adapters_of(worker):
                if base is not None and self._sources.of(adapter) is others and len(alike) < MAX_ALIKE:
                    alike.setdefault(adapter, base)
        for name, keys in alike.items():
            self._sources.put(name, keys)
        self._alike = set(alike)

    def _is_due(self, worker: Worker, now_s: float) -> bool:
        check = self._checks.get(worker.id)
        return (
            check is not None
            and bool(check.models)
            and not check.is_done
            and check.due_s <= now_s
            and worker.lifecycle is Lifecycle.READY
        )

    async def _check(self, worker: Worker, check: Check) -> None:
        """Asks one worker about all its models; where it does not answer, later again. Raises nothing but cancellation."""
        try:
            async with asyncio.timeout(CHECK_DEADLINE_S):
                told = await self._ask(worker, check)
        except Exception as error:
            if not isinstance(error, (NoTokens, TimeoutError)):
                log.exception("surprise while comparing tokens with those of worker %s", worker.id)
            check.due_s = self._clock() + check.delay_s
            check.delay_s = min(2 * check.delay_s, LONGEST_RETRY_S)
            return
        check.is_done = True
        if self._checks.get(worker.id) is check:
            for parity, verdicts in told:
                parity.told(worker.id, verdicts)

    async def _ask(self, worker: Worker, check: Check) -> list[tuple[ModelParity, Mapping[Shape, Verdict]]]:
        routes = self._routes_of(worker.id)
        judged = [(name, self.models[name]) for name in check.models if name in self.models]
        if routes is None:
            return [(parity, dict.fromkeys(Shape, NO_ROUTE)) for _, parity in judged]
        return [(parity, await probe(parity.keys.entry, routes, name or None)) for name, parity in judged]


def adapters_of(worker: Worker) -> tuple[str, ...]:
    return () if worker.report is None else worker.report.adapters or ()
