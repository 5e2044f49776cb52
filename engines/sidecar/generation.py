"""Has this engine restarted? Pure: fed with every look, names the generation that reports carry."""

from engines.adapter import Look


class Generation:
    """A restart is proved by a changed marker or hint, or by a counter that fell.

    After the engine was out of reach, only an equal marker proves that it is the same process; where it shows no
    marker a restart is assumed, because a cache wrongly forgotten costs less than one wrongly remembered.
    """

    def __init__(self, unmarked: str = "start") -> None:
        """`unmarked` names an engine that shows no marker. Another one in each process that watches: whether the engine is
        still the one that a watcher before it saw is then not known, and a restart is assumed."""
        self.restarts = 0
        self._unmarked = unmarked
        self._name: str | None = None
        self._markers: dict[str, str] = {}
        self._hints: dict[str, str] = {}
        self._counters: dict[str, float] = {}
        self._in_doubt = False
        self._same_process = False
        self._settled = False

    def name(self) -> str:
        """The same text until a restart is found, another one after it.

        Empty until the engine was ready once; then fixed, so that a marker seen only later does not change it."""
        if not self._settled:
            return ""
        if self._name is None:
            self._name = f"{next(iter(self._markers.values()), self._unmarked)}.{self.restarts}"
        return self._name

    def lost(self) -> None:
        """The engine is out of reach, or loads again: the process known so far may have ended."""
        self._in_doubt, self._same_process = True, False

    def saw(self, look: Look) -> bool:
        """Takes in one look; True when it proves a restart."""
        restarted = self._contradicts(look)
        if restarted:
            self._restart()
            self._markers, self._hints, self._counters = {}, {}, {}
        elif any(self._markers.get(name) == value for name, value in look.markers.items()):
            self._same_process = True
        self._markers.update(look.markers)
        self._hints.update(look.hints)
        self._counters.update(look.counters)
        return restarted

    def settle(self) -> bool:
        """To be called when a ready engine has shown all it shows; True when an absence before is now taken as a restart.

        The first time there is nothing to take back, so nothing counts as a restart."""
        restarted = self._in_doubt and not self._same_process and self._settled
        if restarted:
            self._restart()
        self._in_doubt = False
        self._settled = True
        return restarted

    def _contradicts(self, look: Look) -> bool:
        return (
            any(self._markers.get(name, value) != value for name, value in look.markers.items())
            or any(self._hints.get(name, value) != value for name, value in look.hints.items())
            or any(value < self._counters.get(name, value) for name, value in look.counters.items())
        )

    def _restart(self) -> None:
        self.restarts += 1
        self._name = None
        self._in_doubt = False
