"""States of the partitions that a mirror copies.

One worker writes each state, and the reporting thread reads it, so each field is a single number or
text.
"""

from dataclasses import dataclass

from penstock.deploy.mirror.plan import OffsetKind
from penstock.protocol.client.brokers import Partition

UNKNOWN = -1


@dataclass(slots=True)
class PartitionState:
    """A partition. mirror_source: the config of a topic with the offsets of the source. topic_id:
    of the source topic. target_id: id of the target topic. Ids are empty if the cluster has none.
    """

    key: Partition
    mode: OffsetKind
    mirror_source: str
    topic_id: str
    target_id: str = ""
    position: int = UNKNOWN
    """The next offset of the source."""
    end: int = UNKNOWN
    """The high watermark of the source in the last fetch response."""
    stable_end: int = UNKNOWN
    """The last stable offset of the source."""
    source_start: int = UNKNOWN
    """The log start of the source."""
    target_start: int = 0
    """A lower bound of the log start of the target."""
    records: int = 0
    """Records that this process copied."""
    size_bytes: int = 0
    """Bytes that this process copied."""
    error: str = ""
    """The reason why the partition is no longer copied; empty while it is copied."""

    @property
    def name(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def lag(self) -> int | None:
        """Return the number of offsets left to copy; None if unknown."""
        if self.position < 0 or self.end < 0:
            return None
        return max(0, self.end - self.position)


class Ended(Exception):
    """Raised when this mirror must stop because another one has replaced it."""
