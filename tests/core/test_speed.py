import random

import pytest

from router.core.speed import SURPRISE, FleetSpeed, WorkerSpeed


def test_nothing_observed_is_the_prior() -> None:
    """Until a first token is seen, the configured speed holds, for all workers alike but for their weight."""
    speed = FleetSpeed(2500.0)
    assert speed.s_per_token == pytest.approx(1 / 2500)
    assert [WorkerSpeed(weight).factor for weight in (1.0, 2.0)] == [1.0, 0.5]


@pytest.mark.parametrize("true_tokens_per_s", [150.0, 2362.0, 40_000.0])
def test_finds_the_true_rate(true_tokens_per_s: float) -> None:
    """From noisy times with a constant part, the learned rate comes within 10 % (policy-lab: 2,355 of 2,362)."""
    rng = random.Random(1)
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for _ in range(300):
        tokens = rng.randrange(20, 4000)
        speed.observe(worker, tokens, (0.02 + tokens / true_tokens_per_s) * rng.uniform(0.9, 1.1))
    assert 1 / speed.s_per_token == pytest.approx(true_tokens_per_s, rel=0.1)
    assert speed.c0_s == pytest.approx(0.02, abs=0.05 * 2000 / true_tokens_per_s)


def test_tells_a_slow_worker_from_a_fast_one() -> None:
    """Each worker's own factor shows in its seconds per token, though the line is the fleet's."""
    rng = random.Random(2)
    speed, fast, slow = FleetSpeed(2500.0), WorkerSpeed(), WorkerSpeed()
    for _ in range(200):
        for worker, rate in ((fast, 2000.0), (slow, 1000.0)):
            tokens = rng.randrange(100, 4000)
            speed.observe(worker, tokens, tokens / rate)
    assert slow.factor / fast.factor == pytest.approx(2.0, rel=0.15)


def test_worker_that_seemed_slow_is_tried_again() -> None:
    """Without requests of its own, a worker's bad factor fades as others are observed; one that is slow keeps it."""
    speed, idle, busy = FleetSpeed(1000.0), WorkerSpeed(), WorkerSpeed()
    speed.workers += [idle, busy]
    for _ in range(50):
        speed.observe(busy, 1000, 1.0)
    for _ in range(4):
        speed.observe(idle, 1000, 3.0)
    seemed = idle.factor / busy.factor
    assert seemed > 1.5
    for _ in range(400):
        speed.observe(busy, 1000, 1.0)
    assert 1.0 < idle.factor / busy.factor < 1.0 + (seemed - 1.0) / 2
    for _ in range(50):
        speed.observe(idle, 1000, 3.0)
        speed.observe(busy, 1000, 1.0)
    assert idle.factor / busy.factor == pytest.approx(3.0, rel=0.3)


def test_constant_times_are_not_infinite_speed() -> None:
    """Where time does not grow with tokens, tokens still are taken to explain three tenths of it."""
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for tokens in [100, 200, 300, 400] * 100:
        speed.observe(worker, tokens, 0.5)
    assert speed.s_per_token == pytest.approx(0.3 * 0.5 / 250, rel=0.05)


def test_equal_prompts_give_the_mean_rate() -> None:
    """Without any spread of tokens there is no slope to fit; the ratio of the sums stands in once the prior has faded."""
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for _ in range(3000):
        speed.observe(worker, 1000, 1.0)
    assert speed.s_per_token == pytest.approx(1e-3, rel=0.01)
    assert speed.c0_s == pytest.approx(0.0, abs=1e-6)


def test_one_stall_does_not_shun_a_worker() -> None:
    """An observation counts as at most eight times what was expected; a worker nobody uses could never clear its name."""
    speed, worker = FleetSpeed(1000.0), WorkerSpeed()
    speed.observe(worker, 500, 600.0)
    assert worker.factor <= (4 + SURPRISE * 0.5) / (4 + 0.5)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (10, 0.0), (10, -1.0)])
def test_nonsense_is_ignored(tokens: int, seconds: float) -> None:
    """No tokens or no time teaches nothing."""
    speed, worker = FleetSpeed(1000.0), WorkerSpeed()
    speed.observe(worker, tokens, seconds)
    assert (speed.observations, worker.factor, speed.s_per_token) == (0, 1.0, 1e-3)


@pytest.mark.parametrize("true_tokens_per_s", [300.0, 10_000.0])
def test_whole_answers_teach_the_prefill_speed_too(true_tokens_per_s: float) -> None:
    """Where nobody streams, prefill is told from decoding by how prompt and answer lengths vary."""
    rng = random.Random(3)
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for _ in range(400):
        tokens, answer = rng.randrange(20, 4000), rng.randrange(5, 300)
        speed.observe_whole(
            worker, tokens, answer, (0.02 + tokens / true_tokens_per_s + answer * 0.03) * rng.uniform(0.95, 1.05)
        )
    assert 1 / speed.s_per_token == pytest.approx(true_tokens_per_s, rel=0.5 if true_tokens_per_s > 5000 else 0.1)


def test_whole_answers_of_one_length_teach_by_their_prompts() -> None:
    """Decoding then is part of what every answer takes; but nothing is told from few answers, or where neither length varies,
    or where both vary together."""
    rng = random.Random(4)
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for _ in range(200):
        tokens = rng.randrange(20, 4000)
        speed.observe_whole(worker, tokens, 100, (3.0 + tokens / 600) * rng.uniform(0.95, 1.05))
    assert 1 / speed.s_per_token == pytest.approx(600, rel=0.15)
    for lengths in ([(1000, 100)] * 50, [(100 * (i % 3), 10 * (i % 3)) for i in range(50)], [(100, 1), (200, 2), (50, 9)] * 2):
        speed = FleetSpeed(2500.0)
        times = [(tokens, answer, 0.1 + tokens / 600 + answer * 0.01) for tokens, answer in lengths]
        assert not any([speed.observe_whole(worker, *one) for one in times])
        assert speed.observations == 0


def test_prefill_is_no_longer_than_the_whole_answer() -> None:
    """Where times grow faster than lengths do, the fitted line takes more for a short prompt than it took."""
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for i in range(200):
        tokens = 500 + 100 * (i % 60)
        seconds = 0.3 + tokens / 1e4 + (tokens / 6000) ** 2
        prefill_s = speed.whole.prefill_s(tokens, 10, seconds)
        assert prefill_s is None or 0 < prefill_s <= seconds
        speed.observe_whole(worker, tokens, 10, seconds)
    assert speed.observations > 100


def test_longer_answers_that_take_less_teach_by_their_prompts() -> None:
    """No token is decoded in less than no time."""
    rng = random.Random(5)
    speed, worker = FleetSpeed(2500.0), WorkerSpeed()
    for _ in range(200):
        tokens, answer = rng.randrange(20, 4000), rng.randrange(5, 50)
        speed.observe_whole(worker, tokens, answer, 1.0 + tokens / 600 - answer * 0.01)
    assert 1 / speed.s_per_token == pytest.approx(600, rel=0.25)


def test_an_upper_bound_never_slows_down() -> None:
    """That prefill took at most so long teaches only who thought that it takes longer, and nothing of other workers."""
    speed, fast, slow = FleetSpeed(1000.0), WorkerSpeed(), WorkerSpeed()
    speed.observe_most(fast, 1000, 1.5)
    assert fast.factor == 1.0
    for _ in range(20):
        speed.observe_most(fast, 1000, 0.1)
        speed.observe_most(slow, 1000, 0.9)
    assert 0.1 < fast.factor < 0.4 and 0.9 < slow.factor < 1.0 and speed.s_per_token == 1e-3
