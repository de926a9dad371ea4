"""How many things one request may name, by its API.

A request of `REQUEST_ELEMENTS_MAX` elements takes about 70 ms of CPU in all if each costs 2 us to
decode, look up and encode. Other APIs have a smaller limit, so that a request costs no more, or a
larger one, where most elements are as cheap as ids of replicas. Where one kind of things costs far
more than the rest of a request, it has a limit of its own.

Invariant: what clients and brokers send fits: requests for 10,000 partitions, in one topic or each
in its own, and for 5,000 groups, because Java's Admin describes all groups of a coordinator at
once. Every limit is above `ELEMENTS_AT_ONCE_MAX`: shorter requests are not compared.
Must not: know handlers.
Source: docs/design/fairness.md; `python -m benchmarks long-requests` measures the costs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.protocol import apis
from penstock.protocol.primitives import REQUEST_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class ThingsLimit:
    """What of a request is limited beside its elements. count: of a decoded request."""

    name: str
    max: int
    count: Callable[[Any], int]


_WITH_REPLICAS: Final = 41_000
"""10,000 partitions with three replicas each."""

_ELEMENTS_MAX: Final[Mapping[int, int]] = {
    # 3 to 4 us for each element, topics and partitions counted: 10,000 topics of one partition.
    # A broker that looks for fork points adds a tagged field for each partition.
    apis.PRODUCE.key: 20_500,
    apis.FETCH.key: 21_000,
    apis.LIST_OFFSETS.key: 30_500,
    apis.DESCRIBE_PRODUCERS.key: 30_000,
    # 3 to 5 us for each topic.
    apis.METADATA.key: 14_000,
    apis.DELETE_TOPICS.key: 20_000,
    apis.CREATE_TOPICS.key: _WITH_REPLICAS,
    apis.CREATE_PARTITIONS.key: _WITH_REPLICAS,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: _WITH_REPLICAS,
    # 6 us for each resource, and 10 us for one with a change of a config.
    apis.DESCRIBE_CONFIGS.key: 12_000,
    apis.ALTER_CONFIGS.key: 14_000,
    apis.INCREMENTAL_ALTER_CONFIGS.key: 14_000,
    # 6 to 14 us for each key, group or transactional id, 3 us for each member.
    apis.FIND_COORDINATOR.key: 10_000,
    apis.DESCRIBE_GROUPS.key: 6_000,
    apis.DELETE_GROUPS.key: 7_000,
    apis.CONSUMER_GROUP_DESCRIBE.key: 5_000,
    apis.SHARE_GROUP_DESCRIBE.key: 5_000,
    apis.STREAMS_GROUP_DESCRIBE.key: 5_000,
    apis.DESCRIBE_TRANSACTIONS.key: 6_000,
    apis.LEAVE_GROUP.key: 10_000,
    # 5 us for each topic of a topology: an application with 1,000 subtopologies, or 10,000 tasks.
    apis.STREAMS_GROUP_HEARTBEAT.key: 13_000,
    # 3 us for each ACL, entity or topic, 10 us for each user.
    apis.CREATE_ACLS.key: 20_000,
    apis.DELETE_ACLS.key: 20_000,
    apis.ALTER_CLIENT_QUOTAS.key: 24_000,
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: 6_000,
    apis.DELETE_SHARE_GROUP_OFFSETS.key: 15_000,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: 20_500,
    # Brokers send these, 2,000 markers or 1,000 states at once: 14 to 25 us for each.
    apis.WRITE_TXN_MARKERS.key: 15_000,
    apis.INITIALIZE_SHARE_GROUP_STATE.key: 4_000,
    apis.READ_SHARE_GROUP_STATE.key: 4_000,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: 4_000,
    apis.DELETE_SHARE_GROUP_STATE.key: 4_000,
    # A state may have a batch for each record that a group holds of a partition.
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
    """Return how many array elements and tagged fields one request may have."""
    return _ELEMENTS_MAX.get(api_key, REQUEST_ELEMENTS_MAX)


def things_max(api_key: int) -> ThingsLimit | None:
    return _THINGS_MAX.get(api_key)
