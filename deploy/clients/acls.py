"""List, add and remove ACLs.

Invariant: every failure is a KafkaFailed.
Source: KIP-140, KIP-290.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.base.principal import Principal
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import UsageError
from penstock.protocol import apis
from penstock.protocol.client.errors import check
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import create_acls, delete_acls, describe_acls

RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "user": ResourceType.USER,
}
"""Resource types by their names on the command line."""
OPERATIONS: Final = {
    operation.name.lower().replace("_", "-"): operation
    for operation in Operation
    if operation not in (Operation.UNKNOWN, Operation.ANY)
}
PATTERNS: Final = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
PERMISSIONS: Final = {"allow": Permission.ALLOW, "deny": Permission.DENY}
_RESOURCE_WORDS: Final = {kind: word for word, kind in RESOURCES.items()}
_T = TypeVar("_T")


class Acl(NamedTuple):
    """An ACL, with the codes of Kafka."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        return (
            f"{Permission(self.permission).name.lower()} {self.principal} from {self.host}:"
            f" {Operation(self.operation).name.lower()} on"
            f" {ResourceType(self.resource).name.lower()} {self.name}"
            f" ({PatternType(self.pattern).name.lower()})"
        )


@dataclass(frozen=True, slots=True, order=True)
class AclView:
    """An ACL, with the names that the command line uses."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class AclSelection:
    """A filter of ACLs. None matches all values of a field. matches: whether to also match patterns
    that include the resource `name`.
    """

    resource: ResourceType | None = None
    name: str | None = None
    pattern: PatternType | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    matches: bool = False

    def codes(self) -> tuple[int, str | None, int, str | None, str | None, int, int]:
        pattern = PatternType.MATCH if self.matches else self.pattern or PatternType.ANY
        return (
            self.resource or ResourceType.ANY,
            self.name,
            pattern,
            self.principal,
            self.host,
            self.operation or Operation.ANY,
            self.permission or Permission.ANY,
        )


def known(field: str, words: Mapping[str, _T], word: str) -> _T:
    """Return the code for a name used on the command line. Raises UsageError."""
    if word not in words:
        raise UsageError(f"{field} {word!r} is not known: one of {', '.join(words)}")
    return words[word]


def selection_of(acl: AclView) -> AclSelection:
    """Return the selection of one ACL. Raises UsageError for a value that is not allowed."""
    try:
        Principal.parse(acl.principal)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not acl.name:
        raise UsageError(f"specify the {acl.resource} of the ACL, or * for all")
    return AclSelection(
        known("resource", RESOURCES, acl.resource),
        acl.name,
        known("pattern", PATTERNS, acl.pattern),
        acl.principal,
        acl.host,
        known("operation", OPERATIONS, acl.operation),
        known("permission", PERMISSIONS, acl.permission),
    )


def listed_acls(client: WireClient, wanted: AclSelection) -> list[AclView]:
    """Return the ACLs in order. Raises KafkaFailed."""
    response = client.send_request(
        apis.DESCRIBE_ACLS,
        describe_acls.DescribeAclsRequest(*wanted.codes()),
        describe_acls.DescribeAclsResponse,
    )
    _check(response.error_code, response.error_message, "ACLs cannot be listed")
    return sorted(map(_view, acls_in(response)))


def acls_in(response: describe_acls.DescribeAclsResponse) -> list[Acl]:
    """Return the ACLs in a response without an error."""
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    ]


def add_acls(client: WireClient, wanted: Sequence[AclSelection]) -> None:
    """Add ACLs, none of whose fields may be None. Raises KafkaFailed for the first ACL that is
    rejected.
    """
    creations: list[create_acls.AclCreation] = []
    for item in wanted:
        kind, name, pattern, principal, host, operation, permission = item.codes()
        assert name is not None, item
        assert principal is not None, item
        creations.append(
            create_acls.AclCreation(
                kind, name, pattern, principal, host or "*", operation, permission
            )
        )
    response = client.send_request(
        apis.CREATE_ACLS, create_acls.CreateAclsRequest(creations), create_acls.CreateAclsResponse
    )
    for result in response.results:
        _check(result.error_code, result.error_message, "the ACL was not added")


def remove_acls(client: WireClient, wanted: AclSelection) -> list[AclView]:
    """Remove ACLs, and return them in order. Raises KafkaFailed."""
    response = client.send_request(
        apis.DELETE_ACLS,
        delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(*wanted.codes())]),
        delete_acls.DeleteAclsResponse,
    )
    (result,) = response.filter_results
    _check(result.error_code, result.error_message, "ACLs were not removed")
    found = [
        Acl(
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for acl in result.matching_acls
    ]
    return sorted(map(_view, found))


def _view(acl: Acl) -> AclView:
    kind = ResourceType(acl.resource)
    return AclView(
        _RESOURCE_WORDS.get(kind, kind.name.lower()),
        acl.name,
        PatternType(acl.pattern).name.lower(),
        acl.principal,
        acl.host,
        Operation(acl.operation).name.lower().replace("_", "-"),
        Permission(acl.permission).name.lower(),
    )


def _check(code: int, message: str | None, failed: str) -> None:
    if known_code(code) is ErrorCode.SECURITY_DISABLED:
        message = (
            "no authorizer is configured: set authorizer.class.name on all brokers, or try"
            " `penstock dev --secure`"
        )
    check(code, message, failed)
