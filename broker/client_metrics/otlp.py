"""Add attributes to the resources of OTLP metrics without decoding the metrics, and parse the
receiver's responses. Pure.

Protocol Buffers merges repeated messages and concatenates their lists, so appending a second
Resource adds its attributes.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.base.buffers import Buffer

FIELDS_MAX: Final = 32_768
"""Maximum number of fields in MetricsData and in ResourceMetrics; parsing this many takes up to 30
ms. Java clients push two or three per metric.
"""
RESPONSE_FIELDS_MAX: Final = 64
"""Maximum number of fields in an ExportMetricsServiceResponse, which defines one, and in each of
its partial successes, which define two.
"""
MESSAGE_BYTES_MAX: Final = 500
"""Messages in a response are truncated to this length."""
_BYTES_FIELD: Final = 2
"""Wire type of strings and messages."""
_FIRST: Final = 1 << 3 | _BYTES_FIELD
_SECOND: Final = 2 << 3 | _BYTES_FIELD
_FIRST_NUMBER: Final = 1 << 3
_VARINT_BYTES_MAX: Final = 10
_INT64_MAX: Final = (1 << 63) - 1
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Sizes of the fixed-size wire types."""


class MetricsInvalid(Exception):
    """Raised for bytes that are not valid metrics or a valid response."""


class ReceiverResponse(NamedTuple):
    """The receiver's response to accepted metrics. rejected_count: number of rejected data points.
    message: the reason, or a warning if no data point was rejected; truncated.
    """

    rejected_count: int
    message: str


def resource_of(attributes: Iterable[tuple[str, str]]) -> bytes:
    """Return a Resource with these attributes, encoded as a field of ResourceMetrics."""
    resource = b"".join(
        _field(_FIRST, _field(_FIRST, name.encode()) + _field(_SECOND, _string_value(value)))
        for name, value in attributes
    )
    return _field(_FIRST, resource)


def with_resource(metrics: Buffer, resource: bytes) -> bytes:
    """Add the resource, as returned by `resource_of`, to each resource of MetricsData. The metrics
    of equal resources are merged, because Java clients send one ResourceMetrics per metric. Raises
    MetricsInvalid.

    Fields other than ResourceMetrics are rejected, so that a client cannot corrupt the metrics of
    others in the same request. The added attributes come last, and take precedence in receivers
    that keep only one value per name.
    """
    view = memoryview(metrics)
    found: dict[bytes, list[memoryview]] = {}
    fields_left = FIELDS_MAX
    at = 0
    while at < len(view):
        tag, begin, at = _field_at(view, at)
        if tag != _FIRST:
            raise MetricsInvalid(f"field {tag >> 3} before byte {at} is not a ResourceMetrics")
        described, measured, fields_left = _split(view[begin:at], fields_left - 1)
        found.setdefault(described, []).extend(measured)
    parts: list[Buffer] = []
    for described, measured in found.items():
        size = len(described) + len(resource) + sum(map(len, measured))
        parts += (bytes((_FIRST,)), _encoded(size), *measured, described, resource)
    return b"".join(parts)


def read_response(response: Buffer) -> ReceiverResponse:
    """Return the contents of an ExportMetricsServiceResponse. Raises MetricsInvalid."""
    rejected_count, message = 0, b""
    for tag, content in _fields(memoryview(response)):
        if tag != _FIRST:
            continue
        for inner, value in _fields(content):
            if inner == _FIRST_NUMBER:
                rejected_count, _ = _varint(value, 0)
            elif inner == _SECOND:
                message = bytes(value[:MESSAGE_BYTES_MAX])
    if rejected_count > _INT64_MAX:  # negative numbers
        rejected_count = 0
    return ReceiverResponse(rejected_count, message.decode(errors="replace"))


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the tag and the content of each field. Raises MetricsInvalid."""
    at = count = 0
    while at < len(view):
        count += 1
        if count > RESPONSE_FIELDS_MAX:
            raise MetricsInvalid(f"there are more than {RESPONSE_FIELDS_MAX} fields")
        tag, begin, at = _field_at(view, at)
        yield tag, view[begin:at]


def _split(message: memoryview, fields_left: int) -> tuple[bytes, list[memoryview], int]:
    """Return the resource and the metrics of a ResourceMetrics, and the number of fields that may
    follow. Raises MetricsInvalid.

    A message whose last field extends past the end of the message is rejected, because the appended
    Resource would become part of that field.
    """
    described: list[memoryview] = []
    measured: list[memoryview] = []
    at = 0
    while at < len(message) and fields_left >= 0:
        before = at
        tag, _, at = _field_at(message, at)
        (measured if tag == _SECOND else described).append(message[before:at])
        fields_left -= 1
    if fields_left < 0:
        raise MetricsInvalid(f"there are more than {FIELDS_MAX} fields")
    return b"".join(described), measured, fields_left


def _field_at(view: memoryview, at: int) -> tuple[int, int, int]:
    """Return the tag of a field and the start and end of its content. Raises MetricsInvalid."""
    tag, at = _varint(view, at)
    wire_type = tag & 7
    if not tag >> 3:
        raise MetricsInvalid("a field has the number 0")
    if wire_type == _BYTES_FIELD:
        size, begin = _varint(view, at)
        end = begin + size
    elif wire_type == 0:
        begin = at
        _, end = _varint(view, at)
    elif wire_type in _FIXED_BYTES:
        begin, end = at, at + _FIXED_BYTES[wire_type]
    else:
        raise MetricsInvalid(f"a field has the wire type {wire_type}")
    if end > len(view):
        raise MetricsInvalid(f"a field ends at byte {end} of {len(view)}")
    return tag, begin, end


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a varint and the position after it. Raises MetricsInvalid."""
    number = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(view):
            raise MetricsInvalid("a number is cut off")
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at
    raise MetricsInvalid(f"a number has more than {_VARINT_BYTES_MAX} bytes")


def _string_value(text: str) -> bytes:
    """Return an encoded AnyValue."""
    return _field(_FIRST, text.encode())


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + _encoded(len(data)) + data


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
