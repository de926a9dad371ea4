"""Find runs of records with the same layout and read their keys together. Pure.

Most producers write records of equal size, so that a field recurs at a fixed distance. A slice with
that step reads the field in 3 ns per record instead of 0.8 us. A run contains exactly the records
that would be found by reading one by one.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.buffers import Buffer

_CONTINUED: Final = bytes(range(0x80, 0x100))
_LAST: Final = bytes(range(0x80))
"""Possible values of the bytes of a varint: `_CONTINUED` for all except the last, `_LAST` for the
last.
"""

_EVEN: Final = bytes(range(0, 0x100, 2))
"""Possible values of the first byte of a non-negative varint."""

_RECORDS_MIN: Final = 16
"""Minimum number of records in a run. Reading fewer records together is not faster."""

_KEYS_AT_ONCE: Final = 64


class Run(NamedTuple):
    """Consecutive records with the same layout. All positions refer to the first record.

    body: the position after the record length. delta_at: the position of the offset delta.
    key_bytes: size of the key, -1 for null.
    """

    record_count: int
    record_bytes: int
    at: int
    body: int
    delta_at: int
    key_bytes_at: int
    key_at: int
    key_bytes: int

    @property
    def end(self) -> int:
        """Return the position after the last record."""
        return self.at + self.record_count * self.record_bytes

    @property
    def value_at(self) -> int:
        """Return the position of the value's length."""
        return self.key_at + max(0, self.key_bytes)

    def keys(self, plain: Buffer) -> list[bytes]:
        """Return the key of each record; keys must not be null. This takes 40 ns per record."""
        found: list[bytes] = []
        at, step, key_bytes = self.key_at, self.record_bytes, self.key_bytes
        # Read the last record separately, because the bytes may end less than a step after its key.
        for _ in range((self.record_count - 1) // _KEYS_AT_ONCE):
            several = _keys_at_once(key_bytes, step - key_bytes)
            found += several.unpack_from(plain, at)
            at += several.size
        rest = range(at, at + (self.record_count - len(found)) * step, step)
        found += [bytes(plain[start : start + key_bytes]) for start in rest]
        return found

    def value_bytes(self, plain: Buffer) -> int | None:
        """Return the size of every value, -1 for null, or None if they differ or contradict the
        record size. This takes 5 ns per record for each byte of the encoded size.
        """
        value_bytes, behind = varint(plain, self.value_at)
        if behind + max(0, value_bytes) > self.at + self.record_bytes:
            return None
        for place in range(self.value_at, behind):
            column = bytes(plain[place : self.end : self.record_bytes])
            if column.lstrip(column[:1]):
                return None
        return value_bytes

    def largest_delta(self, plain: Buffer) -> int:
        """Return the largest offset delta, or -1 if one is negative. This takes 40 ns per
        record.
        """
        columns = [
            bytes(plain[place : place + self.end - self.at : self.record_bytes])
            for place in range(self.delta_at, self.key_bytes_at)
        ]
        if columns[0].translate(None, _EVEN):
            return -1
        raw = 0
        for byte in max(zip(*reversed(columns), strict=True)):
            raw = raw << 7 | byte & 0x7F
        return raw >> 1


def find_run(plain: Buffer, at: int, count_max: int) -> Run | None:
    """Return the run that begins with the record at this position, or None if it is too short to
    pay off. Raises IndexError at the end of the bytes. This takes 0.6 us if the sizes differ,
    otherwise 5 us plus 25 ns per record.
    """
    length, body = varint(plain, at)
    record_bytes = body + length - at
    far = at + (_RECORDS_MIN - 1) * record_bytes
    if count_max < _RECORDS_MIN or plain[far : far + body - at] != plain[at:body]:
        return None
    delta_at = _behind_varint(plain, body + 1)
    key_bytes_at = _behind_varint(plain, delta_at)
    key_bytes, key_at = varint(plain, key_bytes_at)
    if key_at + max(0, key_bytes) > at + record_bytes:
        return None
    columns = [
        *((place, bytes(plain[place : place + 1])) for place in range(at, body)),
        *_columns(body + 1, delta_at),
        *_columns(delta_at, key_bytes_at),
        *((place, bytes(plain[place : place + 1])) for place in range(key_bytes_at, key_at)),
    ]
    whole = min(count_max, (len(plain) - at) // record_bytes)
    count = 0
    for limit in (_RECORDS_MIN, whole):
        count = min(whole, limit)
        for place, allowed in columns:
            column = bytes(plain[place : place + (count - 1) * record_bytes + 1 : record_bytes])
            count -= len(column.lstrip(allowed))
        if count < _RECORDS_MIN:
            return None
    return Run(count, record_bytes, at, body, delta_at, key_bytes_at, key_at, key_bytes)


def _columns(start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield each byte position of a varint, with the byte values that keep the varint's size."""
    for place in range(start, end - 1):
        yield place, _CONTINUED
    yield end - 1, _LAST


@lru_cache(maxsize=64)
def _keys_at_once(key_bytes: int, gap_bytes: int) -> Struct:
    return Struct(f"{key_bytes}s{gap_bytes}x" * _KEYS_AT_ONCE)


def varint(plain: Buffer, at: int) -> tuple[int, int]:
    """Return (value, position after it). Raises IndexError at the end of the bytes. This is twice
    as fast as `read_varint`, because it omits range checks: callers compare the position with the
    end of the record.
    """
    byte = plain[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw, shift = byte & 0x7F, 7
    while byte > 0x7F:
        at += 1
        byte = plain[at]
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at + 1


def _behind_varint(plain: Buffer, at: int) -> int:
    while plain[at] > 0x7F:
        at += 1
    return at + 1
