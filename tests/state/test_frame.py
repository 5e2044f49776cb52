"""The frame around messages: what is not exactly one is refused, and says why."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state import frame
from router.state.frame import (
    DELTA,
    HEAD,
    LOAD,
    MAX_KEPT_BYTES,
    MAX_NAME_BYTES,
    REPORT,
    BadMessage,
    kind_of,
    name_bytes,
    pack_texts,
    read_array,
    seal,
    unpack_texts,
    unseal,
    wire_array,
)

BAD = [
    ("too short", seal(REPORT, b"")[:7], "7 bytes are too few"),
    ("body too short", seal(REPORT, b"a"), "9 bytes are too few"),
    ("too long", seal(REPORT, b"a" * 100), "108 bytes are more than 64"),
    ("foreign", b"XX" + seal(REPORT, b"abcd")[2:], "not a message of Warmline"),
    ("another kind", seal(DELTA, b"abcd"), f"message of kind {DELTA} where {REPORT} is due"),
    ("damaged", seal(REPORT, b"abcd")[:-1] + b"x", "checksum differs"),
]


@pytest.mark.parametrize(("data", "problem"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_no_message_is_refused(data: bytes, problem: str) -> None:
    """Each refusal says what is wrong."""
    with pytest.raises(BadMessage, match=problem):
        unseal(data, REPORT, 64, 2)


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs two versions side by side learns it from the message."""
    monkeypatch.setattr(frame, "VERSION", 2)
    data = seal(REPORT, b"abcd")
    monkeypatch.undo()
    with pytest.raises(BadMessage, match="message of version 2, this program reads version 1"):
        unseal(data, REPORT, 64, 0)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused(data: bytes) -> None:
    """No bytes raise anything else."""
    with pytest.raises(BadMessage):
        unseal(data, REPORT, 64, 0)
    assert kind_of(data) == (data[2] if len(data) >= HEAD.size else 0)


@given(st.integers(0, 255), st.binary(max_size=40))
def test_bodies_come_back(kind: int, body: bytes) -> None:
    """Whatever the body is."""
    data = seal(kind, body)
    assert unseal(data, kind, 64, len(body)) == body
    assert kind_of(data) == kind


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_texts_come_back(texts: list[str]) -> None:
    """Texts of any length, with any character, zero bytes too."""
    assert unpack_texts(*pack_texts(texts)) == tuple(texts)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5), st.binary(max_size=20))
def test_wrong_lengths_and_bytes_of_texts_are_refused(lengths: list[int], joined: bytes) -> None:
    """Lengths that do not add up, and bytes that are no UTF-8, are BadMessage."""
    try:
        texts = unpack_texts(wire_array(array("I", lengths)), joined)
    except BadMessage:
        return
    assert [len(text.encode()) for text in texts] == lengths


def test_short_texts_are_kept_and_long_ones_are_not() -> None:
    """Repeated texts are the same objects; what is kept is bounded."""
    short, long = pack_texts(["a" * 100]), pack_texts(["a" * MAX_KEPT_BYTES])
    assert unpack_texts(*short)[0] is unpack_texts(*short)[0]
    assert unpack_texts(*long)[0] is not unpack_texts(*long)[0]


def test_what_cannot_be_encoded_is_refused() -> None:
    """Half a surrogate pair and names without end never reach the wire."""
    for refuse in (
        lambda: pack_texts(["\ud800"]),
        lambda: name_bytes("\ud800"),
        lambda: name_bytes("a" * (MAX_NAME_BYTES + 1)),
    ):
        with pytest.raises(BadMessage):
            refuse()
    assert name_bytes("ä" * (MAX_NAME_BYTES // 2))


def test_arrays_are_little_endian_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of the other byte order turns each number round, both ways."""
    values = array("Q", [1, 2**63])
    assert wire_array(values) == b"\1" + bytes(7) + bytes(7) + b"\x80"
    monkeypatch.setattr("sys.byteorder", "big")
    turned = wire_array(values)
    assert turned == bytes(7) + b"\1" + b"\x80" + bytes(7)
    assert read_array("Q", turned) == values == array("Q", [1, 2**63])


def test_kinds_differ() -> None:
    """No message can be taken for one of another kind."""
    kinds = (frame.REPORT, frame.LEFT, frame.DELTA, frame.SNAPSHOT, frame.PIECE, LOAD)
    assert len(set(kinds)) == len(kinds)
