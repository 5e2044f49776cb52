"""The outer form of every message between sidecars and routers: kind, version, checksum, then the body.

All numbers are little-endian. A message of another version is refused by name; whatever else is wrong with one is
BadMessage too, the only error that reading a message raises.
"""

import sys
from array import array
from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import crc32

VERSION: Final = 1  # also in every Redis key: routers and sidecars of different versions never meet
HEAD: Final = Struct("<2sBBI")  # magic, kind, version, CRC-32 of the body begun with kind and version
MAGIC: Final = b"WL"
MAX_NAME_BYTES: Final = 1024  # of a worker, a generation, a router
KEPT_TEXTS: Final = 8192
MAX_KEPT_BYTES: Final = 4096

REPORT, LEFT, DELTA, SNAPSHOT, PIECE, LOAD = range(1, 7)


class BadMessage(Exception):
    """Bytes that are no message of the wanted kind, or values that no message can carry; the text says why."""


def seal(kind: int, body: bytes) -> bytes:
    return HEAD.pack(MAGIC, kind, VERSION, crc32(body, kind << 8 | VERSION)) + body


def unseal(data: bytes, kind: int, max_bytes: int, least: int) -> memoryview:
    """The body, checked; at least `least` bytes of it, so that its fixed part can be read. Raises BadMessage."""
    if len(data) > max_bytes:
        raise BadMessage(f"{len(data)} bytes are more than {max_bytes}")
    if len(data) < HEAD.size + least:
        raise BadMessage(f"{len(data)} bytes are too few")
    magic, found_kind, version, checksum = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BadMessage("not a message of Warmline")
    if version != VERSION:
        raise BadMessage(f"message of version {version}, this program reads version {VERSION}")
    if found_kind != kind:
        raise BadMessage(f"message of kind {found_kind} where {kind} is due")
    body = memoryview(data)[HEAD.size :]
    if crc32(body, kind << 8 | VERSION) != checksum:
        raise BadMessage("checksum differs")
    return body


def kind_of(data: bytes) -> int:
    """The kind a message says it is; 0 when it is too short to say."""
    return data[2] if len(data) >= HEAD.size else 0


def name_bytes(name: str) -> bytes:
    """Raises BadMessage for what cannot be a name on the wire."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{name!r} cannot be encoded") from None
    if len(encoded) > MAX_NAME_BYTES:
        raise BadMessage(f"a name of {len(encoded)} bytes is longer than {MAX_NAME_BYTES}")
    return encoded


def pack_texts(texts: list[str]) -> tuple[bytes, bytes]:
    """(lengths, all texts). Raises BadMessage for what cannot be encoded."""
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise BadMessage(f"{error.object!r} cannot be encoded") from None
    return wire_array(array("I", map(len, encoded))), b"".join(encoded)


def unpack_texts(lengths: bytes, joined: bytes) -> tuple[str, ...]:
    """What `pack_texts` was given. Raises BadMessage. Short ones are kept: most messages repeat those before."""
    if len(lengths) + len(joined) > MAX_KEPT_BYTES:
        return read_texts(lengths, joined)
    return kept_texts(lengths, joined)


def read_texts(lengths: bytes, joined: bytes) -> tuple[str, ...]:
    texts = []
    at = 0
    try:
        for length in read_array("I", lengths):
            texts.append(joined[at : at + length].decode())
            at += length
    except UnicodeDecodeError:
        raise BadMessage("a text is not UTF-8") from None
    if at != len(joined):
        raise BadMessage("the lengths of texts do not add up")
    return tuple(texts)


kept_texts = lru_cache(maxsize=KEPT_TEXTS)(read_texts)


def wire_array(values: "array[int] | array[float]") -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def read_array(typecode: str, data: bytes | memoryview) -> "array[int]":
    """Raises ValueError where the length is no multiple of the item size; callers have checked it."""
    values: array[int] = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
