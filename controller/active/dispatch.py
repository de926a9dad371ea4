"""Map each request to its manager, and pass the inputs that the manager needs besides the image.
Contains no other rules.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.ids import Millis, NodeId, StreamId
from penstock.controller.active.balance.balancer import Balancer
from penstock.controller.active.dead_wals import DeadWals
from penstock.controller.active.move_traces import MoveListener, MovePairs, MoveTraceRing
from penstock.controller.active.mutation_quotas import MutationQuotas
from penstock.controller.active.server import Handle
from penstock.controller.active.sessions import Sessions
from penstock.controller.active.wal_store import why_not_lost
from penstock.controller.active.writer import Runtime, Submission
from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import rewrite_messages as rm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm
from penstock.controller.backup.new_streams import NewStreams
from penstock.controller.backup.writer import Backup
from penstock.controller.config import ControllerConfig
from penstock.controller.managers import (
    acls,
    commits,
    configs,
    delegation_tokens,
    deleted_topics,
    failover,
    features,
    kv,
    nodes,
    objects,
    producer_ids,
    quotas,
    reassign,
    rewrites,
    scram,
    streams,
    topics,
)
from penstock.controller.managers.result import Result
from penstock.controller.managers.topics import TopicDefaults
from penstock.controller.managers.wal_stores import abandon_wal_store, drain_wal_store
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset, StreamCreated
from penstock.controller.metadata.topics import PartitionKey
from penstock.stream.wal.wal_store import WalStores

REQUESTS: tuple[type[m.Message], ...] = (
    m.RegisterBroker,
    m.UnregisterBroker,
    m.RemoveBroker,
    m.OpenStreams,
    m.TrimStream,
    m.PrepareObjects,
    m.Commit,
    m.CommitRecovered,
    m.CreateTopics,
    m.DeleteTopics,
    m.CreatePartitions,
    m.AlterReassignments,
    m.ElectPreferred,
    m.DrainBroker,
    lm.MoveLeaders,
    m.AlterConfigs,
    m.UpdateFeatures,
    m.CreateAcls,
    m.DeleteAcls,
    sm.AlterScramCredentials,
    tm.CreateDelegationToken,
    tm.RenewDelegationToken,
    tm.ExpireDelegationToken,
    qm.AlterQuotas,
    m.AllocateProducerIds,
    m.PutKeyValue,
    m.GetKeyValue,
    m.DeleteKeyValue,
    m.ConfirmMetadata,
    rm.PrepareRewrite,
    rm.CommitRewrite,
    m.DrainWalStore,
    m.AbandonWalStore,
    m.ReportMoves,
    m.TraceMove,
    lm.ReportLoad,
    lm.ProposeMoves,
)
"""Requests handled by the leader. A manager handles each of them, except AbandonWalStore, which
also reads the WAL store, and the last four, which do not concern metadata.
"""

_BACKED_UP = frozenset(
    {
        m.RegisterBroker,
        m.CreateTopics,
        m.CreatePartitions,
        m.DeleteTopics,
        m.UpdateFeatures,
        m.AbandonWalStore,
        m.DrainWalStore,
        m.CreateAcls,
        m.DeleteAcls,
        sm.AlterScramCredentials,
        tm.CreateDelegationToken,
        tm.RenewDelegationToken,
        tm.ExpireDelegationToken,
        qm.AlterQuotas,
    }
)
"""Requests that are acknowledged only once they are in the backup, because records that clients
have acknowledged depend on them after the loss of all controllers' disks
(docs/design/disaster-recovery.md). Such requests are rare.
"""

Manager = Callable[[MetadataImage, Any, Millis], Result[Any]]


def managers(
    config: ControllerConfig,
    alive: Callable[[], Collection[NodeId]],
    live: Callable[[], Collection[NodeId]],
    new_uuid: Callable[[], UUID],
    mutation_quotas: MutationQuotas,
    *,
    has_wal_store: bool,
) -> dict[type[m.Message], Manager]:
    """Return the manager of each request class.

    alive: returns the brokers with a session, to which users may move partitions. live: returns the
    brokers that may receive partitions otherwise. Both are called when the writer runs the request.
    """
    return {
        m.RegisterBroker: lambda image, request, _: nodes.register_broker(image, request),
        m.UnregisterBroker: lambda image, request, now_ms: nodes.unregister_broker(
            image, request, now_ms, live=live()
        ),
        m.RemoveBroker: lambda image, request, _: nodes.remove_broker(image, request),
        m.OpenStreams: lambda image, request, _: streams.open_streams(image, request),
        m.TrimStream: lambda image, request, now_ms: streams.trim_stream(
            image, request, now_ms, grace_ms=config.delete_grace_ms
        ),
        m.PrepareObjects: objects.prepare_objects,
        m.Commit: lambda image, request, now_ms: commits.commit(
            image, request, now_ms, live=live()
        ),
        m.CommitRecovered: lambda image, request, now_ms: failover.commit_recovered(
            image, request, now_ms, live=live()
        ),
        **_topic_managers(config, live, new_uuid, mutation_quotas),
        m.AlterReassignments: lambda image, request, now_ms: reassign.alter_reassignments(
            image, request, now_ms, live=alive(), timeout_ms=config.move_timeout_ms
        ),
        m.ElectPreferred: lambda image, request, now_ms: reassign.elect_preferred(
            image, request, now_ms, live=alive(), timeout_ms=config.move_timeout_ms
        ),
        m.DrainBroker: lambda image, request, now_ms: reassign.drain_broker(
            image, request, now_ms, live=live(), timeout_ms=config.move_timeout_ms
        ),
        lm.MoveLeaders: lambda image, request, now_ms: reassign.move_leaders(
            image, request, now_ms, live=alive(), timeout_ms=config.move_timeout_ms
        ),
        m.AlterConfigs: lambda image, request, _: configs.alter_configs(image, request),
        m.UpdateFeatures: lambda image, request, _: features.update_features(
            image, request, controller_id=config.controller_id, has_wal_store=has_wal_store
        ),
        m.CreateAcls: lambda image, request, _: acls.create_acls(image, request),
        m.DeleteAcls: lambda image, request, _: acls.delete_acls(image, request),
        sm.AlterScramCredentials: lambda image, request, _: scram.alter_scram_credentials(
            image, request
        ),
        tm.CreateDelegationToken: delegation_tokens.create_delegation_token,
        tm.RenewDelegationToken: delegation_tokens.renew_delegation_token,
        tm.ExpireDelegationToken: delegation_tokens.expire_delegation_token,
        qm.AlterQuotas: lambda image, request, _: quotas.alter_quotas(image, request),
        m.AllocateProducerIds: lambda image, request, _: producer_ids.allocate_producer_ids(
            image, request
        ),
        m.PutKeyValue: lambda image, request, _: kv.put_key_value(image, request),
        m.GetKeyValue: lambda image, request, _: kv.get_key_value(image, request),
        m.DeleteKeyValue: lambda image, request, _: kv.delete_key_value(image, request),
        m.ConfirmMetadata: lambda image, _request, _now_ms: Result(
            value=m.MetadataConfirmed(next_node_epoch=image.next_node_epoch)
        ),
        rm.PrepareRewrite: rewrites.prepare_rewrite,
        rm.CommitRewrite: rewrites.commit_rewrite,
        m.DrainWalStore: lambda image, request, _: drain_wal_store(image, request),
    }


def _topic_managers(
    config: ControllerConfig,
    live: Callable[[], Collection[NodeId]],
    new_uuid: Callable[[], UUID],
    mutation_quotas: MutationQuotas,
) -> dict[type[m.Message], Manager]:
    """Return the managers of requests that create and delete partitions for clients."""
    defaults = TopicDefaults(
        partitions=config.default_partitions, replication_factor=config.default_replication_factor
    )
    return {
        m.CreateTopics: lambda image, request, now_ms: mutation_quotas.apply(
            image,
            request.client,
            lambda count: topics.create_topics(
                image,
                request,
                new_uuid=new_uuid,
                live=live(),
                defaults=defaults,
                now_ms=now_ms,
                move_timeout_ms=config.move_timeout_ms,
                partitions_max=config.partitions_max,
                count=count,
            ),
        ),
        m.DeleteTopics: lambda image, request, now_ms: mutation_quotas.apply(
            image,
            request.client,
            lambda count: deleted_topics.delete_topics(
                image, request, now_ms, grace_ms=config.delete_grace_ms, count=count
            ),
        ),
        m.CreatePartitions: lambda image, request, _: mutation_quotas.apply(
            image,
            request.client,
            lambda count: topics.create_partitions(
                image, request, live=live(), partitions_max=config.partitions_max, count=count
            ),
        ),
    }


class Dispatch:
    """Creates the server's methods for one runtime. Sessions change and maintenance is triggered
    only after the reply is committed.

    wake: called when maintenance is due.
    """

    def __init__(
        self,
        config: ControllerConfig,
        runtime: Runtime,
        sessions: Sessions,
        backup: Backup,
        *,
        new_streams: NewStreams,
        wake: Callable[[], None],
        now: MonotonicClock,
        now_ms: WallClock,
        new_uuid: Callable[[], UUID],
        wal_stores: WalStores,
        dead_wals: DeadWals,
        moved: MoveListener | None = None,
    ) -> None:
        """moved: called with each planned move after both of its brokers have reported it.
        wal_stores: the WAL stores with which this controller is configured.
        """
        self._moved = moved
        self._wal_stores = wal_stores
        self._pairs = MovePairs()
        self._runtime = runtime
        self._sessions = sessions
        self._backup = backup
        self._new_streams = new_streams
        self._wait_s = config.request_timeout_ms / 1_000
        self._wake = wake
        self._now = now
        self._now_ms = now_ms
        self._traces = MoveTraceRing()
        self.balancer = Balancer(config, runtime, sessions, now=now, now_ms=now_ms)
        mutation_quotas = MutationQuotas(config.mutation_window_ms, now)
        self._managers = managers(
            config,
            sessions.alive,
            self.balancer.live,
            new_uuid,
            mutation_quotas,
            has_wal_store=wal_stores.configured is not None,
        )
        self._follow_ups: dict[type[m.Message], Callable[[Any, m.Reply[Any]], None]] = {
            m.RegisterBroker: self._registered,
            m.UnregisterBroker: self._unregistered,
        }
        """Functions to call after the request is committed."""
        self._record_loss = self._write_handler(
            m.AbandonWalStore,
            lambda image, request, _: abandon_wal_store(
                image, request, dead_wals.wait_s(image, request.store_id)
            ),
        )
        self._direct: dict[type[m.Message], Handle] = {
            m.AbandonWalStore: self._abandon_wal_store,
            m.ReportMoves: self._report_moves,
            m.TraceMove: self._trace_move,
            lm.ReportLoad: self.balancer.report,
            lm.ProposeMoves: self.balancer.propose,
        }
        assert (*self._managers, *self._direct) == REQUESTS, "a handler for each request"

    def methods(self) -> dict[str, Handle]:
        """Return the handlers by method name."""
        written = {
            kind.__name__: self._write_handler(kind, manager)
            for kind, manager in self._managers.items()
        }
        return written | {kind.__name__: handle for kind, handle in self._direct.items()}

    def _write_handler(self, kind: type[m.Message], manager: Manager) -> Handle:
        """Return a handler that commits the result of `manager`, and responds when this is safe."""
        creates_streams = kind in {m.CreateTopics, m.CreatePartitions}
        follow_up = self._follow_ups.get(kind)

        def decide(image: MetadataImage, request: m.Message, now_ms: Millis) -> Result[Any]:
            result = manager(image, request, now_ms)
            if creates_streams:
                self._record_new_streams(image, result)
            return result

        async def handle(request: m.Message, submission: Submission) -> m.Reply[Any]:
            timeout_s = submission.timeout_s
            wait_s = self._wait_s if timeout_s is None else min(timeout_s, self._wait_s)
            async with asyncio.timeout(wait_s):
                reply = await self._runtime.submit(
                    kind.__name__,
                    lambda image, now_ms: decide(image, request, now_ms),
                    timeout_s=timeout_s,
                    size_bytes=submission.size_bytes,
                    request_id=submission.request_id,
                    committed=submission.committed,
                )
                if follow_up is not None and reply.status is m.Status.OK:
                    follow_up(request, reply)
                await self._backup.covered(self._backup_offset_needed(request, reply))
            return reply

        return handle

    def _record_new_streams(self, image: MetadataImage, result: Result[Any]) -> None:
        """Record new streams. The writer calls this before the streams are visible to any
        client.
        """
        created = [
            record.stream_id for record in result.records if isinstance(record, StreamCreated)
        ]
        if created:
            self._new_streams.created(
                StreamId(created[-1] + 1), MetadataOffset(image.end_offset + len(result.records))
            )

    def _backup_offset_needed(self, request: m.Message, reply: m.Reply[Any]) -> MetadataOffset:
        """Return the offset that the backup must reach before the response, or 0 if the response
        does not depend on the backup.
        """
        if type(request) in _BACKED_UP:
            return reply.offset
        if isinstance(request, m.OpenStreams) and request.items:
            return self._new_streams.needed(
                max(item.stream_id for item in request.items), self._backup.offset
            )
        return MetadataOffset(0)

    def _registered(self, _: m.RegisterBroker, reply: m.Reply[m.BrokerRegistered]) -> None:
        """Open the session of the new incarnation, which ends the session of the previous one."""
        if reply.value is not None:
            self._sessions.registered(
                reply.value.node_id, reply.value.node_epoch, int(self._now() * 1_000)
            )
            self._wake()

    def _unregistered(self, request: m.UnregisterBroker, reply: m.Reply[m.Progress]) -> None:
        if reply.value is not None and not reply.value.remaining:
            self._sessions.removed(request.node_id, request.node_epoch)

    async def _abandon_wal_store(
        self, request: m.AbandonWalStore, submission: Submission
    ) -> m.Reply[Any]:
        """Abandon a WAL store, provided that this controller cannot read it."""
        wal_store = await self._runtime.with_committed_image(
            lambda image: (
                None
                if image.nodes.is_wal_store_lost(request.store_id)
                else image.wal_store(request.store_id)
            )
        )
        if wal_store is not None and (reason := await why_not_lost(self._wal_stores, wal_store)):
            return m.Reply(
                status=m.Status.INVALID_REQUEST,
                detail=reason,
                controller_epoch=self._runtime.epoch,
            )
        return await self._record_loss(request, submission)

    async def _report_moves(self, request: m.ReportMoves, _: Submission) -> m.Reply[Any]:
        """Store a broker's measurements of its moves, without using the writer. If there are too
        many, only the first ones are stored.
        """
        items, now_ms = request.items[: reassign.MOVES_MAX], self._now_ms()
        self._traces.add(request.node_id, items, now_ms)
        if self._moved is not None:
            await self._publish_moves(self._moved, self._pairs.add(request.node_id, items, now_ms))
        return m.Reply(controller_epoch=self._runtime.epoch)

    async def _publish_moves(self, moved: MoveListener, pairs: list[list[m.MoveTrace]]) -> None:
        def publish(image: MetadataImage) -> None:
            for pair in pairs:
                timing = pair[-1].timing
                topic = image.topics.by_id(timing.topic_id)
                record = image.topics.partition(PartitionKey(timing.topic_id, timing.partition))
                if (
                    topic is not None
                    and record is not None
                    and record.move is not None
                    and record.move.leader_epoch == timing.leader_epoch
                ):
                    moved(topic.name, record, pair)

        if pairs:
            await self._runtime.with_committed_image(publish)

    async def _trace_move(self, request: m.TraceMove, _: Submission) -> m.Reply[Any]:
        return m.Reply(
            controller_epoch=self._runtime.epoch, value=m.MoveTraces(items=self._traces.of(request))
        )
