"""The broker, as seen by its partitions and coordinators: its identity, the partitions that it
leads, and whether it may write.
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
    """Implemented by `broker.node`. Tests use small fakes."""

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
        """Return the follower's image, which is mutable and includes the changes of every
        acknowledged RPC of this broker. Do not keep parts of it across an await.
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
        """Return connections to the other brokers, which the caller must close."""
        ...

    def can_write(self) -> bool:
        """Return False after the session is lost or the broker has detected a fence. It must then
        no longer acknowledge or read (`broker.requests.lease`).
        """
        ...

    @property
    def gone(self) -> Gone:
        """Return the brokers whose processes have died but that the controller has not fenced yet.
        Used to choose the announced leader.
        """
        ...

    def leads_alone(self) -> bool:
        """Return False as soon as another broker might lead this broker's partitions. Always False
        if `can_write` is False.
        """
        ...
