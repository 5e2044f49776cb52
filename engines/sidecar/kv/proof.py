"""Sends the self-test's prompt to an engine and waits for its keys to come back in the events."""

import asyncio
from contextlib import suppress

import orjson

from engines.fetch import EngineError, EngineHttp
from engines.sidecar.kv.mirror import CacheMirror
from engines.sidecar.kv.self_test import (
    RANK_HEADER,
    Evidence,
    diagnosis,
    expected_keys,
    probe_body,
    probe_tokens,
    refusal,
    usage_of,
)
from engines.sidecar.kv.stream import EventStream
from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm

COMPLETIONS = "/v1/completions"


class Prover:
    """`rank` is put into the prompt's header, so that a front end before several ranks passes it on to the right one."""

    def __init__(self, http: EngineHttp, mirror: CacheMirror, rank: int | None, timeout_s: float) -> None:
        self._http = http
        self._mirror = mirror
        self._headers = {} if rank is None else {RANK_HEADER: str(rank)}
        self._timeout_s = timeout_s

    async def test(self, model: str, stream: EventStream, block_tokens: int | None) -> str:
        """Why the engine's events do not lead to the router's keys; "" when they do."""
        tokens = probe_tokens(self._mirror.block_tokens or block_tokens)
        keys = chain(tokens_le(tokens), root(model, None, None, KeyForm.TOKENS))
        batches, stored = self._mirror.batches, self._mirror.stored
        self._mirror.expect(frozenset(keys))
        try:
            answer = await self._http.post(COMPLETIONS, orjson.dumps(probe_body(model, tokens)), self._headers)
            if not answer.ok:
                return refusal(answer)
            if await self._all_found(len(tokens), keys.tolist()):
                return ""
            counted, _ = usage_of(answer)
            cached_again = None
            if self._mirror.batches == batches:
                again = await self._http.post(COMPLETIONS, orjson.dumps(probe_body(model, tokens)), self._headers)
                _, cached_again = usage_of(again)
        except EngineError as error:
            return f"the engine did not answer the probe prompt: {error}"
        finally:
            self._mirror.expect(frozenset())
        return diagnosis(
            Evidence(
                len(tokens),
                counted,
                cached_again,
                self._mirror.batches - batches,
                self._mirror.stored - stored,
                self._mirror.block_tokens,
                stream.topic,
                stream.foreign_topic,
                self._mirror.unreadable or stream.unreadable,
                self._mirror.foreign_rank,
                self._mirror.doubt,
            )
        )

    async def _all_found(self, tokens: int, keys: list[int]) -> bool:
        """Whether the keys of all blocks that an engine keeps of the prompt are published before the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while True:
                    wanted = keys[: expected_keys(tokens, self._mirror.block_tokens)]
                    if wanted and self._mirror.found.issuperset(wanted):
                        return True
                    self._mirror.news.clear()
                    await self._mirror.news.wait()
        return False
