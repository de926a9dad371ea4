"""Create topics, restore deleted topics, and add partitions.

One transaction creates a partition together with its streams and, if any broker is live, its
leader. Topics and snapshots together have at most `partitions_max` partitions, but internal topics
are always created (KIP-578).
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from penstock.base.ids import Millis, NodeId, StreamEpoch, StreamId
from penstock.controller.api.messages import (
    PARTITIONS_PER_REQUEST_MAX,
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    ItemResult,
    ItemResults,
    NewPartitions,
    NewTopic,
    Status,
    TopicsCreated,
)
from penstock.controller.managers.deleted_topics import Undeletions
from penstock.controller.managers.elections import Elector
from penstock.controller.managers.forks import Fork, configs_of, plan_forks
from penstock.controller.managers.placement import REPLICATION_FACTOR_MAX, Placement
from penstock.controller.managers.result import CountPartitions, Refused, Result, count_nothing
from penstock.controller.managers.snapshots import plan_snapshot_topics
from penstock.controller.metadata import topic_configs
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import (
    CLEANUP_POLICY,
    COMPACT,
    INTERNAL_TOPICS,
    config_problem,
)
from penstock.controller.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    Record,
    StreamCreated,
    TopicRecord,
)
from penstock.controller.metadata.topic_configs import UNDELETE
from penstock.controller.metadata.topic_names import topic_name_problem
from penstock.controller.metadata.topics import NO_LEADER
from penstock.stream.format.manifest.model import SNAPSHOT_SEPARATOR

PARTITIONS_PER_TOPIC_MAX = 10_000
_LIMIT_REACHED = (
    "the cluster has {present} partitions of topics and snapshots, and {added} more would be above"
    " the limit of {limit} (max.partitions of the controllers): delete topics or snapshots that are"
    " not needed any more, use fewer partitions, or raise the limit"
)
_FIXED = (
    "topic {name!r} must keep its {count} partitions: keys are assigned to partitions by their"
    " number, and could not be found with another one"
)


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Values that replace -1 in requests. replication_factor -1: three, or the number of brokers if
    there are fewer.
    """

    partitions: int = 1
    replication_factor: int = -1


class _Maker:
    """Creates the partitions of one transaction and assigns their stream ids, candidates and
    leaders.
    """

    def __init__(
        self,
        image: MetadataImage,
        live: Collection[NodeId],
        count: CountPartitions,
        partitions_max: int | None,
    ) -> None:
        self.records: list[Record] = []
        self._count = count
        self._partitions_max = partitions_max
        self._present_count = (
            image.topics.partition_count + image.frozen_topics.snapshot_partition_count
        )
        """Number of partitions of topics and snapshots, including those created here."""
        self.placement = Placement(image, live)
        self.partition_count = 0
        self.elector = Elector(image, live)
        self._next_stream_id = image.next_stream_id

    def reserve(self, count: int) -> None:
        if self.partition_count + count > PARTITIONS_PER_REQUEST_MAX:
            detail = (
                f"more than {PARTITIONS_PER_REQUEST_MAX} partitions in one request: make several"
                " requests"
            )
            raise Refused(Status.PARTITION_LIMIT_REACHED, detail)
        self.partition_count += count

    def count(self, added: int, *, is_internal: bool = False) -> None:
        """Count the partitions that an item creates, after all other checks. Raises Refused if they
        exceed the limit of the cluster or the client's quota.
        """
        limit, present = self._partitions_max, self._present_count
        if limit is not None and present + added > limit and not is_internal:
            detail = _LIMIT_REACHED.format(present=present, added=added, limit=limit)
            raise Refused(Status.PARTITION_LIMIT_REACHED, detail)
        self._count(added)
        self._present_count += added

    def add(
        self,
        topic_id: UUID,
        partition: int,
        replicas: tuple[NodeId, ...],
        fork: Fork | None = None,
        *,
        is_frozen: bool = False,
    ) -> None:
        leader = NO_LEADER if is_frozen else self.elector.choose(replicas)
        meta, data, txn = (StreamId(self._next_stream_id + more) for more in range(3))
        self._next_stream_id = StreamId(txn + 1)
        self.records += [
            PartitionRecord(
                topic_id,
                partition,
                replicas,
                leader.node_id,
                leader.node_epoch,
                StreamEpoch(0) if fork is None else fork.leader_epoch,
                meta,
                data,
                txn,
                fork=None if fork is None else fork.point,
            ),
            StreamCreated(meta, topic_id, partition, "meta"),
            StreamCreated(data, topic_id, partition, "data"),
            StreamCreated(txn, topic_id, partition, "txn"),
        ]
        if fork is not None:
            self.records += fork.stream_records(data, txn)


def create_topics(
    image: MetadataImage,
    request: CreateTopics,
    *,
    new_uuid: Callable[[], UUID],
    live: Collection[NodeId],
    defaults: TopicDefaults,
    now_ms: Millis,
    move_timeout_ms: int,
    partitions_max: int | None = None,
    count: CountPartitions = count_nothing,
) -> Result[TopicsCreated]:
    """Create topics or restore deleted ones. Return one result per topic, in the order of the
    request. Each topic succeeds or fails separately, but snapshot topics are created together or
    not at all. validate_only creates no records.

    move_timeout_ms: timeout for restored partitions that their last owner still has open.
    partitions_max: limit for topics and snapshots together, or None. count: counts the partitions
    of each topic toward the client's quota.
    """
    maker = _Maker(image, live, count, partitions_max)
    undeletions = Undeletions(image, maker.elector, now_ms, move_timeout_ms)
    counts = Counter(topic.name for topic in request.topics)
    frozen = [topic for topic in request.topics if SNAPSHOT_SEPARATOR in topic.name]
    of_snapshots = _freeze(image, frozen, maker, new_uuid, now_ms) if frozen else {}
    created: list[CreatedTopic] = []
    for topic in request.topics:
        try:
            if topic.name in of_snapshots:
                created.append(of_snapshots[topic.name])
                continue
            if counts[topic.name] > 1:
                raise Refused(
                    Status.DUPLICATE_IN_REQUEST,
                    f"topic {topic.name!r} is in the request {counts[topic.name]} times",
                )
            wanted = topic.configs.get(UNDELETE)
            created.append(
                _create(image, topic, maker, new_uuid, defaults)
                if wanted is None
                else _undelete(topic, wanted, maker, undeletions)
            )
        except Refused as refused:
            created.append(
                CreatedTopic(name=topic.name, status=refused.status, detail=refused.detail)
            )
    return Result(
        [] if request.validate_only else maker.records, value=TopicsCreated(topics=created)
    )


def create_partitions(
    image: MetadataImage,
    request: CreatePartitions,
    *,
    live: Collection[NodeId],
    partitions_max: int | None = None,
    count: CountPartitions = count_nothing,
) -> Result[ItemResults]:
    """Add partitions to topics. Their number never decreases. partitions_max, count: see
    `create_topics`.
    """
    maker = _Maker(image, live, count, partitions_max)
    counts = Counter(topic.name for topic in request.topics)
    items: list[ItemResult] = []
    for topic in request.topics:
        try:
            if counts[topic.name] > 1:
                raise Refused(
                    Status.DUPLICATE_IN_REQUEST,
                    f"topic {topic.name!r} is in the request {counts[topic.name]} times",
                )
            _grow(image, topic, maker)
            items.append(ItemResult())
        except Refused as refused:
            items.append(ItemResult(status=refused.status, detail=refused.detail))
    return Result([] if request.validate_only else maker.records, value=ItemResults(items=items))


def _create(
    image: MetadataImage,
    topic: NewTopic,
    maker: _Maker,
    new_uuid: Callable[[], UUID],
    defaults: TopicDefaults,
) -> CreatedTopic:
    check_topic_name(topic.name)
    if image.topics.by_name(topic.name) is not None:
        raise Refused(Status.TOPIC_EXISTS, f"topic {topic.name!r} exists")
    forks = plan_forks(image, topic)
    configs = configs_of(image, topic)
    is_internal = topic.name in INTERNAL_TOPICS
    if is_internal:
        configs.setdefault(CLEANUP_POLICY, COMPACT)
    for name, value in configs.items():
        if problem := topic_configs.problem(name, value):
            raise Refused(Status.INVALID_CONFIG, problem)
        configs[name] = topic_configs.canonical(name, value)
        if is_internal and (problem := config_problem(name, configs[name])):
            raise Refused(Status.INVALID_CONFIG, problem)
    if problem := topic_configs.conflict(configs):
        raise Refused(Status.INVALID_CONFIG, problem)
    rows = _rows(topic, maker, defaults)
    if forks is not None and len(rows) != len(forks):
        detail = f"a fork has as many partitions as its source: {len(forks)}, not {len(rows)}"
        raise Refused(Status.INVALID_PARTITIONS, detail)
    maker.count(len(rows), is_internal=is_internal)
    topic_id = new_uuid()
    maker.records.append(TopicRecord(topic_id, topic.name))
    maker.records += [
        ConfigRecord(TOPIC_RESOURCE, topic.name, name, value) for name, value in configs.items()
    ]
    for partition, replicas in enumerate(rows):
        maker.add(topic_id, partition, replicas, None if forks is None else forks[partition])
    return CreatedTopic(
        name=topic.name, topic_id=topic_id, partitions=len(rows), replication_factor=len(rows[0])
    )


def _undelete(
    topic: NewTopic, wanted: str, maker: _Maker, undeletions: Undeletions
) -> CreatedTopic:
    check_topic_name(topic.name)
    found = undeletions.check(topic, wanted)
    maker.reserve(len(found.partitions))
    maker.count(len(found.partitions))
    maker.records += undeletions.records(found, topic.name)
    return CreatedTopic(
        name=topic.name,
        topic_id=found.topic_id,
        partitions=len(found.partitions),
        replication_factor=len(found.partitions[0].replicas),
    )


def _freeze(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    maker: _Maker,
    new_uuid: Callable[[], UUID],
    now_ms: Millis,
) -> dict[str, CreatedTopic]:
    """Create either all snapshot topics or none. Return the results by topic name."""
    try:
        plans = plan_snapshot_topics(image, topics)
        for plan in plans:
            check_topic_name(plan.source_name)
        total = sum(len(plan.forks) for plan in plans)
        maker.reserve(total)
        maker.count(total)
    except Refused as refused:
        return {
            topic.name: CreatedTopic(name=topic.name, status=refused.status, detail=refused.detail)
            for topic in topics
        }
    created: dict[str, CreatedTopic] = {}
    for plan in plans:
        topic_id = new_uuid()
        maker.records.append(plan.record(topic_id, now_ms, image.end_offset))
        for partition, fork in enumerate(plan.forks):
            maker.add(topic_id, partition, fork.source.replicas, fork, is_frozen=True)
        created[plan.full_name] = CreatedTopic(
            name=plan.full_name,
            topic_id=topic_id,
            partitions=len(plan.forks),
            replication_factor=len(plan.forks[0].source.replicas),
        )
    return created


def check_topic_name(name: str) -> None:
    if problem := topic_name_problem(name):
        raise Refused(Status.INVALID_TOPIC_NAME, problem)


def _rows(topic: NewTopic, maker: _Maker, defaults: TopicDefaults) -> list[tuple[NodeId, ...]]:
    if topic.assignment is not None:
        if topic.partitions != -1 or topic.replication_factor != -1:
            detail = "with an explicit assignment, partitions and replication factor must be -1"
            raise Refused(Status.INVALID_REQUEST, detail)
        if not topic.assignment:
            detail = f"1 to {PARTITIONS_PER_TOPIC_MAX} partitions are allowed"
            raise Refused(Status.INVALID_PARTITIONS, detail)
        rows = maker.placement.check(topic.assignment)
        maker.reserve(len(rows))
        return rows
    count = defaults.partitions if topic.partitions == -1 else topic.partitions
    if count < 1:
        detail = (
            f"{topic.partitions} partitions are not allowed: 1 to {PARTITIONS_PER_TOPIC_MAX}, or -1"
            " for the default"
        )
        raise Refused(Status.INVALID_PARTITIONS, detail)
    maker.reserve(count)
    factor = (
        defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    return maker.placement.candidates(count, factor)


def _grow(image: MetadataImage, request: NewPartitions, maker: _Maker) -> None:
    topic = image.topics.by_name(request.name)
    if topic is None:
        raise Refused(Status.UNKNOWN_TOPIC, f"there is no topic {request.name!r}")
    if request.name in INTERNAL_TOPICS:
        raise Refused(
            Status.INVALID_TOPIC_NAME, _FIXED.format(name=request.name, count=len(topic.partitions))
        )
    present = len(topic.partitions)
    added = request.total - present
    if added <= 0 or request.total > PARTITIONS_PER_TOPIC_MAX:
        detail = (
            f"topic {request.name!r} has {present} partitions; the new total must be higher, and at"
            f" most {PARTITIONS_PER_TOPIC_MAX}"
        )
        status = Status.INVALID_PARTITIONS if added <= 0 else Status.PARTITION_LIMIT_REACHED
        raise Refused(status, detail)
    if request.assignment is not None and len(request.assignment) != added:
        detail = f"{added} partitions are added, the assignment is for {len(request.assignment)}"
        raise Refused(Status.INVALID_REPLICA_ASSIGNMENT, detail)
    width = len(topic.partitions[0].replicas)
    rows = (
        maker.placement.candidates(added, min(width, REPLICATION_FACTOR_MAX))
        if request.assignment is None
        else maker.placement.check(request.assignment)
    )
    maker.reserve(added)
    maker.count(added)
    for index, replicas in enumerate(rows):
        maker.add(topic.topic_id, present + index, replicas)
