"""The broker as seen by handlers, and the two types of handlers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.base.audit import ChangeLog
from penstock.broker.client_metrics.collection import ClientMetrics
from penstock.broker.dynamic_settings import BrokerSettings
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.partitions.partitions import SharePartitions
from penstock.broker.groups.share.partitions.sessions import ShareSessions
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.groups.share.state.model import ShareStateStore
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.request import RequestContext, Respond, Response
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.fetch_coalescing import SameFetches
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.requests.pending_topics import PendingTopics
from penstock.broker.requests.record_checks import RecordChecks
from penstock.broker.requests.topic_change_queue import PartitionTurns
from penstock.broker.security.delegation_tokens import DelegationTokens
from penstock.broker.tail.followers import TailFollowers
from penstock.broker.tail.links import TailLinks
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.broker.transactions.verifier import TransactionVerifier
from penstock.controller.api.confirmed_reads import ConfirmedReads
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

if TYPE_CHECKING:
    from penstock.controller.api.follower import MetadataFollower
    from penstock.controller.metadata.nodes import NodeState


class Node(LocalBroker, Protocol):
    """The broker, as seen by handlers."""

    @property
    def log_dir(self) -> str:
        """Return the name of the object store, for clients that request log directories."""
        ...

    @property
    def static_settings(self) -> BrokerSettings:
        """Return the settings of the process, which broker configs can override."""
        ...

    @property
    def authorizer(self) -> Authorizer | None:
        """Return the authorizer, or None if ACLs are disabled."""
        ...

    @property
    def client_metrics(self) -> ClientMetrics | None:
        """Return the client metrics of this broker, or None if it has no receiver for them."""
        ...

    @property
    def delegation_tokens(self) -> DelegationTokens: ...

    @property
    def change_log(self) -> ChangeLog:
        """Return the part of the audit log with changes made by clients."""
        ...

    @property
    def stream_config(self) -> StreamConfig: ...

    @property
    def compaction_config(self) -> CompactionConfig: ...

    @property
    def follower(self) -> "MetadataFollower": ...

    @property
    def peer_watch(self) -> PeerWatch: ...

    @property
    def record_checks(self) -> RecordChecks: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def partition_turns(self) -> PartitionTurns: ...

    @property
    def coalesced_fetches(self) -> SameFetches: ...

    @property
    def share_sessions(self) -> ShareSessions: ...

    @property
    def shares(self) -> SharePartitions: ...

    @property
    def tails(self) -> TailLinks: ...

    @property
    def tail_followers(self) -> TailFollowers: ...

    @property
    def streams_topics(self) -> PendingTopics: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def confirmed_reads(self) -> ConfirmedReads:
        """Return the object that confirms that the image is current."""
        ...

    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def share_coordinator(self) -> ShareCoordinator:
        """Return the share coordinator of the partitions that this broker leads."""
        ...

    @property
    def share_states(self) -> ShareStateStore:
        """Return a client for the states of all share partitions, regardless of their
        coordinator.
        """
        ...

    @property
    def verifier(self) -> TransactionVerifier: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    def departed(self) -> Sequence["NodeState"]:
        """Return the brokers that have recently left."""
        ...


Handler: TypeAlias = Callable[[Node, RequestContext], Response | Awaitable[Response]]
"""Handles one request: returns the response, or a coroutine that the dispatcher runs as a task,
which it cancels when the connection closes.
"""

InlineHandler: TypeAlias = Callable[[Node, RequestContext, Respond], Awaitable[None] | None]
"""Handles one request by calling `respond`, either immediately or later from a callback, without a
task. Returns an awaitable only for long requests. Used for Produce.
"""
