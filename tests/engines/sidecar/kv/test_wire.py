"""engines.sidecar.kv.wire: every encoding in the field decodes to the same values, and nothing else does harm.

What real vLLM and SGLang publish is in tests/golden. TensorRT-LLM's form is made from its sources (KV cache manager V2, pull
request 17023); none of it was run live.
"""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sidecar.kv.events import ID_MASK, BlockRemoved, BlocksCleared, BlockStored, CacheEvent, EventBatch
from engines.sidecar.kv.wire import EventDecoder, MalformedEvents, live_frames, replay_frames, sequence
from router.core.keys import tokens_le

STORED = {
    "block_hashes": [811, 2**64 - 3],
    "parent_block_hash": 5,
    "token_ids": [9, 8, 7, 6, 5, 4, 3, 200_000],
    "block_size": 4,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
REMOVED = {"block_hashes": [811], "medium": "CPU", "group_idx": 1}
VALUES: list[CacheEvent] = [
    BlockStored(
        [811, (2**64 - 3) & ID_MASK], 5, tokens_le([9, 8, 7, 6, 5, 4, 3, 200_000]), 4, group_kind="full_attention", keyed=2
    ),
    BlockRemoved([811], "CPU", 1),
    BlocksCleared(),
]


def as_map(tag: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": tag, **fields}


def as_array(tag: str, fields: dict[str, Any]) -> list[Any]:
    return [tag, *fields.values()]


MAPS = [as_map("BlockStored", STORED), as_map("BlockRemoved", REMOVED), {"type": "AllBlocksCleared"}]
ARRAYS = [as_array("BlockStored", STORED), as_array("BlockRemoved", REMOVED), ["AllBlocksCleared"]]


def decode(*events: Any, decoder: EventDecoder | None = None) -> list[Any]:
    return (decoder or EventDecoder()).decode(msgpack.packb([1.5, list(events), 0])).events


def decode_stored(**fields: Any) -> BlockStored:
    [event] = decode(as_map("BlockStored", {**STORED, **fields}))
    assert isinstance(event, BlockStored)
    return event


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([1785000000.25, MAPS, 3], id="array of maps, vLLM 0.24 to 0.33 and SGLang 0.5.2x"),
        pytest.param([1785000000.25, ARRAYS, 3], id="arrays, vLLM and SGLang until mid-2026"),
        pytest.param({"ts": 1785000000.25, "events": MAPS, "data_parallel_rank": 3}, id="maps, vLLM for a while"),
        pytest.param({"ts": 1785000000.25, "events": MAPS, "attn_dp_rank": 3}, id="maps, SGLang's word for the rank"),
    ],
)
def test_encodings(batch: Any) -> None:
    """All three encodings give the same batch."""
    decoder = EventDecoder()
    assert decoder.decode(msgpack.packb(batch)) == EventBatch(VALUES, 3)
    assert (decoder.unknown_events, decoder.unknown_keys) == (0, 0)


@pytest.mark.parametrize("fields", range(4, len(STORED) + 1))
def test_cut_arrays(fields: int) -> None:
    """An array may end after any of the fields that were added over time; the others have their defaults."""
    [event] = decode(["BlockStored", *list(STORED.values())[:fields]])
    assert event.ids == [811, (2**64 - 3) & ID_MASK] and event.medium == "GPU" and event.group == 0
    assert event.group_kind == ("full_attention" if fields == len(STORED) else None)


def test_absent_keys() -> None:
    """Maps leave out what is at its default; a batch may end before its rank."""
    payload = msgpack.packb([1, [{"type": "BlockRemoved", "block_hashes": [7]}, {"type": "BlockStored", "block_hashes": [8]}]])
    assert EventDecoder().decode(payload) == EventBatch([BlockRemoved([7]), BlockStored([8], keyed=1)], None)


def test_bytes_of_vllm() -> None:
    """Bytes that msgspec makes of vLLM 0.32's structs (defaults left out, tag in `type`, batch as an array)."""
    payload = bytes.fromhex(
        "93cb41da993c10100000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cffffffffffffffffdb1706172"
        "656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739201ce0001f400aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d65"
        "6469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a173a967726f75705f69647800b26b765f63616368655f73"
        "7065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391"
        "cd032ba66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
    )
    stored = BlockStored(
        [(2**64 - 3) & ID_MASK], None, tokens_le([1, 128000]), 2, group_kind="full_attention", salt="s", keyed=1
    )
    assert EventDecoder().decode(payload) == EventBatch([stored, BlockRemoved([811]), BlocksCleared()], 0)


def test_bytes_of_sglang() -> None:
    """Bytes that msgspec makes of SGLang 0.5.23's structs: signed hashes, salt and adapter in fields of their own."""
    payload = bytes.fromhex(
        "93cb41da993c10200000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391d1fd37b1706172656e745f626c"
        "6f636b5f68617368cd01baa9746f6b656e5f696473920b0caa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055"
        "aa63616368655f73616c74a174aa73657373696f6e5f6964a178a96c6f72615f6e616d65a56c6567616c83a474797065ac426c6f636b5265"
        "6d6f766564ac626c6f636b5f68617368657391d1fd37a66d656469756daa4350555f50494e4e454481a474797065b0416c6c426c6f636b73"
        "436c656172656401"
    )
    stored = BlockStored([-713 & ID_MASK], 442, tokens_le([11, 12]), 2, adapter="legal", salt="t", keyed=1)
    removed = BlockRemoved([-713 & ID_MASK], "CPU_PINNED")
    assert EventDecoder().decode(payload) == EventBatch([stored, removed, BlocksCleared()], 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(-713, 2**64 - 713, id="signed (SGLang) and unsigned"),
        pytest.param(bytes(24) + (77).to_bytes(8, "big"), 77, id="a digest (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0)"),
        pytest.param(b"\x01\x02", 258, id="a short digest"),
    ],
)
def test_hashes(one: Any, other: int) -> None:
    """One hash is one id, however it is written."""
    assert decode(as_map("BlockRemoved", {"block_hashes": [one, 1]})) == [BlockRemoved([other & ID_MASK, 1])]
    assert decode_stored(parent_block_hash=one).parent == other & ID_MASK


def test_removals_next_to_each_other_are_one() -> None:
    """vLLM sends one event a block; those of one memory and group come out as one, the order of others stays."""
    removals = [as_map("BlockRemoved", {"block_hashes": [n], "medium": m}) for n, m in ((1, "GPU"), (2, "GPU"), (3, "CPU"))]
    assert decode(*removals) == [BlockRemoved([1, 2]), BlockRemoved([3], "CPU")]


def test_pairs_of_eagle() -> None:
    """SGLang's pairs (token, next token) stand for their first tokens."""
    assert decode_stored(token_ids=[[1, 2], [2, 3]]).tokens == tokens_le([1, 2])


def test_other_engines_copies_are_left_out() -> None:
    """What is cached elsewhere (locality REMOTE) is not in this engine's cache."""
    remote = {"locality": "REMOTE"}
    assert decode(as_map("BlockStored", {**STORED, **remote}), as_map("BlockRemoved", {**REMOVED, **remote})) == []


@pytest.mark.parametrize(
    ("fields", "adapter", "salt", "keyed"),
    [
        pytest.param({}, None, None, 2, id="plain"),
        pytest.param({"parent_block_hash": None, "extra_keys": [["s"], None]}, None, "s", 2, id="vLLM's salt"),
        pytest.param({"cache_salt": "s"}, None, "s", 2, id="SGLang's salt"),
        pytest.param({"lora_name": "a", "lora_id": 1, "extra_keys": [["a"], ["a"]]}, "a", None, 2, id="adapter"),
        pytest.param(
            {"parent_block_hash": None, "lora_name": "a", "lora_id": 1, "extra_keys": [["a", "s"], ["a"]]},
            "a", "s", 2, id="adapter and salt",
        ),
        pytest.param({"lora_id": 3}, None, None, 0, id="an adapter without a name (TensorRT-LLM, old vLLM)"),
        pytest.param({"lora_id": 0}, None, None, 2, id="adapter 0 is none"),
        pytest.param({"extra_keys": [None, [["img", 4]]]}, None, None, 1, id="an image in the second block"),
        pytest.param({"extra_keys": [None, ["img"]]}, None, None, 1, id="an image, plain as in early 2026"),
        pytest.param({"parent_block_hash": None, "extra_keys": [[["img", 4], "s"], None]}, None, None, 0, id="image and salt"),
        pytest.param({"extra_keys": [["s"], None]}, None, None, 0, id="a text that cannot be a salt: not a first block"),
        pytest.param({"parent_block_hash": None, "extra_keys": [[b"digest"], None]}, None, None, 0, id="prompt embeddings"),
        pytest.param({"mm_keys": [None, [{"hash": "x"}]]}, None, None, 1, id="TensorRT-LLM's images"),
        pytest.param({"mm_keys": [[], []]}, None, None, 2, id="no images"),
    ],
)  # fmt: skip
def test_namespaces(fields: dict[str, Any], adapter: str | None, salt: str | None, keyed: int) -> None:
    """Adapter and salt come from where each engine puts them; blocks with other inputs have no keys."""
    event = decode_stored(**fields)
    assert (event.adapter, event.salt, event.keyed) == (adapter, salt, keyed)


def test_pushed_by_tensorrt_llm() -> None:
    """Batches are arrays of maps with the low 64 bits of hashes, always "GPU", and keys of images that may be empty."""
    stored = {
        "type": "BlockStored", "block_hashes": [2**63 + 1], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
        "lora_id": None, "medium": "GPU", "lora_name": None, "mm_keys": None,
    }  # fmt: skip
    removed = {"type": "BlockRemoved", "block_hashes": [2**63 + 1], "medium": "GPU"}
    block = (2**63 + 1) & ID_MASK
    decoder = EventDecoder()
    assert decode(stored, removed, decoder=decoder) == [
        BlockStored([block], None, tokens_le([1, 2]), 2, keyed=1),
        BlockRemoved([block], "GPU", 0),
    ]
    assert (decoder.unknown_events, decoder.unknown_keys) == (0, 0)


def test_map_in_old_arrays() -> None:
    """SGLang's arrays had a map in place of the adapter's name for a while."""
    [event] = decode(["BlockStored", [1], None, [1, 2], 2, None, "GPU", {"cache_salt": "s", "lora_name": "a", "x": 1}])
    assert (event.adapter, event.salt) == ("a", "s")


@pytest.mark.parametrize(("origin", "reused"), [("REUSED", True), ("NEW", False), (None, None), ("OTHER", None)])
def test_origin(origin: str | None, reused: bool | None) -> None:
    """Where an engine says whether a block was found or computed, that is kept."""
    assert decode_stored(origin=origin).reused is reused


def test_what_is_not_known_is_counted() -> None:
    """Events and fields of releases to come are passed over; that shows in the counts."""
    decoder = EventDecoder()
    events = [
        {"type": "BlockTransferred", "x": 1},
        ["BlockSwapped", 1],
        as_map("BlockStored", {**STORED, "colour": "red"}),
        ["BlockRemoved", [4], "GPU", 0, "more"],
        {"type": "AllBlocksCleared", "medium": "GPU"},
    ]
    assert len(decode(*events, decoder=decoder)) == 3
    assert (decoder.unknown_events, decoder.unknown_keys) == (2, 2)


BROKEN: list[tuple[str, Any]] = [
    ("not a batch", 7),
    ("a short batch", [1.0]),
    ("events are no list", [1.0, "events"]),
    ("a batch without events", {"ts": 1}),
    ("an event is a number", [1.0, [7]]),
    ("an empty event", [1.0, [[]]]),
    ("an event without a type", [1.0, [{"block_hashes": [1]}]]),
    ("a tag of another type", [1.0, [[7, [1]]]]),
    ("hashes missing", [1.0, [{"type": "BlockRemoved"}]]),
    ("a hash is text", [1.0, [as_map("BlockRemoved", {"block_hashes": ["x"]})]]),
    ("an empty digest", [1.0, [as_map("BlockRemoved", {"block_hashes": [b""]})]]),
    ("a hash is a float", [1.0, [as_map("BlockRemoved", {"block_hashes": [1.5]})]]),
    ("tokens are text", [1.0, [as_map("BlockStored", {**STORED, "token_ids": "abc"})]]),
    ("a token is negative", [1.0, [as_map("BlockStored", {**STORED, "token_ids": [-1]})]]),
    ("a token needs 33 bits", [1.0, [as_map("BlockStored", {**STORED, "token_ids": [2**32]})]]),
    ("a pair of three", [1.0, [as_map("BlockStored", {**STORED, "token_ids": [[1, 2, 3]]})]]),
    ("block size negative", [1.0, [as_map("BlockStored", {**STORED, "block_size": -1})]]),
    ("block size absurd", [1.0, [as_map("BlockStored", {**STORED, "block_size": 2**40})]]),
    ("medium is a number", [1.0, [as_map("BlockStored", {**STORED, "medium": 7})]]),
    ("a long name", [1.0, [as_map("BlockStored", {**STORED, "lora_name": "x" * 1025})]]),
    ("more extra keys than blocks", [1.0, [as_map("BlockStored", {**STORED, "extra_keys": [None] * 3})]]),
    ("extra keys are text", [1.0, [as_map("BlockStored", {**STORED, "extra_keys": "abc"})]]),
    ("an extra key is text", [1.0, [as_map("BlockStored", {**STORED, "extra_keys": ["abc", None]})]]),
    ("the rank is text", [1.0, [], "x"]),
]


@pytest.mark.parametrize("batch", [pytest.param(batch, id=name) for name, batch in BROKEN])
def test_malformed(batch: Any) -> None:
    """What breaks the form is one error, whatever it is."""
    with pytest.raises(MalformedEvents):
        EventDecoder().decode(msgpack.packb(batch))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([1.0, MAPS]) + b"\x00",
        b"\x92\x01\xdd\xff\xff\xff\xff",  # an array that claims four thousand million entries
        b"\x92\x01\x91\x81\x91\x01\x01",  # a map with a list as key
        b"\x91" * 2000,
        b"\x92\x01\x91\x81\xa1\xff\x01",  # a text that is not UTF-8
        b"\xd6\xff\x00\x00",  # a time stamp cut short
    ],
)
def test_not_msgpack(payload: bytes) -> None:
    """Bytes that are no msgpack, or make no Python value, are the same error."""
    with pytest.raises(MalformedEvents):
        EventDecoder().decode(payload)


def test_too_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one batch and one event may hold is bounded."""
    monkeypatch.setattr("engines.sidecar.kv.wire.MAX_EVENTS", 2)
    monkeypatch.setattr("engines.sidecar.kv.wire.MAX_BLOCKS", 2)
    with pytest.raises(MalformedEvents, match="3 events"):
        decode(*MAPS)
    with pytest.raises(MalformedEvents, match="too long"):
        decode(as_map("BlockRemoved", {"block_hashes": [1, 2, 3]}))


def test_frames() -> None:
    """Three frames are live; replayed ones have an empty frame before and the topic since some release; ff×8 ends them."""
    seq = (258).to_bytes(8, "big")
    assert live_frames([b"kv", seq, b"p"]) == (b"kv", 258, b"p")
    assert replay_frames([b"", b"kv", seq, b"p"]) == (b"kv", 258, b"p")
    assert replay_frames([b"", seq, b"p"]) == (None, 258, b"p")
    assert replay_frames([b"", b"", b"\xff" * 8, b""]) is None
    assert replay_frames([b"", b"\xff" * 8, b""]) is None


@pytest.mark.parametrize("frames", [[], [b"kv"], [b"kv", b"1234567", b""], [b"kv", b"\xff" * 8, b""], [b""] * 4])
def test_bad_live_frames(frames: list[bytes]) -> None:
    """Another number of frames, or a number that is none, is malformed; the end mark is no live number."""
    with pytest.raises(MalformedEvents):
        live_frames(frames)


@pytest.mark.parametrize("frames", [[], [b"x", bytes(8), b""], [b"", bytes(7), b""], [b""] * 5])
def test_bad_replay_frames(frames: list[bytes]) -> None:
    """Replayed frames in any other arrangement are malformed."""
    with pytest.raises(MalformedEvents):
        replay_frames(frames)


def test_sequence_is_big_endian() -> None:
    """The most significant byte comes first."""
    assert sequence(b"\x01" + bytes(7)) == 1 << 56


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
FIELD = st.sampled_from([*STORED, "type", "cache_salt", "locality", "mm_keys", "origin"])
EVENT = st.one_of(
    st.dictionaries(FIELD, JSON_LIKE).map(lambda fields: {"type": "BlockStored", **STORED, **fields}),
    st.dictionaries(FIELD, JSON_LIKE).map(lambda fields: {"type": "BlockRemoved", **REMOVED, **fields}),
    st.lists(JSON_LIKE, max_size=12).map(lambda fields: ["BlockStored", *fields]),
    JSON_LIKE,
)


def survives(payload: bytes) -> None:
    """Decodes to values of the right types, or raises MalformedEvents."""
    try:
        batch = EventDecoder().decode(payload)
    except MalformedEvents:
        return
    for event in batch.events:
        if not isinstance(event, BlocksCleared):
            assert all(0 <= block <= ID_MASK for block in event.ids)
            assert isinstance(event.medium, str) and event.group >= 0
        if isinstance(event, BlockStored):
            assert len(event.tokens) % 4 == 0 and 0 <= event.keyed <= len(event.ids)


@settings(max_examples=300, deadline=None)
@given(batch=st.one_of(st.tuples(st.floats(), st.lists(EVENT, max_size=4), JSON_LIKE), JSON_LIKE))
def test_any_msgpack(batch: Any) -> None:
    """Any msgpack value in place of a batch, or of parts of one, decodes or is malformed."""
    survives(msgpack.packb(batch))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    """Truncated, spliced and overwritten payloads decode or are malformed."""
    payload = bytearray(msgpack.packb(data.draw(st.sampled_from([[1.5, MAPS, 0], [1.5, ARRAYS], {"events": MAPS}]))))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    survives(bytes(payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload))


@settings(max_examples=200, deadline=None)
@given(frames=st.lists(st.binary(max_size=12) | st.just(b"\xff" * 8) | st.just(b""), max_size=6))
def test_any_frames(frames: list[bytes]) -> None:
    """Any frames are taken apart or are malformed."""
    for take_apart in (live_frames, replay_frames):
        try:
            parts = take_apart(frames)
        except MalformedEvents:
            continue
        assert parts is None or 0 <= parts[1] < 2**64 - 1


@pytest.mark.parametrize("unknown", [{}, {"new": 1}], ids=["known keys", "unknown keys"])
@pytest.mark.parametrize("ids", [[[1], [2], [3]], [[1, 2], [], [3]]])
def test_removals_that_are_alike(unknown: dict[str, Any], ids: list[list[int]]) -> None:
    """They become one, and each with a key that is not known is counted."""
    decoder = EventDecoder()
    events = [as_map("BlockRemoved", {"block_hashes": some, "medium": "GPU", **unknown}) for some in ids]
    batch = decoder.decode(msgpack.packb([1.0, [*events, as_map("BlockStored", STORED), *events], None]))
    assert [event.ids for event in batch.events if isinstance(event, BlockRemoved)] == [[1, 2, 3], [1, 2, 3]]
    assert decoder.unknown_keys == 6 * len(unknown)


@pytest.mark.parametrize(
    "after", [{"type": "BlockRemoved", "medium": "GPU"}, as_map("BlockRemoved", {"block_hashes": "x", "medium": "GPU"})]
)
def test_a_removal_after_one_like_it_is_looked_at(after: dict[str, Any]) -> None:
    """Its blocks may be missing, or be none."""
    with pytest.raises(MalformedEvents):
        decode(as_map("BlockRemoved", {"block_hashes": [1], "medium": "GPU"}), after)
