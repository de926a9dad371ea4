"""Count sent and received records, to find lost, duplicate or changed ones.

Invariant: two counts are equal only if they have the same number of records per key with the same
timestamps and contents, in any order (the chance that different contents are missed is 1 in 2^32).
Pure.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from penstock.deploy.output import counted

_MASK: Final = (1 << 64) - 1


@dataclass(slots=True)
class Tally:
    """Counts of records. checksum: a sum over all records, independent of their order."""

    count: int = 0
    value_bytes: int = 0
    checksum: int = 0
    count_by_key: Counter[str] = field(default_factory=Counter[str])

    def add(self, key: bytes, timestamp_ms: int, value: bytes) -> None:
        self.count += 1
        self.value_bytes += len(value)
        self.checksum = (self.checksum + (crc32(value, crc32(key)) ^ timestamp_ms)) & _MASK
        self.count_by_key[key.decode("utf-8", "backslashreplace")] += 1

    def difference(self, other: "Tally") -> str:
        """Describe how `other` differs, or return ""."""
        if self.count != other.count:
            return f"{counted(other.count, 'record')} came back instead of {self.count:,}"
        for key in sorted(self.count_by_key.keys() | other.count_by_key.keys()):
            if self.count_by_key[key] != other.count_by_key[key]:
                return (
                    f"{counted(other.count_by_key[key], 'record')} of key {key} came back instead"
                    f" of {self.count_by_key[key]:,}"
                )
        return (
            ""
            if self.checksum == other.checksum
            else "the counts are right, but a value or a timestamp has changed"
        )
