"""Set and delete SCRAM credentials of users (KIP-554, KIP-900). Each user in a request succeeds or
fails separately.
"""

from penstock.base.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from penstock.controller.api.messages import Status
from penstock.controller.api.scram_messages import (
    ALTERATIONS_MAX,
    AlterScramCredentials,
    ScramAltered,
    ScramDeletion,
    ScramResult,
    ScramUpsertion,
)
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    Record,
    ScramCredentialRecord,
    ScramCredentialRemoved,
)

USERS_MAX = 100_000
USER_BYTES_MAX = 1_000
KEY_BYTES_MAX = 1_000
"""Maximum size of a salt or a key."""
_MECHANISMS = frozenset(ScramMechanism)


def alter_scram_credentials(
    image: MetadataImage, request: AlterScramCredentials
) -> Result[ScramAltered]:
    count = len(request.deletions) + len(request.upsertions)
    if count > ALTERATIONS_MAX:
        return Result(
            status=Status.INVALID_REQUEST,
            detail=f"{count} credentials; at most {ALTERATIONS_MAX} are allowed: split them",
        )
    changes: dict[str, Record] = {}
    failed: dict[str, ScramResult] = {}
    items: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    for item in items:
        if item.user in failed:
            continue
        if changes.pop(item.user, None) is not None:
            failed[item.user] = ScramResult(
                user=item.user,
                status=Status.DUPLICATE_RESOURCE,
                detail="A user credential cannot be altered twice in the same request",
            )
            continue
        change = (
            _deletion(image, item) if isinstance(item, ScramDeletion) else _upsertion(image, item)
        )
        if isinstance(change, ScramResult):
            failed[item.user] = change
        else:
            changes[item.user] = change
    results = [ScramResult(user=user) for user in changes]
    return Result(
        [change for change in changes.values() if not _is_present(image, change)],
        value=ScramAltered(results=[*results, *failed.values()]),
    )


def _deletion(image: MetadataImage, item: ScramDeletion) -> Record | ScramResult:
    refusal = _refusal(item)
    if refusal is not None:
        return refusal
    if item.mechanism not in image.scram.of(item.user):
        return ScramResult(
            user=item.user,
            status=Status.UNKNOWN_RESOURCE,
            detail="Attempt to delete a user credential that does not exist",
        )
    return ScramCredentialRemoved(item.user, item.mechanism)


def _upsertion(image: MetadataImage, item: ScramUpsertion) -> Record | ScramResult:
    refusal = _refusal(item)
    if refusal is not None:
        return refusal
    problem = ""
    if item.iterations < ITERATIONS_MIN:
        problem = "Too few iterations"
    elif item.iterations > ITERATIONS_MAX:
        problem = "Too many iterations"
    elif not item.stored_key or not item.server_key:
        problem = "The salted password is empty"
    elif max(map(len, item.credential[:3])) > KEY_BYTES_MAX:
        problem = f"A salt or key has more than {KEY_BYTES_MAX} bytes"
    elif len(item.user.encode()) > USER_BYTES_MAX:
        problem = f"The user name has more than {USER_BYTES_MAX} bytes"
    elif not image.scram.of(item.user) and len(image.scram) >= USERS_MAX:
        problem = f"There are {USERS_MAX} users; delete one first"
    if problem:
        return ScramResult(user=item.user, status=Status.UNACCEPTABLE_CREDENTIAL, detail=problem)
    return ScramCredentialRecord(item.user, item.mechanism, *item.credential)


def _refusal(item: ScramDeletion | ScramUpsertion) -> ScramResult | None:
    if not item.user:
        status, detail = Status.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    elif item.mechanism not in _MECHANISMS:
        status, detail = Status.UNSUPPORTED_MECHANISM, "Unknown SCRAM mechanism"
    else:
        return None
    return ScramResult(user=item.user, status=status, detail=detail)


def _is_present(image: MetadataImage, record: Record) -> bool:
    """Return whether the image already contains this credential, for example after a retried
    request.
    """
    if not isinstance(record, ScramCredentialRecord):
        return False
    known = image.scram.of(record.user).get(record.mechanism)
    return known == (record.salt, record.stored_key, record.server_key, record.iterations)
