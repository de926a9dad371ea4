"""The report of a recovery: its findings and actions."""

import msgspec

from penstock.controller.disaster_recovery.plan import Gap


class WalFound(msgspec.Struct, frozen=True, kw_only=True):
    """A WAL that has not ended according to the backup.

    `slot_count` is the number of slots with data from `start` (the committed slot) to `end`.
    """

    node_id: int
    node_epoch: int
    known: bool
    start: int
    end: int
    slot_count: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and actions of a recovery.

    `snapshot_offset` is None if there is no snapshot. `backup_offset` is the end of the metadata in
    the store.

    `range_count`, `record_count` and `size_bytes` count acknowledged data that is only in the WALs.
    `quiet_ms` is the time since the last write to the store, or None if there was none.
    `new_offset` is the start of the new history. It is set after the snapshot is written.
    """

    cluster_id: str
    snapshot_offset: int | None
    backup_object_count: int
    backup_offset: int
    quiet_ms: int | None
    topic_count: int
    partition_count: int
    voters: tuple[int, ...]
    wals: list[WalFound] = []
    range_count: int = 0
    record_count: int = 0
    size_bytes: int = 0
    gaps: list[Gap] = []
    given_up: list[Gap] = []
    """Intact ranges that --accept-loss removes from the log, because the next object in the log is
    missing.
    """
    orphan_count: int = 0
    history_ended: bool = False
    """Whether an earlier recovery has already started."""
    lost_wal_stores: list[int] = []
    """WAL stores that the recovery abandons."""
    already_recovered: bool = False
    new_offset: int | None = None
