"""Objects in the store that have an id in the cluster: prepared, committed, or destroyed."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import (
    MetadataOffset,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    ObjectRemoved,
)
from penstock.stream.format.keys import WAL_STORE_ROOT
from penstock.stream.ports import BrokerIncarnation, ObjectRole

_NO_SLOT = WalSequence(-1)
_NO_OFFSET = MetadataOffset(0)
_NO_RANGES: Mapping[Offset, ObjectId] = {}


class ObjectPhase(IntEnum):
    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3


class ObjectState(msgspec.Struct, gc=False):
    """The state of one object. `refs` is the number of log entries (of all streams) that refer to
    it. A destroyed object has no references.

    `since_ms` is the wall-clock time of the commit or the destruction, for information only.
    `since` is the end of the metadata log before a prepared object was prepared, or before a
    destroyed object was destroyed; controllers measure the object's age from it. Only a prepared
    object has a `ttl_ms`.

    `role` and `size_bytes` are 0 until the commit. `wal` and `wal_sequence` are only set for WAL
    objects that were committed in place.
    """

    object_id: ObjectId
    key: str
    phase: ObjectPhase
    since_ms: Millis
    role: int = 0
    size_bytes: int = 0
    refs: int = 0
    wal: BrokerIncarnation | None = None
    wal_sequence: WalSequence = _NO_SLOT
    since: MetadataOffset = _NO_OFFSET
    ttl_ms: int = 0

    @property
    def was_committed(self) -> bool:
        return self.role != 0


@dataclass(slots=True)
class ObjectsImage:
    _objects: dict[ObjectId, ObjectState] = field(default_factory=dict[ObjectId, ObjectState])
    _in_place: dict[str, ObjectId] = field(default_factory=dict[str, ObjectId])
    _prepared: set[ObjectId] = field(default_factory=set[ObjectId])
    _unreferenced: set[ObjectId] = field(default_factory=set[ObjectId])
    _destroyed: dict[ObjectId, MetadataOffset] = field(
        default_factory=dict[ObjectId, MetadataOffset]
    )
    """The time when each object was destroyed, oldest first unless `_is_unsorted`."""
    _is_unsorted: bool = field(default=False, compare=False)
    _committed: Counter[int] = field(default_factory=Counter[int])
    """Number of committed objects by role."""
    _in_wal_stores: dict[StreamId, dict[Offset, ObjectId]] = field(
        default_factory=dict[StreamId, dict[Offset, ObjectId]]
    )
    """For each stream, the objects of its log entries in WAL stores, by the first offset of the
    entry.
    """
    wal_store_bytes: int = 0
    """Total size of the referenced objects in WAL stores, including those that only retained
    deleted records refer to: see `wal_store_usage`.
    """
    committed_bytes: int = 0
    """Total size of committed objects."""

    def __iter__(self) -> Iterator[ObjectState]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, object_id: ObjectId) -> ObjectState | None:
        return self._objects.get(object_id)

    def in_place(self, key: str) -> ObjectState | None:
        """Return the WAL object that is registered under this key, in any phase."""
        object_id = self._in_place.get(key)
        return None if object_id is None else self._objects[object_id]

    def placed(self) -> Iterator[ObjectState]:
        """Yield the WAL objects that were committed in place, in any phase."""
        return (self._objects[object_id] for object_id in self._in_place.values())

    def wal_store_oldest_ms(self, without: Collection[ObjectId] = ()) -> Millis | None:
        """Return the time of the first commit among the referenced objects in WAL stores, or None.
        without: objects to ignore. This takes O(objects committed in place).
        """
        return min(
            (
                state.since_ms
                for state in self.placed()
                if state.refs and _is_in_wal_store(state) and state.object_id not in without
            ),
            default=None,
        )

    def wal_store_ranges(self, stream_id: StreamId) -> Mapping[Offset, ObjectId]:
        """Return the objects of the stream's log entries in WAL stores by the first offset of the
        entry. Retained deleted records are included.
        """
        return self._in_wal_stores.get(stream_id, _NO_RANGES)

    def streams_in_wal_stores(self) -> Iterator[StreamId]:
        """Yield the streams with log entries in WAL stores."""
        return iter(self._in_wal_stores)

    def wals(self) -> set[BrokerIncarnation]:
        """Return the writers of the WALs with slots that are registered as objects, in any
        phase.
        """
        return {state.wal for state in self.placed() if state.wal is not None}

    def count(self, phase: ObjectPhase) -> int:
        counts = {
            ObjectPhase.PREPARED: len(self._prepared),
            ObjectPhase.DESTROYED: len(self._destroyed),
        }
        return counts.get(phase, len(self._objects) - sum(counts.values()))

    def committed_count(self, role: ObjectRole) -> int:
        return self._committed[role]

    def prepared(self) -> Iterator[ObjectState]:
        return (self._objects[object_id] for object_id in self._prepared)

    def unreferenced(self) -> Iterator[ObjectState]:
        """Yield the committed objects without references."""
        return (self._objects[object_id] for object_id in self._unreferenced)

    def destroyed(self) -> Iterator[ObjectState]:
        """Yield the destroyed objects, oldest first. Their bytes may be deleted from the store
        after the grace period.
        """
        if self._is_unsorted:
            self._destroyed = dict(sorted(self._destroyed.items(), key=lambda item: item[::-1]))
            self._is_unsorted = False
        return (self._objects[object_id] for object_id in self._destroyed)

    def prepare(self, record: ObjectPrepared) -> None:
        if record.object_id in self._objects:
            raise broken(f"object {record.object_id} exists")
        self._objects[record.object_id] = ObjectState(
            record.object_id,
            record.key,
            ObjectPhase.PREPARED,
            Millis(0),
            since=record.offset,
            ttl_ms=record.ttl_ms,
        )
        self._prepared.add(record.object_id)

    def commit(self, record: ObjectCommitted) -> None:
        """Commit an object.

        Another commit of the same WAL object adds the range of another stream.
        """
        state = self._objects.get(record.object_id)
        if state is not None and state.phase == ObjectPhase.DESTROYED:
            raise broken(f"object {record.object_id} is destroyed")
        if state is None or state.phase == ObjectPhase.PREPARED:
            state = ObjectState(
                record.object_id,
                record.key,
                ObjectPhase.COMMITTED,
                record.committed_ms,
                record.role,
                record.size_bytes,
            )
            self._objects[record.object_id] = state
            self._prepared.discard(record.object_id)
            self._unreferenced.add(record.object_id)
            self._committed[record.role] += 1
            self.committed_bytes += record.size_bytes
        if record.wal_sequence >= 0:
            state.wal = BrokerIncarnation(
                NodeId(record.wal_node_id), NodeEpoch(record.wal_node_epoch)
            )
            state.wal_sequence = record.wal_sequence
            self._in_place[record.key] = record.object_id

    def refer(self, object_id: ObjectId, stream_id: StreamId, start: Offset) -> None:
        """Add a reference from the stream's log entry that starts at `start`."""
        state = self._objects.get(object_id)
        if state is None or state.phase != ObjectPhase.COMMITTED:
            raise broken(f"a range refers to object {object_id}, which is not committed")
        state.refs += 1
        self._unreferenced.discard(object_id)
        if _is_in_wal_store(state):
            self._in_wal_stores.setdefault(stream_id, {})[start] = object_id
            self.wal_store_bytes += state.size_bytes if state.refs == 1 else 0

    def release(self, object_id: ObjectId, stream_id: StreamId, start: Offset) -> None:
        """Remove a reference that `refer` added."""
        state = self._objects[object_id]
        state.refs -= 1
        if state.refs == 0:
            self._unreferenced.add(object_id)
        if _is_in_wal_store(state):
            ranges = self._in_wal_stores[stream_id]
            del ranges[start]
            if not ranges:
                del self._in_wal_stores[stream_id]
            self.wal_store_bytes -= state.size_bytes if state.refs == 0 else 0

    def destroy(self, record: ObjectDestroyed) -> None:
        state = self._objects.get(record.object_id)
        if state is None or state.refs or state.phase == ObjectPhase.DESTROYED:
            raise broken(f"object {record.object_id} cannot be destroyed: {state}")
        if state.phase == ObjectPhase.COMMITTED:
            self._committed[state.role] -= 1
            self.committed_bytes -= state.size_bytes
        state.phase = ObjectPhase.DESTROYED
        state.since_ms, state.since = record.destroyed_ms, record.offset
        state.ttl_ms = 0
        self._prepared.discard(record.object_id)
        self._unreferenced.discard(record.object_id)
        if self._destroyed and record.offset < next(reversed(self._destroyed.values())):
            self._is_unsorted = True  # snapshots contain objects in a different order
        self._destroyed[record.object_id] = record.offset

    def remove(self, record: ObjectRemoved) -> None:
        state = self._objects.get(record.object_id)
        if state is None or state.phase != ObjectPhase.DESTROYED:
            raise broken(f"object {record.object_id} is removed without having been destroyed")
        del self._objects[record.object_id]
        self._destroyed.pop(record.object_id, None)
        self._in_place.pop(state.key, None)


def _is_in_wal_store(state: ObjectState) -> bool:
    return state.key.startswith(WAL_STORE_ROOT)
