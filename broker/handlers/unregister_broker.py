"""UnregisterBroker (KIP-631): remove the registration of a dead broker that will not start again.

Kafka 4.2 also removes live brokers. Here, the controller rejects the request with INVALID_REQUEST
while the broker is alive, its WAL is not recovered, or a partition move refers to it
(`controller.managers.nodes.remove_broker`).
"""

from typing import Final

from penstock.base.acls import Operation
from penstock.base.ids import NodeId
from penstock.broker.errors import code_of
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_cluster, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.api.errors import ControllerError, RequestRefused
from penstock.controller.api.messages import RemoveBroker
from penstock.protocol.gen.unregister_broker import UnregisterBrokerResponse, decode_request

_TIMEOUT_S: Final = 20.0


async def handle_unregister_broker(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.ALTER)
    response = UnregisterBrokerResponse(error_message="")
    try:
        await node.client.remove_broker(
            RemoveBroker(node_id=NodeId(request.broker_id), forwarded_for=requester_of(node, ctx)),
            timeout_s=_TIMEOUT_S,
        )
    except (ControllerError, TimeoutError) as error:
        response.error_code = code_of(error)
        response.error_message = error.detail if isinstance(error, RequestRefused) else str(error)
    if not response.error_code:
        record_change(node, ctx, "broker_unregistered", [str(request.broker_id)])
    return encode_response(ctx, response)
