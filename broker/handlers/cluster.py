"""DescribeCluster: return the brokers and the cluster id (KIP-700), optionally including fenced
brokers (KIP-1073).

The controller endpoint type is rejected, as by Kafka's brokers, because clients cannot connect to
the controllers.
"""

from typing import Final

from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import ConnectionInfo, RequestContext, Response
from penstock.broker.requests import advertised
from penstock.broker.requests.authorization import cluster_operations
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.gen.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    decode_request,
)

_BROKERS: Final = 1


def handle_describe_cluster(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    if request.endpoint_type != _BROKERS:
        message = (
            f"endpoint type {request.endpoint_type} is not served by a broker: request type"
            f" {_BROKERS}, brokers"
        )
        code = (
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            if request.endpoint_type not in {1, 2}
            else ErrorCode.MISMATCHED_ENDPOINT_TYPE
        )
        return encode_response(ctx, DescribeClusterResponse(error_code=code, error_message=message))
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=advertised.controller_id(node),
        brokers=_brokers(node, ctx.connection, with_fenced=request.include_fenced_brokers),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(node, ctx)
    return encode_response(ctx, response)


def _brokers(
    node: Node, connection: ConnectionInfo, *, with_fenced: bool
) -> list[DescribeClusterBroker]:
    """Return the brokers by id, either the live ones or all registered ones."""
    states = advertised.registered_nodes(node) if with_fenced else advertised.live_nodes(node)
    found: list[DescribeClusterBroker] = []
    for state in states:
        address = advertised.address_of(node, state, connection)
        found.append(
            DescribeClusterBroker(
                state.node_id, address.host, address.port, address.rack, state.fenced
            )
        )
    return found
