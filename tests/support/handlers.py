"""Call handlers through the dispatcher with a real metadata image and a controller that only
records its requests.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.audit import ChangeLog
from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch, StreamId
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS, Principal
from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import BrokerSettings
from penstock.broker.handlers.table import API_RIGHTS, INLINE, make_handlers
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.peers import PeerConnections
from penstock.broker.network.request import UNKNOWN_SOFTWARE, Response, SoftwareInfo
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.requests.dispatch import RequestDispatcher
from penstock.broker.requests.node import Handler, Node
from penstock.broker.requests.pending_topics import PendingTopics
from penstock.broker.requests.recent_brokers import DepartedBrokers
from penstock.broker.requests.topic_change_queue import PartitionTurns
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.sasl import SaslState
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.controller.api import messages
from penstock.controller.api.errors import refusal
from penstock.controller.api.quota_messages import AlterQuotas, QuotasAltered
from penstock.controller.managers import acls, configs, features, quotas
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.features import SUPPORTED
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    AclEntry,
    AclRecord,
    NodeRecord,
    PartitionRecord,
    Record,
    StreamCreated,
    TopicRecord,
)
from penstock.protocol import apis, framing
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import metadata
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from penstock.stream.wal.sender import Sender
from tests.support.requests import make_request


@dataclass
class FakeConnection:
    id: int = 1
    listener: str = "PLAINTEXT"
    local_host: str = "10.9.9.9"
    local_port: int = 9092
    peer: str = "10.1.1.1:5"
    peer_host: str = "10.1.1.1"
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    principal: Principal = ANONYMOUS
    sasl: SaslState | None = None
    client_software: SoftwareInfo = UNKNOWN_SOFTWARE
    sender: Sender = field(default_factory=Sender)

    closed: bool = False
    muted_ms: int = 0

    def mute(self, wait_ms: int) -> None:
        self.muted_ms = max(self.muted_ms, wait_ms)

    def authenticated(self, principal: Principal) -> None:
        self.principal = principal

    def close(self, reason: str) -> None:
        raise CannotRespond(reason)

    def close_quietly(self) -> None:
        self.closed = True


@dataclass
class FakeClient:
    """Creates topics in the image immediately, as the real client does with read-your-writes."""

    image: MetadataImage
    requested: list[Any] = field(default_factory=list[Any])
    fail_with: Exception | None = None
    status: messages.Status = messages.Status.OK
    on_batch: Callable[[MetadataDelta, MetadataImage], None] | None = None

    async def create_topics(
        self, request: messages.CreateTopics, *, timeout_s: float
    ) -> messages.TopicsCreated:
        self._note(request)
        created: list[messages.CreatedTopic] = []
        for topic in request.topics:
            topic_id = uuid4()
            if self.status is messages.Status.OK:
                self.image.apply_all(
                    topic_records(topic_id, topic.name, self.image, partitions=topic.partitions)
                )
            created.append(
                messages.CreatedTopic(
                    name=topic.name,
                    status=self.status,
                    detail="because",
                    topic_id=topic_id,
                    partitions=topic.partitions,
                    replication_factor=1,
                )
            )
        return messages.TopicsCreated(topics=created)

    async def delete_topics(
        self, request: messages.DeleteTopics, *, timeout_s: float
    ) -> messages.ItemResults:
        self._note(request)
        return messages.ItemResults(
            items=[messages.ItemResult(status=self.status)] * len(request.topic_ids)
        )

    async def create_partitions(
        self, request: messages.CreatePartitions, *, timeout_s: float
    ) -> messages.ItemResults:
        self._note(request)
        return messages.ItemResults(
            items=[messages.ItemResult(status=self.status, detail="why")] * len(request.topics)
        )

    async def alter_configs(
        self, request: messages.AlterConfigs, *, timeout_s: float
    ) -> messages.ItemResults:
        self._note(request)
        result = configs.alter_configs(self.image, request)
        if result.value is None:
            raise refusal(result.status, result.detail)
        self.image.apply_all(result.records)
        return result.value

    async def update_features(self, request: messages.UpdateFeatures, *, timeout_s: float) -> None:
        self._note(request)
        result = features.update_features(self.image, request, controller_id=1)
        if result.status is not messages.Status.OK:
            raise refusal(result.status, result.detail)
        self.image.apply_all(result.records)

    async def create_acls(
        self, request: messages.CreateAcls, *, timeout_s: float
    ) -> messages.ItemResults:
        self._note(request)
        result = acls.create_acls(self.image, request)
        if result.value is None:
            raise refusal(result.status, result.detail)
        self._apply(result.records)
        return result.value

    async def delete_acls(
        self, request: messages.DeleteAcls, *, timeout_s: float
    ) -> messages.AclsDeleted:
        self._note(request)
        result = acls.delete_acls(self.image, request)
        if result.value is None:
            raise refusal(result.status, result.detail)
        self._apply(result.records)
        return result.value

    def _apply(self, records: list[Record]) -> None:
        self.image.apply_all(records)
        if self.on_batch is not None:
            self.on_batch(MetadataDelta.of(records), self.image)

    async def alter_quotas(self, request: AlterQuotas, *, timeout_s: float) -> QuotasAltered:
        self._note(request)
        result = quotas.alter_quotas(self.image, request)
        if result.value is None:
            raise refusal(result.status, result.detail)
        self._apply(result.records)
        return result.value

    async def allocate_producer_ids(
        self, request: messages.AllocateProducerIds, *, timeout_s: float
    ) -> messages.ProducerIdBlock:
        self._note(request)
        return messages.ProducerIdBlock(first_producer_id=2 * len(self.requested), count=2)

    def _note(self, request: Any) -> None:
        self.requested.append(request)
        if self.fail_with is not None:
            raise self.fail_with


def broker_record(
    node_id: int, *, host: str = "", machine: str = "m1", fenced: bool = False, epoch: int = 1
) -> NodeRecord:
    return NodeRecord(
        NodeId(node_id),
        NodeEpoch(epoch),
        UUID(int=node_id),
        host,
        9000 + node_id,
        machine,
        None,
        fenced,
        features=SUPPORTED,
    )


def topic_records(
    topic_id: UUID,
    name: str,
    image: MetadataImage,
    *,
    partitions: int = 1,
    leader: int = 1,
    epoch: int = 1,
) -> list[Record]:
    records: list[Record] = [TopicRecord(topic_id, name)]
    for index in range(partitions):
        first = image.next_stream_id + 3 * index
        records += [
            StreamCreated(StreamId(first + at), topic_id, index, kind)
            for at, kind in enumerate(("meta", "data", "txn"))
        ]
        records.append(
            PartitionRecord(
                topic_id,
                index,
                (NodeId(1), NodeId(2)),
                NodeId(leader),
                NodeEpoch(epoch),
                StreamEpoch(3),
                StreamId(first),
                StreamId(first + 1),
                StreamId(first + 2),
            )
        )
    return records


class Fixture:
    def __init__(self, **settings: Any) -> None:
        self.image = MetadataImage()
        self.image.apply_all([broker_record(2, machine="m2"), broker_record(1)])
        self.client = FakeClient(self.image)
        self.departed = DepartedBrokers()
        self.node = SimpleNamespace(
            node_id=1,
            node_epoch=1,
            cluster_id="c-1",
            log_dir="memory:",
            authorizer=None,
            change_log=ChangeLog(lambda: 0.0),
            image=self.image,
            client=self.client,
            config=BrokerConfig(**settings),
            stream_config=StreamConfig(),
            compaction_config=CompactionConfig(),
            storage=SimpleNamespace(is_full=False, fenced=False),
            now_ms=lambda: 0,
            can_write=lambda: True,
            leads_alone=lambda: True,
            departed=lambda: self.departed.listed(0),
            gone=frozenset(),
            partition_turns=PartitionTurns(),
            streams_topics=PendingTopics(),
            peer_watch=PeerWatch(NodeId(1), PeerConnections(lambda: self.image), lambda _: None),
        )
        self.node.static_settings = BrokerSettings(
            self.node.config, self.node.stream_config, self.node.compaction_config
        )
        self.node.producer_ids = ProducerIds(cast("Node", self.node))
        self.connection = FakeConnection()
        self.use(make_handlers())

    def authorize(self, *allowed: AclEntry, **settings: Any) -> Authorizer:
        """Use an authorizer with these ACLs from now on."""
        self.image.apply_all([AclRecord(acl) for acl in allowed])
        config = SecurityConfig(authorizer=STANDARD_AUTHORIZER, **settings)
        authorizer = Authorizer(config, AuditLog(lambda: 0.0), API_RIGHTS)
        authorizer.on_batch(MetadataDelta(everything=True), self.image)
        self.client.on_batch = authorizer.on_batch
        self.node.authorizer = authorizer
        return authorizer

    def use(self, handlers: dict[int, Handler]) -> None:
        self.dispatcher = RequestDispatcher(cast("Node", self.node), handlers, INLINE)

    def topic(self, name: str, **settings: Any) -> UUID:
        topic_id = uuid4()
        self.image.apply_all(topic_records(topic_id, name, self.image, **settings))
        return topic_id

    async def raw(self, frame: bytes) -> bytes:
        responses: list[Response] = []
        coroutine = self.dispatcher.start(self.connection, bytearray(frame), responses.append)
        if coroutine is not None:
            responses.append(await coroutine)
        (response,) = responses
        assert isinstance(response, bytes | bytearray)
        assert struct.unpack_from(">i", response)[0] == len(response) - 4
        return bytes(response[4:])

    async def send_request(
        self, api: apis.ApiSpec, version: int, request: object = None, /, **fields: Any
    ) -> Any:
        """Send the request, or one with these fields (see `make_request`). Return the response."""
        request = make_request(api, **fields) if request is None else request
        frame = framing.encode_request_frame(
            api, version, 77, CODECS[api.key].encode_request, request, client_id="test"
        )
        response = await self.raw(bytes(frame[4:]))
        correlation_id, at = framing.parse_response_header(api, version, response)
        assert correlation_id == 77
        return framing.decode_body(
            CODECS[api.key].decode_response, response, at, version, MAX_ELEMENTS_COUNT
        )

    async def metadata(self, *names: str, version: int = 12, auto: bool = False) -> Any:
        requested = [metadata.MetadataRequestTopic(name=name) for name in names]
        return await self.send_request(
            apis.METADATA,
            version,
            metadata.MetadataRequest(requested, allow_auto_topic_creation=auto),
        )
