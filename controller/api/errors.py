"""Errors of the controller and of calls to it. `retriable` is True if the same call may succeed
later without intervention.

Every rejection is raised in the caller as an exception class that carries its `Status`. Transport
errors are retried until the deadline, then raise `TimeoutError`.
"""

from typing import ClassVar

from penstock.controller.api.messages import Status
from penstock.controller.metadata.records import MetadataOffset


class ControllerError(Exception):
    """Base of the errors of controllers and their clients."""

    retriable: ClassVar[bool] = False


class RequestRefused(ControllerError):
    """The controller rejected the request without any effect. offset: the end of its image."""

    def __init__(self, status: Status, detail: str, offset: MetadataOffset) -> None:
        super().__init__(f"{status.name}: {detail}" if detail else status.name)
        self.status = status
        self.detail = detail
        self.offset = offset


class NodeRefused(RequestRefused):
    """The caller's (node, epoch) is no longer valid: it was fenced, replaced by a newer start, or
    never registered.
    """


class StreamRefused(RequestRefused):
    """The stream is unknown, has another owner, is not closed, or an offset is not at its end."""


class ObjectRefused(RequestRefused):
    """An object is not prepared or no longer exists, or the caller may not recover the WAL."""


class QuorumChangeRefused(RequestRefused):
    """The quorum was not changed: the controller is unknown or already a member, another change is
    pending, or no majority would remain.
    """


class TopicRefused(RequestRefused):
    """A topic, partition count, assignment or config is not allowed."""


class ControllerBusy(RequestRefused):
    """The controller's queue is full, and the deadline left no time for another attempt."""

    retriable = True


class NotLeader(ControllerError):
    """This process is not the active controller. `leader`: address of the active controller, if
    known.
    """

    retriable = True

    def __init__(self, leader: str = "") -> None:
        super().__init__(f"not the active controller; try {leader or 'another one'}")
        self.leader = leader


class ChangeRefused(ControllerError):
    """The quorum cannot be changed in this way, or not at the moment."""


class QuorumClosed(ControllerError):
    """The quorum was stopped; pending proposals may or may not be committed."""

    retriable = True


class JournalFailed(ControllerError):
    """A write or fsync of the journal failed. The contents of the disk are unknown, so the process
    must end and recover from the file.
    """

    def __init__(self, path: str, cause: BaseException) -> None:
        super().__init__(
            f"journal {path} cannot be written: {cause}. The controller stops; free space on the"
            " volume and start it again. If the volume is lost, remove the controller and add it"
            " with an empty data directory"
        )
        self.path = path


_JOIN_AGAIN = (
    "Do not repair, move or restore the data directory: a controller without entries that it"
    " acknowledged would vote, and committed metadata would be lost. Add the controller again:"
    " run `penstock quorum remove ID`, start it with an empty data directory and"
    " --controller-quorum-join-servers, then run `penstock quorum add ID`. Without a"
    " majority of intact controllers, stop all of them and run `penstock controller recover"
    " --from URL --cluster-id ID`"
)


class JournalCorrupt(ControllerError):
    """Committed bytes of the journal do not match their checksum. The controller stops instead of
    truncating the journal.
    """

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(
            f"journal {path} is corrupt at byte {position}: {what}. The controller does not start."
            f" {_JOIN_AGAIN}"
        )
        self.path = path
        self.position = position


class JournalStateLost(ControllerError):
    """The journal lacks Raft promises that were made with this data directory: it was emptied,
    replaced, or restored from an older copy.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"the data in {path} are older than the promises of this controller: {what}. It does"
            f" not vote. {_JOIN_AGAIN}"
        )


class SnapshotCorrupt(ControllerError):
    """A metadata snapshot in the object store does not match its checksum."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(
            f"snapshot {key} is unusable: {what}. If only the read failed, start again."
            " If it fails again and the journal directories are intact, or another controller"
            " leads, delete this object; if every disk is lost, see penstock controller recover"
        )
        self.key = key


class SnapshotMissing(ControllerError):
    """The journal begins after the end of every readable snapshot: the records in between are
    missing.
    """

    def __init__(self, journal_start: int, snapshot_offset: int | None) -> None:
        found = (
            "no snapshot was found"
            if snapshot_offset is None
            else f"the newest usable snapshot ends at {snapshot_offset}"
        )
        super().__init__(
            f"the journal begins at metadata offset {journal_start} but {found}. Point the"
            " controller at the object store of this cluster, or restore its journal directory"
        )


class BackupCorrupt(ControllerError):
    """An object of the metadata log's backup does not match its checksum or key."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"backup object {key} is unusable: {what}")
        self.key = key


class BackupGap(ControllerError):
    """Objects of the metadata log's backup were deleted externally: it ends before this quorum's
    log begins.
    """

    def __init__(self, backup: int, first: int) -> None:
        super().__init__(
            f"the backup of the metadata log ends at {backup}, the log of this quorum begins at"
            f" {first}: objects in between were deleted, perhaps by a lifecycle rule of the"
            " bucket. Remove the rule, restore the objects under meta/<cluster>/log/ from bucket"
            " versions, and start again"
        )


class BackupFenced(ControllerError):
    """A recovery ended the backup of this history, or another history is written under the same
    cluster id. This quorum must not continue.
    """

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(
            f"the backup of the metadata log cannot continue at offset {offset}: {what}. This"
            " controller stops permanently; start controllers with empty data directories to join"
            " the recovered cluster"
        )
        self.offset = offset


class LogBehindBackup(ControllerError):
    """The store has committed records that the elected quorum lacks: its disks were lost."""

    def __init__(self, committed: int, backup: int) -> None:
        super().__init__(
            f"the backup in the store ends at metadata offset {backup}, the log of this quorum"
            f" only to {committed}: the disks of its controllers were lost. To protect"
            " acknowledged records, it does not start: stop all controllers, run `penstock"
            " controller recover --from URL --cluster-id ID`, and start them with empty data"
            " directories"
        )


class RecoveryRefused(ControllerError):
    """The recovery is not possible, or needs an explicit option. Nothing was written unless the
    message says so.
    """


class DataDirInUse(ControllerError):
    """Another process holds the lock of the data directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"another controller runs on {directory}: stop it, or give this one a data directory of"
            " its own"
        )


class StoreNotEmpty(ControllerError):
    """A new cluster would start in a store that contains another cluster's objects, and would reuse
    their keys.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the data directory is new, but the store contains {key!r} of an earlier cluster. To"
            " continue that cluster, start with its data directory, or set cluster.id to its id"
            " (the part after meta/ in its keys) after `penstock controller recover`; for a new"
            " one, use an empty bucket"
        )
        self.key = key


class InvalidConfig(ControllerError):
    """A controller setting has an invalid value."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"controller config {name}={value!r} is not valid: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


_CLASSES: dict[Status, type[RequestRefused]] = {
    Status.NODE_EPOCH_NOT_EXIST: NodeRefused,
    Status.NODE_EPOCH_EXPIRED: NodeRefused,
    Status.NODE_FENCED: NodeRefused,
    Status.STREAM_NOT_EXIST: StreamRefused,
    Status.STREAM_FENCED: StreamRefused,
    Status.STREAM_NOT_CLOSED: StreamRefused,
    Status.STREAM_NOT_OPENED: StreamRefused,
    Status.OFFSET_NOT_MATCHED: StreamRefused,
    Status.OBJECT_NOT_EXIST: ObjectRefused,
    Status.COMPACTED_OBJECTS_NOT_FOUND: ObjectRefused,
    Status.WAL_NOT_RECOVERABLE: ObjectRefused,
    Status.TOPIC_EXISTS: TopicRefused,
    Status.UNKNOWN_TOPIC: TopicRefused,
    Status.INVALID_TOPIC_NAME: TopicRefused,
    Status.INVALID_PARTITIONS: TopicRefused,
    Status.INVALID_REPLICATION_FACTOR: TopicRefused,
    Status.INVALID_REPLICA_ASSIGNMENT: TopicRefused,
    Status.INVALID_CONFIG: TopicRefused,
    Status.PARTITION_LIMIT_REACHED: TopicRefused,
    Status.DUPLICATE_VOTER: QuorumChangeRefused,
    Status.VOTER_NOT_FOUND: QuorumChangeRefused,
    Status.CHANGE_PENDING: QuorumChangeRefused,
    Status.NO_MAJORITY: QuorumChangeRefused,
    Status.CONTROLLER_BUSY: ControllerBusy,
}


_NO_OFFSET = MetadataOffset(0)


def refusal(status: Status, detail: str, offset: MetadataOffset = _NO_OFFSET) -> RequestRefused:
    """Return the exception for a reply that is not OK."""
    return _CLASSES.get(status, RequestRefused)(status, detail, offset)
