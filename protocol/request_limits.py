"""Maximum number of elements in one request, by API. See docs/design/fairness.md.

`REQUEST_ELEMENTS_MAX` elements take about 70 ms of CPU at 2 us each to decode, look up and encode.
APIs with more expensive elements have a lower limit; APIs with cheaper elements, such as replica
ids, have a higher limit. Requests for 10,000 partitions or 5,000 groups always fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.protocol import apis
from penstock.protocol.primitives import REQUEST_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class ThingsLimit:
    """A limit on one type of element. count: counts these elements in a decoded request."""

    name: str
    max: int
    count: Callable[[Any], int]


_WITH_REPLICAS: Final = 41_000
"""Enough elements for 10,000 partitions with three replicas each."""

_ELEMENTS_MAX: Final[Mapping[int, int]] = {
    # 3 to 4 us per element, including topics and partitions: 10,000 topics of one partition. A
    # broker that requests fork points adds a tagged field per partition.
    apis.PRODUCE.key: 20_500,
    apis.FETCH.key: 21_000,
    apis.LIST_OFFSETS.key: 30_500,
    apis.DESCRIBE_PRODUCERS.key: 30_000,
    # 3 to 5 us per topic.
    apis.METADATA.key: 14_000,
    apis.DELETE_TOPICS.key: 20_000,
    apis.CREATE_TOPICS.key: _WITH_REPLICAS,
    apis.CREATE_PARTITIONS.key: _WITH_REPLICAS,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: _WITH_REPLICAS,
    # 6 us per resource, 10 us with a config change.
    apis.DESCRIBE_CONFIGS.key: 12_000,
    apis.ALTER_CONFIGS.key: 14_000,
    apis.INCREMENTAL_ALTER_CONFIGS.key: 14_000,
    # 6 to 14 us per key, group or transactional id, 3 us per member.
    apis.FIND_COORDINATOR.key: 10_000,
    apis.DESCRIBE_GROUPS.key: 6_000,
    apis.DELETE_GROUPS.key: 7_000,
    apis.CONSUMER_GROUP_DESCRIBE.key: 5_000,
    apis.SHARE_GROUP_DESCRIBE.key: 5_000,
    apis.STREAMS_GROUP_DESCRIBE.key: 5_000,
    apis.DESCRIBE_TRANSACTIONS.key: 6_000,
    apis.LEAVE_GROUP.key: 10_000,
    # 5 us per topic of a topology: an application with 1,000 subtopologies, or 10,000 tasks.
    apis.STREAMS_GROUP_HEARTBEAT.key: 13_000,
    # 3 us per ACL, entity or topic, 10 us per user.
    apis.CREATE_ACLS.key: 20_000,
    apis.DELETE_ACLS.key: 20_000,
    apis.ALTER_CLIENT_QUOTAS.key: 24_000,
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: 6_000,
    apis.DELETE_SHARE_GROUP_OFFSETS.key: 15_000,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: 20_500,
    # Sent by brokers, with 2,000 markers or 1,000 states at once: 14 to 25 us each.
    apis.WRITE_TXN_MARKERS.key: 15_000,
    apis.INITIALIZE_SHARE_GROUP_STATE.key: 4_000,
    apis.READ_SHARE_GROUP_STATE.key: 4_000,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: 4_000,
    apis.DELETE_SHARE_GROUP_STATE.key: 4_000,
    # A state may have a batch for each in-flight record of a partition.
    apis.WRITE_SHARE_GROUP_STATE.key: 14_000,
}


def _partitions(topics: Any) -> int:  # noqa: ANN401 - of any of the APIs
    return sum(len(topic.partitions) for topic in topics)


_THINGS_MAX: Final[Mapping[int, ThingsLimit]] = {
    apis.CREATE_TOPICS.key: ThingsLimit("topics", 10_000, lambda request: len(request.topics)),
    apis.CREATE_PARTITIONS.key: ThingsLimit("topics", 7_000, lambda request: len(request.topics)),
    apis.ALTER_PARTITION_REASSIGNMENTS.key: ThingsLimit(
        "partitions", 10_000, lambda request: _partitions(request.topics)
    ),
    apis.OFFSET_FETCH.key: ThingsLimit("groups", 5_000, lambda request: len(request.groups)),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: ThingsLimit(
        "groups", 5_000, lambda request: len(request.groups)
    ),
    apis.ADD_PARTITIONS_TO_TXN.key: ThingsLimit(
        "transactions", 2_000, lambda request: len(request.transactions)
    ),
    apis.SHARE_FETCH.key: ThingsLimit(
        "partitions", 10_000, lambda request: _partitions(request.topics)
    ),
    apis.WRITE_SHARE_GROUP_STATE.key: ThingsLimit(
        "partitions", 2_000, lambda request: _partitions(request.topics)
    ),
}


def elements_max(api_key: int) -> int:
    """Return the maximum number of array elements and tagged fields in one request."""
    return _ELEMENTS_MAX.get(api_key, REQUEST_ELEMENTS_MAX)


def things_max(api_key: int) -> ThingsLimit | None:
    return _THINGS_MAX.get(api_key)
