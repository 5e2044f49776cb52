"""Mixed traffic for a cache: conversations, one-off questions behind a shared prompt, small prompts, documents asked again."""

import json
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.e2e.cluster import MODEL, post

WORDS = [
    "alpha",
    "river",
    "stone",
    "window",
    "garden",
    "silver",
    "paper",
    "engine",
    "thunder",
    "market",
    "candle",
    "forest",
    "bridge",
    "signal",
    "copper",
    "meadow",
    "harbor",
    "lantern",
    "winter",
    "violet",
    "compass",
    "mirror",
    "ladder",
    "cotton",
    "valley",
    "anchor",
    "pepper",
    "marble",
    "sunset",
    "velvet",
]


@dataclass
class Talk:
    """A conversation; each turn carries what was said before."""

    messages: list[dict[str, str]]

    def body(self, question: str) -> dict[str, object]:
        self.messages.append({"role": "user", "content": question})
        return {"model": MODEL, "messages": self.messages}

    def take(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


@dataclass(frozen=True)
class Sent:
    """One request that was answered."""

    what: str
    request_id: str


class MixedLoad:
    """`requests` in all, the same for the same seed but for the answers that conversations carry on; `clients` at a time.

    Answers are `answers[0]` to `answers[1]` tokens long.
    """

    def __init__(self, url: str, seed: int, requests: int, clients: int, answers: tuple[int, int] = (8, 8)) -> None:
        self._url = url
        self._rng = random.Random(seed)
        lengths = random.Random(seed)
        prompts = [self._text(150) for _ in range(2)]
        self._documents = [self._text(count) for count in (250, 300, 350, 400)]
        self._shared = self._text(220)
        self._talks = [Talk([{"role": "system", "content": prompts[number % 2]}]) for number in range(6)]
        kinds = self._rng.choices(("talk", "shared", "small", "document"), (6, 5, 5, 4), k=requests)
        self._shares: list[list[tuple[str, int, str, int]]] = [[] for _ in range(clients)]
        for number, kind in enumerate(kinds):
            which = self._rng.randrange(len(self._talks) if kind == "talk" else len(self._documents))
            client = which % clients if kind == "talk" else number % clients  # turns of a conversation follow each other
            question = self._text(self._rng.choice((3, 8, 20, 40)))
            self._shares[client].append((kind, which, question, lengths.randint(*answers)))
        self.sent: list[Sent] = []

    def play(self) -> list[Sent]:
        """Sends everything and returns once all is answered. Raises when a request failed."""
        failures: list[BaseException] = []

        def client(share: Sequence[tuple[str, int, str, int]]) -> None:
            try:
                self.sent.extend(self._ask(*item) for item in share)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=client, args=(share,)) for share in self._shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return self.sent

    def _ask(self, kind: str, which: int, question: str, answer_tokens: int) -> Sent:
        talk = self._talks[which] if kind == "talk" else Talk(list(self._opening(kind, which)))
        body = {**talk.body(question), "max_tokens": answer_tokens, "temperature": 0}
        status, headers, answer = post(self._url + "/v1/chat/completions", json.dumps(body).encode())
        assert status == 200, answer
        talk.take(json.loads(answer)["choices"][0]["message"]["content"] or "")
        return Sent(kind, headers["x-request-id"])

    def _opening(self, kind: str, which: int) -> Iterator[dict[str, str]]:
        if kind == "shared":
            yield {"role": "system", "content": self._shared}
        elif kind == "document":
            yield {"role": "user", "content": self._documents[which]}
            yield {"role": "assistant", "content": "Read."}

    def _text(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))
