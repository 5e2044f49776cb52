"""The line in front of the model: so many work at a time, so many wait in order, all others are refused at once."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class LineFull(Exception):
    """As many wait as may."""


class LeftLine(Exception):
    """The caller went away while it waited."""


class Place:
    """One caller's place in the line; `leave` may be called by any thread, at any time, more than once."""

    def __init__(self, line: "Line") -> None:
        self._line = line
        self.has_left = False

    def leave(self) -> None:
        with self._line.changed:
            self.has_left = True
            self._line.drop(self)


class Line:
    """Threads come and go; `running` and `waiting` may be read without a lock."""

    def __init__(self, max_waiting: int, max_running: int = 1) -> None:
        self.max_waiting = max_waiting
        self.max_running = max_running
        self.running = 0
        self.changed = threading.Condition()
        self._places: deque[Place] = deque()

    @property
    def waiting(self) -> int:
        return len(self._places)

    def join(self) -> Place:
        """A place at the end. Raises LineFull. Whoever has it must take its `turn`, or leave."""
        with self.changed:
            if self.running + len(self._places) >= self.max_running + self.max_waiting:
                raise LineFull(f"{self.running} requests run and {len(self._places)} wait, which is all that may")
            place = Place(self)
            self._places.append(place)
            return place

    @contextmanager
    def turn(self, place: Place) -> Iterator[None]:
        """Waits until it is this place's turn, which lasts as long as the context. Raises LeftLine."""
        with self.changed:
            try:
                self.changed.wait_for(lambda: place.has_left or self._is_next(place))
                if place.has_left:
                    raise LeftLine
                self.running += 1
            finally:
                self.drop(place)
        try:
            yield
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    def drop(self, place: Place) -> None:
        """It waits no more, if it did. To be called with `changed` held."""
        if place in self._places:
            self._places.remove(place)
        self.changed.notify_all()

    def _is_next(self, place: Place) -> bool:
        return self._places[0] is place and self.running < self.max_running
