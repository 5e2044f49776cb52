"""Messages of MII's gRPC service `modelresponse.ModelResponse`, in protobuf's wire form: no protobuf package is needed.

Read: MultiStringRequest {1: prompts; 2: map of query_kwargs}, Value {1: string | 2: int64 | 3: float | 4: bool | 5: map}.
Written: MultiGenerationReply {1: replies}, each {1: text, 2: finish reason, 3: prompt tokens, 4: generated tokens}.
Source: deepspeed-mii 0.3.3, mii/grpc_related/proto. Fields that are not known are skipped.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES: Final = 10
MAX_DEPTH: Final = 4


class NotAMessage(ValueError):
    """Bytes that are no such message."""


@dataclass(frozen=True)
class Request:
    prompts: tuple[str, ...]
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """`finish_reason` is "none" until the last reply of a stream."""

    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int


def read_request(data: bytes) -> Request:
    """Raises NotAMessage."""
    prompts: list[str] = []
    arguments: dict[str, Any] = {}
    for number, value in fields_of(data):
        if number == 1:
            prompts.append(text_of(value))
        elif number == 2:
            add_entry(arguments, value, MAX_DEPTH)
    return Request(tuple(prompts), arguments)


def replies_message(replies: list[Reply]) -> bytes:
    return b"".join(prefixed(1, reply_message(reply)) for reply in replies)


def reply_message(reply: Reply) -> bytes:
    parts = [prefixed(1, reply.text.encode("utf-8", "replace")), prefixed(2, reply.finish_reason.encode())]
    for number, count in ((3, reply.prompt_tokens), (4, reply.generated_tokens)):
        parts += [varint(number << 3 | VARINT), varint(count)]
    return b"".join(parts)


def add_entry(into: dict[str, Any], data: Any, depth: int) -> None:
    """One entry of a map: {1: key, 2: Value}."""
    key, value = "", None
    for number, field in fields_of(bytes_of(data)):
        if number == 1:
            key = text_of(field)
        elif number == 2:
            value = value_of(bytes_of(field), depth)
    into[key] = value


def value_of(data: bytes, depth: int) -> Any:
    """The last of the alternatives that is there; None without one."""
    found: Any = None
    for number, field in fields_of(data):
        if number == 1:
            found = text_of(field)
        elif number == 2 and isinstance(field, int):
            found = field - (1 << 64) if field >= 1 << 63 else field
        elif number == 3 and isinstance(field, bytes) and len(field) == 4:
            found = struct.unpack("<f", field)[0]
        elif number == 4 and isinstance(field, int):
            found = field != 0
        elif number == 5:
            if depth == 0:
                raise NotAMessage("maps are nested too deeply")
            found = {}
            for inner, entry in fields_of(bytes_of(field)):
                if inner == 1:
                    add_entry(found, entry, depth - 1)
    return found


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order; numbers as integers, all else as bytes."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise NotAMessage(f"wire type {kind}")
        if at + size > len(data):
            raise NotAMessage("cut off")
        yield number, data[at : at + size]
        at += size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + MAX_VARINT_BYTES, len(data))):
        value |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return value & (1 << 64) - 1, index + 1
    raise NotAMessage("a number that does not end")


def varint(value: int) -> bytes:
    """Of a number from 0."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def prefixed(number: int, data: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def bytes_of(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise NotAMessage("a number where bytes are due")
    return value


def text_of(value: int | bytes) -> str:
    try:
        return bytes_of(value).decode()
    except UnicodeDecodeError:
        raise NotAMessage("text that is not UTF-8") from None
