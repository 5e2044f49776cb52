"""What routers have in flight, as bytes."""

from array import array
from struct import Struct
from typing import Final

from router.core.cache_delta import RouterLoad
from router.core.types import WorkerId
from router.state.frame import LOAD, BadMessage, name_bytes, pack_texts, read_array, read_texts, seal, unseal, wire_array

MAX_LOAD_BYTES: Final = 1024 * 1024
HEAD: Final = Struct("<QI?")  # seq, workers, full; then requests, tokens, text lengths, and the texts, the router first
MAX_COUNT: Final = 2**53


def encode_load(load: RouterLoad) -> bytes:
    """Raises BadMessage for what is too large."""
    name_bytes(load.router)
    counts = load.workers.values()
    if any(not 0 <= count <= MAX_COUNT for pair in counts for count in pair):
        raise BadMessage("a count is out of range")
    requests, tokens = array("Q", (pair[0] for pair in counts)), array("Q", (pair[1] for pair in counts))
    lengths, joined = pack_texts([load.router, *load.workers])
    head = HEAD.pack(load.seq, len(counts), load.full)
    data = seal(LOAD, b"".join((head, wire_array(requests), wire_array(tokens), lengths, joined)))
    if len(data) > MAX_LOAD_BYTES:
        raise BadMessage(f"a load of {len(data)} bytes is larger than {MAX_LOAD_BYTES}")
    return data


def decode_load(data: bytes) -> RouterLoad:
    """Raises BadMessage."""
    body = unseal(data, LOAD, MAX_LOAD_BYTES, HEAD.size)
    seq, workers, full = HEAD.unpack_from(body)
    tokens_at = HEAD.size + 8 * workers
    lengths_at = tokens_at + 8 * workers
    joined_at = lengths_at + 4 * (workers + 1)
    if joined_at > len(body):
        raise BadMessage("the load is cut off")
    requests, tokens = read_array("Q", body[HEAD.size : tokens_at]), read_array("Q", body[tokens_at:lengths_at])
    router, *names = read_texts(bytes(body[lengths_at:joined_at]), bytes(body[joined_at:]))
    if max(*requests, *tokens, 0, 0) > MAX_COUNT:
        raise BadMessage("a count is out of range")
    pairs = zip(requests, tokens, strict=True)
    return RouterLoad(router, seq, full, dict(zip(map(WorkerId, names), pairs, strict=True)))
