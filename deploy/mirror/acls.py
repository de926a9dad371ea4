"""Copy ACLs."""

from penstock.deploy.clients.acls import Acl, AclSelection, acls_in
from penstock.deploy.mirror.cluster import Cluster
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, explain, known_code
from penstock.protocol.gen import create_acls, describe_acls


def acls_of(cluster: Cluster) -> frozenset[Acl] | None:
    """Return all ACLs, or None if the cluster has no authorizer."""
    response = cluster.send_request(
        apis.DESCRIBE_ACLS,
        describe_acls.DescribeAclsRequest(*AclSelection().codes()),
        describe_acls.DescribeAclsResponse,
    )
    if known_code(response.error_code) is ErrorCode.SECURITY_DISABLED:
        return None
    cluster.check(response.error_code, response.error_message, "the ACLs cannot be read")
    return frozenset(acls_in(response))


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
