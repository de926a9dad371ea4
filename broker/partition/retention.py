"""Compute log starts from retention by age and size. Pure.

Retention deletes whole ranges (a range is the part of a stream in one object), as Kafka deletes
whole segments. Records that are only in the WAL are retained until they are committed, which takes
at most `upload.block.max.age.ms`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.ids import Millis, ObjectId, Offset
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS, cleanup_policies

UNLIMITED: Final = -1
_RETENTION_MS: Final = "retention.ms"
_RETENTION_BYTES: Final = "retention.bytes"


@dataclass(frozen=True, slots=True)
class Retention:
    """The maximum age and size for one topic, or `UNLIMITED`."""

    age_ms: int
    size_bytes: int
    """Per partition."""

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> "Retention":
        """Return the retention of a topic. The controller has validated the values, and Kafka's
        defaults replace missing ones. A topic without the delete policy retains all records.
        """
        if "delete" not in cleanup_policies(configs):
            return cls(UNLIMITED, UNLIMITED)
        return cls(int(_value(configs, _RETENTION_MS)), int(_value(configs, _RETENTION_BYTES)))

    @property
    def is_unlimited(self) -> bool:
        return self.age_ms < 0 and self.size_bytes < 0


def allows_delete_records(configs: Mapping[str, str]) -> bool:
    """Return whether `cleanup.policy` allows clients to delete records, which it does unless it is
    only compact.
    """
    return cleanup_policies(configs) != frozenset({"compact"})


def retained_from(
    entries: Sequence[LogEntry],
    retention: Retention,
    now_ms: Millis,
    committed_ms: Callable[[ObjectId], Millis],
) -> Offset | None:
    """Return the first offset to retain, or None to retain all records.

    entries: the stream's ranges in order. committed_ms: returns when an object was committed, which
    is used for records without a timestamp; a range with such records is deleted when both this
    time and the newest known timestamp are old enough. A range emptied by log compaction is deleted
    together with the next one. This takes 0.1 us per deleted range, and 0.06 us per range if there
    is a size limit.
    """
    start: Offset | None = None
    excess_bytes = -1
    if retention.size_bytes >= 0:
        excess_bytes = sum(entry.size_bytes for entry in entries) - retention.size_bytes
    for entry in entries:
        if not entry.record_count and entry.max_timestamp_ms == -1:
            # Its object may be new, but that must not retain older records in the following ranges.
            excess_bytes -= entry.size_bytes
            continue
        if entry.size_bytes > excess_bytes and not _is_expired(
            entry, retention, now_ms, committed_ms
        ):
            break
        excess_bytes -= entry.size_bytes
        start = entry.end_offset
    return start


def _is_expired(
    entry: LogEntry,
    retention: Retention,
    now_ms: Millis,
    committed_ms: Callable[[ObjectId], Millis],
) -> bool:
    if retention.age_ms < 0:
        return False
    newest_ms = entry.max_timestamp_ms
    if newest_ms < 0:
        newest_ms = max(Millis(~newest_ms), committed_ms(entry.object_id))
    return now_ms - newest_ms > retention.age_ms


def _value(configs: Mapping[str, str], name: str) -> str:
    return configs.get(name, TOPIC_CONFIGS[name].default)
