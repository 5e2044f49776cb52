"""How many requests may be sent a second time, over all requests, so that failures do not multiply the load."""

import math

FLOOR = 10.0  # retries within the window that are always allowed: a small fleet can fail over
HALF_LIFE_S = 10.0


class RetryBudget:
    """Retries stay under `share` of the requests plus a floor; both counts fade with a half-life of 10 s."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._requests = 0.0
        self._retries = 0.0
        self._at_s: float | None = None

    def note_request(self, now_s: float) -> None:
        self._fade(now_s)
        self._requests += 1.0

    def may_retry(self, now_s: float) -> bool:
        """Whether one more retry fits; if so it is counted."""
        self._fade(now_s)
        if self._retries + 1.0 > FLOOR + self._share * self._requests:
            return False
        self._retries += 1.0
        return True

    def _fade(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = now_s
        elif now_s > self._at_s:
            fade = math.exp(-math.log(2) / HALF_LIFE_S * (now_s - self._at_s))
            self._requests *= fade
            self._retries *= fade
            self._at_s = now_s
