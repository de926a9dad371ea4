"""Allocate producer ids that are unique in the cluster, from blocks assigned by the controller. The
remaining ids of a block are lost when the broker ends.
"""

import asyncio

from penstock.broker.partition.local_broker import LocalBroker
from penstock.controller.api.messages import AllocateProducerIds


class ProducerIds:
    """The current block of producer ids. Producers that wait for a new block share a single request
    to the controller.
    """

    def __init__(self, node: LocalBroker) -> None:
        self._node = node
        self._next: int = 0
        self._end: int = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """Return the next producer id. Raises ControllerError or TimeoutError if a new block is
        needed and the controller does not respond.
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
