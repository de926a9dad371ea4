"""AlterReplicaLogDirs: the object store is the only log dir. Moving a partition there has no effect
and succeeds; other directories are rejected.

If a partition is listed several times, the last directory is used, as in Kafka.
"""

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows_cluster
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.protocol.gen.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    decode_request,
)


async def handle_alter_replica_log_dirs(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    wanted = {
        (topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    may_alter = allows_cluster(node, ctx, Operation.ALTER)
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    async for key, path in sliced(wanted.items()):
        code = _code(node, key, path) if may_alter else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        topics.setdefault(key[0], []).append(AlterReplicaLogDirPartitionResult(key[1], code))
    results = [AlterReplicaLogDirTopicResult(name, found) for name, found in topics.items()]
    return encode_response(ctx, AlterReplicaLogDirsResponse(results=results))


def _code(node: Node, key: TopicPartition, path: str) -> ErrorCode:
    if path != node.log_dir:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = node.image.topics.by_name(key[0])
    exists = topic is not None and 0 <= key[1] < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
