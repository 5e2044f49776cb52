"""engines.deepspeed_backend.wire: the same bytes as MII's own stubs. Vectors made with deepspeed-mii 0.3.3 and protobuf:
`MultiStringRequest(request=…, query_kwargs=kwarg_dict_to_proto(…)).SerializeToString(deterministic=True)`.
"""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.deepspeed_backend.wire import NotAMessage, Reply, Request, read_request, replies_message, varint

REQUEST = (
    b"\n\x06H\xc3\xa9llo\n\x01b\x12\x0f\n\tdo_sample\x12\x02 \x01\x12\x10\n\nignore_eos\x12\x02 \x00"
    b"\x12\x15\n\x0emax_new_tokens\x12\x03\x10\xac\x02\x12\x1e\n\x06nested\x12\x14*\x12\n\x10\n\x01a\x12\x0b*\t\n\x07\n\x01b"
    b"\x12\x02\x10\x01\x12\x0b\n\x04stop\x12\x03\n\x01\n\x12\x14\n\x0btemperature\x12\x05\x1d\x00\x00\x00?"
    b"\x12\x14\n\x05top_k\x12\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
)
ARGUMENTS = {
    "do_sample": True,
    "ignore_eos": False,
    "max_new_tokens": 300,
    "nested": {"a": {"b": 1}},
    "stop": "\n",
    "temperature": 0.5,
    "top_k": -1,
}
REPLIES = b"\n\x15\n\x06H\xc3\xa9llo\x12\x06length\x18\xac\x02 \x05\n\x0b\x12\x04none\x18\x01 \xc8\x01"


def test_requests_are_read() -> None:
    """Prompts and arguments of every type, as MII's servers send them."""
    assert read_request(REQUEST) == Request(("Héllo", "b"), ARGUMENTS)
    assert read_request(b"\n\x00\x12\x07\n\x01z\x12\x02\x10\x00") == Request(("",), {"z": 0})
    assert read_request(b"") == Request((), {})


def test_replies_are_written() -> None:
    """Byte for byte what MII's stubs read; an empty text is written out, which is as good as left out."""
    written = replies_message([Reply("Héllo", "length", 300, 5), Reply("", "none", 1, 200)])
    assert written == REPLIES.replace(b"\n\x0b\x12\x04none", b"\n\x0d\n\x00\x12\x04none")


def test_unknown_fields_are_skipped() -> None:
    """A later release may send more: numbers, bytes, and fixed sizes of fields that are not known."""
    more = b"\x18\x05" + b"\x22\x02ab" + b"\x2d\x00\x00\x00\x00" + b"\x31" + b"\x00" * 8
    assert read_request(more + REQUEST + more) == read_request(REQUEST)
    assert read_request(b"\x12\x05\n\x01z\x12\x00").arguments == {"z": None}
    assert read_request(b"\x12\x05\n\x01z\x12\x00\x12\x09\n\x01y\x12\x02\x18\x01\x38\x00").arguments == {"z": None, "y": None}


def nested(levels: int) -> bytes:
    value = b"\x10\x01"
    for _ in range(levels):
        entry = b"\n\x01a\x12" + varint(len(value)) + value
        inner = b"\n" + varint(len(entry)) + entry
        value = b"*" + varint(len(inner)) + inner
    entry = b"\n\x01a\x12" + varint(len(value)) + value
    return b"\x12" + varint(len(entry)) + entry


@pytest.mark.parametrize(
    "data",
    [
        REQUEST[:-1],
        b"\n",
        b"\n\x05ab",
        b"\x0b",
        b"\x80" * 11,
        b"\n\x01\xff",
        b"\x08\x05",
        b"\x10\x05",
        b"\x12\x04\n\x00\x10\x01",
        nested(9),
    ],
    ids=["cut", "no size", "too short", "group", "endless", "not UTF-8", "number as text", "number as map", "value", "deep"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """Cut, garbled or endless input is one known error."""
    with pytest.raises(NotAMessage):
        read_request(data)


@given(st.binary(max_size=80) | st.binary(max_size=20).map(lambda tail: REQUEST + tail))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing else is ever raised."""
    with contextlib.suppress(NotAMessage):
        read_request(data)
