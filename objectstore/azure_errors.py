"""Describe the errors of Azure Blob Storage.

Source: "Blob Storage error codes"; "Specify conditional headers for Blob service operations".
"""

import re
from typing import Final

from penstock.objectstore.config import AzureConfig
from penstock.objectstore.errors import (
    ObjectLocked,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    Unavailable,
    UnexpectedResponse,
)
from penstock.objectstore.remote_errors import Dialect, ErrorResponse

_LOCKED: Final = re.compile(
    r"Lease\w+|InfiniteLeaseDurationRequired|\w+Immutable\w*|\w*LegalHold\w*"
)
"""Error codes of locked objects, such as LeaseIdMissing or BlobImmutableDueToPolicy."""
_ACCOUNT_LIMIT: Final = re.compile(r"\bis over the account limit\b", re.IGNORECASE)
_CONDITION_CODES: Final = frozenset({"", "ConditionNotMet", "TargetConditionNotMet"})


def azure_dialect(config: AzureConfig) -> Dialect:
    """Return the error dialect of an Azure Blob Storage container."""
    return Dialect(
        store=f"the storage account {config.account!r}",
        bucket=config.container,
        endpoint=config.endpoint,
        create=(
            f"az storage container create --account-name {config.account} --name"
            f" {config.container} --auth-mode login"
        ),
        permissions=(
            "the role Storage Blob Data Contributor, or the permissions rcwdl of a SAS token,"
        ),
        missing_codes=frozenset({"ContainerNotFound", "ContainerBeingDeleted"}),
        sign_in=(
            "no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, set"
            " AZURE_USE_AZURE_CLI=true after `az login`, or give the pod a workload identity or the"
            " machine a managed identity"
        ),
        metadata_hosts=frozenset({"169.254.169.254"}),
        sign_in_retriable=frozenset({404}),  # the metadata server returns it while it is updated
        special=_special,
    )


def _special(response: ErrorResponse) -> ObjectStoreError | None:
    if response.status in {409, 412} and _LOCKED.fullmatch(response.code):
        return ObjectLocked(response.operation, response.key, response.cause)
    if response.code == "BlobAlreadyExists":
        return PreconditionFailed(response.key)
    if response.status == 412 and response.operation == "get_tail":
        return Unavailable(response.operation, response.key, "the object was replaced meanwhile")
    if response.status == 412 and response.code not in _CONDITION_CODES:
        return UnexpectedResponse(
            response.operation, response.key, f"{response.status} {response.code}", response.message
        )
    if response.code == "ServerBusy" and _ACCOUNT_LIMIT.search(response.message):
        # Only ServerBusy is ambiguous: a server that is moving a partition may have written the
        # object.
        return Throttled(response.operation, response.key)
    return None
