"""One start of a simulated broker: the real storage, partitions, coordinators and Kafka handlers.

It is wired like `broker.node.Broker`, without sockets. Every request and response is a Kafka frame;
responses go to the checker when they are sent.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.base.audit import ChangeLog
from penstock.base.clock import steady
from penstock.base.errors import StreamError
from penstock.base.ids import Millis, NodeId, Offset, WalSequence
from penstock.broker.background.cleaner import CleanerDuty
from penstock.broker.background.load_report import LoadReporter
from penstock.broker.background.recovery import RecoveryDuty
from penstock.broker.background.retention import RetentionDuty
from penstock.broker.background.wal_place import WalPlaceDuty
from penstock.broker.config import BrokerConfig
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from penstock.broker.coordination.log import TopicLog
from penstock.broker.dynamic_settings import BrokerSettings
from penstock.broker.groups.common.topics import ImageTopics
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.broker.groups.share.partitions.partitions import SharePartitions
from penstock.broker.groups.share.partitions.sessions import ShareSessions
from penstock.broker.groups.share.state.client import RoutedShareStates
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.handlers.produce import handle_produce
from penstock.broker.handlers.share.requests import release
from penstock.broker.handlers.table import INLINE, make_handlers
from penstock.broker.handlers.topics.delete_records import handle_delete_records
from penstock.broker.handlers.txn_markers import LedMarkers, start_marker
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.peers import PeerConnections
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.partition.log import LogConfig
from penstock.broker.partition.manager import PartitionManager
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.dispatch import RequestDispatcher
from penstock.broker.requests.fetch_coalescing import SameFetches
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.requests.pending_topics import PendingTopics
from penstock.broker.requests.record_checks import RecordChecks
from penstock.broker.requests.topic_change_queue import PartitionTurns
from penstock.broker.tail.followers import TailFollowers
from penstock.broker.tail.links import TailLinks
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.markers import MarkerSender
from penstock.broker.transactions.model import TopicPartition, TransactionLimits
from penstock.broker.transactions.peers import CoordinatorPeers, MarkerPeers
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.broker.transactions.records import record_version
from penstock.broker.transactions.verifier import TransactionVerifier
from penstock.broker.wal_store import BrokerStores
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.confirmed_reads import ConfirmedReads
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import DrainBroker, RegisterBroker, UnregisterBroker
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.backup.layout import HISTORY_GAP
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.features import supported_features
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.protocol import apis
from penstock.protocol.batch.records import Record, decode_records
from penstock.protocol.gen import delete_records as wire_delete
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.gen import produce as wire_produce
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cleaning.cleaner import LogCleaner
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.errors import WalFenced
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.read.object_reader import ObjectReader
from penstock.stream.recovery.recoverer import recover_wal
from penstock.stream.storage import Storage
from penstock.stream.wal.wal_store import ConfiguredWalStore
from tests.sim.checkers import Part
from tests.sim.connections import SimPeers
from tests.sim.control import addresses
from tests.sim.frames import CONNECTION, decode_response, encode_request
from tests.sim.limits import CLEANER_INTERVAL_S
from tests.sim.log_starts import CHECK_INTERVAL_S
from tests.sim.loop import Process
from tests.sim.places import place_of
from tests.sim.share_consumers import CONFIG
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

COORDINATOR_PARTITIONS = 2
PRODUCE_VERSION = 11
FETCH_VERSION = 12
RACK = "r"
"""Rack of all brokers, so that each serves objects to clients that send this rack; see also
`rack_of`.
"""
DELETE_RECORDS_VERSION = 2


def rack_of(node_id: int, racks: int) -> str:
    """Return the rack of a broker, if brokers are in this number of racks."""
    return RACK if racks == 1 else f"{RACK}{node_id % racks}"


def batches_of(records: Any) -> list[list[Record]]:
    data = memoryview(bytes(records or b""))
    batches: list[list[Record]] = []
    at = 0
    while at < len(data):
        batches.append(list(decode_records(data[at:])))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return batches


@dataclass(frozen=True, slots=True)
class FetchResult:
    error_code: int
    high_watermark: int
    log_start_offset: int
    batches: list[list[Record]]


class SimBroker:
    """A `broker.requests.node.Node`, as far as the simulator's clients need it."""

    def __init__(self, world: "World", node_id: int, start: int) -> None:
        self.world = world
        self.rng = Random(f"{world.seed}/broker/{node_id}/{start}")
        self.process = Process(f"b{node_id}.{start}")
        self.process.network = world.network
        self.node_id = NodeId(node_id)
        self.me = BrokerIncarnation(self.node_id, world.no_epoch)
        self.cluster_id = "sim"
        self.config = BrokerConfig(
            node_id=node_id,
            rack=rack_of(node_id, world.limits.racks),
            offsets_topic_num_partitions=COORDINATOR_PARTITIONS,
            transaction_state_log_num_partitions=COORDINATOR_PARTITIONS,
            share_coordinator_state_topic_num_partitions=COORDINATOR_PARTITIONS,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=500,
        )
        self.stream_config = world.limits.stream
        self.compaction_config = world.limits.compaction
        self.authorizer: Authorizer | None = None
        self.change_log = ChangeLog(world.loop.time)
        self.static_settings = BrokerSettings(
            self.config, self.stream_config, self.compaction_config
        )
        self.skew_ms = world.draw_skew_ms(self.rng)
        self.raw_store = SimStore(world.bucket, world.weather, self.rng, world.trace)
        self.store: ObjectStore = self.raw_store
        if world.limits.retrying_store:
            loop = world.loop
            self.store = RetryingStore(
                self.raw_store, RetryPolicy(deadline_ms=10_000), clock=loop.time, rng=self.rng
            )
        self.raw_wal_store = world.wal_client(Random(f"{world.seed}/wal/{self.process.name}"))
        self.stores = BrokerStores(
            self.store,
            None
            if self.raw_wal_store is None
            else ConfiguredWalStore(self.raw_wal_store, "memory:"),
            world.limits.stream,
        )
        self.store = self.stores.store
        self.serving = False
        self.leaving = False
        self.follower: MetadataFollower
        self.storage: Storage
        self.partitions: PartitionManager
        self.cleaning: CleanerDuty
        self.client: ControllerClient
        self.groups: GroupCoordinator
        self.transactions: TransactionCoordinator
        self.share_coordinator: ShareCoordinator
        self.share_states: RoutedShareStates
        self.shares: SharePartitions
        self.tails: TailLinks
        self.tail_followers: TailFollowers
        self.share_sessions = ShareSessions(self.config.group_share_max_share_sessions)
        self.topics = ImageTopics()
        self.producer_ids = ProducerIds(self)
        self.fetch_sessions = FetchSessions(self.config.fetch_session_slots_max, self.rng)
        self.partition_turns = PartitionTurns()
        self.record_checks = RecordChecks(None)
        self.coalesced_fetches = SameFetches()
        self.streams_topics = PendingTopics()
        self.dispatcher: RequestDispatcher
        # No probes: `gone` contains the peers that the world lets this broker suspect.
        self.peer_watch = PeerWatch(
            self.node_id, PeerConnections(lambda: self.image), lambda _: None
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._correlation = 0

    # --- broker.ports.Node ------------------------------------------------------------------------

    @property
    def node_epoch(self) -> Any:
        return self.me.node_epoch

    @property
    def image(self) -> MetadataImage:
        return self.follower.image

    @property
    def log_dir(self) -> str:
        return "memory:"

    def now_ms(self) -> Millis:
        return self.world.now_ms(self.skew_ms)

    def can_write(self) -> bool:
        return (self.follower.can_write() or not self.world.leases) and not self.storage.fenced

    @property
    def is_unsure(self) -> bool:
        """Whether reads from this broker may be outdated: its node has restarted in another
        process, the cluster was recovered from the store, or the run has no leases.
        """
        return not self.world.leases or self in self.world.zombies or self.has_old_history

    @property
    def has_old_history(self) -> bool:
        """Whether the broker's metadata precede a recovery from the store. It may be ahead of the
        backup with which the new history starts.
        """
        history, ours = self.world.metadata.image.end_offset, self.follower.offset
        return history // HISTORY_GAP != ours // HISTORY_GAP

    def leads_alone(self) -> bool:
        return (self.follower.leads_alone() or not self.world.leases) and not self.storage.fenced

    @property
    def gone(self) -> set[BrokerIncarnation]:
        return self.world.suspected - {self.me}

    def departed(self) -> list[NodeState]:
        return []

    # --- lifecycle --------------------------------------------------------------------------------

    def start(self) -> None:
        self.world.loop.call_soon(
            lambda: self._tasks.append(self.world.loop.create_task(self._run())),
            context=self.process.context(),
        )

    async def _run(self) -> None:
        try:
            await self._start()
        except (ControllerError, StreamError, ObjectStoreError, TimeoutError) as error:
            self._end(f"start failed: {error!r}")

    async def _start(self) -> None:
        world, limits = self.world, self.world.limits
        self.client = ControllerClient(addresses(limits.controllers), rng=self.rng)
        request = RegisterBroker(
            node_id=self.node_id,
            incarnation_id=UUID(int=self.rng.getrandbits(128)),
            host="h",
            port=9092,
            machine_host="m",
            rack=self.config.rack if limits.racks > 1 else None,
            features=supported_features(has_wal_store=self.stores.has_wal_store),
            wal_delete_grace_ms=limits.stream.wal_delete_grace_ms,
        )
        registered = await self.stores.register(self.client, request, timeout_s=30)
        me = self.me = BrokerIncarnation(registered.node_id, registered.node_epoch)
        self.follower = MetadataFollower(self.client, me, rng=self.rng)
        self.client.bind(self.follower)
        self.confirmed_reads = ConfirmedReads(
            partial(self.client.confirm_metadata, timeout_s=limits.metadata_timeout_s)
        )
        await self.follower.start(30)
        if self.stores.has_wal_store:
            self.stores.on_batch(MetadataDelta(everything=True), self.image)
            self.follower.subscribe(self.stores.on_batch)
        metadata = ControllerStreamMetadata(
            self.client, self.follower, me, timeout_s=limits.metadata_timeout_s
        )
        self.storage = Storage(
            self.store,
            metadata,
            me,
            limits.stream,
            now_ms=self.now_ms,
            rng=self.rng,
            on_fenced=self._on_storage_fenced,
        )
        await self.storage.start()
        self.partitions = PartitionManager(
            me,
            self.storage,
            lambda: self.follower.image,
            self.follower.subscribe,
            self.now_ms,
            config=LogConfig(checkpoint_bytes=limits.checkpoint_bytes),
            gone=lambda: self.gone,
        )
        self._start_coordinators()
        self.tails, self.tail_followers = TailLinks(self, self.rng), TailFollowers(self)
        self.follower.subscribe(self.tails.on_batch)
        self.partitions.add_leader_change_listener(self._on_leader_change)
        recovery = RecoveryDuty(
            me,
            lambda: self.follower.image,
            lambda failed, start: recover_wal(
                self.store,
                metadata,
                failed,
                start,
                recoverer=me,
                now_ms=self.now_ms(),
                config=limits.stream,
                cache_slot=self.storage.reader.cache_object,
            ),
            self.rng,
        )
        self.follower.on_session(self._on_session)
        self.follower.failed.add_done_callback(lambda _: self._end("the follower is over"))
        self.follower.subscribe(recovery.on_batch)
        await self.partitions.start()
        turn = asyncio.Lock()
        reader = ObjectReader(self.store, BlockCache(limits.stream.block_cache_bytes_max))
        cleaner = LogCleaner(
            self.store,
            metadata,
            reader,
            me,
            owned=self.storage.open_handles,
            turn=turn,
            forget=self.storage.forget_cached,
            now_ms=self.now_ms,
            config=world.cleaner,
        )
        compactor = Compactor(
            self.store,
            metadata,
            reader,
            me,
            owned=self.storage.open_handles,
            now_ms=self.now_ms,
            cached=self.storage.cached_entries,
            config=limits.compaction,
            assigned=lambda: reporter.rewrite,
            turn=turn,
        )
        if limits.compacting:
            self._tasks.append(world.loop.create_task(compactor.run()))

        async def probe() -> None:
            await self.store.put(f"probe/{self.node_id}", b"x")

        reporter = LoadReporter(me, self.client, self.partitions, probe, interval_s=0.3)
        if limits.controller.auto_balance or (limits.wal_store and limits.compacting):
            self._tasks.append(world.loop.create_task(reporter.run()))
        if world.log_starts is not None:
            retention = RetentionDuty(
                lambda: self.follower.image,
                self.partitions,
                self._trim_by_retention,
                now_ms=self.now_ms,
                interval_s=CHECK_INTERVAL_S,
                rng=self.rng,
            )
            self._tasks.append(world.loop.create_task(retention.run()))
        self.cleaning = CleanerDuty(
            lambda: self.follower.image,
            self.partitions,
            self.partitions.checkpoint_durably,
            metadata,
            cleaner.clean,
            upload=self.storage.upload,
            buffered_bytes=self.storage.buffered_bytes,
            now_ms=self.now_ms,
            interval_s=CLEANER_INTERVAL_S,
            rng=self.rng,
        )
        if world.compacted is not None and world.compacted.brokers_clean:
            self._tasks.append(world.loop.create_task(self.cleaning.run()))
        if self.stores.has_wal_store:
            duty = WalPlaceDuty(
                self.storage,
                self.stores,
                current=lambda: self.image.current_wal_store,
                is_leaving=lambda: self.image.nodes.next_to_leave() == me,
                fallback_after_ms=lambda: limits.stream.wal_leave_after_ms,
                probe_key=f"probe/wal-{me.node_id}",
                now=world.loop.time,
                return_after_s=limits.wal_return_after_s,
            )
            self._tasks.append(world.loop.create_task(duty.run()))
        self.dispatcher = RequestDispatcher(self, make_handlers(), INLINE)
        self.serving = True
        world.trace("serving", self.process.name, me.node_epoch)

    def _start_coordinators(self) -> None:
        now_ms = steady(self.now_ms, self.world.loop.time)
        self.topics.reset(self.image)
        self.follower.subscribe(self.topics.on_batch)
        self.share_coordinator = ShareCoordinator(
            TopicLog(self, SHARE_STATES_TOPIC),
            self.topics,
            updates_max=self.world.coordination.updates_max,
            now_ms=self.now_ms,
            compaction=self.world.coordination.compaction,
        )
        self.follower.subscribe(self._on_topics)
        self.share_states = RoutedShareStates(self, self.share_coordinator)
        self.shares = SharePartitions(
            self.share_states, lambda _: CONFIG, self.storage, self.now_ms
        )
        self.partitions.add_leader_change_listener(self.shares.on_leader_change)
        self.groups = GroupCoordinator(
            TopicLog(self, OFFSETS_TOPIC),
            self.world.coordination.groups,
            now_ms=now_ms,
            new_member_id=lambda _: f"m{self.rng.getrandbits(64)}",
            compaction=self.world.coordination.compaction,
            consumer_limits=lambda _: self.world.coordination.consumers,
            topics=self.topics,
            share_limits=lambda _: self.world.coordination.shares,
            share_states=self.share_states,
            streams_limits=lambda _: self.world.coordination.streams,
            offset_topics=OffsetTopics(lambda: self.image),
        )
        self.transactions = TransactionCoordinator(
            TopicLog(self, TRANSACTIONS_TOPIC),
            MarkerSender(self._leader_of, MarkerPeers(self, partial(start_marker, self)).write),
            TransactionLimits(),
            now_ms=now_ms,
            allocate_producer_id=self.producer_ids.allocate,
            tick_interval_ms=self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            record_version=lambda: record_version(self.image),
            local=LedMarkers(self),
            may_lack_records=lambda: any(self.image.nodes.lost_wal_stores()),
            compaction=self.world.coordination.compaction,
        )
        self.follower.subscribe(lambda delta, _: self.groups.topics_changed(delta))
        self.verifier = TransactionVerifier(
            self._coordinator_of,
            CoordinatorPeers(self, self.transactions.respond_to_leader).send_request,
        )

    def _coordinator_of(self, transactional_id: str) -> NodeId | None:
        partition = self.transactions.partition_of(transactional_id)
        return None if partition is None else self._leader_of((TRANSACTIONS_TOPIC, partition))

    def connect_peers(self) -> SimPeers:
        return SimPeers(self.world, self)

    def expire_offsets(self) -> None:
        if self.serving:
            self.groups.expire()

    def _leader_of(self, partition: TopicPartition) -> NodeId | None:
        topic = self.image.topics.by_name(partition[0])
        if topic is None or partition[1] >= len(topic.partitions):
            raise KeyError(partition)
        leader = announced_leader(self.image, topic.partitions[partition[1]], self.gone)
        return None if leader is None else leader.node_id

    def _on_session(self, has_session: bool) -> None:
        if has_session:
            self.storage.resume_acknowledging()
            return
        if self.world.leases or self.follower.fenced:
            self.storage.stop_acknowledging()
            self.partitions.wake_readers()
        if self.follower.fenced:
            self._end("fenced by the controller")

    def _on_storage_fenced(self, error: StreamError) -> None:
        if (
            isinstance(error, WalFenced)
            and error.sequence >= 0
            and self.world.checker.is_own_slot(self.me, self._slot_key(error.sequence))
        ):
            self.world.fail(f"{self.me} takes its own object in slot {error.sequence} for a fence")
        self._end(f"storage: {error}")

    def _slot_key(self, sequence: WalSequence) -> str:
        wal = self.image.nodes.wal(self.me)
        return wal_key(self.me, sequence, IN_STORE if wal is None else wal.store_id)

    def _on_topics(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.share_coordinator.topics_changed(None if delta.everything else delta.topic_ids)

    def _on_leader_change(self, topic: str, index: int, opened: bool) -> None:
        coordinators: dict[str, Any] = {
            OFFSETS_TOPIC: self.groups,
            TRANSACTIONS_TOPIC: self.transactions,
            SHARE_STATES_TOPIC: self.share_coordinator,
        }
        if topic in coordinators:
            coordinator = coordinators[topic]
            (coordinator.partition_opened if opened else coordinator.partition_closed)(index)
        if opened:
            partition = self.partitions.get(topic, index)
            assert isinstance(partition, Partition)
            self.world.trace(
                "opened",
                self.process.name,
                topic,
                index,
                partition.leader_epoch,
                partition.high_watermark,
            )
            self.world.share_consumers.opened((topic, index))
            place = place_of(self.image, (topic, index))
            self.world.checker.opened(
                place, partition.leader_epoch, self.me, partition.high_watermark
            )
            self.world.stable.told(place, partition.leader_epoch, partition.last_stable_offset)

    def _end(self, reason: str) -> None:
        if not self.leaving:
            self.world.broker_ended(self, reason)

    async def leave(self) -> None:
        """Stop gracefully, as `broker.node.Broker.stop` does."""
        self.leaving = True
        try:
            async with asyncio.timeout(20):
                if self.serving and not self.storage.fenced and not self.follower.fenced:
                    await self._drain()
                    await self.partitions.close()
                    await self.storage.close(timeout_s=5)
                    await self.client.unregister_broker(
                        UnregisterBroker(
                            node_id=self.node_id,
                            node_epoch=self.node_epoch,
                            wal_end=self.storage.wal_end,
                        )
                    )
        except (TimeoutError, ControllerError, StreamError) as error:
            self.world.trace("left_unclean", self.process.name, type(error).__name__)
        self.world.broker_ended(self, "left")

    async def _drain(self) -> None:
        remaining = 1
        while remaining:
            request = DrainBroker(
                node_id=self.node_id, node_epoch=self.node_epoch, partitions_max=2
            )
            remaining = (await self.client.drain_broker(request, timeout_s=20)).remaining
            await self.partitions.settled()

    # --- requests ---------------------------------------------------------------------------------

    def deliver(self, handler: Callable[..., None], *args: Any) -> None:
        """Deliver something from the network; it is handled when this process runs."""
        self.world.loop.call_soon(handler, *args, context=self.process.context())

    def on_connection_closed(self, connection_id: int) -> None:
        """Run in the broker's process."""
        for session in self.share_sessions.close_connection(connection_id):
            self._tasks.append(self.world.loop.create_task(release(self, session)))

    def context(self, api: Any, version: int, body: bytes) -> RequestContext:
        self._correlation += 1
        frame = memoryview(bytearray(body))
        return RequestContext(
            api.key, version, self._correlation, "sim", CONNECTION, frame, 0, self.world.loop.time()
        )

    def produce(
        self,
        body: bytes,
        sent: dict[Part, list[bytes]],
        respond: Callable[[dict[Part, Any]], None],
        version: int = PRODUCE_VERSION,
    ) -> None:
        """sent: the records in the request, for the checker."""
        if not self.serving:
            return
        epochs = {part: self._epoch(part) for part in sent}
        places = {part: place_of(self.image, part) for part in sent}

        def decode(response: Any) -> None:
            message = decode_response(apis.PRODUCE, version, response)
            results = {
                (topic.name, item.index): item
                for topic in message.responses
                for item in topic.partition_responses
            }
            for part, item in results.items():
                if item.error_code == 0:
                    self.world.trace("ack", self.process.name, part, item.base_offset)
                    is_same = place_of(self.image, part) == places[part]
                    epoch = (
                        epochs[part]
                        if epochs[part] is not None or not is_same
                        else self._epoch(part)
                    )
                    self.world.checker.acknowledged(
                        places[part], epoch, self.me, item.base_offset, sent[part]
                    )
            respond(results)

        try:
            handle_produce(self, self.context(apis.PRODUCE, version, body), decode)
        except CannotRespond as error:
            self.world.trace("connection_closed", self.process.name, str(error))

    def _epoch(self, part: Part) -> int | None:
        found = self.partitions.get(*part)
        return found.leader_epoch if isinstance(found, Partition) else None

    def fetch(
        self,
        requested: dict[Part, tuple[int, int]],
        max_wait_ms: int,
        max_bytes: int,
        respond: Callable[[dict[Part, Any]], None],
    ) -> None:
        """requested: offset and leader epoch by partition. Responds with results whose records are
        record batches.
        """
        if self.serving:
            for part in requested:
                if isinstance(found := self.partitions.get(*part), Partition):
                    self.world.checker.watermark(part, found.leader_epoch, found.high_watermark)
            self._tasks.append(
                self.world.loop.create_task(self._fetch(requested, max_wait_ms, max_bytes, respond))
            )

    async def _fetch(
        self,
        requested: dict[Part, tuple[int, int]],
        max_wait_ms: int,
        max_bytes: int,
        respond: Callable[[dict[Part, Any]], None],
    ) -> None:
        by_topic: dict[str, list[Any]] = {}
        for (topic, index), (offset, epoch) in requested.items():
            fields = wire_fetch.FetchPartition(
                partition=index,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=max_bytes,
            )
            by_topic.setdefault(topic, []).append(fields)
        topics = [
            wire_fetch.FetchTopic(topic=topic, partitions=items)
            for topic, items in by_topic.items()
        ]
        request = wire_fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=topics,
        )
        body = encode_request(apis.FETCH, FETCH_VERSION, request)
        log_starts = self.world.log_starts
        before = {} if log_starts is None else log_starts.reported()
        response = handle_fetch(self, self.context(apis.FETCH, FETCH_VERSION, body))
        if asyncio.iscoroutine(response):
            try:
                response = await response
            except (ObjectStoreError, StreamError, TimeoutError) as error:
                self.world.trace("fetch_failed", self.process.name, type(error).__name__)
                return
        message = decode_response(apis.FETCH, FETCH_VERSION, response)
        results: dict[Part, Any] = {}
        for topic in message.responses:
            for item in topic.partitions:
                part = (topic.topic, item.partition_index)
                batches = batches_of(item.records) if item.error_code == 0 else []
                results[part] = FetchResult(
                    item.error_code, item.high_watermark, item.log_start_offset, batches
                )
                if log_starts is not None and item.log_start_offset >= 0 and not self.is_unsure:
                    log_starts.note_response(part, item.log_start_offset, before)
                if item.error_code == 0:
                    self.world.checker.fetched(
                        part, item.high_watermark, requested[part][0], batches
                    )
        respond(results)

    async def _trim_by_retention(
        self, starts: Sequence[tuple[Partition, Offset]]
    ) -> list[Exception | None]:
        log_starts = self.world.log_starts
        assert log_starts is not None
        for partition, start in starts:
            log_starts.note_retention((partition.topic_name, partition.index), start)
        return await self.partitions.trim_all(starts)

    async def trim(self, part: Part, share: float) -> None:
        """Trim a log as the storage does, whatever the topic's policy."""
        found = self.partitions.get(*part)
        if not isinstance(found, Partition):
            return
        offset = found.log_start_offset + int(
            (found.high_watermark - found.log_start_offset) * share
        )
        if self.world.log_starts is not None:
            self.world.log_starts.record_request(part, offset)
            self.world.log_starts.note_retention(part, offset)
        try:
            await self.partitions.trim(found, Offset(offset))
        except (ControllerError, StreamError, TimeoutError) as error:
            self.world.trace("trim_failed", self.process.name, type(error).__name__)
        else:
            self.world.trace("trimmed", part, offset)

    async def delete_records(self, part: Part, share: float, timeout_ms: int) -> None:
        """A client asks this broker to delete a share of a log. The shortest timeout is 1 s; if the
        store or the network is slow, the response of the controller comes too late.
        """
        found, log_starts = self.partitions.get(*part), self.world.log_starts
        assert log_starts is not None
        if not isinstance(found, Partition):
            return
        size = found.high_watermark - found.log_start_offset
        offset = found.log_start_offset + int(size * share)
        requested = wire_delete.DeleteRecordsPartition(part[1], offset)
        request = wire_delete.DeleteRecordsRequest(
            [wire_delete.DeleteRecordsTopic(part[0], [requested])], timeout_ms=timeout_ms
        )
        body = encode_request(apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, request)
        log_starts.record_request(part, offset)
        before = log_starts.reported()
        response = await handle_delete_records(
            self, self.context(apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, body)
        )
        message = decode_response(apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, response)
        (item,) = message.topics[0].partitions
        self.world.trace("delete_records", part, offset, item.error_code, item.low_watermark)
        if item.error_code == 0:
            log_starts.note_response(part, item.low_watermark, before)
            if item.low_watermark < offset:
                self.world.fail(
                    f"{part}: {offset} was requested, {item.low_watermark} was returned"
                )

    def spawn(self, make: Callable[[], Any]) -> None:
        self.deliver(lambda: self._tasks.append(self.world.loop.create_task(make())))


def produce_request(
    batches: dict[Part, bytes],
    timeout_ms: int,
    transactional_id: str | None = None,
    version: int = PRODUCE_VERSION,
) -> bytes:
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), records in batches.items():
        by_topic.setdefault(topic, []).append(wire_produce.PartitionProduceData(index, records))
    data = [
        wire_produce.TopicProduceData(name=topic, partition_data=items)
        for topic, items in by_topic.items()
    ]
    return encode_request(
        apis.PRODUCE,
        version,
        wire_produce.ProduceRequest(transactional_id, -1, timeout_ms, data),
    )
