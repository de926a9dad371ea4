"""Primitive types of the Kafka protocol: a bounds-checked `Reader` and an appending `Writer`.

`flexible` (KIP-482) selects compact lengths (uvarint, plus one, 0 = null) instead of legacy ones
(int16/int32, -1 = null). The all-zero UUID is `None`. `records` are memoryviews of the frame;
`bytes` are copied.
"""

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from penstock.base.buffers import Buffer
from penstock.protocol.errors import (
    InvalidLength,
    InvalidText,
    InvalidVarint,
    TooManyElements,
    TrailingBytes,
    Truncated,
    UnencodableValue,
)

MAX_STRING_BYTES: Final = 0x7FFF
MAX_ELEMENTS_COUNT: Final = 500_000
"""Maximum number of array elements and tagged fields in one response of another node, or in one
record of a log.
"""

REQUEST_ELEMENTS_MAX: Final = 35_000
"""Maximum number of array elements and tagged fields in one request, unless
`protocol.request_limits` defines another limit for its API. An element takes 1 to 2 us and 100 to
400 bytes, so a request takes at most about 70 ms and 14 MB. The largest legitimate requests have
fewer: an OffsetCommit for 10,000 topics with one partition each has 20,000 elements, and a
ConsumerGroupHeartbeat with as many subscribed and assigned topics has 30,000.
"""

ELEMENTS_AT_ONCE_MAX: Final = 2_000
"""Maximum number of array elements and tagged fields in a request that is decoded in the event
loop, which takes at most about 4 ms. Longer requests are decoded in a thread
(`broker.requests.long_requests`). Headers and requests before authentication must not contain more
tagged fields than this.
"""

_NULL_UUID: Final = bytes(16)
_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_i16_at: Final = _I16.unpack_from
_i32_at: Final = _I32.unpack_from
_pack_i16: Final = _I16.pack
_pack_i32: Final = _I32.pack
_pack_u16: Final = struct.Struct(">H").pack


class Reader:
    """A cursor over one message. Raises only `WireError`. Every declared length or count is
    compared with the remaining bytes before it is used, so the allocated memory is at most a small
    multiple of the frame. Callers may move `pos` after comparing it with `end`.
    """

    __slots__ = ("_elements_left_count", "end", "pos", "view")

    def __init__(
        self, buffer: Buffer, pos: int = 0, elements_max: int = MAX_ELEMENTS_COUNT
    ) -> None:
        self.view = memoryview(buffer)
        self.pos = pos
        self.end = len(self.view)
        self._elements_left_count = elements_max

    def expect_end(self) -> None:
        """Raise `TrailingBytes` unless everything was read."""
        if self.pos != self.end:
            raise TrailingBytes(self.end - self.pos)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read several fixed-size fields at once."""
        pos = self.pos
        try:
            values = layout.unpack_from(self.view, pos)
        except struct.error:
            raise Truncated(layout.size, self.end - pos) from None
        self.pos = pos + layout.size
        return values

    def i8(self) -> int:
        return self.unpack(_I8)[0]

    def i16(self) -> int:
        return self.unpack(_I16)[0]

    def u16(self) -> int:
        return self.unpack(_U16)[0]

    def i32(self) -> int:
        pos = self.pos
        try:
            value: int = _i32_at(self.view, pos)[0]
        except struct.error:
            raise Truncated(4, self.end - pos) from None
        self.pos = pos + 4
        return value

    def i64(self) -> int:
        return self.unpack(_I64)[0]

    def f64(self) -> float:
        return self.unpack(_F64)[0]

    def boolean(self) -> bool:
        return self.unpack(_I8)[0] != 0

    def uvarint(self) -> int:
        """Read an unsigned 32-bit varint. Nearly all of them are lengths below 127, so the one-byte
        path comes first.
        """
        pos = self.pos
        view = self.view
        try:
            byte = view[pos]
            if byte < 0x80:
                self.pos = pos + 1
                return byte
            value = byte & 0x7F
            for shift in (7, 14, 21, 28):
                pos += 1
                byte = view[pos]
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            else:
                raise InvalidVarint("a varint is longer than five bytes")
        except IndexError:
            raise Truncated(1, 0) from None
        if value > 0xFFFFFFFF:
            raise InvalidVarint(f"varint {value} does not fit in 32 bits")
        self.pos = pos + 1
        return value

    def take(self, size_bytes: int) -> memoryview:
        """Return the next `size_bytes` (not negative) as a view of the frame."""
        pos = self.pos
        stop = pos + size_bytes
        if stop > self.end:
            raise Truncated(size_bytes, self.end - pos)
        self.pos = stop
        return self.view[pos:stop]

    def nullable_string(self, flexible: bool) -> str | None:
        pos = self.pos
        if flexible:
            size_bytes = self.uvarint() - 1
            pos = self.pos
        else:
            try:
                size_bytes = _i16_at(self.view, pos)[0]
            except struct.error:
                raise Truncated(2, self.end - pos) from None
            self.pos = pos = pos + 2
        if not 0 <= size_bytes <= MAX_STRING_BYTES:
            if size_bytes != -1:
                raise InvalidLength("string", size_bytes, MAX_STRING_BYTES)
            return None
        stop = pos + size_bytes
        if stop > self.end:
            raise Truncated(size_bytes, self.end - pos)
        self.pos = stop
        try:
            return str(self.view[pos:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidText(
                f"a string of {size_bytes} bytes is not UTF-8: {error.reason}"
            ) from None

    def string(self, flexible: bool) -> str:
        value = self.nullable_string(flexible)
        if value is None:
            raise InvalidLength("string", -1, MAX_STRING_BYTES)
        return value

    def records(self, flexible: bool) -> memoryview | None:
        """Read record batches as a view of the frame. The view is valid, and writable in place, as
        long as the frame is.
        """
        size_bytes = self.uvarint() - 1 if flexible else self.i32()
        if size_bytes < 0:
            if size_bytes != -1:
                raise InvalidLength("bytes", size_bytes, self.end - self.pos)
            return None
        return self.take(size_bytes)

    def byte_string(self, flexible: bool) -> bytes:
        view = self.records(flexible)
        if view is None:
            raise InvalidLength("bytes", -1, self.end - self.pos)
        return view.tobytes()

    def uuid(self) -> UUID | None:
        raw = self.take(16).tobytes()
        return None if raw == _NULL_UUID else UUID(bytes=raw)

    def nullable_count(self, flexible: bool, element_bytes: int) -> int:
        """Read the length of an array whose elements take at least `element_bytes` each. -1 means
        null.
        """
        count = self.uvarint() - 1 if flexible else self.i32()
        if count <= 0:
            if count < -1:
                raise InvalidLength("array", count, self.end - self.pos)
            return count
        if count * element_bytes > self.end - self.pos or count > self._elements_left_count:
            raise self._too_many("array", count, element_bytes)
        self._elements_left_count -= count
        return count

    def count(self, flexible: bool, element_bytes: int) -> int:
        count = self.nullable_count(flexible, element_bytes)
        if count < 0:
            raise InvalidLength("array", count, self.end - self.pos)
        return count

    def i32s(self, flexible: bool) -> list[int]:
        return list(self.unpack(struct.Struct(f">{self.count(flexible, 4)}i")))

    def nullable_i32s(self, flexible: bool) -> list[int] | None:
        count = self.nullable_count(flexible, 4)
        return None if count < 0 else list(self.unpack(struct.Struct(f">{count}i")))

    def tag_count(self) -> int:
        count = self.uvarint()
        if count * 2 > self.end - self.pos or count > self._elements_left_count:
            raise self._too_many("tagged fields", count, 2)
        self._elements_left_count -= count
        return count

    def tag(self) -> tuple[int, int]:
        """Read the head of the next tagged field. Returns (tag, position of its end); its value
        begins at `pos`.
        """
        tag = self.uvarint()
        size_bytes = self.uvarint()
        stop = self.pos + size_bytes
        if stop > self.end:
            raise Truncated(size_bytes, self.end - self.pos)
        return tag, stop

    def end_tag(self, stop: int) -> None:
        """Check that a known tagged field was read exactly to its end."""
        if self.pos != stop:
            raise InvalidLength("tagged field", stop - self.pos, 0)

    def skip_tags(self) -> None:
        """Skip a section of unknown tagged fields, as KIP-482 requires."""
        pos = self.pos
        if pos < self.end and self.view[pos] == 0:
            self.pos = pos + 1
            return
        view, end, count = self.view, self.end, self.tag_count()
        pos = self.pos
        for _ in range(count):
            # Read tags and sizes below 128 without a function call, because a request may contain
            # 35,000 of them.
            if pos + 1 < end and view[pos] < 0x80 and view[pos + 1] < 0x80:
                pos += 2 + view[pos + 1]
                if pos > end:
                    raise Truncated(pos - end, 0)
            else:
                self.pos = pos
                _, pos = self.tag()
        self.pos = pos

    def _too_many(self, what: str, count: int, element_bytes: int) -> InvalidLength:
        fitting = (self.end - self.pos) // element_bytes
        if count > fitting:
            return InvalidLength(what, count, min(fitting, self._elements_left_count))
        return TooManyElements(what, count, self._elements_left_count)


class Writer(bytearray):
    """A message under construction. Add fixed-size fields with `writer += layout.pack(...)`. All
    data is copied.
    """

    __slots__ = ()

    def uvarint(self, value: int) -> None:
        if value < 0x80:
            self.append(value)
        elif value < 0x4000:
            self += _pack_u16((value & 0x7F | 0x80) << 8 | value >> 7)
        else:
            self += _pack_u16((value & 0x7F | 0x80) << 8 | value >> 7 & 0x7F | 0x80)
            self.uvarint(value >> 14)

    def null(self, flexible: bool) -> None:
        """Write a null array or null bytes."""
        self += b"\x00" if flexible else b"\xff\xff\xff\xff"

    def length(self, count: int, flexible: bool) -> None:
        """Write the length of an array or of bytes."""
        if flexible:
            self.uvarint(count + 1)
        else:
            self += _pack_i32(count)

    def string(self, value: str, flexible: bool) -> None:
        encoded = value.encode()
        size_bytes = len(encoded)
        if size_bytes > MAX_STRING_BYTES:
            raise UnencodableValue(
                f"a string of {size_bytes} bytes; a Kafka string holds at most {MAX_STRING_BYTES}"
            )
        if not flexible:
            self += _pack_i16(size_bytes)
        elif size_bytes < 0x7F:
            self.append(size_bytes + 1)
        else:
            self.uvarint(size_bytes + 1)
        self += encoded

    def nullable_string(self, value: str | None, flexible: bool) -> None:
        if value is None:
            self += b"\x00" if flexible else b"\xff\xff"
        else:
            self.string(value, flexible)

    def byte_string(self, value: Buffer, flexible: bool) -> None:
        self.length(len(value), flexible)
        self += value

    def records(self, value: Buffer | None, flexible: bool) -> None:
        """Write record batches, copied. The broker's hot paths (`protocol.fetch`) send views
        instead.
        """
        if value is None:
            self.null(flexible)
        else:
            self.byte_string(value, flexible)

    def uuid(self, value: UUID | None) -> None:
        self += _NULL_UUID if value is None else value.bytes

    def i32s(self, values: Sequence[int], flexible: bool) -> None:
        self.length(len(values), flexible)
        self += struct.pack(f">{len(values)}i", *values)

    def nullable_i32s(self, values: Sequence[int] | None, flexible: bool) -> None:
        if values is None:
            self.null(flexible)
        else:
            self.i32s(values, flexible)

    def tagged(self, tag: int, body: "Writer") -> None:
        """Write one tagged field. The caller must first write the number of fields, and must sort
        them by tag.
        """
        self.uvarint(tag)
        self.uvarint(len(body))
        self += body
