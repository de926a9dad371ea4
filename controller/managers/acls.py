"""Add and remove ACLs."""

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import Never

from penstock.base.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    is_known,
)
from penstock.controller.api.messages import (
    AclsDeleted,
    CreateAcls,
    DeleteAcls,
    DeletedAcls,
    ItemResult,
    ItemResults,
    Status,
)
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.acls import AclFilter, AclsImage
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import AclEntry, AclRecord, AclRemoved

ACLS_PER_REQUEST_MAX = 10_000
FILTERS_MAX = 1_000
COMPARISONS_MAX = 200_000
"""Maximum number of comparisons between filters and ACLs in one request, unless a single filter
needs more. Each takes about 0.5 us.
"""
ACLS_MAX = 100_000
"""Maximum number of ACLs in a cluster. An ACL takes about 300 bytes of memory in each node."""

_MATCHED_CHARS_MAX = 1_000
"""Maximum length of a name whose prefixes are looked up."""
_ANY = 1
"""The code ANY, which is the same for all enumerations."""
_PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
_PERMISSIONS = (Permission.DENY, Permission.ALLOW)


def create_acls(image: MetadataImage, request: CreateAcls) -> Result[ItemResults]:
    if len(request.acls) > ACLS_PER_REQUEST_MAX:
        return _too_many(f"{len(request.acls)} ACLs", ACLS_PER_REQUEST_MAX)
    added: dict[AclEntry, None] = {}
    items: list[ItemResult] = []
    for acl in request.acls:
        reason = acl_problem(acl)
        is_new = acl not in image.acls and acl not in added
        if not reason and is_new and len(image.acls) + len(added) >= ACLS_MAX:
            reason = f"the cluster has {ACLS_MAX} ACLs, the maximum: remove some first"
        if reason:
            items.append(ItemResult(status=Status.INVALID_REQUEST, detail=reason))
            continue
        if is_new:
            added[acl] = None
        items.append(ItemResult())
    return Result([AclRecord(acl) for acl in added], value=ItemResults(items=items))


def delete_acls(image: MetadataImage, request: DeleteAcls) -> Result[AclsDeleted]:
    """Remove the ACLs that match the filters. An ACL that matches several filters is in the result
    of each of them.
    """
    if len(request.filters) > FILTERS_MAX:
        return _too_many(f"{len(request.filters)} filters", FILTERS_MAX)
    candidates = _Candidates(image.acls)
    removed: dict[AclEntry, None] = {}
    items: list[DeletedAcls] = []
    found_count = compared_count = 0
    for wanted in request.filters:
        reason = wanted.problem()
        if reason:
            items.append(DeletedAcls(status=Status.INVALID_REQUEST, detail=reason))
            continue
        compared = candidates.of(wanted)
        compared_count += len(compared)
        if compared_count > max(COMPARISONS_MAX, len(image.acls)):
            return _too_many("the filters need more comparisons with ACLs", COMPARISONS_MAX)
        found = [acl for acl in compared if wanted.matches(acl)]
        found_count += len(found)
        if found_count > ACLS_PER_REQUEST_MAX:
            return _too_many("the filters match more ACLs", ACLS_PER_REQUEST_MAX)
        removed.update(dict.fromkeys(found))
        items.append(DeletedAcls(acls=found))
    return Result([AclRemoved(acl) for acl in removed], value=AclsDeleted(items=items))


class _Candidates:
    """The ACLs by resource name and by principal, so that a filter that contains either is compared
    with only a few of them.
    """

    def __init__(self, acls: AclsImage) -> None:
        self._all = list(acls)
        self._by_name: dict[str, list[tuple[int, AclEntry]]] = {}
        self._by_principal: dict[str, list[AclEntry]] = {}
        for position, acl in enumerate(self._all):
            self._by_name.setdefault(acl.resource_name, []).append((position, acl))
            self._by_principal.setdefault(acl.principal, []).append(acl)

    def of(self, wanted: AclFilter) -> Sequence[AclEntry]:
        """Return the ACLs that the filter may match, in the order of their creation."""
        name, principal = wanted.resource_name, wanted.principal
        found = self._all if principal is None else self._by_principal.get(principal, [])
        if name is None:
            return found
        names = {name}
        if wanted.pattern_type == PatternType.MATCH:
            if len(name) > _MATCHED_CHARS_MAX:
                return found
            names |= {WILDCARD, *(name[:length] for length in range(1, len(name)))}
        named = list(chain.from_iterable(self._by_name.get(each, ()) for each in names))
        return found if len(found) < len(named) else [acl for _, acl in sorted(named)]


def acl_problem(acl: AclEntry) -> str:
    """Return the reason why this is not a valid ACL, or "" if it is."""
    if not is_known(ResourceType, acl.resource_type) or acl.resource_type == _ANY:
        return f"Invalid resourceType {_shown(ResourceType, acl.resource_type)}"
    if acl.pattern_type not in _PATTERNS:
        return f"Invalid patternType {_shown(PatternType, acl.pattern_type)}"
    if not is_known(Operation, acl.operation) or acl.operation == _ANY:
        return f"Invalid operation {_shown(Operation, acl.operation)}"
    if acl.permission not in _PERMISSIONS:
        return f"Invalid permissionType {_shown(Permission, acl.permission)}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    return ""


def _shown(kind: type[IntEnum], code: int) -> str:
    return kind(code).name if is_known(kind, code) else "UNKNOWN"


def _too_many(what: str, limit: int) -> Result[Never]:
    detail = f"{what}; at most {limit} are allowed per request"
    return Refused(Status.INVALID_REQUEST, detail).result()
