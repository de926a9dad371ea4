"""This broker as its partitions and coordinators see it: who it is, what it leads, and whether it
still may.

Must not: import a handler or `broker.node`.
"""

from typing import TYPE_CHECKING, Protocol

from base.ids import Millis, NodeEpoch, NodeId
from broker.config import BrokerConfig
from broker.partition.manager import PartitionManager
from stream.storage import Storage

if TYPE_CHECKING:
    from controller.api.client import ControllerClient
    from controller.metadata.image import MetadataImage


class LocalBroker(Protocol):
    """Implemented by `broker.node`; tests have small fakes."""

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
        """The follower's image: mutable, never behind what an answered RPC of ours produced. Do not
        keep parts across an await.
        """
        ...

    @property
    def client(self) -> "ControllerClient": ...

    @property
    def storage(self) -> Storage: ...

    @property
    def partitions(self) -> PartitionManager: ...

    def now_ms(self) -> Millis: ...

    def can_write(self) -> bool:
        """False once the session is lost or a fence was met: nothing may be acknowledged or read
        any more (`broker.handlers.lease`).
        """
        ...

    def leads_alone(self) -> bool:
        """False as soon as another broker may lead what this one leads: never True while
        `can_write` is False.
        """
        ...
