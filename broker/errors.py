"""Map the errors of all packages to Kafka error codes.

There is one exception class per code, so that `except` clauses and logs identify the condition. A
retriable code is used only if the client can succeed by retrying at the right broker.
"""

from typing import ClassVar, Final

from penstock.base.errors import StreamError
from penstock.controller.api.errors import ControllerError, RequestRefused
from penstock.controller.api.messages import Status
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.errors import WireError
from penstock.stream.errors import (
    FormatUnknown,
    ObjectCorrupt,
    ObjectLost,
    ObjectMissing,
    OffsetOutOfRange,
    WalFull,
)

__all__ = ["KAFKA_ERRORS", "ErrorCode", "KafkaError", "code_of", "code_of_status", "kafka_error"]


class KafkaError(Exception):
    """Base class of errors with a Kafka error code. Create the subclasses with `kafka_error`."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.code.message)


def _leaf(code: ErrorCode) -> type[KafkaError]:
    name = "".join(word.capitalize() for word in code.name.split("_"))
    return type(
        name, (KafkaError,), {"code": code, "retriable": code.retriable, "__module__": __name__}
    )


KAFKA_ERRORS: Final[dict[ErrorCode, type[KafkaError]]] = {
    code: _leaf(code) for code in ErrorCode if code is not ErrorCode.NONE
}


def kafka_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    """Return the exception class for `code`, with the default message from the table. Raises
    KeyError for NONE.
    """
    return KAFKA_ERRORS[code](message)


_STATUS_CODES: Final = {
    Status.OK: ErrorCode.NONE,
    Status.NOT_LEADER: ErrorCode.NOT_CONTROLLER,
    Status.STALE_CONTROLLER_EPOCH: ErrorCode.NOT_CONTROLLER,
    Status.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    Status.NODE_EPOCH_NOT_EXIST: ErrorCode.BROKER_ID_NOT_REGISTERED,
    Status.NODE_EPOCH_EXPIRED: ErrorCode.STALE_BROKER_EPOCH,
    Status.NODE_FENCED: ErrorCode.STALE_BROKER_EPOCH,
    Status.NODE_IN_USE: ErrorCode.INVALID_REQUEST,
    Status.STREAM_NOT_EXIST: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Status.STREAM_FENCED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Status.STREAM_NOT_CLOSED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Status.STREAM_NOT_OPENED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Status.OFFSET_NOT_MATCHED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Status.TOPIC_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    Status.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Status.INVALID_TOPIC_NAME: ErrorCode.INVALID_TOPIC_EXCEPTION,
    Status.INVALID_PARTITIONS: ErrorCode.INVALID_PARTITIONS,
    Status.INVALID_REPLICATION_FACTOR: ErrorCode.INVALID_REPLICATION_FACTOR,
    Status.INVALID_REPLICA_ASSIGNMENT: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    Status.INVALID_CONFIG: ErrorCode.INVALID_CONFIG,
    Status.DUPLICATE_IN_REQUEST: ErrorCode.INVALID_REQUEST,
    Status.CONFIG_CHANGED: ErrorCode.REQUEST_TIMED_OUT,
    Status.CONTROLLER_BUSY: ErrorCode.REQUEST_TIMED_OUT,
    Status.NO_REASSIGNMENT: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    Status.ELECTION_NOT_NEEDED: ErrorCode.ELECTION_NOT_NEEDED,
    Status.PREFERRED_NOT_AVAILABLE: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    Status.INVALID_FEATURE_LEVEL: ErrorCode.INVALID_UPDATE_VERSION,
    Status.DUPLICATE_RESOURCE: ErrorCode.DUPLICATE_RESOURCE,
    Status.UNKNOWN_RESOURCE: ErrorCode.RESOURCE_NOT_FOUND,
    Status.UNACCEPTABLE_CREDENTIAL: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    Status.UNSUPPORTED_MECHANISM: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    Status.TOKEN_NOT_FOUND: ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    Status.TOKEN_OWNER_MISMATCH: ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
    Status.TOKEN_EXPIRED: ErrorCode.DELEGATION_TOKEN_EXPIRED,
    Status.THROTTLING_QUOTA_EXCEEDED: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    Status.PARTITION_LIMIT_REACHED: ErrorCode.POLICY_VIOLATION,
    Status.NOT_AUTHORIZED: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def code_of_status(status: Status) -> ErrorCode:
    """Return the error code for a request that the controller rejected. Statuses that clients
    cannot cause are mapped to server errors.
    """
    return _STATUS_CODES.get(status, ErrorCode.UNKNOWN_SERVER_ERROR)


_CLASS_CODES: Final[tuple[tuple[type[BaseException], ErrorCode], ...]] = (
    (WireError, ErrorCode.INVALID_REQUEST),
    (TimeoutError, ErrorCode.REQUEST_TIMED_OUT),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (BatchCorrupt, ErrorCode.CORRUPT_MESSAGE),
    (ObjectCorrupt, ErrorCode.CORRUPT_MESSAGE),
    (ObjectLost, ErrorCode.CORRUPT_MESSAGE),
    (ObjectMissing, ErrorCode.KAFKA_STORAGE_ERROR),
    (FormatUnknown, ErrorCode.KAFKA_STORAGE_ERROR),
    (WalFull, ErrorCode.REQUEST_TIMED_OUT),
    (StreamError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ObjectStoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (ControllerError, ErrorCode.REQUEST_TIMED_OUT),
)
"""The first match wins. Any other stream error means that this broker must stop serving the stream,
so its code makes the client look up the leader. Java and librdkafka consumers report
CORRUPT_MESSAGE to the application, but retry silently after KAFKA_STORAGE_ERROR
(docs/design/fetch.md).
"""


def code_of(error: BaseException) -> ErrorCode:
    """Return the error code for clients. UNKNOWN_SERVER_ERROR indicates a bug in the broker; the
    caller must log the exception.
    """
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, RequestRefused):
        return code_of_status(error.status)
    for kind, code in _CLASS_CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
