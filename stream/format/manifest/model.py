"""The contents of the manifest: root, topics, shards of partitions, and columns of
object entries.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.protocol.batch.header import merged_newest
from penstock.stream.ports import IN_STORE, BrokerIncarnation

PARTITIONS_PER_SHARD = 256
"""Number of partitions in one shard. A shard is rewritten when one of its partitions changes, and
readers of a topic fetch it with one request.
"""

PAGE_ENTRIES_MAX = 1_024
"""Maximum number of entries in a page, which then has 20 to 40 KiB. Readers fetch a page to find an
offset, and compaction rewrites it.
"""

INLINE_ENTRIES_MAX = 64
"""Maximum number of a partition's newest entries that are stored in its shard. Older entries are
moved to pages, so that each small change writes fewer bytes.
"""


class SectionRef(NamedTuple):
    """The location of a compressed section in the object of manifest version `version`. crc:
    CRC-32C of the stored bytes.
    """

    version: int
    position: int
    stored_bytes: int
    raw_bytes: int
    crc: int


class LiveWal(msgspec.Struct, frozen=True, array_like=True):
    """A WAL that has not ended. Slots from `first_slot` on may contain uncommitted data."""

    node_id: NodeId
    node_epoch: NodeEpoch
    first_slot: WalSequence
    wal_store: WalStoreId = IN_STORE
    """The store that contains the slots. Written only if the root lists WAL stores."""
    has_streams: bool = True
    """Whether the writer owns streams or leads partitions; if so, the marker of its WAL must exist.
    Written only if the root lists WAL stores.
    """

    @property
    def writer(self) -> BrokerIncarnation:
        return BrokerIncarnation(self.node_id, self.node_epoch)


class WalStoreEntry(msgspec.Struct, frozen=True, array_like=True):
    """A WAL store in addition to the cluster's own store. Readers identify it by its UUID and never
    open this URL.
    """

    store_id: WalStoreId
    uuid: UUID
    url: str


SNAPSHOT_SEPARATOR: Final = "@"
"""Separates topic and snapshot, as in `orders@nightly`. Kafka does not allow it in topic names."""


def in_snapshot(topic: str, snapshot: str) -> str:
    """Return the name of a topic in a snapshot, or its plain name if `snapshot` is empty."""
    return f"{topic}{SNAPSHOT_SEPARATOR}{snapshot}" if snapshot else topic


def split_name(name: str) -> tuple[str, str]:
    """Return the names of the topic and the snapshot; the latter is empty if there is no
    snapshot.
    """
    topic, _, snapshot = name.partition(SNAPSHOT_SEPARATOR)
    return topic, snapshot


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """shards: partitions 0-255, 256-511 and so on. configs: explicitly set configs, under Kafka's
    names; the others have the root's defaults. is_internal: whether only coordinators write to the
    topic. A topic of a snapshot is named `TOPIC@SNAPSHOT` and has no leaders.
    """

    name: str
    topic_id: UUID
    partition_count: int
    shards: tuple[SectionRef, ...]
    configs: dict[str, str]
    is_internal: bool


class ManifestRoot(msgspec.Struct, frozen=True, array_like=True):
    """The root of a manifest. The root and its sections are captured at the same moment, and
    sections never change.

    metadata_offset: the manifest includes everything below it in the metadata log. published_ms:
    capture time, according to the clock of the controller. wal_grace_ms: the slots of `wals` are
    kept at least this long after a newer root is published. config_defaults: every topic config
    with its default. wal_stores: if there are any, the manifest requires the feature `WAL_STORES`.
    """

    cluster_id: str
    controller_epoch: int
    version: int
    metadata_offset: int
    published_ms: Millis
    wals: tuple[LiveWal, ...]
    topics: tuple[TopicEntry, ...]
    wal_grace_ms: int = 60_000
    config_defaults: dict[str, str] = {}
    wal_stores: tuple[WalStoreEntry, ...] = ()

    @property
    def moment(self) -> tuple[int, int]:
        """A pair that increases with each publication."""
        return self.controller_epoch, self.version

    def configs_of(self, topic: TopicEntry) -> dict[str, str]:
        """Return all configs of a topic in this root, including defaults."""
        return {**self.config_defaults, **topic.configs}


@dataclass(frozen=True, slots=True)
class Entries:
    """Contiguous ranges of one stream in objects, in offset order: entry i is [bounds[i], bounds[i
    + 1]) in the object `keys[i]`. Columns are arrays of 64-bit numbers, because one partition may
    have 100,000 entries.

    stored_stream_ids: the stream id under which the object contains the range, or `OWN_STREAM`. It
    differs in a fork.
    """

    bounds: "array[int]"
    record_counts: "array[int]"
    sizes_bytes: "array[int]"
    max_timestamps_ms: "array[int]"
    object_sizes_bytes: "array[int]"
    stored_stream_ids: "array[int]"
    roles: bytes
    keys: Sequence[str]

    @staticmethod
    def empty(offset: int) -> "Entries":
        """Return an empty column set at `offset`."""
        nothing = [array("q") for _ in range(5)]
        counts, sizes, timestamps, object_sizes, stored = nothing
        return Entries(
            array("q", [offset]), counts, sizes, timestamps, object_sizes, stored, b"", ()
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def start_offset(self) -> int:
        return self.bounds[0]

    @property
    def end_offset(self) -> int:
        return self.bounds[-1]

    @property
    def max_timestamp_ms(self) -> int:
        """Return the newest timestamp, or a negative number if the newest timestamp of any entry is
        unknown.
        """
        return merged_newest(zip(self.max_timestamps_ms, self.record_counts, strict=True))


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page of entries with a summary that lets readers skip pages."""

    start_offset: int
    end_offset: int
    entry_count: int
    record_count: int
    size_bytes: int
    max_timestamp_ms: int
    section: SectionRef


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One stream. Its entries, in pages and then in `inline`, end at committed_end. Offsets below
    log_start must be ignored.
    """

    stream_id: int
    log_start: int
    committed_end: int
    pages: tuple[PageRef, ...]
    inline: Entries


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """One partition.

    leader: -1 if there is none. txn: transaction events, at the offsets of `data`
    (`stream.format.transaction_log`). The high watermark is not included, because it is the end of
    the records in the WAL tails, after the committed end.
    """

    partition: int
    leader: int
    leader_epoch: int
    data: StreamEntry
    txn: StreamEntry


@dataclass(frozen=True, slots=True)
class Shard:
    """Partitions first_partition, first_partition + 1, ... of one topic."""

    topic_id: UUID
    first_partition: int
    partitions: tuple[PartitionEntry, ...]


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """The objects that contain the committed part of one partition. The first entry may begin below
    `log_start`.
    """

    partition: int
    stream_id: StreamId
    log_start: int
    runs: tuple[Entries, ...]
