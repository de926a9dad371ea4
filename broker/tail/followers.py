"""Track which brokers follow this broker's tails, so that consumers in their racks can be
redirected to them.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.base.ids import NodeId
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.tail.redirects import RedirectTable
from penstock.broker.tail.session import LEAVES_BYTES
from penstock.controller.metadata.delta import MetadataDelta
from penstock.protocol.gen.fetch import FetchRequest
from penstock.stream.ports import BrokerIncarnation

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage

FOLLOWED_S: Final = 5.0
"""How long a broker is considered a follower after its last request."""


class TailFollowers:
    def __init__(self, node: LocalBroker) -> None:
        self._node = node
        self._clock = asyncio.get_running_loop().time
        self.redirects = RedirectTable()
        self._requested_at: dict[BrokerIncarnation, float] = {}

    def record_request(self, request: FetchRequest) -> bool:
        """Return whether a live broker has sent the request. If so, the broker is recorded as a
        follower until it dies, stops sending requests, or leaves.
        """
        replica = request.replica_state
        if replica is None:
            return False
        state = self._node.image.nodes.get(NodeId(replica.replica_id))
        if state is None or state.node_epoch != replica.replica_epoch or state.fenced:
            return False
        follower = BrokerIncarnation(state.node_id, state.node_epoch)
        if request.max_bytes == LEAVES_BYTES:
            self._requested_at.pop(follower, None)
        else:
            self._requested_at[follower] = self._clock()
        return True

    def has(self, node_id: NodeId) -> bool:
        """Return whether the broker is a follower and can therefore serve the tails of partitions
        led here.
        """
        state = self._node.image.nodes.get(node_id)
        if state is None:
            return False
        follower = BrokerIncarnation(node_id, state.node_epoch)
        requested_at = self._requested_at.get(follower)
        return (
            requested_at is not None
            and self._clock() - requested_at < FOLLOWED_S
            and follower not in self._node.gone
        )

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Drop dead brokers."""
        if delta.everything or delta.node_ids:
            for follower in [each for each in self._requested_at if not image.nodes.is_alive(each)]:
                del self._requested_at[follower]
