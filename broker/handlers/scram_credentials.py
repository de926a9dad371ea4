"""DescribeUserScramCredentials: there are no credentials, which tools that describe users ask for.

No users stand for all, of which there are none.
Source: KIP-554; Kafka `ScramImage.describe`.
"""

from collections import Counter

from base.acls import Operation
from broker.errors import ErrorCode
from broker.handlers.authorization import check_cluster
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen.describe_user_scram_credentials import (
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    decode_request,
)


def handle_describe_user_scram_credentials(node: Node, ctx: RequestContext) -> Response:
    """Answer RESOURCE_NOT_FOUND for each user, or DUPLICATE_RESOURCE for one that is named
    twice.
    """
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    check_cluster(node, ctx, Operation.DESCRIBE)
    named = Counter(user.name for user in request.users or ())
    results = [_result(name, count) for name, count in named.items()]
    return encode_response(
        ctx, DescribeUserScramCredentialsResponse(error_message="", results=results)
    )


def _result(name: str, count: int) -> DescribeUserScramCredentialsResult:
    code, message = (
        (ErrorCode.RESOURCE_NOT_FOUND, f"user {name!r} has no credentials")
        if count == 1
        else (ErrorCode.DUPLICATE_RESOURCE, f"the request names user {name!r} twice")
    )
    return DescribeUserScramCredentialsResult(name, code, message)
