"""Loads of other routers, added up per worker."""

import random

from router.core.cache_delta import RouterLoad
from router.core.peer_loads import PeerLoads
from router.core.types import WorkerId

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def load(router: str, full: bool, **workers: tuple[int, int]) -> RouterLoad:
    return RouterLoad(router, 1, full, {WorkerId(name): counts for name, counts in workers.items()})


def test_routers_add_up() -> None:
    """A worker's load is the sum over the routers; one that nobody spoke of has none."""
    peers = PeerLoads(8, 8)
    assert peers.apply(load("r", True, a=(1, 100))) and peers.apply(load("s", False, a=(2, 50), b=(1, 1)))
    assert (peers.of(A), peers.of(B), peers.of(C)) == ((3, 150), (1, 1), (0, 0))


def test_a_change_replaces_what_was_said_of_its_workers_only() -> None:
    """New totals of the workers that changed; zero ends an entry."""
    peers = PeerLoads(8, 8)
    peers.apply(load("r", True, a=(5, 100), b=(1, 1)))
    peers.apply(load("r", False, a=(4, 0)))
    assert (peers.of(A), peers.of(B)) == ((4, 0), (1, 1))
    peers.apply(load("r", False, a=(0, 0), b=(0, 0)))
    assert (peers.of(A), peers.of(B), len(peers)) == ((0, 0), (0, 0), 0)


def test_a_full_count_replaces_everything() -> None:
    """What it does not name is nothing any more; an empty one ends a router."""
    peers = PeerLoads(8, 8)
    peers.apply(load("r", True, a=(5, 100), b=(1, 1)))
    peers.apply(load("s", True, a=(1, 1)))
    peers.apply(load("r", True, b=(2, 2)))
    assert (peers.of(A), peers.of(B)) == ((1, 1), (2, 2))
    peers.apply(load("r", True))
    assert (peers.of(B), len(peers)) == ((0, 0), 1)


def test_it_is_bounded() -> None:
    """Routers and workers beyond the bounds are refused; those that are known go on."""
    peers = PeerLoads(1, 1)
    assert peers.apply(load("r", True, a=(1, 1)))
    assert not peers.apply(load("s", True, a=(1, 1)))
    assert not peers.apply(load("r", False, b=(1, 1), a=(2, 2)))
    assert (peers.of(A), peers.of(B)) == ((2, 2), (0, 0))


def test_sums_never_drift() -> None:
    """After any messages the totals are the sums of what each router said last."""
    rng = random.Random(7)
    peers = PeerLoads(4, 8)
    said: dict[str, dict[WorkerId, tuple[int, int]]] = {}
    for _ in range(500):
        router, full = rng.choice("rst"), rng.random() < 0.3
        workers = {worker: (rng.randrange(3), rng.randrange(3)) for worker in (A, B, C) if rng.random() < 0.5}
        peers.apply(RouterLoad(router, 1, full, workers))
        said[router] = workers if full else {**said.get(router, {}), **workers}
        for worker in (A, B, C):
            counts = [known.get(worker, (0, 0)) for known in said.values()]
            assert peers.of(worker) == (sum(pair[0] for pair in counts), sum(pair[1] for pair in counts))
