"""Translate the errors of botocore and aiohttp into those of the port.

Invariant: an error after which a write may have taken place becomes Unavailable. Only an answer
that says that nothing was done becomes any other error. Must not be imported before the S3 backend
is used: it loads botocore.
Source: S3 API "Error responses"; conditional writes give 412 PreconditionFailed and 409
ConditionalRequestConflict.
"""

from typing import Final

from aiohttp import ClientError as HttpClientError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ConditionalConflict,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    Unavailable,
    UnexpectedResponse,
)

NETWORK_ERRORS: Final = (BotoCoreError, ClientError, HttpClientError, TimeoutError, OSError)
"""All errors that a call of the client may raise and `translate` accepts."""

_THROTTLED_CODES: Final = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "TooManyRequests"}
)
_RETRIABLE_4XX_CODES: Final = frozenset(
    {"RequestTimeout", "RequestTimeTooSkewed", "BadDigest", "IncompleteBody"}
)
_CONFLICT_CODES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})


def translate(error: Exception, operation: str, bucket: str, key: str) -> ObjectStoreError:
    """Return the port's error for one of NETWORK_ERRORS. The caller raises RangeNotSatisfiable
    itself, because it knows the range.
    """
    if isinstance(error, ClientError):
        answer = error.response.get("Error", {})
        return from_answer(
            _status(error),
            answer.get("Code", ""),
            answer.get("Message", ""),
            operation=operation,
            bucket=bucket,
            key=key,
        )
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AccessDenied(
            operation, key, "no usable credentials in the environment, files or instance role"
        )
    return Unavailable(operation, key, f"{type(error).__name__}: {error}")


def is_range_error(error: Exception) -> bool:
    """Return whether this is a 416."""
    return isinstance(error, ClientError) and _status(error) == 416


def from_answer(
    status: int, code: str, message: str, *, operation: str, bucket: str, key: str
) -> ObjectStoreError:
    """Return the error for an HTTP status and an S3 error code. The response to a HEAD has no body:
    its code is the status.
    """
    cause = f"{status} {code} {message}".strip()
    if code == "NoSuchBucket":
        return BucketNotFound(bucket)
    if status == 429 or code in _THROTTLED_CODES:
        return Throttled(operation, key)
    if (status >= 500 and status != 501) or code in _RETRIABLE_4XX_CODES:
        return Unavailable(operation, key, cause)
    if status in {401, 403}:
        return AccessDenied(operation, key, cause)
    if operation == "list" and status == 404:
        # A LIST names no object: a store that walks a directory (versitygw) found one that was
        # deleted meanwhile.
        return Unavailable(operation, key, cause)
    return _of_the_object(status, code, key) or UnexpectedResponse(
        operation, key, f"{status} {code}", message
    )


def _of_the_object(status: int, code: str, key: str) -> ObjectStoreError | None:
    if status == 404:
        return ObjectNotFound(key)
    if status == 412:
        return PreconditionFailed(key)
    if status == 409 and code in _CONFLICT_CODES:
        return ConditionalConflict(key)
    return None


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
