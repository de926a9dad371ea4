"""DescribeTopicPartitions: pages, cursors and errors. The expected responses are those of Kafka
4.2; tests/interop compares both.
"""

from typing import Any

import pytest

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.describe_topic_partitions import PARTITIONS_MAX, TOPICS_MAX
from penstock.controller.metadata.acl_index import ALL_OPERATIONS
from penstock.controller.metadata.records import AclEntry
from penstock.protocol import apis
from penstock.protocol.gen.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.support.handlers import Fixture, broker_record

Place = tuple[str, int]
Shown = tuple[dict[str, list[int]], Place | None]
"""The partitions by topic, and the next cursor."""


@pytest.fixture
async def fixture() -> Fixture:
    fixture = Fixture()
    for name, count in (("tc", 5), ("ta", 3), ("tb", 2)):
        fixture.topic(name, partitions=count)
    return fixture


async def send_request(
    fixture: Fixture, names: list[str], limit: int = 2_000, cursor: Place | None = None
) -> Any:
    request = DescribeTopicPartitionsRequest(
        [TopicRequest(name) for name in names], limit, cursor and Cursor(*cursor)
    )
    return await fixture.send_request(apis.DESCRIBE_TOPIC_PARTITIONS, 0, request)


def shown(response: Any) -> Shown:
    assert {topic.error_code for topic in response.topics} <= {0}
    cursor = response.next_cursor
    return (
        {
            topic.name: [part.partition_index for part in topic.partitions]
            for topic in response.topics
        },
        cursor and (cursor.topic_name, cursor.partition_index),
    )


ALL = ["tc", "ta", "tb"]


PAGES: list[tuple[list[str], int, Place | None, Shown]] = [
    (["tb", "tb"], 2_000, None, ({"tb": [0, 1]}, None)),
    (ALL, 4, None, ({"ta": [0, 1, 2], "tb": [0]}, ("tb", 1))),
    (ALL, 3, None, ({"ta": [0, 1, 2]}, ("tb", 0))),
    (ALL, 5, None, ({"ta": [0, 1, 2], "tb": [0, 1]}, ("tc", 0))),
    (ALL, 0, None, ({"ta": [0]}, ("ta", 1))),
    (ALL, -1, None, ({"ta": [0]}, ("ta", 1))),
    (ALL, 4, ("ta", 3), ({"ta": [], "tb": [0, 1], "tc": [0, 1]}, ("tc", 2))),
    (ALL, 4, ("ta", 7), ({"ta": [], "tb": [0, 1], "tc": [0, 1]}, ("tc", 2))),
    (ALL, 4, ("tb", 1), ({"tb": [1], "tc": [0, 1, 2]}, ("tc", 3))),
    ([], 4, ("ta", 1), ({"ta": [1, 2], "tb": [0, 1]}, ("tc", 0))),
    ([], 4, ("taz", 1), ({"tb": [0, 1], "tc": [0, 1]}, ("tc", 2))),
    ([], 4, ("tz", 0), ({}, None)),
    ([], 4, ("tc", 5), ({"tc": []}, None)),
    ([], 4, ("ta", -1), ({}, None)),
]


@pytest.mark.parametrize(("names", "limit", "cursor", "expected"), PAGES, ids=str)
async def test_pages_match_kafka(
    fixture: Fixture, names: list[str], limit: int, cursor: Place | None, expected: Shown
) -> None:
    assert shown(await send_request(fixture, names, limit, cursor)) == expected


@pytest.mark.parametrize("cursor", [("taz", 1), ("tc", 0), ("", 0), ("ta", -1)], ids=str)
async def test_an_invalid_cursor_is_an_error_for_every_topic(
    fixture: Fixture, cursor: Place
) -> None:
    response = await send_request(fixture, ["tb", "ta"], 4, cursor)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("tb", ErrorCode.INVALID_REQUEST),
        ("ta", ErrorCode.INVALID_REQUEST),
    ]
    assert response.next_cursor is None


async def test_missing_topics_do_not_count_towards_the_page_size(fixture: Fixture) -> None:
    names = ["nope", "a b", "", "ta", "__consumer_offsets", "zz"]
    response = await send_request(fixture, names, 3)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(topic.name, topic.error_code, topic.is_internal) for topic in response.topics] == [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION, False),
        ("__consumer_offsets", missing, True),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, False),
        ("nope", missing, False),
        ("ta", ErrorCode.NONE, False),
    ]
    assert {topic.topic_authorized_operations for topic in response.topics} == {
        ALL_OPERATIONS[ResourceType.TOPIC]
    }
    assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("zz", 0)


async def test_a_page_has_a_limit_that_clients_cannot_raise(fixture: Fixture) -> None:
    fixture.topic("large", partitions=PARTITIONS_MAX + 1)
    response = await send_request(fixture, ["large"], 1_000_000)
    assert [len(topic.partitions) for topic in response.topics] == [PARTITIONS_MAX]
    following = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert shown(await send_request(fixture, ["large"], 1_000_000, following)) == (
        {"large": [PARTITIONS_MAX]},
        None,
    )


async def test_partitions_have_the_same_leaders_as_in_metadata(fixture: Fixture) -> None:
    fixture.topic("moved", leader=2)
    fixture.image.apply_all([broker_record(2, fenced=True)])
    (part,) = (await send_request(fixture, ["moved"])).topics[0].partitions
    assert (part.error_code, part.leader_id, part.leader_epoch) == (0, 1, 4)
    assert (part.replica_nodes, part.isr_nodes, part.offline_replicas) == ([1, 2], [1], [2])
    assert (part.eligible_leader_replicas, part.last_known_elr) == ([], [])
    fixture.image.apply_all([broker_record(1, fenced=True)])
    (part,) = (await send_request(fixture, ["moved"])).topics[0].partitions
    assert (part.error_code, part.leader_id) == (0, -1)


async def test_a_broker_without_a_session_does_not_report_itself_as_leader(
    fixture: Fixture,
) -> None:
    fixture.node.can_write = lambda: False
    (part,) = (await send_request(fixture, ["tb"], 1)).topics[0].partitions
    assert part.leader_id == -1


async def test_nonexistent_topics_per_page_are_limited(fixture: Fixture) -> None:
    names = [f"u{number:05}" for number in range(TOPICS_MAX + 1)]
    response = await send_request(fixture, names)
    assert [topic.name for topic in response.topics] == names[:-1]
    following = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert following == (names[-1], 0)
    response = await send_request(fixture, names[-1:], cursor=following)
    assert [topic.name for topic in response.topics] == names[-1:]
    assert response.next_cursor is None


@pytest.mark.parametrize("cursor", [None, ("h0001", 0), ("ta", 0)], ids=str)
async def test_cursors_never_contain_a_topic_hidden_from_the_client(
    fixture: Fixture, cursor: Place | None
) -> None:
    """The pages have more hidden topics than fit on one page."""
    for number in range(TOPICS_MAX + 1):
        fixture.topic(f"h{number:04}", partitions=1)
        fixture.topic(f"u{number:04}", partitions=1)
    acl = (PatternType.LITERAL, "tb", "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW)
    fixture.authorize(AclEntry(ResourceType.TOPIC, *acl))
    assert shown(await send_request(fixture, [], 2_000, cursor)) == ({"tb": [0, 1]}, None)


async def test_a_full_page_followed_by_hidden_topics_has_a_cursor(
    fixture: Fixture,
) -> None:
    for number in range(TOPICS_MAX + 2):
        fixture.topic(f"h{number:04}", partitions=0)
        fixture.topic(f"m{number:04}", partitions=0)
    acl = (PatternType.PREFIXED, "m", "User:ANONYMOUS", "*", Operation.READ, Permission.ALLOW)
    fixture.authorize(AclEntry(ResourceType.TOPIC, *acl))
    names, cursor = shown(await send_request(fixture, []))
    assert (len(names), cursor) == (TOPICS_MAX, (f"m{TOPICS_MAX:04}", 0))
    assert shown(await send_request(fixture, [], 2_000, cursor)) == (
        {f"m{number:04}": [] for number in (TOPICS_MAX, TOPICS_MAX + 1)},
        None,
    )
