"""The last decisions by request id, for `warmline explain`."""

from collections import OrderedDict
from itertools import islice

from router.core.types import CandidateCost, Decision


class DecisionLog:
    """Bounded; the oldest is dropped. A request that is sent again replaces its decision."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decisions: OrderedDict[str, Decision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, decision: Decision) -> None:
        decisions = self._decisions
        if decision.request_id in decisions:
            del decisions[decision.request_id]
        decisions[decision.request_id] = decision
        if len(decisions) > self._limit:
            decisions.popitem(last=False)

    def get(self, request_id: str) -> Decision | None:
        """The decision with its `candidates` filled in; most are never asked for, so that waits until now."""
        decision = self._decisions.get(request_id)
        return None if decision is None else filled_in(decision)

    def latest(self, limit: int) -> list[Decision]:
        """Newest first, at most `limit`."""
        return [filled_in(decision) for decision in islice(reversed(self._decisions.values()), limit)]


def filled_in(decision: Decision) -> Decision:
    if not decision.candidates:
        decision.candidates = candidates_of(decision)
    return decision


def candidates_of(decision: Decision) -> tuple[CandidateCost, ...]:
    return tuple(
        CandidateCost(
            worker=worker,
            matched_tokens=matched,
            uncached_tokens=decision.prompt_tokens - matched,
            prefill_s=prefill_s,
            backlog_s=backlog_s,
            price=price,
            cost_s=cost_s,
            in_flight=in_flight,
            truth=truth,
            home=worker in decision.homes,
            session=worker == decision.hinted,
        )
        for worker, matched, prefill_s, backlog_s, price, cost_s, in_flight, truth in decision.priced
    )
