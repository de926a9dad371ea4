"""Brokers and their WALs: which brokers may write, and which WALs must be recovered.

Each broker start adds a `WalState` of about 100 bytes. It is kept for `wal.fence.retention.ms`, or
longer while ranges refer to its slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from penstock.base.ids import NodeId, WalSequence, WalStoreId
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import (
    NodeRecord,
    NodeRemoved,
    WalEnded,
    WalPlaced,
    WalRecord,
    WalRemoved,
    WalStoreDrain,
    WalStoreLost,
    WalStoreRecord,
)
from penstock.stream.ports import IN_STORE, BrokerIncarnation

NodeState = NodeRecord
"""The state of a node is its last record."""


class DrainState(IntEnum):
    """See WalStoreDrain.state."""

    USED = 0
    DRAINING = 1
    ENDED = 2


@dataclass(slots=True)
class WalState:
    """The state of one WAL. A WAL that has ended never continues.

    `recoverer` is the broker that must recover the WAL; its node id is -1 if there is none. `end`
    is set once the WAL was recovered or closed. `store_id` is the store that contains the slots
    from `committed` on. The stores in `left` may contain earlier slots.
    """

    writer: BrokerIncarnation
    committed: WalSequence
    recoverer: BrokerIncarnation
    end: WalSequence | None = None
    store_id: WalStoreId = IN_STORE
    left: tuple[WalStoreId, ...] = ()

    @property
    def ended(self) -> bool:
        return self.end is not None


@dataclass(slots=True)
class NodesImage:
    _nodes: dict[NodeId, NodeState] = field(default_factory=dict[NodeId, NodeState])
    _wals: dict[BrokerIncarnation, WalState] = field(
        default_factory=dict[BrokerIncarnation, WalState]
    )
    _running: dict[BrokerIncarnation, WalState] = field(
        default_factory=dict[BrokerIncarnation, WalState]
    )
    _wal_stores: dict[WalStoreId, WalStoreRecord] = field(
        default_factory=dict[WalStoreId, WalStoreRecord]
    )
    _lost_wal_stores: set[WalStoreId] = field(default_factory=set[WalStoreId])
    _drains: dict[WalStoreId, DrainState] = field(default_factory=dict[WalStoreId, DrainState])

    def __iter__(self) -> Iterator[NodeState]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: NodeId) -> NodeState | None:
        return self._nodes.get(node_id)

    def is_alive(self, node: BrokerIncarnation) -> bool:
        """Return whether this incarnation is registered and not fenced.

        The image does not contain sessions, which only the controller tracks.
        """
        state = self._nodes.get(node.node_id)
        return state is not None and state.node_epoch == node.node_epoch and not state.fenced

    def wal(self, writer: BrokerIncarnation) -> WalState | None:
        return self._wals.get(writer)

    def wals(self) -> Iterator[WalState]:
        """Yield all WALs, including ended ones."""
        return iter(self._wals.values())

    def running_wals(self) -> Iterator[WalState]:
        """Yield the WALs that have not ended.

        WALs whose writers are not alive wait for recovery.
        """
        return iter(self._running.values())

    def wal_stores(self) -> Iterator[WalStoreRecord]:
        """Yield the WAL stores that have not ended, ordered by id, without the cluster's own store.
        Nodes must be able to reach all of them.
        """
        return (
            store
            for store in self._wal_stores.values()
            if not self.is_wal_store_ended(store.store_id)
        )

    def ended_wal_stores(self) -> Iterator[WalStoreRecord]:
        """Yield the WAL stores that no process uses any more because they are lost or were drained,
        ordered by id.
        """
        return (
            store for store in self._wal_stores.values() if self.is_wal_store_ended(store.store_id)
        )

    def lost_wal_stores(self) -> Iterator[WalStoreRecord]:
        """Yield the WAL stores that an operator has abandoned, ordered by id."""
        return (
            store for store in self._wal_stores.values() if store.store_id in self._lost_wal_stores
        )

    def all_wal_stores(self) -> Iterator[WalStoreRecord]:
        """Yield all WAL stores that the cluster ever had, ordered by id."""
        return iter(self._wal_stores.values())

    def is_wal_store_lost(self, store_id: WalStoreId) -> bool:
        return store_id in self._lost_wal_stores

    def is_wal_store_ended(self, store_id: WalStoreId) -> bool:
        """Return whether the WAL store is no longer used by any process, because it is lost or was
        drained.
        """
        return self.is_wal_store_lost(store_id) or self.drain_of(store_id) == DrainState.ENDED

    def drain_of(self, store_id: WalStoreId) -> DrainState:
        return self._drains.get(store_id, DrainState.USED)

    def drains(self) -> Iterator[tuple[WalStoreId, DrainState]]:
        """Yield the WAL stores that are being drained or were drained, ordered by id."""
        return iter(sorted(self._drains.items()))

    def next_to_leave(self) -> BrokerIncarnation | None:
        """Return the next broker whose WAL leaves a store that is being drained: the live one with
        the lowest id. The WALs leave one after another.
        """
        leaving = {store for store, state in self._drains.items() if state == DrainState.DRAINING}
        return min(
            (
                wal.writer
                for wal in (self._running.values() if leaving else ())
                if wal.store_id in leaving and self.is_alive(wal.writer)
            ),
            default=None,
        )

    def wal_store(self, store_id: WalStoreId) -> WalStoreRecord | None:
        return self._wal_stores.get(store_id)

    @property
    def current_wal_store(self) -> WalStoreRecord | None:
        """The store in which brokers open their WALs, or None for the cluster's own store."""
        needed = self.needed_wal_store
        is_used = needed is not None and self.drain_of(needed.store_id) == DrainState.USED
        return needed if is_used else None

    @property
    def needed_wal_store(self) -> WalStoreRecord | None:
        """The store that all nodes must reach: the current one, or the one that is being drained.
        None if there is no such store.
        """
        newest = next(reversed(self._wal_stores.values()), None)
        return None if newest is None or self.is_wal_store_ended(newest.store_id) else newest

    def wal_is_past(self, writer: BrokerIncarnation, sequence: WalSequence) -> bool:
        """Return whether neither recovery nor a commit will need the slot again.

        If so, only ranges that refer to its object keep it.
        """
        wal = self._wals.get(writer)
        return wal is None or wal.ended or sequence < wal.committed

    def set_node(self, record: NodeRecord) -> None:
        known = self._nodes.get(record.node_id)
        if known is not None and known.node_epoch > record.node_epoch:
            raise broken(
                f"node {record.node_id} goes back from epoch {known.node_epoch} to"
                f" {record.node_epoch}"
            )
        self._nodes[record.node_id] = record

    def remove_node(self, record: NodeRemoved) -> None:
        if self._nodes.pop(record.node_id, None) is None:
            raise broken(f"node {record.node_id} to be removed does not exist")

    def set_wal(self, record: WalRecord) -> None:
        writer = BrokerIncarnation(record.node_id, record.node_epoch)
        recoverer = BrokerIncarnation(record.recoverer, record.recoverer_epoch)
        wal = self._wals.get(writer)
        if wal is None:
            self._wals[writer] = self._running[writer] = WalState(
                writer, record.committed, recoverer
            )
        elif wal.ended or record.committed < wal.committed:
            raise broken(f"WAL {writer} goes back")
        else:
            wal.committed = record.committed
            wal.recoverer = recoverer

    def add_wal_store(self, record: WalStoreRecord) -> None:
        if record.store_id <= max(self._wal_stores, default=IN_STORE):
            raise broken(f"WAL store {record.store_id} to be added exists, or a newer one does")
        self._wal_stores[record.store_id] = record

    def lose_wal_store(self, record: WalStoreLost) -> None:
        if record.store_id not in self._wal_stores or record.store_id in self._lost_wal_stores:
            raise broken(f"WAL store {record.store_id} to be abandoned does not exist or is lost")
        self._lost_wal_stores.add(record.store_id)
        self._drains.pop(record.store_id, None)

    def drain_wal_store(self, record: WalStoreDrain) -> None:
        if (
            record.store_id not in self._wal_stores
            or self.is_wal_store_ended(record.store_id)
            or record.state not in [*DrainState]
        ):
            raise broken(
                f"WAL store {record.store_id} to be drained does not exist, has ended, or gets the"
                f" unknown state {record.state}"
            )
        if record.state == DrainState.USED:
            self._drains.pop(record.store_id, None)
        else:
            self._drains[record.store_id] = DrainState(record.state)

    def place_wal(self, record: WalPlaced) -> None:
        writer = BrokerIncarnation(record.node_id, record.node_epoch)
        wal = self._running.get(writer)
        kept = record.store_id, *record.left
        is_lost = wal is not None and wal.committed and wal.store_id not in kept
        if (
            wal is None
            or is_lost
            or not {*kept} - {IN_STORE} <= self._wal_stores.keys()
            or self.is_wal_store_ended(record.store_id)
        ):
            raise broken(
                f"WAL {writer} cannot be placed in store {record.store_id}: it has slots in another"
                " one, or the store does not exist or has ended"
            )
        wal.store_id, wal.left = record.store_id, record.left

    def end_wal(self, record: WalEnded) -> None:
        writer = BrokerIncarnation(record.node_id, record.node_epoch)
        wal = self._running.pop(writer, None)
        if wal is None:
            raise broken(f"WAL {writer} to be ended is not running")
        wal.end = record.end

    def remove_wal(self, record: WalRemoved) -> None:
        writer = BrokerIncarnation(record.node_id, record.node_epoch)
        wal = self._wals.get(writer)
        if wal is None or not wal.ended:
            raise broken(f"WAL {writer} to be removed does not exist or has not ended")
        del self._wals[writer]
