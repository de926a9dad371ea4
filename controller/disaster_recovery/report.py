"""What a recovery found and did, for people and for programs."""

import msgspec

from controller.disaster_recovery.plan import Gap


class WalFound(msgspec.Struct, frozen=True, kw_only=True):
    """A WAL that has not ended in the backup. slot_count: with data, from `start` (committed up to
    there) to `end`.
    """

    node_id: int
    node_epoch: int
    known: bool
    start: int
    end: int
    slot_count: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """snapshot_offset: None if there was no snapshot. backup_offset: end of the metadata that the
    store has.

    range_count, record_count, size_bytes: acknowledged data that only the WALs tell of. quiet_ms:
    since anything was written last; None: nothing ever was. new_offset: where the new history
    begins, once the snapshot is written.
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
    """Intact ranges that --accept-loss takes out of the log, because a missing object follows
    them.
    """
    orphan_count: int = 0
    history_ended: bool = False
    """A recovery was begun before."""
    already_recovered: bool = False
    new_offset: int | None = None
