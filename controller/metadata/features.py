"""The finalized feature levels of the cluster (KIP-584, KIP-1022).

A node that does not support a finalized level must not join the cluster, because it would apply the
rules of a different level. `_LEVELS_BEFORE` contains the levels of clusters without level records.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import FeatureRange, FeatureRecord

TRANSACTION_VERSION: Final = "transaction.version"
"""1: transaction records are flexible. 2: every transaction has its own epoch (KIP-890)."""
GROUP_VERSION: Final = "group.version"
"""1: the consumer group protocol (KIP-848)."""
SHARE_VERSION: Final = "share.version"
"""1: share groups (KIP-932)."""
STREAMS_VERSION: Final = "streams.version"
"""1: streams groups (KIP-1071)."""
OFFSETS_VERSION: Final = "offsets.version"
"""1: offset records contain topic ids, as in Kafka's version 4 of these records."""

WAL_STORE_VERSION: Final = "wal.store.version"
"""1: brokers may open their WALs in a separate store."""

SUPPORTED: Final[tuple[FeatureRange, ...]] = (
    FeatureRange(TRANSACTION_VERSION, 0, 2),
    FeatureRange(GROUP_VERSION, 0, 1),
    FeatureRange(SHARE_VERSION, 0, 1),
    FeatureRange(STREAMS_VERSION, 0, 1),
    FeatureRange(OFFSETS_VERSION, 0, 1),
)
"""The supported levels. A new cluster has the newest levels."""

WAL_STORE: Final = FeatureRange(WAL_STORE_VERSION, 0, 1)
"""Supported only by nodes with a WAL store, so that the feature is not visible in clusters without
one.
"""

METADATA_VERSION: Final = FeatureRange("metadata.version", 29, 29)
"""The level of Kafka 4.2, whose protocol Penstock implements, for tools and operators. This is the
only level, and it is not stored, because the metadata formats have their own versions.
"""

_BY_NAME: Final = {feature.name: feature for feature in (*SUPPORTED, WAL_STORE)}
_LEVELS_BEFORE: Final[Mapping[str, int]] = {GROUP_VERSION: 1}


def supported_features(*, has_wal_store: bool) -> tuple[FeatureRange, ...]:
    """Return the levels that a node supports."""
    return (*SUPPORTED, WAL_STORE) if has_wal_store else SUPPORTED


def newest_levels(*, has_wal_store: bool = False) -> list[FeatureRecord]:
    """Return the first records of a new cluster."""
    return [
        FeatureRecord(feature.name, feature.max_level)
        for feature in supported_features(has_wal_store=has_wal_store)
    ]


def supported_range(name: str) -> FeatureRange | None:
    return METADATA_VERSION if name == METADATA_VERSION.name else _BY_NAME.get(name)


@dataclass(slots=True)
class FeaturesImage:
    _levels: dict[str, int] = field(default_factory=dict[str, int])
    plain_offset_topics: frozenset[UUID] = frozenset()
    """Topics that existed at the last upgrade of `offsets.version`, including deleted topics. Only
    their committed offsets may lack a topic id.
    """

    def level(self, name: str) -> int:
        """Return the finalized level, or 0 if the feature is disabled or unknown."""
        if name == METADATA_VERSION.name:
            return METADATA_VERSION.max_level
        return self._levels.get(name, _LEVELS_BEFORE.get(name, 0))

    def finalized(self) -> dict[str, int]:
        """Return the levels of the enabled features by name, without METADATA_VERSION."""
        levels = {**_LEVELS_BEFORE, **self._levels}
        return {name: level for name, level in levels.items() if level > 0}

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield all levels that were set, including 0."""
        return iter(self._levels.items())

    def records(self) -> Iterator[FeatureRecord]:
        """Yield the records that set these levels."""
        for name, level in self._levels.items():
            ids = self.plain_offset_topics if name == OFFSETS_VERSION else ()
            yield FeatureRecord(name, level, joined_ids(ids))

    def set(self, record: FeatureRecord) -> None:
        feature = _BY_NAME.get(record.name)
        if feature is None or not feature.contains(record.level):
            supported = "none" if feature is None else feature.shown
            raise broken(
                f"feature {record.name} has level {record.level} in this cluster, but this software"
                f" supports {supported}: install the newer version"
            )
        self._levels[record.name] = record.level
        if record.name == OFFSETS_VERSION:
            ids = record.topic_ids
            self.plain_offset_topics = frozenset(
                UUID(bytes=ids[at : at + 16]) for at in range(0, len(ids), 16)
            )


def joined_ids(topic_ids: Iterable[UUID]) -> bytes:
    """Return the ids in the form used in records."""
    return b"".join(sorted(topic_id.bytes for topic_id in topic_ids))
