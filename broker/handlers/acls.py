"""DescribeAcls, CreateAcls and DeleteAcls: read ACLs from the image, and change them at the
controller.

This broker applies the new ACLs before it responds (read your writes). Without an authorizer, every
request fails with SECURITY_DISABLED, as in Kafka.
"""

from collections.abc import Sequence
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode, code_of, code_of_status
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows_cluster, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import CreateAcls, DeleteAcls, DeletedAcls, ItemResult, Status
from penstock.controller.metadata.acls import AclFilter, acl_text
from penstock.controller.metadata.records import AclEntry
from penstock.protocol.gen import create_acls, delete_acls, describe_acls

_TIMEOUT_S: Final = 30.0
_DISABLED: Final = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
_DENIED: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message,
)

_Refusal = tuple[ErrorCode, str]


def _refusal(node: Node, ctx: RequestContext, operation: Operation) -> _Refusal | None:
    if node.authorizer is None:
        return _DISABLED
    return None if allows_cluster(node, ctx, operation) else _DENIED


# --- describe -------------------------------------------------------------------------------------


async def handle_describe_acls(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, describe_acls.decode_request)
    refusal = _refusal(node, ctx, Operation.DESCRIBE)
    if refusal is _DISABLED:
        refusal = ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker"
    if refusal is not None:
        return encode_response(ctx, describe_acls.DescribeAclsResponse(0, *refusal))
    wanted = AclFilter(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if problem := wanted.problem():
        raise CannotRespond(f"invalid DescribeAcls request: {problem}")
    patterns: dict[tuple[int, str, int], list[describe_acls.AclDescription]] = {}
    async for acl in sliced(list(node.image.acls)):
        if wanted.matches(acl):
            pattern = acl.resource_type, acl.resource_name, acl.pattern_type
            patterns.setdefault(pattern, []).append(
                describe_acls.AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
            )
    resources = await listed(
        describe_acls.DescribeAclsResource(*pattern, acls) for pattern, acls in patterns.items()
    )
    return encode_response(
        ctx, describe_acls.DescribeAclsResponse(error_message=None, resources=resources)
    )


# --- create ---------------------------------------------------------------------------------------


async def handle_create_acls(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, create_acls.decode_request)
    refusal = _refusal(node, ctx, Operation.ALTER)
    acls = await listed(_wanted(creation) for creation in request.creations)
    results = (
        await _create(node, ctx, acls)
        if refusal is None
        else [create_acls.AclCreationResult(*refusal)] * len(acls)
    )
    return encode_response(ctx, create_acls.CreateAclsResponse(results=results))


def _wanted(creation: create_acls.AclCreation) -> AclEntry:
    return AclEntry(
        creation.resource_type,
        creation.resource_pattern_type,
        creation.resource_name,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


async def _create(
    node: Node, ctx: RequestContext, acls: list[AclEntry]
) -> Sequence[create_acls.AclCreationResult]:
    known = await listed(acl in node.image.acls for acl in acls)
    try:
        request = CreateAcls(acls=acls, forwarded_for=requester_of(node, ctx))
        items = (await node.client.create_acls(request, timeout_s=_TIMEOUT_S)).items
    except (ControllerError, TimeoutError) as error:
        return [create_acls.AclCreationResult(code_of(error), str(error))] * len(acls)
    added = [
        acl_text(acl)
        for acl, was_known, item in zip(acls, known, items, strict=True)
        if item.status is Status.OK and not was_known
    ]
    record_change(node, ctx, "acls_added", added)
    return await listed(create_acls.AclCreationResult(*_problem(item)) for item in items)


def _problem(item: ItemResult | DeletedAcls) -> tuple[ErrorCode, str | None]:
    if item.status is Status.OK:
        return ErrorCode.NONE, None
    return code_of_status(item.status), item.detail


# --- delete ---------------------------------------------------------------------------------------


async def handle_delete_acls(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, delete_acls.decode_request)
    refusal = _refusal(node, ctx, Operation.ALTER)
    filters = await listed(
        AclFilter(
            item.resource_type_filter,
            item.pattern_type_filter,
            item.resource_name_filter,
            item.principal_filter,
            item.host_filter,
            item.operation,
            item.permission_type,
        )
        for item in request.filters
    )
    results = (
        await _delete(node, ctx, filters)
        if refusal is None
        else [delete_acls.DeleteAclsFilterResult(*refusal)] * len(filters)
    )
    return encode_response(ctx, delete_acls.DeleteAclsResponse(filter_results=results))


async def _delete(
    node: Node, ctx: RequestContext, filters: list[AclFilter]
) -> Sequence[delete_acls.DeleteAclsFilterResult]:
    try:
        request = DeleteAcls(filters=filters, forwarded_for=requester_of(node, ctx))
        items = (await node.client.delete_acls(request, timeout_s=_TIMEOUT_S)).items
    except (ControllerError, TimeoutError) as error:
        return [delete_acls.DeleteAclsFilterResult(code_of(error), str(error))] * len(filters)
    removed = dict.fromkeys(acl for item in items for acl in item.acls)
    record_change(node, ctx, "acls_removed", [acl_text(acl) for acl in removed])
    return await listed(
        delete_acls.DeleteAclsFilterResult(*_problem(item), [_matching(acl) for acl in item.acls])
        for item in items
    )


def _matching(acl: AclEntry) -> delete_acls.DeleteAclsMatchingAcl:
    return delete_acls.DeleteAclsMatchingAcl(
        ErrorCode.NONE,
        None,
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
