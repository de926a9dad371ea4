"""InitProducerId for idempotent producers: numbers that nobody else in the cluster has.

Invariant: an id is given once; ids come in blocks from the controller, and what is left of a block when the broker ends is never used.
Transactions are not served: a transactional id gets UNSUPPORTED_VERSION, which clients report at once instead of retrying.

Source: Kafka's RPCProducerIdManager, TransactionCoordinator.handleInitProducerId.
"""

import asyncio
from collections.abc import Awaitable

from broker.dispatch import encode_response
from broker.errors import ErrorCode
from broker.ports import Node, RequestContext, Response
from broker.wire import framing
from broker.wire.gen.init_producer_id import InitProducerIdResponse, decode_request
from controller.rpc.messages import AllocateProducerIds


class ProducerIds:
    """The block of this broker, and the handler over it. The controller is asked once for any number of waiting producers."""

    def __init__(self) -> None:
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    def handle(self, node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
        request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
        if request.transactional_id is not None:
            code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
            return encode_response(ctx, InitProducerIdResponse(error_code=code))
        return self._answer(node, ctx)

    async def _answer(self, node: Node, ctx: RequestContext) -> Response:
        return encode_response(ctx, InitProducerIdResponse(producer_id=await self.allocate(node), producer_epoch=0))

    async def allocate(self, node: Node) -> int:
        """The next id. Raises ControllerError or TimeoutError when the controller has to be asked and does not answer."""
        async with self._lock:
            if self._next == self._end:
                request = AllocateProducerIds(node_id=node.node_id, node_epoch=node.node_epoch)
                block = await node.client.allocate_producer_ids(request, timeout_s=node.config.topic_create_timeout_ms / 1_000)
                self._next = block.first_producer_id
                self._end = block.first_producer_id + block.count
            self._next += 1
            return self._next - 1
