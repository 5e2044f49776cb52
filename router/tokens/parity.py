"""Are the tokens made here those of the engines? Judged per model and worker; chooses what prompts are keyed from.

Two witnesses: probes, asked of every worker when it is ready and again after a restart (`probes.probe`), and the counts
of finished requests (`core.token_tally`), which prove a difference only. What follows for a model's prompts of one shape:

- no worker differs: they are keyed by the tokenizer here, as before;
- some differ, some match: by the tokenizer, unless what a differing worker caches is known exactly, for that is known in
  the engine's own tokens; a cache known by history is known in any tokens;
- otherwise by asking an engine that differs and can tell its tokens; where none can, by their text.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from router.core.fleet import Worker
from router.core.token_tally import TokenTally
from router.core.types import Lifecycle, Truth, WorkerId
from router.settings import TokenSettings
from router.tokens.key_sources import KeySource, ModelKeys, Shape, ShapeKeys
from router.tokens.probes import Verdict

log = logging.getLogger("warmline.tokens")
UNKNOWN = Verdict(None, "not compared yet")
PLURAL = {Shape.CHAT: "chats", Shape.PARTS: "chats in parts", Shape.TOOLS: "chats with tools", Shape.TEXT: "texts"}
EFFECT = {
    KeySource.TOKENIZER: "keyed by the tokenizer here",
    KeySource.ENGINE: "keyed by asking an engine for their tokens",
    KeySource.TEXT: "keyed by their text",
}


class Witness:
    """One worker that serves a model."""

    __slots__ = ("counted", "probed", "untold", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.probed: Mapping[Shape, Verdict] = {}
        self.counted: dict[Shape, tuple[float, Verdict]] = {}  # until when, what its counts of prompts proved
        self.untold: dict[Shape, float] = {}  # until when the tokens it tells count as others than those it uses

    def verdict(self, shape: Shape) -> Verdict:
        counted = self.counted.get(shape)
        return self.probed.get(shape, UNKNOWN) if counted is None else counted[1]

    def can_tell(self, shape: Shape) -> bool:
        return self.probed.get(shape, UNKNOWN).matches is not None and shape not in self.untold

    def said(self, shape: Shape) -> str:
        return f"worker {self.worker.id} ({self.worker.kind}): {self.verdict(shape).why}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What prompts are keyed from, what differs, who is asked, and what stands for the tokens those make."""

    source: KeySource
    why: str = ""
    askable: tuple[WorkerId, ...] = ()
    tokens: int = 0


class ModelParity:
    """One model with all workers that serve it; the one that writes its `ModelKeys`.

    `is_open`: something has changed since it was settled.
    """

    def __init__(self, name: str, keys: ModelKeys, settings: TokenSettings) -> None:
        self.name = name
        self.keys = keys
        self.witnesses: dict[WorkerId, Witness] = {}
        self._settings = settings
        self.is_open = True
        self._has_limits = False  # some witness is judged by its counts, for a time
        self._is_told = False

    def serve(self, workers: Iterable[Worker]) -> None:
        """These serve it now, and no others."""
        self.is_open = True
        before, self.witnesses = self.witnesses, {}
        for worker in workers:
            witness = before.pop(worker.id, None)
            known = witness is not None and witness.worker is worker
            self.witnesses[worker.id] = witness if witness is not None and known else Witness(worker)
        for _, keys in self.keys.shapes():
            keys.counted.keep(self.witnesses)
            keys.asked.keep(self.witnesses)

    def restarted(self, worker: WorkerId) -> None:
        """What it counted belongs to the life that ended; what it told stands until it was asked again."""
        witness = self.witnesses.get(worker)
        if witness is not None:
            witness.counted.clear()
            witness.untold.clear()
            for _, keys in self.keys.shapes():
                keys.counted.forget(worker)
                keys.asked.forget(worker)
            self.is_open = True

    def told(self, worker: WorkerId, verdicts: Mapping[Shape, Verdict]) -> None:
        witness = self.witnesses.get(worker)
        if witness is not None:
            witness.probed = verdicts
            self.is_open = True

    def settle(self, now_s: float) -> None:
        """Looks at the counts, chooses anew and says what has changed. Without a ready worker nothing changes."""
        has_counts = any(keys.counted.differences or keys.asked.differences for _, keys in self.keys.shapes())
        if not (self.is_open or has_counts or self._has_limits):
            return
        ready = [witness for witness in self.witnesses.values() if witness.worker.lifecycle is Lifecycle.READY]
        if not ready:
            return
        self.is_open = False
        changed: dict[tuple[KeySource, bool], list[Shape]] = {}
        for shape, keys in self.keys.shapes():
            self._weigh(shape, keys, ready, now_s)
            choice = choose(shape, ready)
            if choice.source is not keys.source or bool(choice.why) is not bool(keys.why):
                changed.setdefault((choice.source, bool(choice.why)), []).append(shape)
            keys.source, keys.why, keys.askable, keys.tokens = choice.source, choice.why, choice.askable, choice.tokens
        self._has_limits = any(witness.counted or witness.untold for witness in ready)
        for (source, differs), shapes in changed.items():
            self._tell(source, shapes, self.keys.by_shape(shapes[0]).why if differs else "")
        self._tell_once(ready, bool(changed))

    def _weigh(self, shape: Shape, keys: ShapeKeys, ready: Sequence[Witness], now_s: float) -> None:
        """Turns counts that differ too often into verdicts, for a time; after it they are tried anew."""
        until_s = now_s + self._settings.recheck_tokens_s
        for witness in ready:
            worker = witness.worker.id
            if shape in witness.counted and witness.counted[shape][0] <= now_s:
                del witness.counted[shape]
                keys.counted.forget(worker)
            if witness.untold.get(shape, now_s + 1.0) <= now_s:
                del witness.untold[shape]
                keys.asked.forget(worker)
            if shape not in witness.counted and (said := self._too_many(keys.counted, worker)):
                witness.counted[shape] = until_s, Verdict(False, said)
            if worker in keys.askable and self._too_many(keys.asked, worker):
                witness.untold[shape] = until_s

    def _too_many(self, tally: TokenTally, worker: WorkerId) -> str:
        """What to say of a worker whose counts differ too often; empty for others."""
        found = tally.differences.get(worker)
        if found is None or found.share <= self._settings.max_differing_share:
            return ""
        return (
            f"it counts other tokens in {found.share:.0%} of the latest prompts, {found.there} for {found.here} of the last one"
        )

    def _tell(self, source: KeySource, shapes: Sequence[Shape], why: str) -> None:
        level = logging.WARNING if why else logging.INFO
        plural = ", ".join(PLURAL[shape] for shape in shapes)
        reason = why or "its tokens are those of the engines again"
        log.log(level, "model %r: %s are %s: %s", self.name, plural, EFFECT[source], reason)

    def _tell_once(self, ready: Sequence[Witness], is_said: bool) -> None:
        """The first result is worth a line even where nothing follows from it."""
        if self._is_told or not (is_said or all(witness.probed for witness in ready)):
            return
        self._is_told = True
        if is_said:
            return
        if any(witness.verdict(shape).matches for witness in ready for shape in Shape):
            log.info("model %r: the tokenizer here makes the tokens of its engines", self.name)
        else:
            log.info("model %r: no engine tells its tokens; their counts of prompts are compared", self.name)


def choose(shape: Shape, ready: Sequence[Witness]) -> Choice:
    """See the module. `ready` are the workers that may get the prompts."""
    differing = [witness for witness in ready if witness.verdict(shape).matches is False]
    if not differing:
        return Choice(KeySource.TOKENIZER)
    more = f"; and {len(differing) - 1} more workers" if len(differing) > 1 else ""
    why = differing[0].said(shape) + more
    matching = [witness for witness in ready if witness.verdict(shape).matches]
    if matching and not any(witness.worker.told_truth in (Truth.EXACT, Truth.UNTRUSTED) for witness in differing):
        return Choice(KeySource.TOKENIZER, f"{why}; others match")
    tellers = [witness for witness in differing if witness.can_tell(shape)]
    if tellers:
        tokens = tellers[0].probed[shape].tokens
        askable = tuple(witness.worker.id for witness in tellers if witness.probed[shape].tokens == tokens)
        return Choice(KeySource.ENGINE, why, askable, tokens)
    if any(shape in witness.untold for witness in differing):
        why += "; the tokens it tells are not those it counts"
    return Choice(KeySource.TEXT, why)
