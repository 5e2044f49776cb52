"""The steer rule (policy-lab §1): what a request costs on each worker, in seconds.

With x = its prefill there, u = the prefill ahead of it, q = gain · λ / (1 − ρ):

    cost = (u + 1.25 · x) + q · x · (u + x/2)

First bracket: its own time to first token, work counted somewhat more than waiting (WORK_PRICE). Second: the delay that its
work puts on later arrivals, the value function of an M/G/1 queue, one policy-iteration step from the present split.
"""

from typing import Final

from router.core.fleet import Worker
from router.core.load import FleetLoad
from router.core.prefix_node import Level
from router.core.speed import FleetSpeed
from router.core.types import BLOCK_TOKENS, Priced
from router.settings import RoutingSettings

WORK_PRICE: Final = 1.25
"""What a second of prefill counts, against a second of waiting: it is taken from all later requests, and estimates of
waiting are rough. On traces of chats, agents and tools (4 and 8 engines, loads of 30 to 90 %) times to first tokens are
within 1 % of those of 1.0; holders keep what they would else lose to others that are idle by a hair."""


class Steer:
    """The knobs of the rule, read once."""

    __slots__ = ("gain", "max_utilisation", "own_share")

    def __init__(self, routing: RoutingSettings) -> None:
        self.gain = routing.steer_gain
        self.max_utilisation = routing.max_utilisation
        self.own_share = routing.own_rate_share


def held_blocks(worker: Worker, levels: list[Level], from_level: int) -> int:
    """How much of the prompt the worker holds, if it is in none of the levels before that one."""
    bit = worker.bit
    for at in range(from_level, len(levels)):
        if levels[at].mask & bit:
            return levels[at].blocks
    return 0


def reusable_tokens(blocks: int, prompt_tokens: int, reuse_tokens: int) -> int:
    """Tokens that an engine serves of so many held leading blocks: not the prompt's last, and multiples of `reuse_tokens`."""
    tokens, most = blocks * BLOCK_TOKENS, prompt_tokens - 1
    if tokens > most:
        tokens = most if most > 0 else 0
    return tokens - tokens % reuse_tokens if reuse_tokens > 1 else tokens


def note_matches(workers: list[Worker], levels: list[Level]) -> None:
    """Writes into every worker how much of the prompt it holds."""
    for worker in workers:
        worker.matched_blocks = held_blocks(worker, levels, 0)


def price(
    workers: list[Worker],
    prompt_tokens: int,
    load: FleetLoad,
    speed: FleetSpeed,
    peers: "tuple[float, float]",
    weight: float,
    steer: Steer,
    now_s: float,
) -> list[Priced]:
    """Every worker's numbers, in the order given, with `matched_blocks` as noted before.

    `peers`: mean arrivals and busy seconds of a worker (weighted sums). One flat loop with few calls: it runs for each
    worker on each choice.
    """
    per_s = load.per_s(weight)
    if load.other_requests:
        per_s *= load.fleet_share()
    own = steer.own_share * per_s
    others_rate = (per_s - own) * peers[0]
    others_use = (per_s - own) * peers[1]
    fleet_s_per_token = speed.s_per_token
    gain, cap = steer.gain, steer.max_utilisation
    priced: list[Priced] = []
    for worker in workers:
        queue = worker.load
        matched = reusable_tokens(worker.matched_blocks, prompt_tokens, worker.reuse_tokens) if worker.matched_blocks else 0
        s_per_token = fleet_s_per_token * worker.speed.factor
        prefill_s = float(prompt_tokens - matched) * s_per_token
        backlog_s = 0.0
        head = queue.head
        if head is not None and not head.stream:
            queue.advance(now_s, s_per_token)
            head = queue.head
        if head is not None:
            done_s = now_s - queue.head_since_s
            head_s = float(head.uncached_tokens) * s_per_token
            backlog_s = float(queue.pending_tokens) * s_per_token - (done_s if done_s < head_s else head_s)
        if queue.other_tokens:
            backlog_s += queue.other_backlog_s(now_s, s_per_token)
        if now_s <= queue.report_until_s:
            backlog_s += queue.unexplained_tokens(now_s, load.mean_uncached_tokens()) * s_per_token
        use = others_use + own * queue.busy_s
        q = gain * (others_rate + own * queue.arrivals) / (1.0 - (use if use < cap else cap))
        cost_s = backlog_s + prefill_s * WORK_PRICE + q * prefill_s * (backlog_s + prefill_s * 0.5)
        priced.append(Priced(worker.id, matched, prefill_s, backlog_s, q, cost_s, queue.requests(), worker.truth))
    return priced


def mean_rates(workers: list[Worker]) -> "tuple[float, float]":
    """Mean arrivals and busy seconds of some workers, weighted sums."""
    arrivals = busy_s = 0.0
    for worker in workers:
        arrivals += worker.load.arrivals
        busy_s += worker.load.busy_s
    return arrivals / len(workers), busy_s / len(workers)
