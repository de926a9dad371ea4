"""Translate the errors of obstore into those of the port.

Invariant: an error after which a write may have taken place becomes Unavailable. Only an answer
that says that nothing was done becomes any other error. The classes of obstore are not enough (a
409 of a race and a 412 are both AlreadyExistsError), so the HTTP status and the S3 error code are
read from the text, which has the response; tests pin its form. Must not be imported before the S3
backend is used.
Source: S3 API "Error responses"; conditional writes give 412 PreconditionFailed and 409
ConditionalRequestConflict; object_store's client/retry.rs.
"""

import os
import re
from typing import Final

from obstore.exceptions import BaseError

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ConditionalConflict,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    SignInFailed,
    Throttled,
    TlsFailed,
    Unavailable,
    UnexpectedResponse,
)
from penstock.objectstore.s3_tls import hint, tls_fault

CLIENT_ERRORS: Final = (BaseError, OSError)
"""All errors that a call of the client may raise and `translate` accepts."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_DELETION: Final = re.compile(
    r"DeleteObjects request failed for key (.*?): (.*) \(code: (\w+)\)", re.DOTALL
)
_PROVIDER: Final = re.compile(r"External \w+ credential provider: (\w+): (.*)", re.DOTALL)
"""An exception of our own credential provider, and its text."""
_QUOTED: Final = re.compile(r'"([^"]+)"')
_NAME: Final = re.compile(r"\b[A-Z]\w+")
_DELETE_STATUS: Final = {"AccessDenied": 403, "NoSuchBucket": 404}
"""HTTP statuses of codes: failures of single keys come inside a 200."""

_THROTTLED_CODES: Final = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "TooManyRequests"}
)
_RETRIABLE_4XX_CODES: Final = frozenset(
    {
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "BadDigest",
        "IncompleteBody",
        # versitygw, for a PUT into a folder whose last other object is being deleted.
        "ExistingObjectIsDirectory",
    }
)
_TOKEN_CODES: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
"""Codes of 400 for the session token of keys."""
_CONFLICT_CODES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})


def translate(error: Exception, operation: str, store: S3Config, key: str) -> ObjectStoreError:
    """Return the port's error for one of CLIENT_ERRORS. The caller raises RangeNotSatisfiable
    itself, because it knows the range.
    """
    text = _text(error)
    if (deletion := _DELETION.search(text)) is not None:
        failed, message, code = deletion.groups()
        status = _DELETE_STATUS.get(code, 500)
        return from_answer(status, code, message, operation=operation, store=store, key=failed)
    if (provider := _PROVIDER.search(text)) is not None:
        name, cause = provider.groups()
        failed = name == SignInFailed.__name__
        return SignInFailed(cause) if failed else Unavailable(operation, key, cause)
    if (answer := _STATUS.search(text)) is not None:
        code, message = _CODE.search(text), _MESSAGE.search(text)
        return from_answer(
            int(answer[1]),
            code[1] if code else "",
            message[1] if message else "",
            operation=operation,
            store=store,
            key=key,
        )
    if ignores_ranges(error):
        return UnexpectedResponse(operation, key, "200", "the store ignored the Range header")
    dump = _dump(error)
    if (fault := tls_fault(dump)) is not None:
        return TlsFailed(store.endpoint or "Amazon S3", fault)
    causes = [text, _cause(dump), hint(dump, store.endpoint or "", os.environ)]
    return Unavailable(operation, key, ": ".join(filter(None, causes)))


def is_range_error(error: Exception) -> bool:
    """Return whether this is a 416."""
    status = _STATUS.search(_text(error))
    return status is not None and status[1] == "416"


def ignores_ranges(error: Exception) -> bool:
    """Return whether the store answered a ranged GET with 200 instead of 206, or with a range of
    nothing (MinIO, for the tail of an empty object: `bytes 0--1/0`).
    """
    return any(sign in _text(error) for sign in ("non-partial response", "CONTENT_RANGE header"))


def from_answer(
    status: int, code: str, message: str, *, operation: str, store: S3Config, key: str
) -> ObjectStoreError:
    """Return the error for an HTTP status and an S3 error code. The response to a HEAD has no body:
    it has no code.
    """
    cause = f"{status} {code} {message}".strip()
    if code == "NoSuchBucket":
        return BucketNotFound(store.bucket, store.endpoint)
    if status == 429 or code in _THROTTLED_CODES:
        return Throttled(operation, key)
    if (status >= 500 and status != 501) or code in _RETRIABLE_4XX_CODES:
        return Unavailable(operation, key, cause)
    if status in {401, 403} or code in _TOKEN_CODES:
        return AccessDenied(operation, key, cause)
    if operation == "list" and status == 404:
        # A LIST names no object: a store that walks a directory (versitygw) found one that was
        # deleted meanwhile.
        return Unavailable(operation, key, cause)
    return _of_the_object(status, code, key) or UnexpectedResponse(
        operation, key, f"{status} {code}", message
    )


def _of_the_object(status: int, code: str, key: str) -> ObjectStoreError | None:
    if status == 404 or code == "ObjectParentIsFile":
        # The second is versitygw's: a part of the key is an object, so nothing can be below it.
        return ObjectNotFound(key)
    if status == 412:
        return PreconditionFailed(key)
    if status == 409 and code in _CONFLICT_CODES:
        return ConditionalConflict(key)
    return None


def _dump(error: Exception) -> str:
    """Return the part of the error's structure that has the cause, where there was no answer."""
    return str(error).partition("HttpError {")[2]


def _cause(dump: str) -> str:
    """Return the texts in the dump of an error's structure, else its last two names."""
    return ": ".join(_QUOTED.findall(dump)) or " ".join(_NAME.findall(dump)[-2:])


def _text(error: Exception) -> str:
    """Return the text of the error without the dump of its structure."""
    return str(error).partition("\n\nDebug source")[0]
