"""Plan and set new offsets of a group, with the same results as `kafka-consumer-groups`.

An offset outside the log is replaced by the nearest end of the log. A time after the last record
selects the end of the log, and so does --to-current for a partition without a committed offset.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from penstock.deploy.admin.groups.admin import committed, share_start_offsets
from penstock.deploy.admin.groups.views import GroupType, ListedGroup, NewOffset
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.errors import UsageError
from penstock.protocol import apis
from penstock.protocol.client.brokers import GROUP, Partition, by_topic
from penstock.protocol.client.errors import DoesNotExist, KafkaFailed, Refused
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import alter_share_group_offsets as alter_share
from penstock.protocol.gen import delete_share_group_offsets as delete_share
from penstock.protocol.gen import offset_commit, offset_delete
from penstock.protocol.offset_specs import EARLIEST, LATEST

_INACTIVE: Final = frozenset({"Empty", "Dead"})
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SHORT: Final = re.compile(r"(?P<count>\d+)(?P<unit>ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FILE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a reset: exactly one field is set. time_ms: milliseconds since 1970."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift: int | None = None
    time_ms: int | None = None
    exact: Mapping[Partition, int] | None = None


def plan(
    brokers: Brokers, group: ListedGroup, wanted: Sequence[Partition], goal: Goal
) -> list[NewOffset]:
    """Return the new offset of each partition. Raises KafkaFailed, including for an active
    group.
    """
    if group.state not in _INACTIVE:
        raise Refused(
            f"offsets of group {group.group!r} cannot be set",
            ErrorCode.NON_EMPTY_GROUP,
            f"it is {group.state}; stop its members first",
        )
    is_share = group.type == GroupType.SHARE
    if is_share and not (goal.earliest or goal.latest or goal.time_ms is not None):
        raise UsageError(
            "share groups support only --to-earliest, --to-latest, --to-datetime and --by-duration"
        )
    if is_share:
        views = share_start_offsets(brokers, group.group)
        current = {
            key: view.current_offset
            for key, view in views.items()
            if view.current_offset is not None
        }
    else:
        current = committed(brokers, group.group)
    found = _resolved(brokers, wanted, goal, current)
    return [NewOffset(group.group, *key, current.get(key), found[key]) for key in sorted(wanted)]


def execute(brokers: Brokers, group: ListedGroup, planned: Sequence[NewOffset]) -> None:
    """Set the offsets. Raises KafkaFailed."""
    change = _alter_share if group.type == GroupType.SHARE else _commit
    brokers.retried(lambda: change(brokers, group.group, planned))


def set_offsets(brokers: Brokers, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Set the committed offsets of a consumer group without members for a topic, by partition.
    Raises KafkaFailed.

    librdkafka would end the id of the group at a null character, and set those of another group.
    """
    planned = [NewOffset(group, topic, at, None, offset) for at, offset in offsets.items()]
    brokers.retried(lambda: _commit(brokers, group, planned))


def delete_offsets(brokers: Brokers, group: ListedGroup, wanted: Sequence[Partition]) -> None:
    """Delete committed offsets; for a share group, those of whole topics. Raises KafkaFailed."""
    delete = _delete_share if group.type == GroupType.SHARE else _delete
    brokers.retried(lambda: delete(brokers, group.group, wanted))


def parse_topics(brokers: Brokers, texts: Iterable[str]) -> list[Partition]:
    """Return the partitions of `TOPIC` or `TOPIC:0,1,2`. Raises UsageError, KafkaFailed."""
    wanted: dict[Partition, None] = {}
    for text in texts:
        topic, colon, indexes = text.rpartition(":")
        topic, indexes = (topic, indexes) if colon else (indexes, "")
        there = brokers.partitions([topic])[topic]
        try:
            chosen = [int(index) for index in indexes.split(",")] if colon else there
        except ValueError:
            raise UsageError(f"--topic {text!r} is invalid: use TOPIC or TOPIC:0,1,2") from None
        if unknown := sorted(set(chosen) - set(there)):
            raise UsageError(f"--topic {text}: {topic} has no partition {unknown[0]}")
        wanted |= {(topic, index): None for index in chosen}
    return list(wanted)


def read_offsets(path: Path) -> dict[Partition, int]:
    """Return the offsets of a CSV file: TOPIC,PARTITION,OFFSET, as written by
    `kafka-consumer-groups --export` or, with a header, by `penstock groups reset-offsets --output
    csv`. Raises UsageError.
    """
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise UsageError(f"--from-file {path}: it has more than {_FILE_BYTES_MAX >> 20} MiB")
        rows = [row for row in csv.reader(path.read_text().splitlines()) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--from-file {path} cannot be read: {error}") from None
    columns = ["topic", "partition", "new_offset"]
    if rows and "topic" in rows[0]:
        columns = rows.pop(0)
    elif rows and len(rows[0]) == 4:
        columns = ["group", *columns]
    found: dict[Partition, int] = {}
    for number, row in enumerate(rows, 1):
        try:
            named = dict(zip(columns, row, strict=True))
            found[named["topic"], int(named["partition"])] = int(named["new_offset"])
        except (KeyError, ValueError):
            raise UsageError(
                f"--from-file {path}: row {number} is not TOPIC,PARTITION,OFFSET: {','.join(row)}"
            ) from None
    if not found:
        raise UsageError(f"--from-file {path} has no offsets")
    return found


def parse_time(text: str) -> int:
    """Return an ISO time (UTC if it has no offset) in milliseconds since 1970. Raises UsageError,
    including for earlier times, because negative numbers have special meanings in ListOffsets, such
    as -1 for the end.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"the time {text!r} is invalid: use a format such as 2026-01-31T12:00:00.000 or "
            "2026-01-31T12:00:00+01:00"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    if found.timestamp() < 0:
        raise UsageError(f"the time {text!r} is invalid: it is before 1970")
    return int(found.timestamp() * 1_000)


def parse_duration(text: str) -> int:
    """Return milliseconds of a duration such as P1DT2H30M, or of 90m. Raises UsageError."""
    short, found = _SHORT.fullmatch(text), _DURATION.fullmatch(text)
    if short is not None:
        return int(short["count"]) * _UNIT_MS[short["unit"]]
    if found is None or not any(found.groups()):
        raise UsageError(
            f"the duration {text!r} is invalid: use a format such as PT1H30M, P7D, 90m or 7d"
        )
    parts = {name: float(value) for name, value in found.groupdict().items() if value}
    try:
        return int(timedelta(**parts) / timedelta(milliseconds=1))
    except OverflowError:
        raise UsageError(f"the duration {text!r} is invalid: it is too long") from None


def _resolved(
    brokers: Brokers, wanted: Sequence[Partition], goal: Goal, current: Mapping[Partition, int]
) -> dict[Partition, int]:
    if gone := sorted(set(wanted) - set(brokers.existing(wanted))):
        raise DoesNotExist(f"partition {gone[0][0]}-{gone[0][1]} does not exist")
    earliest, latest = brokers.offsets(wanted, EARLIEST), brokers.offsets(wanted, LATEST)
    if goal.earliest or goal.latest:
        return earliest if goal.earliest else latest
    if goal.time_ms is not None:
        found = brokers.offsets(wanted, goal.time_ms)
        return {key: found[key] if found[key] >= 0 else latest[key] for key in wanted}
    if goal.current:
        return {key: current.get(key, latest[key]) for key in wanted}
    return {
        key: min(max(requested, earliest[key]), latest[key])
        for key, requested in _requested(wanted, goal, current).items()
    }


def _requested(
    wanted: Sequence[Partition], goal: Goal, current: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return the requested offsets before they are limited to the log."""
    if goal.exact is not None:
        return {key: goal.exact[key] for key in wanted}
    if goal.shift is None:
        assert goal.offset is not None
        return dict.fromkeys(wanted, goal.offset)
    if missing := sorted(set(wanted) - set(current)):
        raise KafkaFailed(
            f"--shift-by: the group has no committed offset in {missing[0][0]}-{missing[0][1]}"
        )
    return {key: current[key] + goal.shift for key in wanted}


def _commit(brokers: Brokers, group: str, planned: Sequence[NewOffset]) -> None:
    offsets = {(item.topic, item.partition): item.new_offset for item in planned}
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(index, offsets[topic, index])
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    response = brokers.send_request(
        apis.OFFSET_COMMIT,
        offset_commit.OffsetCommitRequest(group, topics=topics),
        offset_commit.OffsetCommitResponse,
        node=brokers.coordinator(GROUP, group),
    )
    for topic in response.topics:
        for part in topic.partitions:
            name = f"{topic.name}-{part.partition_index}"
            failed = f"group {group!r} kept its offset in {name}; stop its members"
            brokers.check(part.error_code, None, failed)


def _alter_share(brokers: Brokers, group: str, planned: Sequence[NewOffset]) -> None:
    offsets = {(item.topic, item.partition): item.new_offset for item in planned}
    topics = [
        alter_share.AlterShareGroupOffsetsRequestTopic(
            topic,
            [
                alter_share.AlterShareGroupOffsetsRequestPartition(index, offsets[topic, index])
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    response = brokers.send_request(
        apis.ALTER_SHARE_GROUP_OFFSETS,
        alter_share.AlterShareGroupOffsetsRequest(group, topics),
        alter_share.AlterShareGroupOffsetsResponse,
        node=brokers.coordinator(GROUP, group),
    )
    failed = f"the offsets of group {group!r} were not set"
    brokers.check(response.error_code, response.error_message, failed)
    for topic in response.responses:
        for part in topic.partitions:
            brokers.check(part.error_code, part.error_message, failed)


def _delete(brokers: Brokers, group: str, wanted: Sequence[Partition]) -> None:
    topics = [
        offset_delete.OffsetDeleteRequestTopic(
            topic, [offset_delete.OffsetDeleteRequestPartition(index) for index in indexes]
        )
        for topic, indexes in by_topic(wanted).items()
    ]
    response = brokers.send_request(
        apis.OFFSET_DELETE,
        offset_delete.OffsetDeleteRequest(group, topics),
        offset_delete.OffsetDeleteResponse,
        node=brokers.coordinator(GROUP, group),
    )
    brokers.check(response.error_code, None, f"offsets of group {group!r} were not deleted")
    for topic in response.topics:
        for part in topic.partitions:
            name = f"{topic.name}-{part.partition_index}"
            brokers.check(part.error_code, None, f"group {group!r} kept its offset in {name}")


def _delete_share(brokers: Brokers, group: str, wanted: Sequence[Partition]) -> None:
    named = [delete_share.DeleteShareGroupOffsetsRequestTopic(topic) for topic in by_topic(wanted)]
    response = brokers.send_request(
        apis.DELETE_SHARE_GROUP_OFFSETS,
        delete_share.DeleteShareGroupOffsetsRequest(group, named),
        delete_share.DeleteShareGroupOffsetsResponse,
        node=brokers.coordinator(GROUP, group),
    )
    failed = f"offsets of group {group!r} were not deleted"
    brokers.check(response.error_code, response.error_message, failed)
    for topic in response.responses:
        brokers.check(topic.error_code, topic.error_message, f"{failed} in {topic.topic_name}")
