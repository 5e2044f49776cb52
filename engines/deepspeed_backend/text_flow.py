"""The text of an answer as it grows: what may be sent now, and whether a stop text has come. Pure."""

from collections.abc import Sequence

INCOMPLETE = "\ufffd"  # what stands for a character whose last bytes are still to come


class TextFlow:
    """Nothing is sent that may turn out to be the beginning of a stop text or of a character."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self.text = ""  # sent so far
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)

    def feed(self, whole: str, *, final: bool = False) -> str:
        """`whole` is all that was generated so far; returns what to send of it. `final`: nothing more will come."""
        if self.stopped:
            return ""
        sent = len(self.text)
        found = [at for stop in self._stops if (at := whole.find(stop, max(0, sent - self._longest + 1))) >= sent]
        if found:
            self.stopped = True
            whole = whole[: min(found)]
        elif not final:
            whole = whole.rstrip(INCOMPLETE)
            whole = whole[: len(whole) - self._held(whole)]
        piece = whole[sent:]
        self.text += piece
        return piece

    def _held(self, text: str) -> int:
        """Length of the longest end of `text` that a stop text begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
