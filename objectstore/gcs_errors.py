"""Describe the errors of Google Cloud Storage.

Source: Cloud Storage XML API, "HTTP status and error codes"; "Bucket Lock" and "Object holds".
"""

from typing import Final

from penstock.objectstore.config import GcsConfig
from penstock.objectstore.errors import ObjectLocked, ObjectStoreError
from penstock.objectstore.remote_errors import Dialect, ErrorResponse

_LOCKED: Final = frozenset({"RetentionPolicyNotMet", "ObjectUnderActiveHold"})


def gcs_dialect(config: GcsConfig) -> Dialect:
    """Return the error dialect of a Google Cloud Storage bucket."""
    return Dialect(
        store="Google Cloud Storage",
        bucket=config.bucket,
        endpoint=config.endpoint,
        create=f"gcloud storage buckets create gs://{config.bucket} --uniform-bucket-level-access",
        permissions="the role Storage Object User (roles/storage.objectUser)",
        missing_codes=frozenset({"NoSuchBucket"}),
        sign_in=(
            "no credentials: set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service"
            " account, run `gcloud auth application-default login`, or give the pod or the machine"
            " a service account"
        ),
        metadata_hosts=frozenset({"169.254.169.254", "metadata.google.internal"}),
        special=_special,
    )


def _special(response: ErrorResponse) -> ObjectStoreError | None:
    if response.code in _LOCKED:
        return ObjectLocked(response.operation, response.key, response.cause)
    return None
