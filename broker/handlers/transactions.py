"""Transaction APIs: convert wire messages for `TransactionCoordinator` and `GroupCoordinator`.

As in Kafka, the version of a request determines the version of its transaction (KIP-890), whatever
the level of `transaction.version`: EndTxn 5 and TxnOffsetCommit 5 belong to version 2.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from penstock.base.acls import Operation, ResourceType
from penstock.base.regular_expressions import RegexInvalid, compiled
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, ensure_topic
from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.offsets.topics import stores_ids
from penstock.broker.handlers import verification
from penstock.broker.handlers.groups.commit_topics import CommitTopics, begin_read, settled
from penstock.broker.handlers.txn_markers import led_partition
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.verification import Guard
from penstock.broker.requests.authorization import (
    allows,
    allows_cluster,
    allows_group,
    check_group,
    check_transactional_id,
    find_denied_topics,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import each_once, gathered, sliced
from penstock.broker.transactions.coordinator import NO_PRODUCER
from penstock.broker.transactions.model import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Membership,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from penstock.broker.transactions.records import group_by_topic
from penstock.controller.api.errors import ControllerError
from penstock.protocol.gen import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
)

_FIRST_OF_BROKERS: Final = 4
"""The first version of AddPartitionsToTxn that brokers send."""
_FIRST_WITH_NEXT_EPOCH: Final = 5
"""The first version of EndTxn that returns the next epoch."""
_TopicResult: TypeAlias = add_partitions_to_txn.AddPartitionsToTxnTopicResult
_KNOW_FENCED_FROM: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""The first version of each API whose clients support PRODUCER_FENCED (KIP-588). Earlier versions
receive INVALID_PRODUCER_EPOCH.
"""


def _code(ctx: RequestContext, code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < _KNOW_FENCED_FROM[ctx.api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


async def handle_init_producer_id(node: Node, ctx: RequestContext) -> Response:
    """InitProducerId (22): return a producer id for an idempotent producer, or a new epoch for a
    transactional id.
    """
    request = decoded(ctx, init_producer_id.decode_request)
    if request.transactional_id is not None:
        allowed = allows(
            node, ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        )
        denial = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        allowed = _may_be_idempotent(node, ctx)
        denial = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not allowed:
        return encode_response(
            ctx, init_producer_id.InitProducerIdResponse(error_code=denial, producer_epoch=NO_EPOCH)
        )
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return encode_response(
            ctx,
            init_producer_id.InitProducerIdResponse(
                error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH
            ),
        )
    if request.transactional_id is None:
        producer_id = await node.producer_ids.allocate()
        return encode_response(
            ctx, init_producer_id.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        )
    expected = (
        None
        if request.producer_id == NO_PRODUCER_ID
        else ProducerIdentity(request.producer_id, request.producer_epoch)
    )
    try:
        code, given = await node.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected
        )
    except (ControllerError, TimeoutError):
        # No producer id is available. This error code makes all clients retry at the coordinator.
        code, given = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER
    response = init_producer_id.InitProducerIdResponse(
        error_code=_code(ctx, code),
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
    )
    return encode_response(ctx, response)


def _may_be_idempotent(node: Node, ctx: RequestContext) -> bool:
    """Return whether the client may use an idempotent producer: it must be allowed to write to some
    topic or have IdempotentWrite permission (KIP-679).
    """
    authorizer = node.authorizer
    if authorizer is None or authorizer.allows_any(ctx, Operation.WRITE, ResourceType.TOPIC):
        return True
    return allows_cluster(node, ctx, Operation.IDEMPOTENT_WRITE)


async def handle_add_partitions_to_txn(node: Node, ctx: RequestContext) -> Response:
    """AddPartitionsToTxn (24). All partitions of a transaction are added, or none: if one is
    unknown, the others fail with OPERATION_NOT_ATTEMPTED. From version 4 on, brokers send this
    request for many transactions at once.
    """
    request = decoded(ctx, add_partitions_to_txn.decode_request)
    if ctx.api_version >= _FIRST_OF_BROKERS:
        if not allows_cluster(node, ctx, Operation.CLUSTER_ACTION):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return encode_response(
                ctx, add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=code)
            )
        results = await gathered(_add_for_broker(node, item) for item in request.transactions)
        return encode_response(
            ctx, add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_transaction=results)
        )
    wanted = _partitions(request.v3_and_below_topics)
    codes = await _denied_partitions(
        node, ctx, request.v3_and_below_transactional_id, wanted
    ) or await _unknown(node, wanted)
    if not codes:
        producer = ProducerIdentity(
            request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        code = await _add_partitions(
            node, ctx, request.v3_and_below_transactional_id, producer, wanted
        )
        codes = dict.fromkeys(wanted, _code(ctx, code))
    response = add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_topic_results(request.v3_and_below_topics, codes)
    )
    return encode_response(ctx, response)


async def _denied_partitions(
    node: Node, ctx: RequestContext, transactional_id: str, wanted: Sequence[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return error codes for all partitions if the client may not write to one of them, otherwise
    nothing.
    """
    if node.authorizer is None:
        return {}
    if not allows(node, ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    denied = await find_denied_topics(node, ctx, Operation.WRITE, (name for name, _ in wanted))
    if not denied:
        return {}
    codes = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
    async for partition in sliced(wanted):
        if partition[0] in denied:
            codes[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not _exists(node, partition):
            codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


async def _add_for_broker(
    node: Node, item: add_partitions_to_txn.AddPartitionsToTxnTransaction
) -> add_partitions_to_txn.AddPartitionsToTxnResult:
    wanted = _partitions(item.topics)
    membership = Membership(
        item.transactional_id,
        ProducerIdentity(item.producer_id, item.producer_epoch),
        adds=not item.verify_only,
    )
    codes = await _unknown(node, wanted) or await node.transactions.respond_to_leader(
        membership, wanted
    )
    return add_partitions_to_txn.AddPartitionsToTxnResult(
        item.transactional_id, _topic_results(item.topics, codes)
    )


def _partitions(
    topics: Iterable[add_partitions_to_txn.AddPartitionsToTxnTopic],
) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


async def _unknown(node: Node, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Return error codes for all partitions if one does not exist, otherwise nothing."""
    codes = {
        partition: ErrorCode.OPERATION_NOT_ATTEMPTED
        if _exists(node, partition)
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async for partition in sliced(wanted)
    }
    return codes if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in codes.values() else {}


def _topic_results(
    topics: Iterable[add_partitions_to_txn.AddPartitionsToTxnTopic],
    codes: dict[TopicPartition, ErrorCode],
) -> list[_TopicResult]:
    return [
        _TopicResult(
            topic.name,
            [
                add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                    index, codes[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def _add_partitions(
    node: Node,
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: Iterable[TopicPartition],
) -> ErrorCode:
    """Add the partitions to the transaction. Raises LateRequest."""
    return await node.transactions.add_partitions(
        transactional_id, producer, partitions, connection_id=ctx.connection.id
    )


async def handle_add_offsets_to_txn(node: Node, ctx: RequestContext) -> Response:
    """AddOffsetsToTxn (25): add the group's partition of `__consumer_offsets` to the
    transaction.
    """
    request = decoded(ctx, add_offsets_to_txn.decode_request)
    check_transactional_id(node, ctx, Operation.WRITE, request.transactional_id)
    check_group(node, ctx, Operation.READ, request.group_id)
    await ensure_topic(node, OFFSETS_TOPIC)
    partition = node.groups.partition_of(request.group_id)
    if partition is None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = await _add_partitions(
            node, ctx, request.transactional_id, producer, [(OFFSETS_TOPIC, partition)]
        )
    return encode_response(
        ctx, add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=_code(ctx, code))
    )


async def handle_end_txn(node: Node, ctx: RequestContext) -> Response:
    """EndTxn (26)."""
    request = decoded(ctx, end_txn.decode_request)
    check_transactional_id(node, ctx, Operation.WRITE, request.transactional_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    if ctx.api_version >= _FIRST_WITH_NEXT_EPOCH:
        return encode_response(ctx, await _end_epoch(node, request, producer))
    code = await node.transactions.end(
        request.transactional_id,
        producer,
        committed=request.committed,
        connection_id=ctx.connection.id,
    )
    return encode_response(ctx, end_txn.EndTxnResponse(error_code=_code(ctx, code)))


async def _end_epoch(
    node: Node, request: end_txn.EndTxnRequest, producer: ProducerIdentity
) -> end_txn.EndTxnResponse:
    try:
        code, given = await node.transactions.end_epoch(
            request.transactional_id, producer, committed=request.committed
        )
    except (ControllerError, TimeoutError):
        # The epochs are exhausted and no producer id is available, as for InitProducerId.
        code, given = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER
    return end_txn.EndTxnResponse(
        error_code=code, producer_id=given.producer_id, producer_epoch=given.producer_epoch
    )


async def handle_txn_offset_commit(node: Node, ctx: RequestContext) -> Response:
    """TxnOffsetCommit (28), sent to the group coordinator. Unknown topics and partitions are
    rejected individually. Up to version 1, a coordinator that is loading returns
    COORDINATOR_NOT_AVAILABLE.
    """
    request = decoded(ctx, txn_offset_commit.decode_request)
    refused = _denied_commit(node, ctx, request)
    denied = await find_denied_topics(
        node, ctx, Operation.READ, (topic.name for topic in request.topics)
    )
    await node.groups.ready(request.group_id)
    found = CommitTopics(node, request.group_id, request.member_id)
    offsets = _offsets_to_commit(node, request, denied, found)
    results: dict[TopicPartition, ErrorCode] = {}
    if refused is None and (offsets or not denied):
        read = begin_read(node) if found.needs_read else None
        node.groups.transactional_commits.admit(
            request.group_id, request.producer_id, request.producer_epoch, ctx.connection.id
        )
        results = await _commit_offsets(node, ctx, request, offsets)
        results = await settled(node, results, offsets, read)
    for topic in request.topics:
        if refused is not None or topic.name in denied:
            code = refused or ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for partition in topic.partitions:
                results[topic.name, partition.partition_index] = code
    topics = [
        txn_offset_commit.TxnOffsetCommitResponseTopic(
            topic.name,
            [
                txn_offset_commit.TxnOffsetCommitResponsePartition(
                    partition.partition_index,
                    _offset_code(ctx, results.get((topic.name, partition.partition_index))),
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return encode_response(ctx, txn_offset_commit.TxnOffsetCommitResponse(topics=topics))


def _denied_commit(
    node: Node, ctx: RequestContext, request: txn_offset_commit.TxnOffsetCommitRequest
) -> ErrorCode | None:
    """Return the reason why the client may not commit offsets in this transaction, or None if it
    may.
    """
    if not allows(
        node, ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not allows_group(node, ctx, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


async def _commit_offsets(
    node: Node,
    ctx: RequestContext,
    request: txn_offset_commit.TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, ErrorCode]:
    """Commit the offsets. If they may be the first offsets of the transaction for this group, wait
    for the transaction coordinator.
    """
    adds = verification.commit_adds(ctx.api_version)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    index = node.groups.partition_of(request.group_id)
    found = None if index is None else led_partition(node, (OFFSETS_TOPIC, index))
    transactional_id = request.transactional_id

    async def commit(guard: Guard | None) -> dict[TopicPartition, ErrorCode]:
        return await node.groups.commit_transactional_offsets(
            request.group_id,
            (request.member_id, request.group_instance_id, request.generation_id),
            TransactionalProducer(request.producer_id, request.producer_epoch, guard),
            offsets,
        )

    if (
        not isinstance(found, Partition)
        or not request.group_id
        or not verification.needs_verification(node, transactional_id, found, producer, adds=adds)
    ):
        # Let the group coordinator or the log decide.
        return await commit(verification.required_guard(node, transactional_id, adds=adds))
    response = await verification.verify(node, transactional_id, found, producer, adds=adds)
    if isinstance(response, ErrorCode):
        code = verification.refusal_of_commit(response, ctx.api_version)
        return dict.fromkeys(offsets, code)
    try:
        return await commit(response)
    finally:
        found.log.verifications.release(response)


def _offsets_to_commit(
    node: Node,
    request: txn_offset_commit.TxnOffsetCommitRequest,
    denied: AbstractSet[str],
    found: CommitTopics,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of the request, without unknown topics and partitions. denied: topics that
    the client may not read.
    """
    now_ms, stored = node.now_ms(), stores_ids(node.image)
    ids = {
        topic.name: found.id_of(topic.name) for topic in request.topics if topic.name not in denied
    }
    return {
        (topic.name, partition.partition_index): CommittedOffset(
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            now_ms,
            ids[topic.name],
            stored,
        )
        for topic in request.topics
        for partition in topic.partitions
        if ids.get(topic.name) is not None
        and _exists(node, (topic.name, partition.partition_index))
    }


def _offset_code(ctx: RequestContext, code: ErrorCode | None) -> ErrorCode:
    if code is None or code is ErrorCode.UNKNOWN_TOPIC_ID:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < 2:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


async def handle_describe_transactions(node: Node, ctx: RequestContext) -> Response:
    """DescribeTransactions (65), for transactional ids that this broker coordinates."""
    request = decoded(ctx, describe_transactions.decode_request)
    states: list[describe_transactions.TransactionState] = []
    async for transactional_id in each_once(request.transactional_ids):
        if not allows(
            node, ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            states.append(_described(transactional_id, code))
            continue
        found = await node.transactions.describe(transactional_id, ctx.received_at)
        state = _described(transactional_id, found)
        hidden = await find_denied_topics(
            node, ctx, Operation.DESCRIBE, (topic.topic for topic in state.topics)
        )
        state.topics = [topic for topic in state.topics if topic.topic not in hidden]
        states.append(state)
    return encode_response(
        ctx, describe_transactions.DescribeTransactionsResponse(transaction_states=states)
    )


def _described(
    transactional_id: str, found: TransactionMetadata | ErrorCode
) -> describe_transactions.TransactionState:
    if isinstance(found, ErrorCode):
        return describe_transactions.TransactionState(
            error_code=found, transactional_id=transactional_id
        )
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            describe_transactions.TopicData(name, indexes)
            for name, indexes in group_by_topic(found.partitions).items()
        ],
    )


async def handle_list_transactions(node: Node, ctx: RequestContext) -> Response:
    """ListTransactions (66): return the transactional ids that this broker coordinates. Clients
    send this request to every broker, and consider an open transaction hanging if no broker lists
    it. As in Kafka, a broker that is loading therefore returns an error, not an incomplete list.
    """
    request = decoded(ctx, list_transactions.decode_request)
    labels = {state.label for state in TransactionState}
    pattern = request.transactional_id_pattern or ""
    try:
        expression = compiled(pattern) if pattern else None
    except RegexInvalid:
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return encode_response(ctx, list_transactions.ListTransactionsResponse(error_code=code))
    if not await node.transactions.all_ready():
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return encode_response(ctx, list_transactions.ListTransactionsResponse(error_code=code))
    found: list[TransactionMetadata] = []
    async for item in sliced(list(_filtered(request, node.transactions.listed(), node.now_ms()))):
        transactional_id = item.transactional_id
        if (expression is None or expression.fullmatch(transactional_id)) and allows(
            node,
            ctx,
            Operation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            transactional_id,
            logs=False,
        ):
            found.append(item)
    response = list_transactions.ListTransactionsResponse(
        unknown_state_filters=[
            name for name in dict.fromkeys(request.state_filters) if name not in labels
        ],
        transaction_states=[
            list_transactions.TransactionState(
                item.transactional_id, item.producer_id, item.state.label
            )
            for item in found
        ],
    )
    return encode_response(ctx, response)


def _filtered(
    request: list_transactions.ListTransactionsRequest,
    found: Iterable[TransactionMetadata],
    now_ms: int,
) -> Iterable[TransactionMetadata]:
    labels, wanted_ids = set(request.state_filters), set(request.producer_id_filters)
    for item in found:
        if labels and item.state.label not in labels:
            continue
        if wanted_ids and item.producer_id not in wanted_ids:
            continue
        if request.duration_filter >= 0 and not (
            item.started_ms >= 0 and now_ms - item.started_ms > request.duration_filter
        ):
            continue
        yield item


def _exists(node: Node, partition: TopicPartition) -> bool:
    topic = node.image.topics.by_name(partition[0])
    return topic is not None and 0 <= partition[1] < len(topic.partitions)
