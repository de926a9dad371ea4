"""The broker as seen by its partitions and coordinators: identity, led partitions, and whether it
may write.
"""

from typing import TYPE_CHECKING, Protocol

from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.broker.config import BrokerConfig
from penstock.broker.partition.leaders import Gone
from penstock.broker.partition.manager import PartitionManager
from penstock.stream.storage import Storage

if TYPE_CHECKING:
    from penstock.broker.network.peers import PeerConnections
    from penstock.controller.api.client import ControllerClient
    from penstock.controller.metadata.image import MetadataImage


class LocalBroker(Protocol):
    """Implemented by `broker.node`; tests use small fakes."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def node_epoch(self) -> NodeEpoch: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def image(self) -> "MetadataImage":
        """Return the follower's image. It is mutable and includes the changes of every acknowledged
        RPC of this broker. Do not keep parts of it across an await.
        """
        ...

    @property
    def client(self) -> "ControllerClient": ...

    @property
    def storage(self) -> Storage: ...

    @property
    def partitions(self) -> PartitionManager: ...

    def now_ms(self) -> Millis: ...

    def connect_peers(self) -> "PeerConnections":
        """Return connections to the other brokers, to be closed by the caller."""
        ...

    def can_write(self) -> bool:
        """Return False once the session is lost or the broker has found a fence: it may not
        acknowledge or read any more (`broker.requests.lease`).
        """
        ...

    @property
    def gone(self) -> Gone:
        """Return the brokers whose process has died before the controller has fenced them, for the
        choice of the announced leader.
        """
        ...

    def leads_alone(self) -> bool:
        """Return False as soon as another broker may lead the partitions of this one. Never True
        while `can_write` is False.
        """
        ...
