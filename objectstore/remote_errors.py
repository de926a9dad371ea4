"""Translate obstore's errors into the port's errors.

Invariant: if a write may have taken place, the error is Unavailable. obstore's classes are too
coarse (a 409 of a race and a 412 are both AlreadyExistsError), so the status and error code are
parsed from the text, whose format is pinned by tests. Source: object_store, client/retry.rs.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError

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
from penstock.objectstore.remote_tls import hint, tls_fault
from penstock.objectstore.renewal import RETRIABLE_STATUSES

CLIENT_ERRORS: Final = (BaseError, OSError)
"""All errors that a call of the client may raise and `translate` accepts."""

_REQUEST: Final = re.compile(
    r"(?:^|: )Error performing (?P<token>token request: Error performing )?"
    r"[A-Z]+ (?P<url>\S+) in \S+ - "
)
"""The text before the status in obstore's errors. The path before it may contain any text."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_CONTENT_RANGE: Final = re.compile(r'CONTENT_RANGE header: "bytes (\d+)-(-?\d+)/')
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_PROVIDER: Final = re.compile(r"External \w+ credential provider: (\w+): (.*)", re.DOTALL)
"""An exception of Penstock's credential provider, and its text."""
_DELETION: Final = re.compile(
    r"(?:DeleteObjects|Bulk delete) request failed for key (.*?): (.*) \(code: (\w+)\)", re.DOTALL
)
_DELETION_STATUS: Final = {"AccessDenied": 403, "NoSuchBucket": 404}
"""HTTP statuses by S3 error code, for failures of single keys in a response with status 200."""

_QUOTED: Final = re.compile(r'"([^"]+)"')
_NAME: Final = re.compile(r"\b[A-Z]\w+")
_THROTTLED_CODES: Final = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "TooManyRequests"}
)
_CONFLICT_CODES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error response of a store. code: empty for a HEAD request, whose response has no body."""

    operation: str
    key: str
    status: int
    code: str
    message: str

    @property
    def cause(self) -> str:
        return f"{self.status} {self.code} {self.message}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The differences between the errors of S3, Google and Azure.

    missing_codes: error codes for a missing bucket. sign_in: advice if there are no credentials,
    shown if one of `metadata_hosts` does not respond. sign_in_retriable: additional statuses of
    token endpoints after which a retry may succeed. special: returns the error for a response whose
    status is not sufficient; None for other responses.
    """

    store: str
    bucket: str
    endpoint: str | None
    create: str
    permissions: str
    missing_codes: frozenset[str]
    sign_in: str
    metadata_hosts: frozenset[str] = frozenset()
    sign_in_retriable: frozenset[int] = frozenset()
    special: Callable[[ErrorResponse], ObjectStoreError | None]


def translate(error: Exception, operation: str, dialect: Dialect, key: str) -> ObjectStoreError:
    """Return the port's error for one of CLIENT_ERRORS. RangeNotSatisfiable is raised by the
    caller, which knows the requested range.
    """
    text = _text(error)
    if (deletion := _DELETION.search(text)) is not None:
        failed, message, code = deletion.groups()
        status = int(code) if code.isdigit() else _DELETION_STATUS.get(code, 500)
        return error_from_response(ErrorResponse(operation, failed, status, code, message), dialect)
    if (provider := _PROVIDER.search(text)) is not None:
        name, cause = provider.groups()
        failed = name == SignInFailed.__name__
        return SignInFailed(cause) if failed else Unavailable(operation, key, cause)
    request = _REQUEST.search(text)
    if request is not None and request["token"] is not None:
        return _of_token(text, request, operation, dialect, key)
    if (response := _STATUS.search(text, request.end() if request else 0)) is not None:
        code, message = _CODE.search(text, response.end()), _MESSAGE.search(text, response.end())
        return error_from_response(
            ErrorResponse(
                operation,
                key,
                int(response[1]),
                code[1] if code else "",
                message[1].partition("\n")[0] if message else "",
            ),
            dialect,
        )
    if ignores_ranges(error):
        return UnexpectedResponse(operation, key, "200", "the store ignored the Range header")
    dump = _dump(error)
    if (fault := tls_fault(dump)) is not None:
        return TlsFailed(dialect.endpoint or dialect.store, fault)
    causes = [text, _cause(dump), hint(dump, dialect.endpoint or "", os.environ)]
    return Unavailable(operation, key, ": ".join(filter(None, causes)))


def _of_token(
    text: str, request: re.Match[str], operation: str, dialect: Dialect, key: str
) -> ObjectStoreError:
    """Return the error for a failed request to a token endpoint or a metadata server."""
    response = _STATUS.search(text, request.end())
    if response is None:
        is_machine = urlsplit(request["url"]).hostname in dialect.metadata_hosts
        return Unavailable(operation, key, f"{dialect.sign_in}: {text}" if is_machine else text)
    status = int(response[1])
    if status in RETRIABLE_STATUSES | dialect.sign_in_retriable or not 400 <= status < 500:
        return Unavailable(operation, key, text)
    return SignInFailed(f"{dialect.sign_in}: {text}")


def is_range_error(error: Exception) -> bool:
    """Return whether this is a 416, or a 206 with an empty range: MinIO sends `bytes 0--1/0` for
    the tail of an empty object, Azurite for a range that starts at the end.
    """
    text = _text(error)
    if (nothing := _CONTENT_RANGE.search(text)) is not None:
        return int(nothing[2]) < int(nothing[1])
    if "Wanted range starting at" in text:  # raised when obstore validates the response
        return True
    status = _STATUS.search(text)
    return status is not None and status[1] == "416"


def ignores_ranges(error: Exception) -> bool:
    """Return whether the store responded to a ranged GET with 200 instead of 206."""
    return any(sign in _text(error) for sign in ("non-partial response", "CONTENT_RANGE header"))


def error_from_response(response: ErrorResponse, dialect: Dialect) -> ObjectStoreError:
    """Return the error for a response."""
    if response.code in dialect.missing_codes:
        return BucketNotFound(
            dialect.bucket, dialect.endpoint, store=dialect.store, create=dialect.create
        )
    if (special := dialect.special(response)) is not None:
        return special
    if response.status == 429 or response.code in _THROTTLED_CODES:
        return Throttled(response.operation, response.key)
    if response.status == 408 or (response.status >= 500 and response.status != 501):
        return Unavailable(response.operation, response.key, response.cause)
    if response.status in {401, 403}:
        return AccessDenied(
            response.operation, response.key, response.cause, permissions=dialect.permissions
        )
    if response.status == 412:
        return PreconditionFailed(response.key)
    if response.status == 404:
        return ObjectNotFound(response.key)
    if response.status == 409 and response.code in _CONFLICT_CODES:
        return ConditionalConflict(response.key)
    return UnexpectedResponse(
        response.operation, response.key, f"{response.status} {response.code}", response.message
    )


def _dump(error: Exception) -> str:
    """Return the part of the error's debug output that contains the cause if there was no
    response.
    """
    return str(error).partition("HttpError {")[2]


def _cause(dump: str) -> str:
    """Return the quoted texts in the debug output of an error, or its last two type names if there
    are none.
    """
    return ": ".join(_QUOTED.findall(dump)) or " ".join(_NAME.findall(dump)[-2:])


def _text(error: Exception) -> str:
    """Return the text of the error without its debug output."""
    return str(error).partition("\n\nDebug source")[0]
