"""Commit the move of a WAL to another store. See docs/design/wal-store-outages.md."""

from penstock.base.ids import WalSequence
from penstock.stream.ports import CommitObjects, StreamMetadata, WalMove, WalStoreIdentity
from penstock.stream.upload.commits import CommitSequencer


async def commit_move(
    commits: CommitSequencer,
    metadata: StreamMetadata,
    first: WalSequence,
    target: WalStoreIdentity | None,
) -> WalStoreIdentity | None:
    """Commit that the WAL is in another store from slot `first` on, and wait for the backup.
    target: None for the cluster's own store. Return the store that was committed.

    If the target ends in the meantime, the WAL continues in the cluster's own store. In that case,
    no earlier attempt has placed it in the target, because a store does not end while it contains
    the WAL of a live broker. A store that is only being drained accepts the WAL, because an earlier
    attempt may have placed it there; the WAL then leaves again. Raises WalFenced.
    """

    def build() -> CommitObjects:
        nonlocal target
        if target is not None and metadata.is_wal_store_ended(target.store_id):
            target = None
        return CommitObjects(wal_committed=first, wal_move=WalMove(target))

    async with commits.lock:
        await commits.send(build)
    # Once this is backed up, readers and recoveries from the backup use the other store.
    await metadata.backed_up(metadata.position())
    return target
