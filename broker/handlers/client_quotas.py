"""DescribeClientQuotas: there are no quotas, which tools that describe users and clients ask for.

Filters are checked as in Kafka, so that a wrong one is not taken for an empty answer.
Source: KIP-546; Kafka `ClientQuotasImage.describe`.
"""

from enum import IntEnum
from typing import Final

from base.acls import Operation
from broker.errors import ErrorCode
from broker.handlers.authorization import check_cluster
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    decode_request,
)

_IP: Final = "ip"
_ENTITIES: Final = frozenset({"user", "client-id", _IP})


class _Match(IntEnum):
    """One entity by its name, the entity without a name, or all with a name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def handle_describe_client_quotas(node: Node, ctx: RequestContext) -> Response:
    """Answer with nothing, or UNSUPPORTED_VERSION for an entity type that does not exist, or
    INVALID_REQUEST for a wrong filter.
    """
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    check_cluster(node, ctx, Operation.DESCRIBE_CONFIGS)
    refusal = _refusal(request)
    if refusal is None:
        return encode_response(ctx, DescribeClientQuotasResponse(error_message="", entries=[]))
    code, message = refusal
    return encode_response(
        ctx, DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
    )


def _refusal(request: DescribeClientQuotasRequest) -> tuple[ErrorCode, str] | None:
    named: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if kind and kind not in _ENTITIES:
            allowed = ", ".join(sorted(_ENTITIES))
            return (
                ErrorCode.UNSUPPORTED_VERSION,
                f"entity type {kind!r} is not known; known are {allowed}",
            )
        problem = (
            f"entity type {kind!r} is in the filter twice" if kind in named else _problem(component)
        )
        if problem:
            return ErrorCode.INVALID_REQUEST, problem
        named.add(kind)
    if _IP in named and len(named) > 1:
        return ErrorCode.INVALID_REQUEST, "entity type 'ip' cannot be combined with others"
    return None


def _problem(component: ComponentData) -> str:
    """Return what is wrong with one part of a filter; empty if nothing is."""
    if not component.entity_type:
        return "an entity type is empty"
    match component.match_type:
        case _Match.EXACT:
            return "" if component.match is not None else "match type 0 (exact) needs a name"
        case _Match.DEFAULT | _Match.SPECIFIED:
            return "" if component.match is None else "match types 1 (default) and 2 have no name"
        case other:
            return f"match type {other} is not known; known are 0, 1 and 2"
