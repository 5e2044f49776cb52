"""Keeps what a real engine said on the wire, as files under tests/golden that other tests read.

One JSON object in each line. `answer`: one HTTP request and the text that came back. `frames`: one message of a ZeroMQ
socket, its frames in hex. `note`: a fact that is no bytes. Every line has the `step` of the scenario it belongs to.
Of histograms only the last bucket is kept, and folders of the recording machine get short names; all else is as it came.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.launch import LocalEngine
from tests.live.tap import Frames

TIMEOUT_S = 120.0
KEPT_HEADERS = ("content-type", "retry-after", "x-request-id", "transfer-encoding")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Recording:
    """Lines of one file, written when the scenario is through."""

    path: Path
    folders: Mapping[str, str]  # as they are → as they are written
    step: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, url: str, path: str, body: Any = None, *, only: Sequence[str] = (), **about: Any) -> Answer:
        """One request, kept with its answer. `body`: JSON to POST, or bytes as they are; None is a GET. `about` is kept too.

        `only`: the keys that are kept of an answer that is one large JSON object."""
        answer = ask(url, path, body)
        headers = {name: value for name, value in answer.headers.items() if name in KEPT_HEADERS}
        request = {"method": "GET" if body is None else "POST", "path": path}
        if body is not None:
            request["body"] = body.decode() if isinstance(body, bytes) else body
        text = without_buckets(answer.body.decode())
        if only:
            text = json.dumps({key: value for key, value in answer.json().items() if key in only})
        self.add("answer", request=request, status=answer.status, headers=headers, body=text, **about)
        return answer

    def frames(self, socket: str, messages: Sequence[Frames]) -> None:
        for message in messages:
            self.add("frames", socket=socket, frames=[frame.hex() for frame in message])

    def note(self, **facts: Any) -> None:
        self.add("note", **facts)

    def add(self, what: str, **values: Any) -> None:
        self.lines.append({"what": what, "step": self.step, **values})

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines)
        for found, written in self.folders.items():
            text = text.replace(found, written)
        self.path.write_text(text, encoding="utf-8")


def without_buckets(page: str) -> str:
    """A page of metrics without the buckets of its histograms, the last one excepted; other texts as they are."""
    return "".join(line for line in page.splitlines(keepends=True) if "_bucket{" not in line or 'le="+Inf"' in line)


def ask(url: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """The answer of any status, whole. Raises OSError when there is none."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"} if data is not None else {})
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())


@contextmanager
def under_load(engine: LocalEngine, path: str, bodies: Sequence[Any]) -> Iterator[None]:
    """Runs the body of the `with` while all `bodies` are being answered; waits for their ends afterwards."""
    askers = [threading.Thread(target=ask, args=(engine.url, path, body)) for body in bodies]
    for asker in askers:
        asker.start()
    try:
        yield
    finally:
        for asker in askers:
            asker.join()


def seconds_until(holds: Callable[[], bool], deadline_s: float) -> float | None:
    """How long it took until `holds`, asked every 20 ms; None when it never did."""
    began = time.monotonic()
    while time.monotonic() - began < deadline_s:
        if holds():
            return round(time.monotonic() - began, 2)
        time.sleep(0.02)
    return None


def while_loading(url: str, path: str, ready: threading.Event) -> list[str]:
    """What the health route answered from before the start until `ready`, and then once more; repetitions once, as words."""
    seen: list[str] = []
    last = False
    while not last:
        last = ready.is_set()
        try:
            outcome = str(ask(url, path, timeout_s=2).status)
        except OSError as error:
            outcome = type(getattr(error, "reason", error)).__name__
        if not seen or seen[-1] != outcome:
            seen.append(outcome)
        time.sleep(0.1)
    return seen
