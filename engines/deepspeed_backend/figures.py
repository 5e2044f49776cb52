"""What the back end counts, and the page that tells it; `engines.deepspeed` reads these names."""

import threading
import time

from engines.deepspeed_backend.line import Line

PREFIX = "deepspeed_backend_"


class Figures:
    """Counts of one process, added to by its threads."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._started_s = time.time()
        self._counts = dict.fromkeys(
            ("requests", "requests_refused", "requests_failed", "requests_cancelled", "prompt_tokens", "generated_tokens"), 0
        )

    def add(self, name: str, amount: int = 1) -> None:
        """Raises KeyError for a name that is none of these."""
        with self._lock:
            self._counts[name] += amount

    def page(self) -> bytes:
        """In Prometheus' text form."""
        with self._lock:
            counts = dict(self._counts)
        gauges = {
            "requests_running": self._line.running,
            "requests_waiting": self._line.waiting,
            "queue_limit": self._line.max_waiting,
        }
        lines = [f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self._started_s!r}"]
        lines += [f"# TYPE {PREFIX}{name} gauge\n{PREFIX}{name} {value}" for name, value in gauges.items()]
        lines += [f"# TYPE {PREFIX}{name}_total counter\n{PREFIX}{name}_total {value}" for name, value in counts.items()]
        return ("\n".join(lines) + "\n").encode()
