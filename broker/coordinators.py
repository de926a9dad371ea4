"""The coordinators and share partitions of one broker.

Coordinators of groups, transactions and share partitions load the partitions of their internal
topics that this broker leads, and send requests for other partitions to their leaders.
"""

import asyncio
from functools import partial
from uuid import uuid4

from penstock.base.clock import steady
from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from penstock.broker.coordination.log import TopicLog
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.common.topics import ImageTopics
from penstock.broker.groups.consumer.model import ConsumerLimits
from penstock.broker.groups.coordinator.configs import GroupConfig, group_configs
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.broker.groups.share.model import ShareLimits
from penstock.broker.groups.share.partitions.partitions import SharePartitions
from penstock.broker.groups.share.partitions.settings import ShareGroupConfig
from penstock.broker.groups.share.partitions.window import WindowLimits
from penstock.broker.groups.share.state.client import RoutedShareStates
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.groups.streams.model import StreamsLimits
from penstock.broker.handlers.txn_markers import LedMarkers, start_marker
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.quotas.clients import CLIENT_ID_CHARS_MAX
from penstock.broker.requests.node import Node
from penstock.broker.requests.pending_topics import PendingTopics
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.markers import MarkerSender
from penstock.broker.transactions.model import TopicPartition, TransactionLimits
from penstock.broker.transactions.peers import CoordinatorPeers, MarkerPeers
from penstock.broker.transactions.records import record_version
from penstock.broker.transactions.verifier import TransactionVerifier


class Coordinators:
    """Creates the coordinators. Each loads its state when the broker leads the first partition."""

    def __init__(self, node: Node, topics: ImageTopics) -> None:
        """topics: the topics as seen by group coordinators; the caller keeps them up to date."""
        self._node = node
        # A monotonic clock, so that changes of the wall clock cannot expire members and
        # transactions.
        now_ms = steady(node.now_ms, asyncio.get_running_loop().time)
        self.share_coordinator = ShareCoordinator(
            TopicLog(node, SHARE_STATES_TOPIC),
            topics,
            updates_max=node.config.share_coordinator_snapshot_update_records_per_snapshot,
            now_ms=node.now_ms,
        )
        self.share_states = RoutedShareStates(node, self.share_coordinator)
        self.groups = GroupCoordinator(
            TopicLog(node, OFFSETS_TOPIC),
            self._group_limits(),
            now_ms=now_ms,
            new_member_id=lambda client_id: f"{client_id[:CLIENT_ID_CHARS_MAX]}-{uuid4()}",
            consumer_limits=self._consumer_limits,
            topics=topics,
            share_limits=self._share_limits,
            share_states=self.share_states,
            streams_limits=self._streams_limits,
            offset_topics=OffsetTopics(lambda: node.image),
        )
        self.streams_topics = PendingTopics()
        self._marker_peers = MarkerPeers(node, partial(start_marker, node))
        self.transactions = TransactionCoordinator(
            TopicLog(node, TRANSACTIONS_TOPIC),
            MarkerSender(self._leader_of, self._marker_peers.write),
            TransactionLimits(timeout_max_ms=node.config.transaction_max_timeout_ms),
            now_ms=now_ms,
            allocate_producer_id=node.producer_ids.allocate,
            tick_interval_ms=node.config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            record_version=lambda: record_version(node.image),
            local=LedMarkers(node),
            may_lack_records=lambda: any(node.image.nodes.lost_wal_stores()),
        )
        self._coordinator_peers = CoordinatorPeers(node, self.transactions.respond_to_leader)
        self.verifier = TransactionVerifier(
            self._coordinator_of, self._coordinator_peers.send_request
        )
        self.shares = SharePartitions(
            self.share_states, self._share_config, node.storage, node.now_ms
        )

    def close(self) -> None:
        for part in (
            self.streams_topics,
            self.shares,
            self.verifier,
            self._coordinator_peers,
            self.transactions,
            self._marker_peers,
            self.groups,
            self.share_states,
            self.share_coordinator,
        ):
            part.close()

    def reconfigure(self) -> None:
        """Apply changed settings that the coordinators do not read on each use."""
        config = self._node.config
        self.groups.reconfigure(self._group_limits())
        self.transactions.reconfigure(
            timeout_max_ms=config.transaction_max_timeout_ms,
            tick_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        )

    def on_leader_change(self, topic_name: str, partition: int, opened: bool) -> None:
        """Load or drop a partition of an internal topic."""
        coordinators: dict[str, GroupCoordinator | TransactionCoordinator | ShareCoordinator] = {
            OFFSETS_TOPIC: self.groups,
            TRANSACTIONS_TOPIC: self.transactions,
            SHARE_STATES_TOPIC: self.share_coordinator,
        }
        coordinator = coordinators.get(topic_name)
        if coordinator is not None:
            (coordinator.partition_opened if opened else coordinator.partition_closed)(partition)

    # --- limits -----------------------------------------------------------------------------------

    def _group_limits(self) -> GroupLimits:
        config = self._node.config
        return GroupLimits(
            session_timeout_min_ms=config.group_min_session_timeout_ms,
            session_timeout_max_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        )

    def _group_config(self, group_id: str) -> GroupConfig:
        return group_configs(self._node.image, self._node.config).of(group_id)

    def _share_limits(self, group_id: str) -> ShareLimits:
        group = self._group_config(group_id)
        return ShareLimits(
            session_timeout_ms=group.share_session_timeout_ms,
            heartbeat_interval_ms=group.share_heartbeat_interval_ms,
            members_max=self._node.config.group_share_max_size,
        )

    def _streams_limits(self, group_id: str) -> StreamsLimits:
        group = self._group_config(group_id)
        return StreamsLimits(
            session_timeout_ms=group.streams_session_timeout_ms,
            heartbeat_interval_ms=group.streams_heartbeat_interval_ms,
            members_max=self._node.config.group_streams_max_size,
            standby_replicas=group.streams_num_standby_replicas,
            initial_rebalance_delay_ms=group.streams_initial_rebalance_delay_ms,
        )

    def _consumer_limits(self, group_id: str) -> ConsumerLimits:
        config, group = self._node.config, self._group_config(group_id)
        return ConsumerLimits(
            session_timeout_ms=group.consumer_session_timeout_ms,
            heartbeat_interval_ms=group.consumer_heartbeat_interval_ms,
            members_max=config.group_consumer_max_size,
            assignors=config.group_consumer_assignors,
            migration=config.group_consumer_migration_policy,
            classic_members_max=config.group_max_size,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        )

    def _share_config(self, group_id: str) -> ShareGroupConfig:
        config, group = self._node.config, self._group_config(group_id)
        reset = group.share_auto_offset_reset
        return ShareGroupConfig(
            lock_duration_ms=group.share_record_lock_duration_ms,
            begins_earliest=reset.is_earliest,
            begins_ms_ago=reset.duration_ms,
            reads_committed=group.share_is_read_committed,
            limits=WindowLimits(
                records_max=config.group_share_partition_max_record_locks,
                deliveries_max=config.group_share_delivery_count_limit,
            ),
        )

    # --- other coordinators -----------------------------------------------------------------------

    def _coordinator_of(self, transactional_id: str) -> NodeId | None:
        """See `broker.transactions.verifier.CoordinatorOf`."""
        partition = self.transactions.partition_of(transactional_id)
        return None if partition is None else self._leader_of((TRANSACTIONS_TOPIC, partition))

    def _leader_of(self, partition: TopicPartition) -> NodeId | None:
        """See `broker.transactions.markers.LeaderOf`."""
        topic = self._node.image.topics.by_name(partition[0])
        if topic is None or partition[1] >= len(topic.partitions):
            raise KeyError(partition)
        leader = announced_leader(self._node.image, topic.partitions[partition[1]], self._node.gone)
        return None if leader is None else leader.node_id
