"""Metadata: return topics, partitions, leaders and broker addresses, and create topics on first use
if allowed.

Only topic creation waits for the controller. A broker without a session does not list itself as a
leader (`broker.requests.lease`).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final
from uuid import UUID

from penstock.base.acls import Operation, ResourceType
from penstock.base.ids import NodeEpoch, NodeId
from penstock.broker.config import BrokerConfig
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.topics.frozen_topics import describe_frozen_topics
from penstock.broker.handlers.topics.topic_creation import create_topics
from penstock.broker.network.request import LongResponse, RequestContext, Response
from penstock.broker.partition.leaders import Gone, announced_leader
from penstock.broker.requests import advertised
from penstock.broker.requests.authorization import (
    NOT_REQUESTED,
    allows_cluster,
    cluster_operations,
    denied_topics,
    find_denied_topics,
    operations,
)
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import SLICE_COUNT, each_once, sliced
from penstock.controller.api import messages
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topic_names import is_topic_name
from penstock.controller.metadata.topics import PartitionMetadata, TopicState
from penstock.protocol import apis, framing
from penstock.protocol.error_codes import known_code
from penstock.protocol.gen.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    decode_request,
)
from penstock.protocol.metadata import (
    EncodedMetadata,
    EncodedTopic,
    encode_metadata,
    encode_partition,
)

_WITHOUT_RIGHTS: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST}
)
"""Topics with these errors are returned without authorized operations."""
_UNREPORTED_CODES: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
)
"""Errors of topic creation that are not reported, because the response shows whether the topic
exists.
"""
_FIRST_WITH_EMPTY_AS_NONE: Final = 1
_WITHOUT_IDS: Final = range(10, 12)
"""Versions that contain topic ids but allow only names. If a request contains an id, Kafka rejects
all its topics.
"""


class PartitionCache:
    """Encoded partitions for Metadata responses, by topic and API version. Each partition uses
    about 150 bytes.

    Without this cache, encoding 10,000 partitions took 0.1 s, and three clients that refreshed
    their metadata repeatedly delayed the heartbeats of brokers until they were fenced one after the
    other.
    """

    def __init__(self, partitions_max: int = 200_000) -> None:
        self._partitions_max = partitions_max
        self.kept_count = 0
        self._nodes: tuple[NodeId | None, Gone, list[tuple[NodeId, NodeEpoch, bool, bool]]] = (
            None,
            frozenset(),
            [],
        )
        """All inputs of the encoding except partition records: the broker that must not be listed,
        departed brokers, and the state of all brokers, which determines the live ones and the
        candidates for the next leader.
        """
        self._encoded: dict[
            tuple[UUID, int], tuple[list[PartitionMetadata | None], list[bytes]]
        ] = {}

    def partitions(
        self,
        image: MetadataImage,
        topic: TopicState,
        version: int,
        unnamed: NodeId | None = None,
        gone: Gone = frozenset(),
    ) -> Sequence[bytes]:
        """Return the encoded partitions of a topic, which are valid until the next call. This takes
        0.4 ms for 10,000 unchanged partitions, and 5 us for each changed one.

        unnamed: a broker that must not be listed as a leader, or None. gone: see
        `announced_leader`.
        """
        nodes = [
            (node.node_id, node.node_epoch, node.fenced, node.draining) for node in image.nodes
        ]
        if (unnamed, gone, nodes) != self._nodes or self.kept_count > self._partitions_max:
            self._encoded.clear()
            self.kept_count, self._nodes = 0, (unnamed, frozenset(gone), nodes)
        records, encoded = self._encoded.setdefault((topic.topic_id, version), ([], []))
        added = len(topic.partitions) - len(records)
        records += [None] * added
        encoded += [b""] * added
        self.kept_count += added
        live = {node_id for node_id, _, fenced, _ in nodes if not fenced}
        for index, record in enumerate(topic.partitions):
            if records[index] is not record:
                encoded[index] = encode_partition(
                    partition_metadata(image, record, live, unnamed, gone), version
                )
                records[index] = record
        return encoded


def make_metadata_handler() -> Callable[[Node, RequestContext], Response | Awaitable[Response]]:
    """Return the Metadata handler of one broker."""
    cache = PartitionCache()

    def handle_metadata(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
        return (
            handle_in_doubt(node, ctx) if node.peer_watch.is_in_doubt() else handle_now(node, ctx)
        )

    async def handle_in_doubt(node: Node, ctx: RequestContext) -> Response:
        """Respond once it is certain whether a broker has died, because the client may have sent
        the request after losing its connection. If the response listed the dead broker, librdkafka
        would retry only after a second.
        """
        await node.peer_watch.until_certain()
        response = handle_now(node, ctx)
        return await response if isinstance(response, Awaitable) else response

    def handle_now(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
        request = decoded(ctx, decode_request)
        response = _ResponseBuilder(node, ctx, request, cache)
        requested = request.topics
        if request.frozen_topics:
            return response.of_frozen_topics(requested or ())
        if requested is None or (not requested and ctx.api_version < _FIRST_WITH_EMPTY_AS_NONE):
            if len(node.image.topics) > SLICE_COUNT:
                return response.of_all_in_slices()
            return response.encode(response.all_topics())
        if ctx.api_version in _WITHOUT_IDS and any(
            topic.topic_id is not None or topic.name is None for topic in requested
        ):
            return response.encode(list(map(_refused, requested)))
        if len(requested) > SLICE_COUNT:
            return response.in_slices(requested)
        response.check(requested)
        missing = response.creatable(_creatable(node, request, requested))
        if missing:
            return response.after_creating(requested, missing)
        unique = dict.fromkeys(map(_named, requested))
        return response.encode(list(response.topics_for(unique, {})))

    return handle_metadata


_Named = tuple[UUID | None, str | None]
"""Id and name of a topic in a request."""


def _named(topic: MetadataRequestTopic) -> _Named:
    return topic.topic_id, topic.name


def _refused(topic: MetadataRequestTopic) -> EncodedTopic:
    code = ErrorCode.INVALID_REQUEST
    return EncodedTopic(MetadataResponseTopic(code, topic.name or "", topic.topic_id), ())


def _creatable(
    node: Node, request: MetadataRequest, requested: Sequence[MetadataRequestTopic]
) -> list[str]:
    if not (request.allow_auto_topic_creation and node.config.auto_create_topics_enable):
        return []
    names = {topic.name for topic in requested if topic.name is not None and topic.topic_id is None}
    return sorted(name for name in names if _is_missing(node, name))


def _is_missing(node: Node, name: str) -> bool:
    """Return whether the topic does not exist but could be created."""
    return (
        node.image.topics.by_name(name) is None
        and is_topic_name(name)
        and name not in INTERNAL_TOPICS
    )


async def _create(node: Node, ctx: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
    """Create the missing topics, and return the errors. As in Kafka, retriable errors are mapped to
    LEADER_NOT_AVAILABLE, and if the client has exceeded its quota, the topic is reported as unknown
    without throttling the client.
    """
    config: BrokerConfig = node.config
    topics = [
        messages.NewTopic(
            name=name,
            partitions=config.num_partitions,
            replication_factor=config.default_replication_factor,
        )
        for name in names
    ]
    created = await create_topics(
        node, ctx, topics, mutes=False, timeout_s=config.topic_create_timeout_ms / 1_000
    )
    errors = {name: known_code(result.error_code) for name, result in created.items()}
    return {
        name: ErrorCode.LEADER_NOT_AVAILABLE if code.retriable else code
        for name, code in errors.items()
        if code not in _UNREPORTED_CODES
    }


class _ResponseBuilder:
    """Builds the response to one request."""

    def __init__(
        self, node: Node, ctx: RequestContext, request: MetadataRequest, cache: PartitionCache
    ) -> None:
        self._node = node
        self._ctx = ctx
        self._request = request
        self._cache = cache
        self._denied: AbstractSet[str] = frozenset()
        """Topics that the client may not describe."""
        self._not_creatable: AbstractSet[str] = frozenset()

    def check(self, requested: Iterable[MetadataRequestTopic]) -> None:
        """Determine which of these topics the client may not describe."""
        if self._node.authorizer is not None:
            names = self._names_of(requested)
            self._denied = denied_topics(self._node, self._ctx, Operation.DESCRIBE, names)

    def _names_of(self, requested: Iterable[MetadataRequestTopic]) -> Iterator[str]:
        names = (self._name_of(topic) for topic in requested)
        return (name for name in names if name is not None)

    def _name_of(self, topic: MetadataRequestTopic) -> str | None:
        if topic.topic_id is None:
            return topic.name
        known = self._node.image.topics.by_id(topic.topic_id)
        return None if known is None else known.name

    def all_topics(self) -> list[EncodedTopic]:
        """Return all topics that the client may describe."""
        node, topics = self._node, self._node.image.topics
        denied = denied_topics(
            node, self._ctx, Operation.DESCRIBE, (topic.name for topic in topics), logs=False
        )
        return [self.known(topic) for topic in topics if topic.name not in denied]

    async def of_all_in_slices(self) -> Response:
        """Respond with all topics that the client may describe, in slices."""
        node, topics = self._node, list(self._node.image.topics)
        names = (topic.name for topic in topics)
        denied = await find_denied_topics(node, self._ctx, Operation.DESCRIBE, names, logs=False)
        return await self.encode_in_slices(
            self.known(topic) for topic in topics if topic.name not in denied
        )

    async def in_slices(self, requested: Sequence[MetadataRequestTopic]) -> Response:
        """Respond to a request for many topics, in slices."""
        node, ctx = self._node, self._ctx
        names = self._names_of(requested)
        self._denied = await find_denied_topics(node, ctx, Operation.DESCRIBE, names)
        missing: list[str] = []
        if self._request.allow_auto_topic_creation and node.config.auto_create_topics_enable:
            named = (topic.name for topic in requested if topic.topic_id is None)
            missing = [
                name
                async for name in each_once(named)
                if name is not None and name not in self._denied and _is_missing(node, name)
            ]
        if missing and not allows_cluster(node, ctx, Operation.CREATE, logs=False):
            self._not_creatable = await find_denied_topics(node, ctx, Operation.CREATE, missing)
            missing = [name for name in missing if name not in self._not_creatable]
        errors = await _create(node, ctx, missing) if missing else {}
        unique = [named async for named in each_once(map(_named, requested))]
        return await self.encode_in_slices(self.topics_for(unique, errors))

    def creatable(self, missing: Sequence[str]) -> list[str]:
        """Return the missing topics that the client may create."""
        node, ctx = self._node, self._ctx
        names = [name for name in missing if name not in self._denied]
        if names and not allows_cluster(node, ctx, Operation.CREATE, logs=False):
            self._not_creatable = denied_topics(node, ctx, Operation.CREATE, names)
        return [name for name in names if name not in self._not_creatable]

    async def after_creating(
        self, requested: Sequence[MetadataRequestTopic], names: list[str]
    ) -> Response:
        errors = await _create(self._node, self._ctx, names)
        unique = dict.fromkeys(map(_named, requested))
        return self.encode(list(self.topics_for(unique, errors)))

    async def of_frozen_topics(self, requested: Sequence[MetadataRequestTopic]) -> Response:
        found = await describe_frozen_topics(self._node, self._ctx, requested)
        return self.encode([EncodedTopic(head, ()) for head in found])

    def topics_for(
        self, named: Iterable[_Named], errors: dict[str, ErrorCode]
    ) -> Iterator[EncodedTopic]:
        """Yield the topics of the response. named: topic ids or names, without duplicates."""
        for topic_id, name in named:
            yield self._by_id(topic_id) if topic_id is not None else self._by_name(name, errors)

    def _by_id(self, topic_id: UUID) -> EncodedTopic:
        topic = self._node.image.topics.by_id(topic_id)
        if topic is None:
            return EncodedTopic(
                MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
                ),
                (),
            )
        if topic.name in self._denied:
            # As in Kafka, topic ids are not secret.
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return EncodedTopic(MetadataResponseTopic(code, name=None, topic_id=topic_id), ())
        return self.known(topic)

    def _by_name(self, name: str | None, errors: dict[str, ErrorCode]) -> EncodedTopic:
        if name is None:
            return EncodedTopic(
                MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=None), ()
            )
        if name in self._denied or name in self._not_creatable:
            is_internal = name in INTERNAL_TOPICS and name not in self._denied
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return EncodedTopic(MetadataResponseTopic(code, name=name, is_internal=is_internal), ())
        topic = self._node.image.topics.by_name(name)
        if topic is not None:
            return self.known(topic)
        fallback = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_topic_name(name)
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        code = errors.get(name, fallback)
        return EncodedTopic(
            MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS),
            (),
        )

    def known(self, topic: TopicState) -> EncodedTopic:
        head = MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.name in INTERNAL_TOPICS
        )
        node = self._node
        unnamed = None if node.can_write() else node.node_id
        return EncodedTopic(
            head,
            self._cache.partitions(node.image, topic, self._ctx.api_version, unnamed, node.gone),
        )

    def encode(self, topics: list[EncodedTopic]) -> Response:
        """Return the response. All topics are encoded in one event loop iteration."""
        for topic in topics:
            self._add_operations(topic)
        return self._frame(self._head(), topics)

    async def encode_in_slices(self, topics: Iterable[EncodedTopic]) -> Response:
        """Return the response, which is encoded in a thread. The topics are processed in slices."""
        earlier = self._head()
        found: list[EncodedTopic] = []
        async for topic in sliced(topics):
            self._add_operations(topic)
            # The cache may change the list during later slices, so copy it.
            found.append(EncodedTopic(topic.head, tuple(topic.partitions)))
        head = self._head()
        # Include brokers that have left since the first slices, because those slices may list them
        # as leaders.
        brokers = {broker.node_id: broker for broker in (*earlier.brokers, *head.brokers)}
        head.brokers = list(brokers.values())
        return LongResponse(partial(self._frame, head, found))

    def _add_operations(self, topic: EncodedTopic) -> None:
        head = topic.head
        if (
            self._request.include_topic_authorized_operations
            and head.name is not None
            and head.error_code not in _WITHOUT_RIGHTS
        ):
            head.topic_authorized_operations = operations(
                self._node, self._ctx, ResourceType.TOPIC, head.name
            )

    def _head(self) -> MetadataResponse:
        node, ctx, request = self._node, self._ctx, self._request
        wants_all_topics = request.topics is None or (
            not request.topics and ctx.api_version < _FIRST_WITH_EMPTY_AS_NONE
        )
        brokers = (advertised.live_brokers if wants_all_topics else advertised.known_brokers)(
            node, ctx.connection
        )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(broker.node_id, broker.host, broker.port, broker.rack)
                for broker in brokers
            ],
            cluster_id=node.cluster_id,
            controller_id=advertised.controller_id(node),
            cluster_authorized_operations=cluster_operations(node, ctx)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED,
        )

    def _frame(self, head: MetadataResponse, topics: list[EncodedTopic]) -> bytearray:
        ctx, message = self._ctx, EncodedMetadata(head, topics)
        return framing.encode_response_frame(
            apis.METADATA, ctx.api_version, ctx.correlation_id, encode_metadata, message
        )


def partition_metadata(
    image: MetadataImage,
    partition: PartitionMetadata,
    live: set[NodeId],
    unnamed: NodeId | None,
    gone: Gone = frozenset(),
) -> MetadataResponsePartition:
    """Describe a partition. A partition without a live leader is returned with the next leader if
    it is known (`broker.partition.leaders`), and otherwise with the error LEADER_NOT_AVAILABLE.

    live: the brokers that are not fenced. unnamed: a broker that must not be listed as a leader, or
    None. gone: see `announced_leader`.
    """
    leader = announced_leader(image, partition, gone)
    if leader is not None and leader.node_id == unnamed:
        leader = None
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.partition,
        leader_id=-1 if leader is None else leader.node_id,
        leader_epoch=partition.leader_epoch if leader is None else leader.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=[replica for replica in partition.replicas if replica in live],
        offline_replicas=[replica for replica in partition.replicas if replica not in live],
    )
