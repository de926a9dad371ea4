"""Primitive types of the Kafka protocol: round trips, limits and hostile input."""

from uuid import UUID

import pytest

from penstock.protocol.errors import (
    InvalidLength,
    InvalidText,
    InvalidVarint,
    TrailingBytes,
    Truncated,
    UnencodableValue,
)
from penstock.protocol.primitives import MAX_STRING_BYTES, Reader, Writer


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**21 - 1, "ffff7f"),
        (2**21, "80808001"),
        (2**28, "8080808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_varints_survive_a_round_trip(value: int, encoded: str) -> None:
    writer = Writer()
    writer.uvarint(value)
    assert writer.hex() == encoded
    reader = Reader(writer)
    assert reader.uvarint() == value
    reader.expect_end()


def test_varints_are_limited_to_five_bytes_and_32_bits() -> None:
    with pytest.raises(InvalidVarint, match="longer than five"):
        Reader(b"\x80" * 5 + b"\x00").uvarint()
    with pytest.raises(InvalidVarint, match="32 bits"):
        Reader(bytes.fromhex("ffffffff1f")).uvarint()
    with pytest.raises(Truncated):
        Reader(b"\x80\x80").uvarint()


@pytest.mark.parametrize("flexible", [True, False])
@pytest.mark.parametrize(
    "text", ["", "a", "ü" * 63, "x" * 126, "x" * 127, "x" * MAX_STRING_BYTES, None]
)
def test_strings_survive_a_round_trip(text: str | None, flexible: bool) -> None:
    writer = Writer()
    writer.nullable_string(text, flexible)
    reader = Reader(writer)
    assert reader.nullable_string(flexible) == text
    reader.expect_end()


def test_encoding_a_string_that_is_too_long_raises_unencodable_value() -> None:
    with pytest.raises(UnencodableValue, match="at most 32767"):
        Writer().string("x" * (MAX_STRING_BYTES + 1), flexible=True)


def test_invalid_strings_are_rejected() -> None:
    with pytest.raises(InvalidText):
        Reader(b"\x03\xff\xfe").string(flexible=True)
    with pytest.raises(InvalidLength):
        Reader(b"\x00").string(flexible=True)
    with pytest.raises(InvalidLength):
        Reader(b"\xff\xfe").nullable_string(flexible=False)
    with pytest.raises(Truncated):
        Reader(b"\x05abc").string(flexible=True)
    too_long = Writer()
    too_long.byte_string(bytes(MAX_STRING_BYTES + 1), flexible=True)
    with pytest.raises(InvalidLength):
        Reader(too_long).string(flexible=True)


def test_records_are_views_and_byte_strings_are_copies() -> None:
    frame = bytearray(b"\x04abc\x04def")
    reader = Reader(frame)
    view = reader.records(flexible=True)
    copy = reader.byte_string(flexible=True)
    frame[1:4] = b"ABC"
    assert view == b"ABC"
    assert copy == b"def"


def test_the_zero_uuid_is_decoded_as_none() -> None:
    writer = Writer()
    some = UUID("a5a5a5a5-1111-4222-8333-444444444444")
    writer.uuid(None)
    writer.uuid(some)
    assert writer[:16] == bytes(16)
    reader = Reader(writer)
    assert [reader.uuid(), reader.uuid()] == [None, some]


def test_unknown_tags_are_skipped_and_counted_towards_the_frame_limit() -> None:
    reader = Reader(bytes.fromhex("02 05 02 aabb 8001 00 2a"))
    reader.skip_tags()
    assert reader.i8() == 42
    long = bytes.fromhex("03 7f 7f") + bytes(127) + bytes.fromhex("8001 8001") + bytes(128)
    reader = Reader(long + bytes.fromhex("03 00 2a"))
    reader.skip_tags()
    assert reader.i8() == 42
    for truncated in ("01 05 09 aabb", "02 05 00 05 01", "02 8001 00 05 01"):
        with pytest.raises(Truncated):
            Reader(bytes.fromhex(truncated)).skip_tags()
    with pytest.raises(InvalidLength):
        Reader(bytes.fromhex("7f 05 00")).skip_tags()


def test_array_lengths_are_limited_by_the_size_of_their_elements() -> None:
    assert Reader(b"\x03" + bytes(8)).count(flexible=True, element_bytes=4) == 2
    with pytest.raises(InvalidLength, match="allowed here are 0 to 1"):
        Reader(b"\x03" + bytes(7)).count(flexible=True, element_bytes=4)
    assert Reader(b"\x00").nullable_count(flexible=True, element_bytes=4) == -1
    with pytest.raises(InvalidLength):
        Reader(b"\xff\xff\xff\xff").count(flexible=False, element_bytes=1)


def test_trailing_bytes_are_an_error() -> None:
    with pytest.raises(TrailingBytes, match="1 bytes are left"):
        Reader(b"x").expect_end()


def test_truncated_fixed_size_fields_are_rejected() -> None:
    for read in (Reader.i8, Reader.i16, Reader.i32, Reader.i64, Reader.boolean, Reader.uuid):
        with pytest.raises(Truncated):
            read(Reader(b""))
