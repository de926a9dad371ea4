"""Describe the log directories of brokers, each of which represents the object store."""

from collections.abc import Collection
from dataclasses import dataclass

from penstock.deploy.clients.brokers import Brokers
from penstock.protocol import apis
from penstock.protocol.gen import describe_log_dirs as wire


@dataclass(frozen=True, slots=True)
class LogDirPartitionView:
    topic: str
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LogDirView:
    """The partitions that a broker leads."""

    broker: int
    log_dir: str
    partitions: list[LogDirPartitionView]


def describe_log_dirs(
    bootstrap: str, brokers: Collection[int], topics: Collection[str]
) -> tuple[list[LogDirView], dict[int, str]]:
    """Return the log directories by broker, by default for all brokers and topics, and the problems
    of brokers that do not respond. Raises KafkaFailed if none responds.
    """
    with Brokers(bootstrap) as client:
        requested = None
        if topics:
            wanted = client.partitions(list(topics))
            requested = [wire.DescribableLogDirTopic(*item) for item in wanted.items()]

        def of_broker(node_id: int) -> list[LogDirView]:
            if brokers and node_id not in brokers:
                return []
            response = client.send_request(
                apis.DESCRIBE_LOG_DIRS,
                wire.DescribeLogDirsRequest(requested),
                wire.DescribeLogDirsResponse,
                node=node_id,
            )
            failed = f"broker {node_id} cannot describe its log directories"
            client.check(response.error_code, None, failed)
            for result in response.results:
                client.check(result.error_code, None, failed)
            return [_view(node_id, result) for result in response.results]

        listed, problems = client.of_all(of_broker)
    found = [view for views in listed.values() for view in views]
    return sorted(found, key=lambda item: (item.broker, item.log_dir)), problems


def _view(node_id: int, result: wire.DescribeLogDirsResult) -> LogDirView:
    partitions = [
        LogDirPartitionView(topic.name, part.partition_index, part.partition_size)
        for topic in result.topics
        for part in topic.partitions
        if not part.is_future_key
    ]
    return LogDirView(
        node_id,
        result.log_dir,
        sorted(partitions, key=lambda part: (part.topic, part.partition)),
    )
