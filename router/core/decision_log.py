"""The last decisions by request id, for `warmline explain`."""

from router.core.types import CandidateCost, Decision


class DecisionLog:
    """Bounded; the oldest is dropped. A request that is sent again replaces its decision."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_request: dict[str, Decision] = {}
        self._kept: list[Decision] = []  # a ring once it is full; those that were replaced stay until their turn
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._by_request)

    def add(self, decision: Decision) -> None:
        kept, by_request = self._kept, self._by_request
        if len(kept) < self._limit:
            kept.append(decision)
        else:
            at = self._oldest
            dropped = kept[at]
            if by_request[dropped.request_id] is dropped:
                del by_request[dropped.request_id]
            kept[at] = decision
            at += 1
            self._oldest = at if at < self._limit else 0
        by_request[decision.request_id] = decision

    def get(self, request_id: str) -> Decision | None:
        """The decision with its `candidates` filled in; most are never asked for, so that waits until now."""
        decision = self._by_request.get(request_id)
        return None if decision is None else filled_in(decision)

    def latest(self, limit: int) -> list[Decision]:
        """Newest first, at most `limit`."""
        found: list[Decision] = []
        for back in range(1, len(self._kept) + 1):
            if len(found) >= limit:
                break
            decision = self._kept[self._oldest - back]
            if self._by_request[decision.request_id] is decision:
                found.append(filled_in(decision))
        return found


def filled_in(decision: Decision) -> Decision:
    if not decision.candidates:
        decision.candidates = candidates_of(decision)
    return decision


def candidates_of(decision: Decision) -> tuple[CandidateCost, ...]:
    return tuple(
        CandidateCost(
            worker=row.worker,
            matched_tokens=row.matched_tokens,
            uncached_tokens=decision.prompt_tokens - row.matched_tokens,
            prefill_s=row.prefill_s,
            backlog_s=row.backlog_s,
            price=row.price,
            cost_s=row.cost_s,
            in_flight=row.in_flight,
            truth=row.truth,
            home=row.worker in decision.homes,
            session=row.worker == decision.hinted,
        )
        for row in decision.priced
    )
