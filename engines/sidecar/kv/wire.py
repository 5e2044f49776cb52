"""From the frames of an engine's KV event stream to values. Pure; all that is wrong with them is one error.

Three encodings are in the field (vLLM, SGLang, TensorRT-LLM): batch and events as arrays, both as maps, and a batch as an
array of events as maps. Fields were added at the end over time, so any tail may be missing and any key may be new.
Read from vLLM 0.32 distributed/kv_events.py and SGLang 0.5.23 disaggregation/kv_events.py, and what they were before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack

from engines.sidecar.kv.events import ID_MASK, BlockRemoved, BlocksCleared, BlockStored, CacheEvent, EventBatch
from router.core.keys import tokens_le

MAX_EVENTS: Final = 100_000  # of one batch
MAX_BLOCKS: Final = 1 << 20  # of one event
MAX_BLOCK_TOKENS: Final = 1 << 16
MAX_TEXT: Final = 1024  # characters of a medium, adapter, salt or kind
SEQ_BYTES: Final = 8
END_OF_REPLAY: Final = b"\xff" * SEQ_BYTES

STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")
# read, or known to say nothing about what is cached
STORED_KEYS: Final = frozenset(
    (*STORED_FIELDS, "type", "cache_salt", "locality", "lookahead_token_ids", "mm_keys", "origin", "ownership", "session_id")
)
REMOVED_KEYS: Final = frozenset((*REMOVED_FIELDS, "type", "locality", "ownership"))


class MalformedEvents(ValueError):
    """Frames that are not what such a stream may hold; the text says what is wrong."""


def live_frames(frames: Sequence[bytes]) -> tuple[bytes, int, bytes]:
    """(topic, sequence number, payload) of a published message. Raises MalformedEvents."""
    if len(frames) != 3:
        raise MalformedEvents(f"{len(frames)} frames instead of topic, sequence and payload")
    return frames[0], sequence(frames[1]), frames[2]


def replay_frames(frames: Sequence[bytes]) -> tuple[bytes | None, int, bytes] | None:
    """(topic, sequence number, payload) of a replayed message, None for the end mark. Raises MalformedEvents.

    An empty frame comes first; the topic is in it since vLLM 0.2x and SGLang 0.5.2x.
    """
    if not 3 <= len(frames) <= 4 or frames[0]:
        raise MalformedEvents(f"{len(frames)} frames instead of an empty one, topic, sequence and payload")
    if frames[-2] == END_OF_REPLAY:
        return None
    return (frames[1] if len(frames) == 4 else None), sequence(frames[-2]), frames[-1]


def sequence(frame: bytes) -> int:
    if len(frame) != SEQ_BYTES or frame == END_OF_REPLAY:
        raise MalformedEvents("a sequence number that is not one of 8 bytes")
    return int.from_bytes(frame, "big")


class EventDecoder:
    """Decodes payloads and counts what it passed over because it is not known here."""

    __slots__ = ("unknown_events", "unknown_keys")

    def __init__(self) -> None:
        self.unknown_events = 0
        self.unknown_keys = 0  # events with a key or a further position that is not known

    def decode(self, payload: bytes) -> EventBatch:
        """The batch, events of unknown types left out. Raises MalformedEvents."""
        try:
            events, rank = batch_parts(msgpack.unpackb(payload, strict_map_key=False))
            batch = EventBatch([], number(rank, "data-parallel rank", MAX_BLOCKS))
            self._add_all(events, batch.events)
            return batch
        except MalformedEvents:
            raise
        except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
            raise MalformedEvents(f"not msgpack of such a stream ({type(error).__name__})") from None

    def _add_all(self, events: list[Any], to: list[CacheEvent]) -> None:
        """Engines remove block by block: what is like the removal before it but for its blocks is not looked at again.

        Batches of 300 blocks stored and as many removed take 0.36 ms instead of 0.46.
        """
        removed: BlockRemoved | None = None
        like: Any = None
        for event in events:
            if removed is not None and isinstance(event, dict):
                hashes = event.pop("block_hashes", None)
                if event == like:
                    removed.ids += block_ids(hashes)
                    continue
                event["block_hashes"] = hashes
            removed = self._add(event, to)
            if removed is not None and isinstance(event, dict):
                del event["block_hashes"]
                like = event

    def _add(self, event: Any, to: list[CacheEvent]) -> BlockRemoved | None:
        """The removal that further ones like it may be added to."""
        if isinstance(event, dict):
            tag, positions = event.get("type"), None
        elif isinstance(event, list) and event:
            tag, positions = event[0], event[1:]
        else:
            raise MalformedEvents("an event that is neither a map nor an array")
        if tag == "BlockRemoved":
            unknown = self.unknown_keys
            removed = self._add_removed(self._fields(event, positions, REMOVED_FIELDS, REMOVED_KEYS), to)
            return removed if unknown == self.unknown_keys else None  # each of those with unknown keys is counted
        elif tag == "BlockStored":
            self._add_stored(self._fields(event, positions, STORED_FIELDS, STORED_KEYS), to)
        elif tag == "AllBlocksCleared":
            to.append(BlocksCleared())
        elif isinstance(tag, str):
            self.unknown_events += 1
        else:
            raise MalformedEvents("an event without a type")
        return None

    def _fields(
        self, event: dict[str, Any], positions: list[Any] | None, names: Sequence[str], known: frozenset[str]
    ) -> Mapping[str, Any]:
        if positions is None:
            if not event.keys() <= known:
                self.unknown_keys += 1
            return event
        fields = dict(zip(names, positions, strict=False))
        if len(positions) > len(names):
            self.unknown_keys += 1
        metadata = fields.get("lora_name")
        if isinstance(metadata, dict):  # SGLang's arrays end in a map there
            fields |= {"lora_name": metadata.get("lora_name"), "cache_salt": metadata.get("cache_salt")}
        return fields

    def _add_removed(self, fields: Mapping[str, Any], to: list[CacheEvent]) -> BlockRemoved | None:
        """Removals next to each other become one."""
        if fields.get("locality") == "REMOTE":  # copies that other engines hold
            return None
        ids = block_ids(fields.get("block_hashes"))
        medium = text(fields.get("medium"), "medium") or "GPU"
        group = number(fields.get("group_idx"), "group_idx", MAX_BLOCKS) or 0
        last = to[-1] if to else None
        if isinstance(last, BlockRemoved) and last.medium == medium and last.group == group:
            last.ids += ids
            return last
        removed = BlockRemoved(ids, medium, group)
        to.append(removed)
        return removed

    def _add_stored(self, fields: Mapping[str, Any], to: list[CacheEvent]) -> None:
        if fields.get("locality") == "REMOTE":
            return
        ids = block_ids(fields.get("block_hashes"))
        parent = fields.get("parent_block_hash")
        adapter = text(fields.get("lora_name"), "lora_name") or None
        salt, keyed = namespace(fields, adapter, len(ids), first=parent is None)
        event = BlockStored(
            ids=ids,
            parent=None if parent is None else block_id(parent),
            tokens=token_bytes(fields.get("token_ids")),
            block_tokens=number(fields.get("block_size"), "block_size", MAX_BLOCK_TOKENS) or 0,
            medium=text(fields.get("medium"), "medium") or "GPU",
            group=number(fields.get("group_idx"), "group_idx", MAX_BLOCKS) or 0,
            group_kind=text(fields.get("kv_cache_spec_kind"), "kv_cache_spec_kind"),
            adapter=adapter,
            salt=salt,
            keyed=keyed,
            reused={"REUSED": True, "NEW": False}.get(text(fields.get("origin"), "origin") or ""),
        )
        to.append(event)


def batch_parts(batch: Any) -> tuple[list[Any], Any]:
    """(events, data-parallel rank) of a batch in either form. Raises MalformedEvents."""
    if isinstance(batch, list) and len(batch) >= 2:
        events, rank = batch[1], batch[2] if len(batch) > 2 else None
    elif isinstance(batch, dict):
        events, rank = batch.get("events"), batch.get("data_parallel_rank", batch.get("attn_dp_rank"))
    else:
        raise MalformedEvents("a batch that is neither a map nor an array")
    if not isinstance(events, list):
        raise MalformedEvents("a batch without a list of events")
    if len(events) > MAX_EVENTS:
        raise MalformedEvents(f"a batch of {len(events)} events")
    return events, rank


def block_ids(hashes: Any) -> list[int]:
    """The engine's hashes, signed, unsigned or digests, as ids. Raises MalformedEvents or TypeError."""
    if not isinstance(hashes, list) or len(hashes) > MAX_BLOCKS:
        raise MalformedEvents("block_hashes is not a list, or too long")
    try:
        return [block_hash & ID_MASK for block_hash in hashes]
    except TypeError:
        return [block_id(block_hash) for block_hash in hashes]


def block_id(block_hash: Any) -> int:
    """A digest counts by its last 64 bits, as where vLLM makes integers of them."""
    if isinstance(block_hash, bytes) and block_hash:
        block_hash = int.from_bytes(block_hash[-8:], "big")
    if not isinstance(block_hash, int):
        raise MalformedEvents("a block hash that is neither a number nor bytes")
    return block_hash & ID_MASK


def token_bytes(tokens: Any) -> bytes:
    """Token ids as `router.core.keys.chain` reads them. Of SGLang's pairs for EAGLE, (token, next token), the first count."""
    if tokens is None:
        return b""
    if not isinstance(tokens, list):
        raise MalformedEvents("token_ids is not a list")
    if tokens and isinstance(tokens[0], list):
        tokens = [token for token, _ in tokens]
    return tokens_le(tokens)


def number(value: Any, name: str, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value <= most:
        raise MalformedEvents(f"{name} is not a number from 0 to {most}")
    return value


def text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise MalformedEvents(f"{name} is not a text of at most {MAX_TEXT} characters")
    return value


def namespace(fields: Mapping[str, Any], adapter: str | None, blocks: int, *, first: bool) -> tuple[str | None, int]:
    """(salt, leading blocks without further inputs). `first`: the event's first block is the first of its chain.

    vLLM's extra keys are one entry a block: the adapter's name, (item, offset) of images and the like, the salt (first
    block of a chain only), digests of prompt embeddings; older releases gave items as plain texts. An adapter known by
    its number only cannot be named in a key. SGLang has the salt in a field of its own.
    """
    salt = text(fields.get("cache_salt"), "cache_salt") or None
    if adapter is None and fields.get("lora_id"):
        return salt, 0
    for name in ("extra_keys", "mm_keys"):
        entries = fields.get(name)
        if entries is None:
            continue
        if not isinstance(entries, list) or len(entries) > blocks:
            raise MalformedEvents(f"{name} is not a list of one entry a block")
        if not any(entries):
            continue
        for index, entry in enumerate(entries):
            if entry is not None and not isinstance(entry, list):
                raise MalformedEvents(f"{name} holds an entry that is no list")
            rest = [key for key in entry or () if key != adapter]
            if first and index == 0 and len(rest) == 1 and isinstance(rest[0], str) and name == "extra_keys":
                salt = text(rest[0], "cache_salt")
            elif rest:
                blocks = min(blocks, index)
    return salt, blocks
