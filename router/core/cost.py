"""The steer rule (policy-lab §1): what a request costs on each worker, in seconds.

With x = its prefill there, u = the prefill ahead of it, q = gain · λ / (1 − ρ):

    cost = (u + x) + q · x · (u + x/2)

First bracket: its own time to first token. Second: the delay that its work puts on later arrivals, the value function
of an M/G/1 queue, one policy-iteration step from the present split.
"""

from collections.abc import Sequence

from router.core.fleet import Worker
from router.core.load import FleetLoad
from router.core.prefix_index import Level
from router.core.speed import FleetSpeed
from router.core.types import BLOCK_TOKENS, Priced
from router.settings import RoutingSettings


def price(
    workers: Sequence[Worker],
    levels: Sequence[Level],
    prompt_tokens: int,
    load: FleetLoad,
    speed: FleetSpeed,
    peers: "tuple[float, float]",
    weight: float,
    routing: RoutingSettings,
    now_s: float,
) -> list[Priced]:
    """Every worker's numbers, in the order given. `peers`: mean arrivals and busy seconds of a worker (weighted sums).

    One flat loop with few calls: it runs for each worker on each choice, and is a third of the whole choice's time.
    """
    per_s = load.per_s(weight)
    own = routing.own_rate_share * per_s
    others_rate = (per_s - own) * peers[0]
    others_use = (per_s - own) * peers[1]
    fleet_s_per_token = speed.s_per_token
    gain, cap = routing.steer_gain, routing.max_utilisation
    most = max(0, prompt_tokens - 1)  # an engine computes at least the last token
    priced: list[Priced] = []
    for worker in workers:
        queue = worker.load
        bit = worker.bit
        matched = 0
        for blocks, mask in levels:
            if mask & bit:
                matched = blocks * BLOCK_TOKENS
                matched -= matched % worker.block_tokens
                if matched > most:
                    matched = most
                break
        s_per_token = fleet_s_per_token * worker.speed.factor
        prefill_s = (prompt_tokens - matched) * s_per_token
        backlog_s = 0.0
        head = queue.head
        if head is not None and not head.stream:
            queue.advance(now_s, s_per_token)
            head = queue.head
        if head is not None:
            done_s = now_s - queue.head_since_s
            head_s = head.uncached_tokens * s_per_token
            backlog_s = queue.pending_tokens * s_per_token - (done_s if done_s < head_s else head_s)
        if now_s <= queue.report_until_s:
            backlog_s += queue.others_tokens(now_s, load.mean_uncached_tokens()) * s_per_token
        use = others_use + own * queue.busy_s
        q = gain * (others_rate + own * queue.arrivals) / (1.0 - (use if use < cap else cap))
        cost_s = backlog_s + prefill_s + q * prefill_s * (backlog_s + prefill_s * 0.5)
        priced.append((worker.id, matched, prefill_s, backlog_s, q, cost_s, queue.in_flight, worker.truth))
    return priced


def mean_rates(workers: Sequence[Worker]) -> "tuple[float, float]":
    """Mean arrivals and busy seconds of some workers, weighted sums."""
    arrivals = busy_s = 0.0
    for worker in workers:
        arrivals += worker.load.arrivals
        busy_s += worker.load.busy_s
    return arrivals / len(workers), busy_s / len(workers)
