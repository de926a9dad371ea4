"""The framing of a value whose schema is in a registry: a zero byte, the schema id in 4 bytes and,
for Protobuf, the indexes of the message in its file. A record header may contain these bytes
instead, usually with a one and the schema GUID. Source: Confluent's wire format and clients.
"""

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

MAGIC: Final = 0
GUID_MAGIC: Final = 1
FRAME_BYTES: Final = 5
GUID_FRAME_BYTES: Final = 17
VALUE_HEADER: Final = "__value_schema_id"
"""The header with the schema of the value. The value is then not framed."""

INDEXES_MAX: Final = 32

SchemaKey = int | str
"""The id of a schema, or its GUID."""


def split_frame(data: bytes | memoryview) -> int:
    """Return the schema id; the value follows at FRAME_BYTES. Raise ValueError."""
    if len(data) < FRAME_BYTES or data[0] != MAGIC:
        raise ValueError("the value does not begin with a magic byte 0 and a schema id of 4 bytes")
    return int.from_bytes(data[1:FRAME_BYTES], "big")


def split_header(data: bytes) -> tuple[SchemaKey, bytes]:
    """Return the id or GUID of the schema in a header, and the indexes of a Protobuf message. Raise
    ValueError.
    """
    if data[:1] == bytes([GUID_MAGIC]) and len(data) >= GUID_FRAME_BYTES:
        return str(UUID(bytes=data[1:GUID_FRAME_BYTES])), data[GUID_FRAME_BYTES:]
    if data[:1] == bytes([MAGIC]) and len(data) >= FRAME_BYTES:
        return split_frame(data), data[FRAME_BYTES:]
    raise ValueError(f"the header {VALUE_HEADER} does not contain the id or GUID of a schema")


def value_header(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """Return the last header with the schema of the value, if there is one."""
    found = [value or b"" for name, value in headers if name == VALUE_HEADER]
    return found[-1] if found else None


def split_value(data: bytes, header: bytes | None) -> tuple[SchemaKey, bytes]:
    """Return the id or GUID of the schema of a value, and the bytes after the frame, which begin
    with the indexes of the message for Protobuf. header: see `value_header`. Raise ValueError.
    """
    if header is None:
        return split_frame(data), data[FRAME_BYTES:]
    key, path = split_header(header)
    return key, path + data


def frame(number: int) -> bytes:
    return bytes([MAGIC]) + number.to_bytes(4, "big")


def split_indexes(data: bytes | memoryview) -> tuple[list[int], int]:
    """Return the indexes of a message and the position after them. They consist of a count and that
    many indexes, all encoded as zigzag varints. A single 0 selects the first message. Raise
    ValueError.
    """
    count, at = _zigzag(data, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise ValueError("the value does not begin with the indexes of its message")
    path: list[int] = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return path or [0], at


def indexes(path: list[int]) -> bytes:
    """Return the bytes for the indexes of a message."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(path), *path))


def path_of(descriptor: Any) -> list[int]:  # noqa: ANN401 - of protobuf
    """Return the indexes of a message in its file, starting with the outermost message."""
    path: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = (
            descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
        )
        path.insert(0, [kind.full_name for kind in siblings].index(descriptor.full_name))
        descriptor = outer
    return path


def _zigzag(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("the value does not begin with the indexes of its message")
        number |= (data[at] & 0x7F) << shift
        at, shift, more = at + 1, shift + 7, data[at] & 0x80
        if not more:
            return (number >> 1) ^ -(number & 1), at


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])
