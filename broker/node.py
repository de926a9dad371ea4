"""Start, run and stop one broker incarnation.

Only this startup order is safe: store, probe, bound ports, registration (new node epoch), metadata,
WAL, partitions, clients. Shutdown uses the reverse order.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, Final
from uuid import uuid4

import structlog

from penstock.base.audit import ChangeLog
from penstock.base.clock import counting_suspensions, wall_ms
from penstock.base.errors import StreamError
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    WalSequence,
)
from penstock.base.listeners import Listener
from penstock.base.version import VERSION
from penstock.broker import self_check
from penstock.broker.background.cleaner import CleanerDuty
from penstock.broker.background.duties import PROBE_PREFIX, Duties
from penstock.broker.background.quotas import QuotaDuty
from penstock.broker.background.recovery import RecoveryDuty
from penstock.broker.background.retention import RetentionDuty
from penstock.broker.background.wal_place import WalPlaceDuty
from penstock.broker.client_metrics.collection import ClientMetrics
from penstock.broker.client_metrics.sender import MetricsSender
from penstock.broker.config import CHECK_STRICT, CHECK_WARN, BrokerConfig
from penstock.broker.coordinators import Coordinators
from penstock.broker.dynamic_settings import BrokerSettings, changed_names, settle
from penstock.broker.groups.common.topics import ImageTopics
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.partitions.partitions import SharePartitions
from penstock.broker.groups.share.partitions.sessions import ShareSession, ShareSessions
from penstock.broker.groups.share.state.client import RoutedShareStates
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.handlers.authentication import AuthenticatingDispatcher
from penstock.broker.handlers.share.requests import release
from penstock.broker.handlers.table import API_RIGHTS, INLINE, make_handlers
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.peers import PeerConnections
from penstock.broker.network.server import Server
from penstock.broker.partition.log import LogConfig
from penstock.broker.partition.manager import PartitionManager
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.requests.dispatch import RequestDispatcher
from penstock.broker.requests.fetch_coalescing import SameFetches
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.requests.recent_brokers import DepartedBrokers
from penstock.broker.requests.record_checks import record_checks
from penstock.broker.requests.topic_change_queue import PartitionTurns
from penstock.broker.security.access import ClientAccess
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.delegation_tokens import DelegationTokens
from penstock.broker.security.peers import PeerAccess
from penstock.broker.tail.followers import TailFollowers
from penstock.broker.tail.links import TailLinks
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.broker.transactions.verifier import TransactionVerifier
from penstock.broker.wal_store import BrokerStores
from penstock.controller.api.client import ControllerClient, log_problem
from penstock.controller.api.confirmed_reads import ConfirmedReads
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import (
    DrainBroker,
    MoveTiming,
    RegisterBroker,
    ReportMoves,
    UnregisterBroker,
)
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.api.tls import TlsFiles
from penstock.controller.metadata.configs import BROKER_RESOURCE
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.features import supported_features
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.records import DelegationTokenRecord, NodeListener
from penstock.objectstore.metered import StoreStats
from penstock.objectstore.ports import ObjectStore
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalFenced
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.recovery.recoverer import recover_wal
from penstock.stream.storage import Storage
from penstock.stream.wal.tracing import Tracing
from penstock.stream.wal.wal_store import ConfiguredWalStore

log = structlog.get_logger(__name__)

_DRAIN_SHARE: Final = 0.6
"""Share of the shutdown timeout for moving partitions away. The rest is for uploading and
unregistering.
"""
_DRAIN_COUNT: Final = 100
"""Number of partitions that a draining broker moves concurrently."""
_REPORT_TIMEOUT_S: Final = 5.0
_CONFIRM_TIMEOUT_S: Final = 5.0
"""How long offset requests wait for the controller if they need current metadata."""


class Broker:
    """One incarnation of a broker; implements `broker.requests.node.Node`.

    It serves clients only after its metadata has caught up, and does not acknowledge or read
    anything while its session is lost. A fenced incarnation never serves again: it completes
    `ended`, and its supervisor restarts it with a new epoch.

    Use `broker = await Broker.start(config, store)`, then `await broker.ended` or `broker.stop()`.
    The caller owns the store, which `stop` does not close.
    """

    is_wal_fenced = False
    """Whether another broker has fenced the WAL to recover it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: ObjectStore,
        stream_config: StreamConfig,
        compaction_config: CompactionConfig,
        *,
        security: SecurityConfig,
        store_stats: Callable[[], StoreStats] | None = None,
        tracing: Tracing | None = None,
        log_dir: str = "memory:",
        tls: TlsFiles | None = None,
        metrics_sender: MetricsSender | None = None,
        wal_store: ConfiguredWalStore | None = None,
    ) -> None:
        """Create a broker without starting it. wal_store: None if the WAL is written to `store`.

        store_stats: returns the store request counters for load reports; None omits them. tracing:
        None disables tracing. log_dir: the name of the store that clients see. tls: for connections
        to controllers; None for plaintext. metrics_sender: forwards client metrics; None disables
        them.
        """
        self._store_stats, self._tracing, self.log_dir = store_stats, tracing, log_dir
        self.config = config
        self.stream_config, self.compaction_config = stream_config, compaction_config
        """Both change with the broker configs in the metadata."""
        self.static_settings = BrokerSettings(config, stream_config, compaction_config, security)
        self._stores = BrokerStores(store, wal_store, stream_config)
        self.access = ClientAccess(
            security,
            find_users=lambda: self.image.scram,
            find_token=self._find_token,
        )
        self._peer_access = PeerAccess(self.access, [listener.name for listener in config.bound])
        self.server = Server(config, self.access)
        self._quota_duty = QuotaDuty(config, self.server.admission.connections, self._in_background)
        self.quotas = self._quota_duty.clients
        self.client = ControllerClient(config.controllers, tls=tls, on_problem=log_problem)
        self.node_id, self.node_epoch = NodeId(-1), NodeEpoch(-1)
        self.cluster_id = ""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Completes with the reason when this incarnation ends without a call to `stop`, because it
        was fenced or can no longer follow the metadata.
        """
        self.follower: MetadataFollower
        self.storage: Storage
        self.partitions: PartitionManager
        self.groups: GroupCoordinator
        self.confirmed_reads = ConfirmedReads(
            partial(self.client.confirm_metadata, timeout_s=_CONFIRM_TIMEOUT_S)
        )
        self.transactions: TransactionCoordinator
        self.share_coordinator: ShareCoordinator
        self.share_states: RoutedShareStates
        self.verifier: TransactionVerifier
        self.compactor: Compactor
        self.recoveries: RecoveryDuty
        self.retention: RetentionDuty
        self.cleaner: CleanerDuty
        self.topics = ImageTopics()
        """The topics as seen by group coordinators."""
        self.producer_ids = ProducerIds(self)
        self._rng = Random()  # noqa: S311 - jitter, not a secret
        self.record_checks = record_checks(config)
        self.fetch_sessions = FetchSessions(config.fetch_session_slots_max, self._rng)
        self.partition_turns, self.coalesced_fetches = PartitionTurns(), SameFetches()
        self.share_sessions = ShareSessions(
            config.group_share_max_share_sessions, on_evicted=self._on_session_evicted
        )
        self.shares: SharePartitions
        self.tails: TailLinks
        self.tail_followers: TailFollowers
        self.authorizer: Authorizer | None = None
        self.change_log = ChangeLog(time.monotonic)
        self.client_metrics = None if metrics_sender is None else ClientMetrics(metrics_sender)
        self._departed = DepartedBrokers()
        self._cleanup = AsyncExitStack()
        """Cleanup steps, which run in reverse order after the listeners have closed."""
        self._is_stopping = False
        self._background_tasks: set[asyncio.Task[None]] = set()

    # --- state for handlers -----------------------------------------------------------------------

    @property
    def store(self) -> ObjectStore:
        return self._stores.store

    @property
    def image(self) -> MetadataImage:
        return self.follower.image

    def departed(self) -> list[NodeState]:
        return self._departed.listed(asyncio.get_running_loop().time())

    def now_ms(self) -> Millis:
        return wall_ms()

    def connect_peers(self) -> PeerConnections:
        return PeerConnections(lambda: self.image, self._peer_access)

    def can_write(self) -> bool:
        return self.follower.can_write() and not self.storage.fenced

    @property
    def gone(self) -> Collection[BrokerIncarnation]:
        return self.peer_watch.gone

    def leads_alone(self) -> bool:
        return self.follower.leads_alone() and not self.storage.fenced

    def _find_token(self, token_id: str) -> DelegationTokenRecord | None:
        return self.image.delegation_tokens.get(token_id)

    @property
    def delegation_tokens(self) -> DelegationTokens:
        return self.access.delegation_tokens

    @property
    def port(self) -> int:
        return self.server.port

    # --- start ------------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        store: ObjectStore,
        stream_config: StreamConfig | None = None,
        compaction_config: CompactionConfig | None = None,
        *,
        security: SecurityConfig | None = None,
        store_stats: Callable[[], StoreStats] | None = None,
        tracing: Tracing | None = None,
        log_dir: str = "memory:",
        tls: TlsFiles | None = None,
        metrics_sender: MetricsSender | None = None,
        wal_store: ConfiguredWalStore | None = None,
    ) -> "Broker":
        """Start a broker, and return it when it serves clients.

        Raises PortTaken, TimeoutError (no controller), ControllerError, StreamError,
        UnreachableAsAdvertised, SecurityFileInvalid, SettingInvalid.
        """
        streams, compaction = (
            stream_config or StreamConfig(),
            compaction_config or CompactionConfig(),
        )
        broker = cls(
            config,
            store,
            streams,
            compaction,
            security=security or SecurityConfig(),
            store_stats=store_stats,
            tracing=tracing,
            log_dir=log_dir,
            tls=tls,
            metrics_sender=metrics_sender,
            wal_store=wal_store,
        )
        try:
            await broker._start()
        except BaseException:
            await broker._abandon()
            raise
        return broker

    async def _start(self) -> None:
        self._cleanup.push_async_callback(self.client.close)
        self._cleanup.callback(self.confirmed_reads.close)
        self._cleanup.push_async_callback(self.record_checks.close)
        self._cleanup.push_async_callback(self._stop_background_tasks)
        if self.client.tls is not None:
            self._in_background(self.client.tls.watch())
        self._cleanup.push_async_callback(self.access.close)
        await self.access.start()
        await self._stores.probe(PROBE_PREFIX, uuid4().hex)
        await self.server.bind()
        me = await self._register()
        self.follower = MetadataFollower(
            self.client,
            me,
            now=counting_suspensions(self.now_ms, asyncio.get_running_loop().time),
        )
        self._cleanup.push_async_callback(self.follower.stop)
        self.client.bind(self.follower)
        await self.follower.start(self.config.registration_timeout_ms / 1_000)
        if self._stores.has_wal_store:
            self._stores.on_batch(MetadataDelta(everything=True), self.image)
            self.follower.subscribe(self._stores.on_batch)
        self._settle_settings()
        metadata = ControllerStreamMetadata(self.client, self.follower, me)
        await self._start_storage(metadata, me)
        self._start_coordination(metadata, me)
        await self.partitions.start()
        self._duties = Duties(
            self, self.store, metadata, me, rng=self._rng, store_stats=self._store_stats
        )
        self._cleanup.push_async_callback(self._duties.close)
        self.compactor, self.cleaner = self._duties.compactor, self._duties.cleaner
        self.retention = self._duties.retention
        if self._stores.has_wal_store:
            self._in_background(self._wal_place_duty(me).run())
        self._start_authorizer()
        self.follower.subscribe(self._on_configs)
        self._on_configs(MetadataDelta(everything=True), self.image)
        self.follower.subscribe(self._quota_duty.on_batch)
        self._quota_duty.on_batch(MetadataDelta(everything=True), self.image)
        self._start_client_metrics()
        handlers = make_handlers(has_client_metrics=self.client_metrics is not None)
        dispatcher = RequestDispatcher(self, handlers, INLINE, self.server.requests, self.quotas)
        self._cleanup.callback(dispatcher.close)
        await self.server.serve(AuthenticatingDispatcher(self.access, dispatcher))
        await self._check_advertised()
        log.info(
            "broker_started",
            node_id=self.node_id,
            node_epoch=self.node_epoch,
            port=self.port,
            cluster_id=self.cluster_id,
        )

    async def _start_storage(
        self, metadata: ControllerStreamMetadata, me: BrokerIncarnation
    ) -> None:
        self.storage = Storage(
            self.store,
            metadata,
            me,
            self.stream_config,
            now_ms=self.now_ms,
            rng=self._rng,
            on_fenced=self._on_storage_fenced,
            check_session=self.follower.report_session,
            tracing=self._tracing,
        )
        self._cleanup.push_async_callback(self.storage.abandon)
        await self.storage.start()

    def _start_peer_watch(self) -> None:
        """Watch the other brokers. This must start before this broker expects its first
        partition.
        """
        self.peer_watch = PeerWatch(self.node_id, self.connect_peers(), self.partitions.on_gone)
        self._cleanup.push_async_callback(self.peer_watch.close)
        self.follower.subscribe(self.peer_watch.on_batch)
        self.tails, self.tail_followers = TailLinks(self, self._rng), TailFollowers(self)
        self._cleanup.push_async_callback(self.tails.close)
        self.follower.subscribe(self.tails.on_batch)
        self.follower.subscribe(self.tail_followers.on_batch)

    def _start_coordination(
        self, metadata: ControllerStreamMetadata, me: BrokerIncarnation
    ) -> None:
        """Create the partitions, coordinators and WAL recovery, and subscribe them to the image."""
        self.partitions = PartitionManager(
            me,
            self.storage,
            image=lambda: self.follower.image,
            subscribe=self.follower.subscribe,
            now_ms=self.now_ms,
            report=self._report_moves,
            config=LogConfig(producer_silent_ms=self.config.producer_id_expiration_ms),
            gone=lambda: self.gone,
        )
        self._cleanup.push_async_callback(self.partitions.abandon)
        self._start_peer_watch()
        self._start_coordinators()
        self._start_recoveries(metadata, me)
        self.follower.on_session(self._on_session)
        self.follower.failed.add_done_callback(self._on_follower_ended)
        self.follower.subscribe(self.recoveries.on_batch)
        self.follower.subscribe(self._on_batch)

    def _start_coordinators(self) -> None:
        self.topics.reset(self.image)
        self.follower.subscribe(self.topics.on_batch)
        coordinators = Coordinators(self, self.topics)
        self._cleanup.callback(coordinators.close)
        self.groups, self.transactions = coordinators.groups, coordinators.transactions
        self.verifier = coordinators.verifier
        self.share_coordinator = coordinators.share_coordinator
        self.share_states, self.shares = coordinators.share_states, coordinators.shares
        self.streams_topics = coordinators.streams_topics
        self._coordinators = coordinators
        self.partitions.add_leader_change_listener(self.shares.on_leader_change)
        self.partitions.add_leader_change_listener(coordinators.on_leader_change)
        self.server.on_closed = self._on_connection_closed

    def _start_recoveries(self, metadata: ControllerStreamMetadata, me: BrokerIncarnation) -> None:
        self.recoveries = RecoveryDuty(
            me,
            lambda: self.follower.image,
            lambda failed, start: recover_wal(
                self.store,
                metadata,
                failed,
                start,
                recoverer=me,
                now_ms=self.now_ms(),
                config=self.stream_config,
                cache_slot=self.storage.reader.cache_object,
            ),
            self._rng,
        )
        self._cleanup.push_async_callback(self.recoveries.close)

    def _wal_place_duty(self, me: BrokerIncarnation) -> WalPlaceDuty:
        return WalPlaceDuty(
            self.storage,
            self._stores,
            current=lambda: self.image.current_wal_store,
            is_leaving=lambda: self.image.nodes.next_to_leave() == me,
            fallback_after_ms=lambda: self.stream_config.wal_leave_after_ms,
            probe_key=f"{PROBE_PREFIX}wal-{me.node_id}",
            now=asyncio.get_running_loop().time,
        )

    async def _check_advertised(self) -> None:
        """Check the advertised addresses. The server must be running, because the check connects to
        it.

        For a listener without an advertised host, the check uses this machine's address, which
        remote clients receive.
        """
        machine_host = self_check.machine_host(self.client.address)
        advertised = [
            listener._replace(host=listener.host or machine_host)
            for listener in self._advertised(machine_host)
        ]
        if self.config.advertised_check == CHECK_STRICT:
            await self_check.check(advertised, self._peer_access.own_connection)
        elif self.config.advertised_check == CHECK_WARN:
            self._in_background(self_check.warn(advertised, self._peer_access.own_connection))

    def _start_authorizer(self) -> None:
        """Start using the ACLs of the image, if an authorizer is configured."""
        config = self.static_settings.security
        if config.has_authorizer:
            audit = AuditLog(asyncio.get_running_loop().time)
            authorizer = Authorizer(config, audit, API_RIGHTS)
            authorizer.on_batch(MetadataDelta(everything=True), self.image)
            self.follower.subscribe(authorizer.on_batch)
            self.authorizer = authorizer

    def _start_client_metrics(self) -> None:
        if self.client_metrics is not None:
            self.client_metrics.on_batch(MetadataDelta(everything=True), self.image)
            self.follower.subscribe(self.client_metrics.on_batch)
            self._in_background(self.client_metrics.sender.run())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task that is cancelled when this broker ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _advertised(self, machine_host: str) -> tuple[Listener, ...]:
        return self.config.advertised(machine_host, self.server.ports)

    async def _register(self) -> BrokerIncarnation:
        machine_host = self_check.machine_host(self.client.address)
        first, *others = self._advertised(machine_host)
        request = RegisterBroker(
            node_id=NodeId(self.config.node_id),
            incarnation_id=uuid4(),
            host=first.host,
            port=first.port,
            machine_host=machine_host,
            rack=self.config.rack or None,
            other_listeners=tuple(
                NodeListener(other.name, other.host, other.port) for other in others
            ),
            version=VERSION,
            wal_delete_grace_ms=self.stream_config.wal_delete_grace_ms,
            features=supported_features(has_wal_store=self._stores.has_wal_store),
        )
        registered = await self._stores.register(
            self.client, request, timeout_s=self.config.registration_timeout_ms / 1_000
        )
        self.node_id, self.node_epoch, self.cluster_id = (
            registered.node_id,
            registered.node_epoch,
            registered.cluster_id,
        )
        return BrokerIncarnation(self.node_id, self.node_epoch)

    def _on_session_evicted(self, session: ShareSession) -> None:
        self._in_background(release(self, session))

    def _on_connection_closed(self, connection_id: int) -> None:
        for session in self.share_sessions.close_connection(connection_id):
            self._in_background(release(self, session))
        if self.client_metrics is not None:
            self.client_metrics.instances.close_connection(connection_id)

    def _on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.share_coordinator.topics_changed(None if delta.everything else delta.topic_ids)
        self.groups.topics_changed(delta)
        if delta.everything or delta.node_ids:
            self._departed.update(image, asyncio.get_running_loop().time())

    # --- dynamic settings -------------------------------------------------------------------------

    def _settle_settings(self) -> None:
        """Apply the broker configs in the metadata."""
        configs = self.image.configs
        before = BrokerSettings(
            self.config, self.stream_config, self.compaction_config, self.access.config
        )
        settings, problems = settle(
            self.static_settings, configs.broker(""), configs.broker(str(self.node_id))
        )
        for name, problem in problems.items():
            log.warning("config_of_broker_ignored", config=name, problem=problem)
        self.config, self.stream_config = settings.broker, settings.stream
        self.compaction_config = settings.compaction
        self.server.reconfigure(self.config)
        if names := changed_names(before, settings):
            log.info("settings_changed", names=", ".join(names))

    def _on_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply changed settings that are not read on each use."""
        if not delta.everything and all(kind != BROKER_RESOURCE for kind, _ in delta.configs):
            return
        self._settle_settings()
        self._coordinators.reconfigure()
        self.partitions.reconfigure(producer_silent_ms=self.config.producer_id_expiration_ms)
        self.storage.reconfigure(self.stream_config)
        self._duties.reconfigure()

    # --- lost sessions and fences -----------------------------------------------------------------

    def _on_session(self, has_session: bool) -> None:
        if has_session:
            self.storage.resume_acknowledging()
            return
        self.storage.stop_acknowledging()
        self.partitions.wake_readers()
        if self.follower.fenced:
            self._end("the controller fenced this broker start")

    def _on_storage_fenced(self, error: StreamError) -> None:
        self.is_wal_fenced = isinstance(error, WalFenced)
        self._end(f"the WAL is no longer writable: {error}")

    def _on_follower_ended(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        self._end(f"can no longer follow the metadata: {error or 'the stream ended'}")

    def _end(self, reason: str) -> None:
        if not self._is_stopping and not self.ended.done():
            log.error(
                "broker_ended", node_id=self.node_id, node_epoch=self.node_epoch, reason=reason
            )
            self.ended.set_result(reason)

    # --- stop -------------------------------------------------------------------------------------

    def _report_moves(self, timings: list[MoveTiming]) -> None:
        """Report the steps of moves for `penstock reassign trace`. If a report is lost, only the
        trace is incomplete.
        """
        self._in_background(
            self._send_report(
                ReportMoves(node_id=self.node_id, node_epoch=self.node_epoch, items=timings)
            )
        )

    async def _send_report(self, report: ReportMoves) -> None:
        try:
            await self.client.report_moves(report, timeout_s=_REPORT_TIMEOUT_S)
        except (TimeoutError, ControllerError) as error:
            log.info("move_report_failed", partitions=len(report.items), error=str(error))

    async def stop(self) -> None:
        """Stop gracefully within `shutdown_timeout_ms` plus `shutdown_redirect_ms`: move partitions
        away, redirect clients, close the remaining partitions, and unregister.

        The broker serves clients until it leads no partitions, so that they find the new leaders.
        Work that is not finished in time is left to recovery, as after a crash. Acknowledged
        records are never lost.
        """
        self._is_stopping = True
        timeout_s = self.config.shutdown_timeout_ms / 1_000
        redirect_s = self.config.shutdown_redirect_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s + redirect_s):
                await self._leave(timeout_s, redirect_s)
        except (TimeoutError, ControllerError, StreamError) as error:
            log.warning(
                "broker_stopped_uncleanly",
                node_id=self.node_id,
                node_epoch=self.node_epoch,
                error=repr(error),
            )
        else:
            log.info("broker_stopped", node_id=self.node_id, node_epoch=self.node_epoch)
        await self._abandon()

    async def _leave(self, timeout_s: float, redirect_s: float) -> None:
        await self._duties.stop_compaction()
        if self.storage.fenced or self.follower.fenced:
            return
        async with asyncio.timeout(timeout_s * _DRAIN_SHARE + redirect_s):
            await self._drain(timeout_s * _DRAIN_SHARE)
            await asyncio.sleep(redirect_s)
            await self.server.stop_accepting()
            await self.partitions.close()
        await self.storage.close(timeout_s=timeout_s * (1 - _DRAIN_SHARE) / 2)
        wal_end: WalSequence = self.storage.wal_end
        await self.client.unregister_broker(
            UnregisterBroker(node_id=self.node_id, node_epoch=self.node_epoch, wal_end=wal_end)
        )

    async def _drain(self, timeout_s: float) -> None:
        """Move partitions away in batches, so that each partition is unavailable only briefly.
        Partitions that no other broker can lead stay until `close`.
        """
        request = DrainBroker(
            node_id=self.node_id, node_epoch=self.node_epoch, partitions_max=_DRAIN_COUNT
        )
        remaining = 1
        while remaining:
            remaining = (await self.client.drain_broker(request, timeout_s=timeout_s)).remaining
            await self.partitions.settled()

    async def _stop_background_tasks(self) -> None:
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)

    async def abandon(self) -> None:
        """Stop immediately, as in a crash, without flushing, closing or unregistering anything."""
        self._is_stopping = True
        await self._abandon()

    async def _abandon(self) -> None:
        self._is_stopping = True
        await self.server.close()
        await self._cleanup.aclose()
        if not self.ended.done():
            self.ended.set_result("stopped")
