"""Send the requests that move partitions: current assignment, reassignment, cancellation, ongoing
moves, elections.

Invariant: errors of individual partitions are returned by partition; only errors of the whole
request are raised.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

from penstock.deploy.admin.reassign.plan import Assignment, Key
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.brokers import by_topic
from penstock.protocol.client.errors import check
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import alter_partition_reassignments as alter
from penstock.protocol.gen import elect_leaders as elect
from penstock.protocol.gen import list_partition_reassignments as listing
from penstock.protocol.gen import metadata

_TIMEOUT_MS: Final = 30_000
PARTITIONS_PER_REQUEST_MAX: Final = 1_000
"""Maximum number of partitions in one reassignment or election request; more partitions require
several requests.
"""
_PREFERRED: Final = 0
_T = TypeVar("_T")
Problems = dict[Key, tuple[ErrorCode, str | None]]
"""Error code and message of each partition that failed: the arguments of `explain`."""


def current_assignment(
    client: WireClient, topics: Collection[str]
) -> tuple[Assignment, frozenset[int]]:
    """Return the candidates of all partitions of these topics, and the ids of all brokers. Raises
    KafkaFailed for missing topics.
    """
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
    )
    response = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
    found: dict[Key, tuple[int, ...]] = {}
    for topic in response.topics:
        check(topic.error_code, None, f"topic {topic.name!r}")
        for partition in topic.partitions:
            found[Key(topic.name or "", partition.partition_index)] = tuple(partition.replica_nodes)
    return found, frozenset(broker.node_id for broker in response.brokers)


def reassign(client: WireClient, wanted: Mapping[Key, tuple[int, ...] | None]) -> Problems:
    """Start moves, or cancel moves with None as their target, with several requests if needed.
    Raises KafkaFailed, in which case the moves of earlier requests continue.
    """
    problems: Problems = {}
    for some in _batched(wanted.items()):
        problems |= _reassign(client, dict(some))
    return problems


def _batched(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield lists of at most PARTITIONS_PER_REQUEST_MAX items, in order."""
    rest = iter(items)
    while some := list(islice(rest, PARTITIONS_PER_REQUEST_MAX)):
        yield some


def _reassign(client: WireClient, wanted: Mapping[Key, tuple[int, ...] | None]) -> Problems:
    topics = [
        alter.ReassignableTopic(
            name, [alter.ReassignablePartition(at, wanted[Key(name, at)]) for at in partitions]
        )
        for name, partitions in by_topic(wanted).items()
    ]
    request = alter.AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=topics)
    response = client.send_request(
        apis.ALTER_PARTITION_REASSIGNMENTS, request, alter.AlterPartitionReassignmentsResponse
    )
    check(response.error_code, response.error_message, "the reassignment was not accepted")
    return {
        Key(topic.name, item.partition_index): (known_code(item.error_code), item.error_message)
        for topic in response.responses
        for item in topic.partitions
        if item.error_code
    }


def ongoing(client: WireClient) -> dict[Key, tuple[list[int], list[int]]]:
    """Return the ongoing reassignments as (added brokers, removed brokers) by partition."""
    request = listing.ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=None)
    response = client.send_request(
        apis.LIST_PARTITION_REASSIGNMENTS, request, listing.ListPartitionReassignmentsResponse
    )
    check(response.error_code, response.error_message, "reassignments cannot be listed")
    return {
        Key(topic.name, item.partition_index): (
            list(item.adding_replicas),
            list(item.removing_replicas),
        )
        for topic in response.topics
        for item in topic.partitions
    }


def elect_preferred(client: WireClient, keys: Iterable[Key] | None) -> tuple[list[Key], Problems]:
    """Elect preferred leaders; return (elected, problems). keys: None for all partitions; the
    response then lists only the partitions that needed an election.

    Uses several requests, because each response waits for all of its elections.
    """
    elected: list[Key] = []
    problems: Problems = {}
    for some in [None] if keys is None else _batched(keys):
        for key, item in _elect_preferred(client, some).items():
            if item.error_code:
                problems[key] = known_code(item.error_code), item.error_message
            else:
                elected.append(key)
    return elected, problems


def _elect_preferred(
    client: WireClient, keys: Iterable[Key] | None
) -> dict[Key, elect.PartitionResult]:
    topics = None
    if keys is not None:
        topics = [elect.TopicPartitions(*item) for item in by_topic(keys).items()]
    request = elect.ElectLeadersRequest(
        election_type=_PREFERRED, topic_partitions=topics, timeout_ms=_TIMEOUT_MS
    )
    response = client.send_request(apis.ELECT_LEADERS, request, elect.ElectLeadersResponse)
    check(response.error_code, None, "the election failed")
    return {
        Key(topic.topic, item.partition_id): item
        for topic in response.replica_election_results
        for item in topic.partition_result
    }
