"""The share partitions of this broker. They are loaded for the first fetch of a group, and dropped
when this broker loses the leadership of their partition.

The session limit also limits the number of share partitions, because those of a group without
sessions are dropped.
"""

from collections.abc import Iterator
from typing import TypeVar
from uuid import UUID

from penstock.base.clock import WallClock
from penstock.broker.groups.share.partitions.partition import SharePartition, TimestampIndex
from penstock.broker.groups.share.partitions.settings import ShareConfigs, ShareCounts
from penstock.broker.groups.share.state.model import SharePartitionKey, ShareStateStore
from penstock.broker.partition.partition import Partition
from penstock.protocol.error_codes import ErrorCode

Key = TypeVar("Key")


class SharePartitions:
    def __init__(
        self,
        store: ShareStateStore,
        config: ShareConfigs,
        index: TimestampIndex,
        now_ms: WallClock,
    ) -> None:
        self.config = config
        self.counts = ShareCounts()
        self._store = store
        self._index = index
        self._now_ms = now_ms
        self._by_key: dict[SharePartitionKey, SharePartition] = {}
        self._by_group: dict[str, dict[SharePartitionKey, None]] = {}
        self._by_partition: dict[tuple[str, int], dict[SharePartitionKey, None]] = {}
        self._ending: dict[str, None] = {}
        """Groups that have no sessions but still have unexpired locks."""

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def load(self, group_id: str, partition: Partition) -> SharePartition:
        """Return the share partition of a partition that this broker leads. Its window may not be
        loaded yet.

        A share partition is valid until its partition closes; reopening the partition creates a new
        one. If loading has failed, waiting fetches still receive the failed share partition, and
        the next fetch loads it again.
        """
        key = SharePartitionKey(group_id, partition.topic_id, partition.index)
        found = self._by_key.get(key)
        if found is not None and found.partition is partition:
            return found
        if found is not None:
            self.drop(found)
        self._drop_ending()
        found = SharePartition(
            key,
            partition,
            self._store,
            self.config,
            self._index,
            now_ms=self._now_ms,
            counts=self.counts,
        )
        self._by_key[key] = found
        self._by_group.setdefault(group_id, {})[key] = None
        self._by_partition.setdefault((partition.topic_name, partition.index), {})[key] = None
        return found

    @property
    def locked_count(self) -> int:
        """Return the number of locked records. This takes O(spans)."""
        return sum(share.window.locked_count for share in self if share.window is not None)

    def get(self, group_id: str, topic_id: UUID, index: int) -> SharePartition | None:
        return self._by_key.get(SharePartitionKey(group_id, topic_id, index))

    def drop(
        self, share: SharePartition, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
    ) -> None:
        key = share.key
        if self._by_key.get(key) is share:
            del self._by_key[key]
            _discard(self._by_group, key.group_id, key)
            _discard(self._by_partition, (share.partition.topic_name, key.partition), key)
        share.stop(code)

    def drop_group(self, group_id: str) -> None:
        """Drop the share partitions of a group that has no sessions on this broker."""
        for key in list(self._by_group.get(group_id, ())):
            share = self._by_key[key]
            if share.is_idle:
                self.drop(share)
        if group_id in self._by_group:
            self._ending[group_id] = None
        else:
            self._ending.pop(group_id, None)

    def keep_group(self, group_id: str) -> None:
        """Record that the group has a session."""
        self._ending.pop(group_id, None)

    def _drop_ending(self) -> None:
        for group_id in list(self._ending):
            self.drop_group(group_id)

    def on_leader_change(self, topic_name: str, index: int, opened: bool) -> None:
        """See `broker.partition.manager.LeaderChangeListener`."""
        if not opened:
            for key in list(self._by_partition.get((topic_name, index), ())):
                self.drop(self._by_key[key])

    def close(self) -> None:
        for share in self:
            self.drop(share)


def _discard(
    index: dict[Key, dict[SharePartitionKey, None]], at: Key, key: SharePartitionKey
) -> None:
    keys = index.get(at)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[at]
