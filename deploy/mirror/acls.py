"""Copy ACLs."""

from typing import NamedTuple

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.deploy.mirror.cluster import Cluster
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, explain, known_code
from penstock.protocol.gen import create_acls, describe_acls


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


def acls_of(cluster: Cluster) -> frozenset[Acl] | None:
    """Return all ACLs, or None if the cluster has no authorizer."""
    response = cluster.send_request(
        apis.DESCRIBE_ACLS,
        describe_acls.DescribeAclsRequest(
            ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
        ),
        describe_acls.DescribeAclsResponse,
    )
    if known_code(response.error_code) is ErrorCode.SECURITY_DISABLED:
        return None
    cluster.check(response.error_code, response.error_message, "the ACLs cannot be read")
    return frozenset(
        Acl(
            item.resource_type,
            item.resource_name,
            item.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for item in response.resources
        for acl in item.acls
    )


def create(cluster: Cluster, wanted: frozenset[Acl]) -> list[str]:
    """Add ACLs. Return the reasons why some were rejected."""
    ordered = sorted(wanted)
    response = cluster.send_request(
        apis.CREATE_ACLS,
        create_acls.CreateAclsRequest([create_acls.AclCreation(*acl) for acl in ordered]),
        create_acls.CreateAclsResponse,
    )
    return [
        f"{acl}: {explain(result.error_code, result.error_message)}"
        for acl, result in zip(ordered, response.results, strict=True)
        if result.error_code
    ]
