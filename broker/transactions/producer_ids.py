"""Producer ids that nobody else in the cluster has.

Invariant: an id is given once; ids come in blocks from the controller, and what is left of a block
when the broker ends is never used.

Source: Kafka's RPCProducerIdManager.
"""

import asyncio

from broker.partition.local_broker import LocalBroker
from controller.api.messages import AllocateProducerIds


class ProducerIds:
    """The block of this broker. The controller is asked once for any number of waiting
    producers.
    """

    def __init__(self, node: LocalBroker) -> None:
        self._node = node
        self._next: int = 0
        self._end: int = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """The next id. Raises ControllerError or TimeoutError when the controller has to be asked
        and does not answer.
        """
        async with self._lock:
            if self._next == self._end:
                node = self._node
                request = AllocateProducerIds(node_id=node.node_id, node_epoch=node.node_epoch)
                block = await node.client.allocate_producer_ids(
                    request, timeout_s=node.config.topic_create_timeout_ms / 1_000
                )
                self._next = block.first_producer_id
                self._end = block.first_producer_id + block.count
            self._next += 1
            return self._next - 1
