"""What routers have in flight, as bytes."""

from array import array
from itertools import pairwise
from struct import Struct
from typing import Final

from router.core.cache_delta import Mark, RouterLoad
from router.core.types import WorkerId
from router.state.frame import LOAD, BadMessage, name_bytes, pack_texts, read_array, read_texts, seal, unseal, wire_array

MAX_LOAD_BYTES: Final = 1024 * 1024
HEAD: Final = Struct("<QIII?")
"""seq, workers, names, marks, full. Then requests and tokens of the workers; keys, blocks and workers (by place among the
names) of the marks; text lengths, and the texts: the router, the workers in order, names that only marks have."""
MAX_COUNT: Final = 2**53


def encode_load(load: RouterLoad) -> bytes:
    """Raises BadMessage for what is too large."""
    name_bytes(load.router)
    counts = load.workers.values()
    if any(not 0 <= count <= MAX_COUNT for pair in counts for count in pair):
        raise BadMessage("a count is out of range")
    requests, tokens = array("Q", (pair[0] for pair in counts)), array("Q", (pair[1] for pair in counts))
    places = {worker: place for place, worker in enumerate(load.workers)}
    for mark in load.marks:
        places.setdefault(mark.worker, len(places))
    lengths, joined = pack_texts([load.router, *places])
    keys = array("Q", (mark.key for mark in load.marks))
    blocks, workers = array("I", (mark.blocks for mark in load.marks)), array("I", (places[mark.worker] for mark in load.marks))
    head = HEAD.pack(load.seq, len(counts), len(places), len(load.marks), load.full)
    arrays = [wire_array(values) for values in (requests, tokens, keys, blocks, workers)]
    data = seal(LOAD, b"".join((head, *arrays, lengths, joined)))
    if len(data) > MAX_LOAD_BYTES:
        raise BadMessage(f"a load of {len(data)} bytes is larger than {MAX_LOAD_BYTES}")
    return data


def decode_load(data: bytes) -> RouterLoad:
    """Raises BadMessage."""
    body = unseal(data, LOAD, MAX_LOAD_BYTES, HEAD.size)
    seq, workers, names, marks, full = HEAD.unpack_from(body)
    ends = [HEAD.size]
    for item_bytes, count in ((8, workers), (8, workers), (8, marks), (4, marks), (4, marks), (4, names + 1)):
        ends.append(ends[-1] + item_bytes * count)
    if ends[-1] > len(body) or workers > names:
        raise BadMessage("the load is cut off")
    parts = [body[start:end] for start, end in pairwise(ends)]
    requests, tokens, keys = (read_array("Q", part) for part in parts[:3])
    blocks, places = (read_array("I", part) for part in parts[3:5])
    router, *texts = read_texts(bytes(parts[5]), bytes(body[ends[-1] :]))
    if max(*requests, *tokens, 0, 0) > MAX_COUNT:
        raise BadMessage("a count is out of range")
    if max(places, default=-1) >= names or len(set(texts)) < names:
        raise BadMessage("a mark has no worker, or workers have the same name")
    ids = [WorkerId(text) for text in texts]
    counts = dict(zip(ids[:workers], zip(requests, tokens, strict=True), strict=True))
    marked = tuple(Mark(ids[place], depth, key) for place, depth, key in zip(places, blocks, keys, strict=True))
    return RouterLoad(router, seq, full, counts, marked)
