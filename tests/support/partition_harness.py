"""Brokers without sockets, a fake controller and a memory store, to test partitions and handlers.

`PartitionHarness` is the controller: its managers decide over one metadata image. `Broker` is one
start of a broker: its storage is real, and handlers use it as their `Node`.
"""

import asyncio
from collections import deque
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from uuid import UUID

from penstock.base.audit import ChangeLog
from penstock.base.ids import StreamEpoch
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS
from penstock.broker.config import BrokerConfig
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.handlers.list_offsets import handle_list_offsets
from penstock.broker.handlers.offset_for_leader_epoch import handle_offset_for_leader_epoch
from penstock.broker.handlers.produce import handle_produce
from penstock.broker.handlers.txn_markers import handle_write_txn_markers
from penstock.broker.network.peers import PeerConnections
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.manager import PartitionManager
from penstock.broker.partition.move_notice import MoveNoticeConfig
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.fetch_coalescing import SameFetches
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.requests.pending_topics import PendingTopics
from penstock.broker.requests.record_checks import RecordChecks
from penstock.broker.requests.topic_change_queue import PartitionTurns
from penstock.broker.tail.followers import TailFollowers
from penstock.broker.tail.links import TailLinks
from penstock.controller.api import messages as m
from penstock.controller.api.errors import refusal
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.managers import (
    commits,
    deleted_topics,
    failover,
    nodes,
    objects,
    reassign,
    streams,
    topics,
)
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    PartitionRecord,
    WalRecord,
)
from penstock.controller.metadata.topic_configs import UNDELETE
from penstock.controller.metadata.topics import PartitionKey
from penstock.objectstore.memory import MemoryStore
from penstock.protocol import apis
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.header import TRANSACTIONAL_MASK, iter_headers
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.gen import list_offsets as wire_list
from penstock.protocol.gen import offset_for_leader_epoch as wire_epoch
from penstock.protocol.gen import produce as wire_produce
from penstock.protocol.gen import write_txn_markers as wire_markers
from penstock.protocol.primitives import Reader, Writer
from penstock.stream.config import StreamConfig
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.recovery.recoverer import recover_wal
from penstock.stream.storage import Storage
from penstock.stream.wal.sender import Sender
from tests.support.waiting import PATIENCE_S

CONFIG = StreamConfig(wal_linger_ms=0, wal_linger_idle_ms=0, wal_pause_ms=0)
NOW = 1_700_000_000_000


class PartitionHarness:
    def __init__(self):
        self.image = MetadataImage()
        self.store = MemoryStore()
        self.subscribers = []
        self.live = set()
        self.now_ms = NOW
        self.grace_ms = 0
        self.uuids = 0
        self.open_requests = 0
        self.refusing_opens = 0
        self.held_back = None
        self.brokers = []
        """Those that run."""
        self.apply([ClusterRecord("test")])

    def new_uuid(self):
        self.uuids += 1
        return UUID(int=self.uuids)

    def apply(self, records):
        if records:
            self.image.apply_all(records)
            if self.held_back is not None:
                self.held_back += records
                return
            delta = MetadataDelta.of(records)
            for subscriber in list(self.subscribers):
                subscriber(delta, self.image)

    @contextmanager
    def at_once(self):
        """Brokers receive all changes made in this block at the same time, as after a period
        without a controller.
        """
        self.held_back = []
        yield
        records, self.held_back = self.held_back, None
        delta = MetadataDelta.of(records)
        for subscriber in list(self.subscribers):
            subscriber(delta, self.image)

    def run(self, result):
        if result.status is not m.Status.OK:
            raise refusal(result.status, result.detail)
        self.apply(result.records)
        return result.value

    def subscribe(self, subscriber):
        self.subscribers.append(subscriber)
        subscriber(MetadataDelta(everything=True), self.image)

    # The client side, as used by `ControllerStreamMetadata`.

    async def open_streams(self, request, *, timeout_s=0):
        self.open_requests += 1
        await asyncio.sleep(0)
        if self.refusing_opens:
            self.refusing_opens -= 1
            raise TimeoutError("no controller")
        return self.run(streams.open_streams(self.image, request))

    async def prepare_objects(self, request, *, timeout_s=0):
        return self.run(objects.prepare_objects(self.image, request, self.now_ms))

    async def commit(self, request, *, timeout_s=0):
        self.run(commits.commit(self.image, request, self.now_ms, live=self.live))

    async def trim_stream(self, request, *, timeout_s=0):
        self.run(streams.trim_stream(self.image, request, self.now_ms, grace_ms=self.grace_ms))

    async def commit_recovered(self, request, *, timeout_s=0):
        while self.run(
            failover.commit_recovered(self.image, request, self.now_ms, live=self.live)
        ).remaining:
            pass

    fenced = False
    offset = 0

    async def backed_up(self, position):
        pass

    async def reached(self, offset, deadline):
        pass

    # Operations of tests on the cluster.

    async def broker(self, node_id, *, notice_ms=0):
        request = m.RegisterBroker(
            node_id=node_id, incarnation_id=self.new_uuid(), host="h", port=9092, machine_host="m"
        )
        value = self.run(nodes.register_broker(self.image, request))
        self.live.add(value.node_id)
        broker = Broker(self, BrokerIncarnation(value.node_id, value.node_epoch), notice_ms)
        self.brokers.append(broker)
        await broker.storage.start()
        await broker.partitions.start()
        return broker

    async def close(self):
        await asyncio.gather(*(broker.close() for broker in self.brokers))

    async def leading(self, name, *, partitions):
        """Start a broker and make it the leader of a new topic. Returns the broker."""
        broker = await self.broker(1)
        self.topic(name, partitions=partitions)
        for index in range(partitions):
            await broker.opened(name, index)
        return broker

    def topic(self, name, partitions=1, fork=None, **configs):
        request = m.CreateTopics(
            topics=[m.NewTopic(name=name, partitions=partitions, configs=configs, fork=fork)]
        )
        result = topics.create_topics(
            self.image,
            request,
            new_uuid=self.new_uuid,
            live=self.live,
            defaults=topics.TopicDefaults(),
            now_ms=self.now_ms,
            move_timeout_ms=10_000,
        )
        created = self.run(result).topics[0]
        assert created.status is m.Status.OK, created.detail
        return created.topic_id

    def delete(self, name, grace_ms=0):
        request = m.DeleteTopics(topic_ids=[self.image.topics.by_name(name).topic_id])
        self.run(deleted_topics.delete_topics(self.image, request, self.now_ms, grace_ms=grace_ms))

    def undelete(self, requested, name):
        self.topic(name, partitions=-1, **{UNDELETE: requested})

    def configure(self, topic, name, value):
        self.apply([ConfigRecord(2, topic, name, value)])

    def record(self, topic, index=0) -> PartitionRecord:
        return self.image.topics.by_name(topic).partitions[index]

    def lead(self, topic, broker, index=0):
        """Make another broker the leader of the partition; None leaves it without a leader."""
        old = self.record(topic, index)
        leader = broker.me if broker else BrokerIncarnation(-1, -1)
        epoch = StreamEpoch(old.leader_epoch + 1)
        changed = PartitionRecord(
            old.topic_id,
            index,
            old.replicas,
            leader.node_id,
            leader.node_epoch,
            epoch,
            *old.stream_ids,
            fork=old.fork,
            undeleted_epoch=old.undeleted_epoch,
        )
        self.apply([changed])

    async def hand_over(self, topic, broker, index=0) -> Partition:
        """Give the partition to another broker, and return it once it is open there."""
        self.lead(topic, broker, index)
        return await broker.opened(topic, index)

    def move(self, topic, *replicas, index=0):
        """Reassign; without replicas: cancel."""
        target = m.PartitionTarget(topic=topic, partition=index, replicas=list(replicas) or None)
        request = m.AlterReassignments(partitions=[target])
        items = self.run(
            reassign.alter_reassignments(
                self.image, request, self.now_ms, live=self.live, timeout_ms=10_000
            )
        ).items
        assert items[0].status is m.Status.OK, items[0].detail

    async def fail_over(self, dead, recoverer):
        """Fence a dead broker, recover its WAL, and elect new leaders."""
        self.fence(dead)
        return await self.recover(dead, recoverer)

    def fence(self, dead):
        self.live.discard(dead.me.node_id)
        self.apply(nodes.fence_brokers(self.image, [dead.me]))

    async def recover(self, dead, recoverer):
        """Let `recoverer` recover the WAL, regardless of the broker that the controller would have
        appointed.
        """
        wal = self.image.nodes.wal(dead.me)
        self.apply(
            [
                WalRecord(
                    wal.writer.node_id,
                    wal.writer.node_epoch,
                    wal.committed,
                    recoverer.me.node_id,
                    recoverer.me.node_epoch,
                )
            ]
        )
        start = self.image.nodes.wal(dead.me).committed
        return await recover_wal(
            self.store,
            recoverer.metadata,
            dead.me,
            start,
            recoverer=recoverer.me,
            now_ms=self.now_ms,
            config=CONFIG,
        )


class Broker:
    def __init__(self, harness, me, notice_ms=0):
        self.harness, self.me = harness, me
        self.node_id, self.node_epoch, self.cluster_id = me.node_id, me.node_epoch, "test"
        # There is no coordinator for its transactions.
        self.authorizer: Authorizer | None = None
        self.change_log = ChangeLog(lambda: 0.0)
        self.config = BrokerConfig(transaction_partition_verification_enable=False)
        self.fetch_sessions = FetchSessions(self.config.fetch_session_slots_max, Random(1))
        self.partition_turns = PartitionTurns()
        self.record_checks = RecordChecks(None)
        self.coalesced_fetches = SameFetches()
        self.streams_topics = PendingTopics()
        self.log_dir = "memory:"
        self.writable = True
        self.is_unsure = False
        self.metadata = ControllerStreamMetadata(harness, harness, me)
        self.storage = Storage(
            harness.store,
            self.metadata,
            me,
            CONFIG,
            now_ms=self.now_ms,
            rng=Random(1),
            on_fenced=lambda _: None,
        )
        self.reported = []
        self.partitions = PartitionManager(
            me, self.storage, lambda: harness.image, harness.subscribe, self.now_ms,
            notice=MoveNoticeConfig(longest_ms=notice_ms), report=self.reported.extend,
        )  # fmt: skip
        self.tails, self.tail_followers = TailLinks(self, Random(1)), TailFollowers(self)
        self.correlation_ids = iter(range(1, 1_000_000))

    @property
    def image(self):
        return self.harness.image

    def now_ms(self):
        return self.harness.now_ms

    def can_write(self):
        return self.writable

    def leads_alone(self):
        return self.writable and not self.is_unsure

    @property
    def gone(self):
        return frozenset()

    def connect_peers(self):
        """Do nothing, because brokers are not connected over a network here."""
        return PeerConnections(MetadataImage)

    async def opened(self, topic, index=0) -> Partition:
        found = await self.partitions.wait_open(
            topic, index, asyncio.get_running_loop().time() + PATIENCE_S
        )
        assert isinstance(found, Partition), found
        return found

    async def close(self):
        self.harness.brokers.remove(self)
        await self.tails.close()
        await self.partitions.close()
        await self.storage.close()

    async def crash(self):
        """Stop without writing, committing or closing anything."""
        self.harness.brokers.remove(self)
        self.harness.subscribers.remove(self.partitions.on_batch)
        await self.storage.abandon()
        task = asyncio.ensure_future(self.partitions.close())
        await asyncio.wait([task], timeout=0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- requests ---------------------------------------------------------------------------------

    def context(self, api, version, message):
        body = Writer()
        CODECS[api.key].encode_request(body, message, version)
        connection = SimpleNamespace(
            id=1,
            listener="PLAINTEXT",
            local_host="127.0.0.1",
            local_port=9092,
            peer="test",
            peer_host="test",
            security_protocol=SecurityProtocol.PLAINTEXT,
            principal=ANONYMOUS,
            sender=Sender(),
        )
        frame = memoryview(bytearray(body))
        return RequestContext(
            api.key,
            version,
            next(self.correlation_ids),
            "test",
            connection,
            frame,
            0,
            asyncio.get_running_loop().time(),
        )

    def decode_response(self, api, version, response):
        frame = b"".join(response) if isinstance(response, list) else bytes(response)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = 9 if api.is_flexible(version) else 8
        reader = Reader(memoryview(frame), header)
        message = CODECS[api.key].decode_response(reader, version)
        reader.expect_end()
        return message

    def start_produce(
        self, parts, *, acks=-1, timeout_ms=PATIENCE_S * 1_000, version=11, mirror_source=""
    ):
        """`parts`: {(topic, partition): batch or None}; from version 13 on, topics are ids. Returns
        a future of {(topic, partition): response}.
        """
        by_topic = {}
        for (topic, index), records in parts.items():
            by_topic.setdefault(topic, []).append(wire_produce.PartitionProduceData(index, records))
        data = [
            wire_produce.TopicProduceData(topic, topic, items) for topic, items in by_topic.items()
        ]
        request = wire_produce.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=data)
        request.mirror_source = mirror_source
        ctx = self.context(apis.PRODUCE, version, request)
        responded = asyncio.get_running_loop().create_future()

        def respond(response):
            if response is None:
                responded.set_result(None)
                return
            message = self.decode_response(apis.PRODUCE, version, response)
            responded.set_result(
                {
                    (t.topic_id or t.name, p.index): p
                    for t in message.responses
                    for p in t.partition_responses
                }
            )

        handle_produce(self, ctx, respond)
        return responded

    async def produce(self, topic, records, index=0, **options):
        response = await self.start_produce({(topic, index): records}, **options)
        return None if response is None else response[topic, index]

    async def fetch_all(
        self,
        requested,
        *,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 26,
        version=12,
        isolation_level=0,
        session=(0, -1),
        forgotten=(),
        meanwhile=None,
    ):
        """Return the whole response.

        `requested`: list of (topic, partition, offset), optionally with more fields of
        FetchPartition as a dict. meanwhile: awaited between the first lookup of the fetch and the
        start of its task.
        """
        by_topic = {}
        for topic, index, offset, *rest in requested:
            fields = {"partition_max_bytes": 1 << 20, **(rest[0] if rest else {})}
            by_topic.setdefault(topic, []).append(
                wire_fetch.FetchPartition(partition=index, fetch_offset=offset, **fields)
            )
        items = [
            wire_fetch.FetchTopic(
                topic_id=topic if isinstance(topic, UUID) else None,
                topic=topic if isinstance(topic, str) else "",
                partitions=partitions,
            )
            for topic, partitions in by_topic.items()
        ]
        request = wire_fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            topics=items,
            forgotten_topics_data=[
                wire_fetch.ForgottenTopic(topic=topic, partitions=[index])
                for topic, index in forgotten
            ],
        )
        response = handle_fetch(self, self.context(apis.FETCH, version, request))
        if meanwhile is not None:
            await meanwhile()
        if asyncio.iscoroutine(response):
            response = await response
        return self.decode_response(apis.FETCH, version, response)

    async def fetch(self, topic, offset=0, index=0, **options):
        """Return the response for one partition, with its records decoded into `values`."""
        response = await self.fetch_all([(topic, index, offset)], **options)
        found = response.responses[0].partitions[0]
        return SimpleNamespace(
            error=found.error_code,
            high_watermark=found.high_watermark,
            log_start=found.log_start_offset,
            raw=found,
            records=records_of(found),
            values=[record.value for record in records_of(found)],
        )

    async def values(self, topic, index=0):
        """Return all values of the partition."""
        return await self.values_from(topic, 0, index)

    async def values_from(self, topic, offset, index=0):
        """Return the values from `offset` to the end, with as many fetches as necessary (a response
        contains records either from memory or from objects).
        """
        values = []
        while True:
            found = await self.fetch(topic, offset, index)
            assert found.error == 0
            if not found.records:
                assert offset == found.high_watermark
                return values
            values += [record.value for record in found.records if record.offset >= offset]
            offset = found.records[-1].offset + 1

    async def mark(
        self, topic, pid, epoch=0, *, commit, coordinator_epoch=0, serial=-1, index=0, version=1,
        transaction_version=0,
    ):  # fmt: skip
        """End the producer's transaction in one partition. Return the error code."""
        topics = [wire_markers.WritableTxnMarkerTopic(topic, [index])]
        marker = wire_markers.WritableTxnMarker(
            pid, epoch, commit, topics, coordinator_epoch, transaction_version, serial
        )
        request = wire_markers.WriteTxnMarkersRequest([marker])
        response = await handle_write_txn_markers(
            self, self.context(apis.WRITE_TXN_MARKERS, version, request)
        )
        reply = self.decode_response(apis.WRITE_TXN_MARKERS, version, response)
        assert reply.markers[0].producer_id == pid
        return reply.markers[0].topics[0].partitions[0].error_code

    async def committed(self, topic, offset=0, index=0, **options):
        """Return the values that a read_committed consumer gets, with as many fetches as necessary;
        aborted records are filtered as in clients.
        """
        values = []
        while True:
            found = (await self.fetch(topic, offset, index, isolation_level=1, **options)).raw
            assert found.error_code == 0
            if not found.records:
                assert offset == found.last_stable_offset
                return values
            more, offset = committed_values(found, offset)
            values += more

    async def list_offsets(
        self, topic, timestamp, index=0, leader_epoch=-1, version=7, isolation_level=0
    ):
        module = wire_list
        request = module.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[
                module.ListOffsetsTopic(
                    topic, [module.ListOffsetsPartition(index, leader_epoch, timestamp)]
                )
            ],
        )
        response = await handle_list_offsets(
            self, self.context(apis.LIST_OFFSETS, version, request)
        )
        return self.decode_response(apis.LIST_OFFSETS, version, response).topics[0].partitions[0]

    async def epoch_end(self, topic, epoch, index=0, leader_epoch=-1, version=4):
        module = wire_epoch
        request = module.OffsetForLeaderEpochRequest(
            topics=[
                module.OffsetForLeaderTopic(
                    topic, [module.OffsetForLeaderPartition(index, leader_epoch, epoch)]
                )
            ]
        )
        response = await handle_offset_for_leader_epoch(
            self, self.context(apis.OFFSET_FOR_LEADER_EPOCH, version, request)
        )
        return (
            self.decode_response(apis.OFFSET_FOR_LEADER_EPOCH, version, response)
            .topics[0]
            .partitions[0]
        )


def records_of(partition) -> list[Record]:
    assert partition.records is not None
    data = memoryview(bytes(partition.records))
    records, at = deque(), 0
    while at < len(data):
        records.extend(decode_records(data[at:]))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return list(records)


def committed_values(partition, fetch_offset) -> tuple[list[bytes], int]:
    """Return the values of one response, as filtered by `CompletedFetch` of Kafka's consumer, and
    the next offset.
    """
    begun, aborting, values, offset = (
        sorted(partition.aborted_transactions, key=lambda item: item.first_offset),
        set(),
        [],
        fetch_offset,
    )
    data = memoryview(bytes(partition.records))
    for at, header in iter_headers(data):
        while begun and begun[0].first_offset <= header.last_offset:
            aborting.add(begun.pop(0).producer_id)
        offset = header.next_offset
        if header.is_control:
            if not decode_marker(data[at:], header.producer_id, header.producer_epoch).committed:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [
                record.value
                for record in decode_records(data[at:])
                if record.offset >= fetch_offset
            ]
    return values, offset


def idempotent(sequence, *values, pid=42, epoch=0):
    return batch(*values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


def transactional(pid, sequence, *values, epoch=0):
    return batch(
        *values,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK,
    )


def batch(*values: bytes, timestamp=NOW, key=b"k", **options) -> bytes:
    records = [Record(at, timestamp, key, value) for at, value in enumerate(values)]
    return bytes(encode_batch(records, **options))


def key_of(harness, topic, index=0) -> PartitionKey:
    return PartitionKey(harness.image.topics.by_name(topic).topic_id, index)
