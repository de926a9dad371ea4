"""Records in the API for tests, and the selection of their partitions.

Invariant: a keyed record goes to the partition that Kafka's Java client would choose (murmur2).
Pure. Source: Kafka `Utils.murmur2`, `BuiltInPartitioner`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

_MASK: Final = 0xFFFF_FFFF
_M: Final = 0x5BD1_E995
_SEED: Final = 0x9747_B28C

Data = str | bytes | None
"""A key or a value. Text is sent as UTF-8, None as null (a value of null is a tombstone)."""


class Position(NamedTuple):
    """The position of an acknowledged record."""

    partition: int
    offset: int


class Record(NamedTuple):
    """A record. If several headers have the same name, `headers` contains the last one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]

    @property
    def text(self) -> str:
        """The value as UTF-8; empty for a tombstone."""
        return (self.value or b"").decode()


def encoded(data: Data) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def partition_of(key: bytes | None, index: int, partition_count: int) -> int:
    """Return the partition of a key. Without a key, the records of a call are distributed round
    robin, starting with partition 0, so that every run of a test is the same.
    """
    if key is None:
        return index % partition_count
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


def murmur2(data: bytes) -> int:
    """Return the hash as unsigned 32 bits."""
    length = len(data)
    hashed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ k
    if length > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15
