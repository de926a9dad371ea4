"""Describe the errors of S3 and of servers with the S3 API.

Source: S3 API "Error responses"; conditional writes return 412 PreconditionFailed and 409
ConditionalRequestConflict.
"""

from typing import Final

from penstock.objectstore.config import S3_EXPRESS_BUCKET, S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    ObjectNotFound,
    ObjectStoreError,
    Unavailable,
)
from penstock.objectstore.remote_errors import Dialect, ErrorResponse

_RETRIABLE_4XX_CODES: Final = frozenset(
    {
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "BadDigest",
        "IncompleteBody",
        # versitygw returns this for a PUT into a folder whose last object is being deleted.
        "ExistingObjectIsDirectory",
    }
)

_TOKEN_CODES: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
"""Codes with status 400 for an invalid session token."""


def s3_dialect(config: S3Config) -> Dialect:
    """Return the error dialect of an S3 bucket."""
    flag = f" --endpoint-url {config.endpoint}" if config.endpoint else ""
    create = f"aws s3api create-bucket --bucket {config.bucket}{flag}"
    permissions = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
    if (express := S3_EXPRESS_BUCKET.fullmatch(config.bucket)) is not None:
        create += (
            " --create-bucket-configuration"
            f" 'Location={{Type=AvailabilityZone,Name={express[1]}}},"
            "Bucket={Type=Directory,DataRedundancy=SingleAvailabilityZone}'"
        )
        permissions = "s3express:CreateSession"
    return Dialect(
        store="Amazon S3",
        bucket=config.bucket,
        endpoint=config.endpoint,
        create=create,
        permissions=permissions,
        missing_codes=frozenset({"NoSuchBucket"}),
        sign_in="",  # botocore and `s3_sign_in` report missing credentials
        special=_special,
    )


def _special(response: ErrorResponse) -> ObjectStoreError | None:
    if response.code in _RETRIABLE_4XX_CODES or (
        response.operation == "list" and response.status == 404
    ):
        # versitygw lists keys by walking a directory, which fails if an object is deleted
        # concurrently.
        return Unavailable(response.operation, response.key, response.cause)
    if response.code in _TOKEN_CODES:
        return AccessDenied(response.operation, response.key, response.cause)
    if response.code == "ObjectParentIsFile":
        # versitygw: a parent of the key is an object.
        return ObjectNotFound(response.key)
    return None
