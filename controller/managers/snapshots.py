"""Plan snapshot topics: frozen forks of topics, with the offsets of consumer groups.

One transaction creates a snapshot, and no topics are added to it later, so that it represents one
moment (per partition, as for forks).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from penstock.base.ids import Millis
from penstock.controller.api.messages import NewTopic, Status
from penstock.controller.managers.forks import Fork, plan_forks
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import FrozenTopicRecord, GroupOffsets, MetadataOffset
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.stream.format.manifest.model import in_snapshot, split_name

SNAPSHOT_PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions of all snapshots in a cluster. Above this, requests are rejected
with PARTITION_LIMIT_REACHED.
"""
GROUP_OFFSETS_BYTES_MAX: Final = 512 << 10
"""Maximum size of the encoded group offsets of one topic, which are stored in one record. This is
enough for at least 40,000 offsets. Above this, the snapshot is rejected with INVALID_REQUEST.
"""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_KEEP_FOREVER: Final = -1


@dataclass(frozen=True, slots=True)
class SnapshotTopic:
    """A snapshot topic that has passed the checks and can be created."""

    source_name: str
    snapshot: str
    configs: tuple[tuple[str, str], ...]
    forks: Sequence[Fork]
    group_offsets: tuple[GroupOffsets, ...]

    @property
    def full_name(self) -> str:
        return in_snapshot(self.source_name, self.snapshot)

    def record(self, topic_id: UUID, now_ms: Millis, offset: MetadataOffset) -> FrozenTopicRecord:
        return FrozenTopicRecord(
            topic_id,
            self.source_name,
            self.snapshot,
            self.configs,
            now_ms,
            _KEEP_FOREVER,
            offset,
            self.group_offsets,
        )


def plan_snapshot_topics(image: MetadataImage, topics: Sequence[NewTopic]) -> list[SnapshotTopic]:
    """Return the snapshot topics to create. If one of them cannot be created, all are rejected."""
    present = {topic.snapshot for topic in image.frozen_topics}
    counts = Counter(topic.name for topic in topics)
    plans: list[SnapshotTopic] = []
    for topic in topics:
        try:
            if counts[topic.name] > 1:
                detail = f"topic {topic.name!r} is in the request {counts[topic.name]} times"
                raise Refused(Status.DUPLICATE_IN_REQUEST, detail)
            plans.append(_plan(image, topic, present))
        except Refused as refused:
            if len(topics) == 1:
                raise
            detail = f"no topic of a snapshot was created, because of {topic.name!r}:"
            raise Refused(refused.status, f"{detail} {refused.detail}") from None
    kept = image.frozen_topics.snapshot_partition_count
    added = sum(len(plan.forks) for plan in plans)
    if kept + added > SNAPSHOT_PARTITIONS_MAX:
        detail = (
            f"snapshots have {kept} partitions, {added} more are too many: at most"
            f" {SNAPSHOT_PARTITIONS_MAX} are allowed; delete snapshots that are not needed any more"
        )
        raise Refused(Status.PARTITION_LIMIT_REACHED, detail)
    return plans


def _plan(image: MetadataImage, topic: NewTopic, present: set[str]) -> SnapshotTopic:
    source_name, snapshot = split_name(topic.name)
    _check_names(topic, source_name, snapshot)
    if snapshot in present:
        detail = (
            f"topic {topic.name!r} exists"
            if image.frozen_topics.by_full_name(topic.name) is not None
            else f"snapshot {snapshot!r} exists, and no topics can be added: choose another name"
        )
        raise Refused(Status.TOPIC_EXISTS, detail)
    forks = plan_forks(image, topic)
    if forks is None:
        detail = f"topic {topic.name!r} of a snapshot needs the offsets of a fork"
        raise Refused(Status.INVALID_REQUEST, detail)
    if topic.assignment is not None or topic.partitions not in {-1, len(forks)}:
        detail = f"a snapshot has the partitions of its source: {len(forks)}, or -1"
        raise Refused(Status.INVALID_PARTITIONS, detail)
    configs = tuple(image.configs.topic(source_name).items())
    groups = tuple(topic.group_offsets)
    if (size_bytes := len(msgspec.msgpack.encode(groups))) > GROUP_OFFSETS_BYTES_MAX:
        detail = (
            f"topic {source_name!r}: the offsets of {len(groups)} consumer groups take {size_bytes}"
            f" bytes, at most {GROUP_OFFSETS_BYTES_MAX} fit into a snapshot; delete unused groups"
        )
        raise Refused(Status.INVALID_REQUEST, detail)
    return SnapshotTopic(source_name, snapshot, configs, forks, groups)


def _check_names(topic: NewTopic, source_name: str, snapshot: str) -> None:
    if snapshot in {".", ".."} or _NAME.fullmatch(snapshot) is None or _is_uuid(snapshot):
        detail = (
            f"topic name {topic.name[:360]!r} is not allowed: '@' is followed by the name of a"
            " snapshot, 1 to 100 of a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..' nor a"
            " UUID"
        )
        raise Refused(Status.INVALID_TOPIC_NAME, detail)
    source = topic.configs.get(FORK_SOURCE)
    if not source:
        detail = (
            f"topic name {topic.name!r} is that of a topic of a snapshot: set the config"
            f" {FORK_SOURCE}={source_name}"
        )
        raise Refused(Status.INVALID_TOPIC_NAME, detail)
    if source != source_name:
        detail = (
            f"topic {topic.name!r} can only be a snapshot of {source_name!r}, not of {source!r}"
        )
        raise Refused(Status.INVALID_CONFIG, detail)
    if others := [name for name, value in topic.configs.items() if name != FORK_SOURCE and value]:
        detail = f"a snapshot has the configs of its source: omit {', '.join(sorted(others))}"
        raise Refused(Status.INVALID_CONFIG, detail)


def _is_uuid(name: str) -> bool:
    """Return whether the name is a UUID. The full names of deleted topics end with a UUID."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
