"""How far what is known of a worker's cache is used: predictions against the engine's own numbers, and what follows.

There is one record for cache events and one for history (the router's own model). A source is doubted when its
predictions miss too much of the prompts, over so many requests in a row; history only where the engine serves next to
nothing from its cache, for a prediction that is half right still leads prompts to where they have been. After a while a
doubted source is tested by predictions that are made and compared but not used, and must do twice as well as what it was
doubted for. The while doubles when a test fails and when the source is doubted again soon after, so that a worker on the
edge does not go back and forth.
"""

from typing import Final

from router.settings import CacheSettings

MAX_WAIT_S: Final = 3600.0
REGAIN_SHARE: Final = 0.5  # of the limit: what a test must stay within
SOON: Final = 4.0  # waits within which a source is doubted again soon
SERVED_SHARE: Final = 0.25  # of the limit: an engine that serves less of its prompts from its cache serves next to nothing


class Record:
    """What one source's predictions for one worker were worth."""

    __slots__ = ("actual_tokens", "doubt", "missed", "predicted_tokens", "requests", "served", "since_s", "wait_s")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another engine process: what the old one did does not count."""
        self.doubt = ""  # why its predictions are not used
        self.since_s = float("-inf")  # of the last change, or of the last test that failed
        self.wait_s = 0.0  # from then to the next test
        self.clear()

    def clear(self) -> None:
        self.requests = 0
        self.missed = 0.0  # sum over requests of the part of the prompt that was predicted wrongly
        self.served = 0.0  # and of the part that came from the cache
        self.predicted_tokens = 0
        self.actual_tokens = 0

    def is_wanted(self, now_s: float) -> bool:
        """Whether a prediction for a request sent now is worth comparing."""
        return not self.doubt or now_s - self.since_s >= self.wait_s

    def note(self, predicted_tokens: int, actual_tokens: int, prompt_tokens: int, slack_tokens: int) -> None:
        missed = predicted_tokens - actual_tokens
        if missed < 0:
            missed = -missed
        self.requests += 1
        if missed > slack_tokens:
            self.missed += float(missed) / float(prompt_tokens)
        self.served += float(actual_tokens) / float(prompt_tokens)
        self.predicted_tokens += predicted_tokens
        self.actual_tokens += actual_tokens

    def told(self) -> str:
        predicted, actual = self.predicted_tokens // self.requests, self.actual_tokens // self.requests
        return f"{predicted} cached tokens a request predicted, {actual} counted by the engine, over {self.requests} requests"


class Trust:
    """One worker's records."""

    __slots__ = ("demotions", "events", "history")

    def __init__(self) -> None:
        self.demotions = 0
        self.events = Record()
        self.history = Record()

    def reset(self) -> None:
        self.events.reset()
        self.history.reset()


class Judge:
    """The rules, with their settings. Both verdicts return whether the doubt began or ended."""

    def __init__(self, cache: CacheSettings) -> None:
        self._limit = cache.distrust_share
        self._requests = cache.distrust_requests
        self._retest_s = cache.retest_s

    def on_events(self, trust: Trust, now_s: float) -> bool:
        """After each note in `trust.events`."""
        record = trust.events
        if record.requests < self._requests:
            return False
        missed = record.missed / record.requests
        return self._judge(trust, record, "cache events", missed > self._limit, missed <= self._limit * REGAIN_SHARE, now_s)

    def on_history(self, trust: Trust, now_s: float) -> bool:
        """After each note in `trust.history`."""
        record = trust.history
        if record.requests < self._requests:
            return False
        missed, served, least = record.missed / record.requests, record.served / record.requests, self._limit * SERVED_SHARE
        is_good = missed <= self._limit * REGAIN_SHARE or served >= 2.0 * least
        return self._judge(trust, record, "own history", missed > self._limit and served < least, is_good, now_s)

    def _judge(self, trust: Trust, record: Record, name: str, is_bad: bool, is_good: bool, now_s: float) -> bool:
        changed = False
        if record.doubt:
            changed = is_good
            record.doubt = "" if is_good else record.doubt
            if not is_good:
                record.wait_s = min(MAX_WAIT_S, record.wait_s * 2.0)
            record.since_s = now_s
        elif is_bad:
            changed = True
            is_soon = now_s - record.since_s < SOON * record.wait_s
            record.wait_s = min(MAX_WAIT_S, record.wait_s * 2.0) if is_soon else self._retest_s
            record.doubt = f"{name}: {record.told()}"
            record.since_s = now_s
            trust.demotions += 1
        record.clear()
        return changed
