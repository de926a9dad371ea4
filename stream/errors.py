"""Errors of the stream layer. `retriable` is True if the same call may succeed later without
intervention.
"""

from uuid import UUID

from penstock.base.errors import StreamError
from penstock.base.ids import Offset, StreamId, WalSequence


class StreamNotOpened(StreamError):
    """This process does not have the stream open: it was never opened here, or is closing."""

    def __init__(self, stream_id: StreamId) -> None:
        super().__init__(f"stream {stream_id} is not open on this node")
        self.stream_id = stream_id


class StreamFenced(StreamError):
    """Another broker with a higher epoch owns the stream. Do not retry; stop serving the stream."""

    def __init__(self, stream_id: StreamId, reason: str) -> None:
        super().__init__(f"stream {stream_id} is fenced: {reason}")
        self.stream_id = stream_id


class StreamNotClosed(StreamError):
    """The previous owner has not closed the stream, and its WAL is not recovered yet. Retry after
    the metadata has changed.
    """

    retriable = True

    def __init__(self, stream_id: StreamId) -> None:
        super().__init__(f"stream {stream_id} is still open elsewhere")
        self.stream_id = stream_id


class ObjectNotPrepared(StreamError):
    """The prepared object has expired at the controller. Prepare another one and upload again."""


class RangesReplaced(StreamError):
    """Ranges that the commit replaces are no longer in their stream. The local image shows which
    ones. Nothing was committed.
    """


class OffsetOutOfRange(StreamError):
    """The offset lies before the start or after the end of the stream."""

    def __init__(
        self, stream_id: StreamId, offset: Offset, start_offset: Offset, end_offset: Offset
    ) -> None:
        super().__init__(
            f"stream {stream_id}: offset {offset} is outside [{start_offset}, {end_offset})"
        )
        self.stream_id = stream_id
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class WalFenced(StreamError):
    """The next WAL slot of this broker contains a fence or the object of another writer: this
    broker incarnation can never acknowledge anything again.
    """

    def __init__(self, sequence: WalSequence, by: str) -> None:
        super().__init__(f"WAL slot {sequence} is taken by {by}: this writer is fenced")
        self.sequence = sequence


class WalFull(StreamError):
    """Unacknowledged or uncommitted bytes exceed their limit and its overshoot. Retry after
    `Storage.wait_for_room` returns.
    """

    retriable = True

    def __init__(self, backlog_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{backlog_bytes} bytes wait for the object store, the limit is {limit_bytes}: the"
            " store is slower than the intake"
        )
        self.backlog_bytes = backlog_bytes
        self.limit_bytes = limit_bytes


class WalFailed(StreamError):
    """A slot could not be written within its deadline. No later slot may be acknowledged, so this
    broker incarnation must end.
    """

    def __init__(self, sequence: WalSequence, cause: str) -> None:
        super().__init__(f"WAL slot {sequence} could not be written: {cause}")
        self.sequence = sequence


class WalClosed(StreamError):
    """The WAL is closed or fenced and rejects appends."""


class ObjectCorrupt(StreamError):
    """Bytes that do not match their checksum or layout. The error contains the object key and the
    position.
    """

    def __init__(self, key: str, position: int, what: str) -> None:
        super().__init__(f"object {key} is corrupt at byte {position}: {what}")
        self.key = key
        self.position = position


class FormatUnknown(StreamError):
    """The object is intact, but its format is newer than this process supports. Never treat such an
    object as damaged: stop, and read it with a newer version of Penstock.
    """

    def __init__(self, key: str, what: str) -> None:
        super().__init__(
            f"object {key} has {what}, which this version of Penstock does not know. It is not"
            " damaged: read it with the version of Penstock that wrote it, or a later one"
        )
        self.key = key
        self.what = what

    def __reduce__(self) -> tuple[type["FormatUnknown"], tuple[str, str]]:
        return FormatUnknown, (self.key, self.what)


class ObjectMissing(StreamError):
    """An object in the newest metadata of this process does not exist in the store. The metadata
    may be outdated.
    """

    retriable = True

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key} is gone from the store, but the metadata refer to it")
        self.key = key


class ObjectLost(ObjectMissing):
    """The object has been missing for longer than metadata can be outdated. Its records are lost
    unless an operator restores it.
    """

    retriable = False


class WalSlotLost(StreamError):
    """A durable WAL slot is missing: the store has lost acknowledged records."""

    def __init__(self, key: str, proof: str) -> None:
        super().__init__(
            f"WAL slot {key} is gone, but {proof} proves that it was durable: the store has lost"
            " acknowledged records. Restore the object from the versions of the bucket or from a"
            " copy; `penstock wal repair` says what is lost without it"
        )
        self.key = key
        self.proof = proof


class WalVanished(StreamError):
    """The marker that was written when the WAL was opened is missing, and possibly some or all
    slots as well.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key} is gone, which was written when this WAL was opened: its store has lost the WAL"
            " or a part of it. Restore it from a copy; `penstock wal repair` says what is lost"
            " without it"
        )
        self.key = key


class WalStoreWrong(StreamError):
    """The WAL store is not the one in the metadata: it is empty, was restored, or is another store.
    Objects that are missing from it prove nothing, so recovery must not continue.
    """

    retriable = True

    def __init__(self, expected: UUID, what: str) -> None:
        super().__init__(
            f"this is not the WAL store with UUID {expected}: {what}. Check that the right store is"
            " configured and mounted"
        )
        self.expected = expected
        self.what = what


class WalDamaged(StreamError):
    """Slots in the WAL of a dead writer are lost or damaged.

    Partitions that cannot be affected are recovered. The others wait until the slots are restored,
    or for `penstock wal repair --accept-loss`.
    """

    retriable = True

    def __init__(self, keys: tuple[str, ...], stream_count: int) -> None:
        super().__init__(
            f"{stream_count} partitions wait because these WAL slots are lost or damaged:"
            f" {', '.join(keys)}. Restore the objects; or run `penstock wal repair`, which says"
            " what is lost, and then `penstock wal repair --accept-loss`"
        )
        self.keys = keys
        self.stream_count = stream_count


class NotContiguous(StreamError):
    """Ranges that must be contiguous have a gap or overlap. Callers fail rather than skip the
    gap.
    """

    def __init__(self, stream_id: StreamId, expected: Offset, found: Offset) -> None:
        super().__init__(f"stream {stream_id}: expected offset {expected}, found {found}")
        self.stream_id = stream_id
        self.expected = expected
        self.found = found
