"""Prefill speed learned from first tokens: one line fitted to the fleet, one factor per worker (policy-lab §1).

`time = c0 + uncached_tokens · s_per_token`, by least squares in which each observation fades by 0.99 per later one.
"""

from typing import Final

FADE: Final = 0.99  # per observation
SLOPE_SHARE: Final = 0.3  # of the observed time that uncached tokens explain at least
PRIOR_S: Final = 4.0  # observed seconds that weigh as much as the assumption that a worker is as fast as the fleet
SURPRISE: Final = 8.0  # an observation counts as at most so many times what was expected: one stall must not shun a worker
MIN_WHOLE: Final = 8.0  # observations of whole answers before any is believed
MIN_SPREAD: Final = 1e-4  # of the squares: less variation than this tells prefill from decoding no better than noise does
MIN_VARIANCE: Final = 1e-2  # of the square, of prefill lengths while answer lengths hardly vary
PRIOR_POINT_S: Final = 0.25  # the assumed line enters the fit as two observations: nothing in no time, and this long


class WorkerSpeed:
    """How one worker differs from the fleet: its seconds per token are the fleet's times `factor`."""

    __slots__ = ("factor", "observed_s", "predicted_s", "prior_s")

    def __init__(self, weight: float = 1.0) -> None:
        """`weight`: how many times as fast as others the operator says it is; what is observed replaces that."""
        self.prior_s = self.observed_s = PRIOR_S / weight
        self.predicted_s = PRIOR_S
        self.factor = 1.0 / weight

    def observe(self, seconds: float, predicted_s: float) -> None:
        """One observation and what the fleet's line says. The prior does not fade, the observations do."""
        self.observed_s = self.prior_s + (self.observed_s - self.prior_s) * FADE + seconds
        self.predicted_s = PRIOR_S + (self.predicted_s - PRIOR_S) * FADE + predicted_s
        self.factor = self.observed_s / self.predicted_s

    def fade(self) -> None:
        """As observations of other workers come in, what was seen of this one counts less."""
        self.observe(0.0, 0.0)


class WholeTimes:
    """Times of answers in one piece: time = c0 + prefill tokens · prefill + completion tokens · decode, two slopes fitted."""

    __slots__ = ("_n", "_t", "_x", "_xt", "_xx", "_xy", "_y", "_yt", "_yy")

    def __init__(self) -> None:
        self._n = 0.0
        # Sums of x prefill tokens, y completion tokens, t time and their products.
        self._x = self._y = self._t = self._xx = self._yy = self._xy = self._xt = self._yt = 0.0

    def prefill_s(self, prefill_tokens: int, completion_tokens: int, seconds: float) -> float | None:
        """The prefill that these lengths say, times how much longer than they say the whole took; None before they can say it.

        Not the rest after decoding: of many small prefills and long answers that would be noise. Where all answers are of
        one length, decoding is part of what does not depend on the prompt.
        """
        x, y, t = float(prefill_tokens), float(completion_tokens), seconds
        self._n = n = self._n * FADE + 1.0
        self._x = self._x * FADE + x
        self._y = self._y * FADE + y
        self._t = self._t * FADE + t
        self._xx = self._xx * FADE + x * x
        self._yy = self._yy * FADE + y * y
        self._xy = self._xy * FADE + x * y
        self._xt = self._xt * FADE + x * t
        self._yt = self._yt * FADE + y * t
        if n < MIN_WHOLE:
            return None
        sx, sy, st, sxx, syy = self._x / n, self._y / n, self._t / n, self._xx / n, self._yy / n
        vx, vy, cxy = sxx - sx * sx, syy - sy * sy, self._xy / n - sx * sy
        cxt, cyt = self._xt / n - sx * st, self._yt / n - sy * st
        prefill_s_per_token = decode_s_per_token = 0.0
        spread = vx * vy - cxy * cxy
        if spread > MIN_SPREAD * sxx * syy:
            prefill_s_per_token = (cxt * vy - cyt * cxy) / spread
            decode_s_per_token = (cyt * vx - cxt * cxy) / spread
            if decode_s_per_token < 0.0:
                prefill_s_per_token, decode_s_per_token = cxt / vx, 0.0
        elif vy <= MIN_SPREAD * syy and vx > MIN_VARIANCE * sxx:
            prefill_s_per_token = cxt / vx
        fitted_s = st + prefill_s_per_token * (x - sx) + decode_s_per_token * (y - sy)
        if prefill_s_per_token <= 0.0 or fitted_s <= 0.0:
            return None
        share = prefill_s_per_token * x / fitted_s
        return seconds * share if share < 1.0 else seconds


class FleetSpeed:
    """The fleet's line. `s_per_token` is read on each choice, so it is kept ready.

    Once as many observations came in as there are `workers`, those of every worker fade by one: a worker that seemed slow and
    gets no requests for it is tried again.
    """

    __slots__ = (
        "_unfaded",
        "c0_s",
        "observations",
        "s_per_token",
        "sum_n",
        "sum_x",
        "sum_xx",
        "sum_xy",
        "sum_y",
        "whole",
        "workers",
    )

    def __init__(self, prior_tokens_per_s: float) -> None:
        tokens = prior_tokens_per_s * PRIOR_POINT_S
        self.sum_n = 2.0
        self.sum_x = tokens
        self.sum_y = PRIOR_POINT_S
        self.sum_xx = tokens * tokens
        self.sum_xy = tokens * PRIOR_POINT_S
        self.s_per_token = 1.0 / prior_tokens_per_s
        self.c0_s = 0.0
        self.observations = 0
        self.whole = WholeTimes()
        self.workers: list[WorkerSpeed] = []
        self._unfaded = 0

    def of(self, worker: WorkerSpeed) -> float:
        """Seconds per token of one worker."""
        return self.s_per_token * worker.factor

    def observe(self, worker: WorkerSpeed, uncached_tokens: int, seconds: float) -> None:
        """A worker's prefill of some tokens, with nothing ahead of it, took this long. Ignored if either is not above 0."""
        if uncached_tokens <= 0 or seconds <= 0:
            return
        tokens = float(uncached_tokens)
        predicted_s = self.c0_s + tokens * self.s_per_token
        most_s = SURPRISE * predicted_s * worker.factor
        if seconds > most_s:
            seconds = most_s
        worker.observe(seconds, predicted_s)
        self.observations += 1
        self._unfaded += 1
        if self._unfaded >= len(self.workers):
            self._unfaded = 0
            for known in self.workers:
                known.fade()
        self.sum_n = n = self.sum_n * FADE + 1.0
        self.sum_x = x = self.sum_x * FADE + tokens
        self.sum_y = y = self.sum_y * FADE + seconds
        self.sum_xx = xx = self.sum_xx * FADE + tokens * tokens
        self.sum_xy = xy = self.sum_xy * FADE + tokens * seconds
        mean_slope = y / x
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-9 * n * xx else mean_slope
        if slope > mean_slope:
            slope = mean_slope
        elif slope < SLOPE_SHARE * mean_slope:
            slope = SLOPE_SHARE * mean_slope
        self.s_per_token = slope
        self.c0_s = (y - slope * x) / n

    def observe_whole(self, worker: WorkerSpeed, prefill_tokens: int, completion_tokens: int, seconds: float) -> bool:
        """A whole answer took this long, with so many tokens to prefill: its own, and those ahead of them.

        False: what part of the time prefill took cannot be told yet.
        """
        prefill_s = self.whole.prefill_s(prefill_tokens, completion_tokens, seconds)
        if prefill_s is None:
            return False
        self.observe(worker, prefill_tokens, prefill_s)
        return True

    def observe_most(self, worker: WorkerSpeed, uncached_tokens: int, seconds: float) -> None:
        """Prefill of so many tokens took this long at most: a whole answer did. Teaches of that worker only, and only who
        thought it slower."""
        predicted_s = self.c0_s + float(uncached_tokens) * self.s_per_token
        if 0.0 < seconds < predicted_s * worker.factor:
            worker.observe(seconds, predicted_s)
