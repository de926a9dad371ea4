"""ACLs compared with Apache Kafka 4.2: Kafka still gives the recorded responses under each set of
ACLs, and `kafka-acls` manages the ACLs of both.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from penstock.base.acls import Operation, PatternType, ResourceType
from penstock.protocol import apis
from penstock.protocol.gen import consumer_group_heartbeat, fetch, find_coordinator, metadata
from tests.support import acl_matrix
from tests.support.acl_rights import (
    Creation,
    allow,
    cluster_with_acls,
    differences,
    kafka_with_acls,
    on_cluster,
    recorded,
    responses_under_all_rights,
    set_rights,
)
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.host_client import ADMIN_HOST, CLIENT_HOST, HostClient
from tests.support.java import JavaHome
from tests.support.streams_groups import StreamsTalk, counting
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def authorizing(java: JavaHome) -> Iterator[str]:
    with kafka_with_acls() as address:
        yield address


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_with_acls(tmp_path) as cluster:
        yield cluster


async def test_recorded_responses_match_kafka(authorizing: str) -> None:
    """tests/integration/test_acls_as_kafka.py compares them with a Penstock cluster."""
    given = await asyncio.to_thread(responses_under_all_rights, authorizing)
    assert not differences(recorded(), given), "\n".join(differences(recorded(), given))


async def test_recorded_rights_matrix_matches_kafka(java: JavaHome) -> None:
    """tests/integration/test_api_rights.py compares it with a Penstock cluster."""
    assert java.class_path
    with kafka_with_acls() as address:
        given = await asyncio.to_thread(acl_matrix.matrix, address)
    expected = acl_matrix.recorded()
    assert given.keys() == expected.keys()
    assert [
        f"{row}\n  recorded {expected[row]}\n  given    {cells}"
        for row, cells in given.items()
        if cells != expected[row]
    ] == []


ACLS = "org.apache.kafka.tools.AclCommand"
"""The class that `kafka-acls.sh` runs."""


async def test_kafka_acls_prints_the_same_for_both(
    java: JavaHome, authorizing: str, cluster: Cluster
) -> None:
    topic = ("--topic", "tool")
    bob = ("--allow-principal", "User:bob")
    commands: list[tuple[str, ...]] = [
        ("--add", *bob, "--operation", "Read", *topic, "--group", "g"),
        ("--add", *bob, "--producer", *topic, "--transactional-id", "t", "--idempotent"),
        (
            *("--add", *bob, "--consumer", "--topic", "tool-", "--group", "*"),
            *("--resource-pattern-type", "prefixed", "--allow-host", "10.0.0.7"),
        ),
        ("--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.8", *topic),
        ("--add", *bob, "--operation", "Alter", "--cluster"),
        ("--list", *topic),
        ("--list", *topic, "--resource-pattern-type", "match"),
        ("--list", "--topic", "tool-x", "--resource-pattern-type", "match"),
        ("--list", "--principal", "User:bob"),
        ("--remove", "--force", *bob, "--operation", "Read", *topic),
        ("--remove", "--force", "--topic", "tool-", "--resource-pattern-type", "prefixed"),
        ("--list", "--principal", "User:bob", "--principal", "User:eve"),
        ("--add", "--allow-principal", "nobody", "--operation", "Read", *topic),
        ("--add", *bob, "--operation", "Read", "--topic", ""),
        ("--add", *bob, "--operation", "Write", "--group", "g"),
    ]
    for address in (authorizing, cluster.bootstrap):
        await asyncio.to_thread(set_rights, address, [])
    for command in commands:
        expected, shown = [
            await asyncio.to_thread(java.tool, ACLS, "--bootstrap-server", address, *command)
            for address in (authorizing, cluster.bootstrap)
        ]
        assert printed(shown.stdout) == printed(expected.stdout), command
        assert first_error(shown.stderr) == first_error(expected.stderr), command


def printed(text: str) -> list[str]:
    """Return the lines without their order, because Kafka stores ACLs in sets."""
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def first_error(text: str) -> str:
    return next((line for line in text.splitlines() if not line[:1].isdigit()), "")


async def test_without_an_authorizer_acl_requests_are_refused_as_by_kafka(
    java: JavaHome, peer: str, tmp_path: Path
) -> None:
    async with Cluster(tmp_path) as cluster:
        for command in (
            ("--list",),
            ("--add", "--allow-principal", "User:x", "--operation", "Read", "--topic", "t"),
            ("--remove", "--force", "--topic", "t"),
        ):
            expected, shown = [
                await asyncio.to_thread(java.tool, ACLS, "--bootstrap-server", address, *command)
                for address in (peer, cluster.bootstrap)
            ]
            assert "SecurityDisabledException" in expected.stdout + expected.stderr
            assert printed(shown.stdout) == printed(expected.stdout), command
            assert first_error(shown.stderr) == first_error(expected.stderr), command


async def test_waiting_fetch_is_not_authorized_again(authorizing: str, cluster: Cluster) -> None:
    """The next request in the session is."""
    outcomes: list[tuple[int, bool, int]] = []
    for address in (authorizing, cluster.bootstrap):
        outcomes.append(await asyncio.to_thread(fetch_while_denied, address))
    assert outcomes == [(0, True, TOPIC_DENIED)] * 2


TOPIC_DENIED = 29


def fetch_while_denied(address: str) -> tuple[int, bool, int]:
    """Fetch, and revoke the read right during the wait. Return the error code of the response,
    whether it contains records, and the error code of the next fetch.
    """
    topic = "waiting"
    create_topic(address, topic, 1)
    set_rights(address, [allow(ResourceType.TOPIC, topic, Operation.READ)])
    partition = fetch.FetchPartition(0, partition_max_bytes=1_000)
    requested = [fetch.FetchTopic(None, topic, [partition])]
    first = fetch.FetchRequest(max_wait_ms=0, session_epoch=0, topics=requested)
    with HostClient(address) as client:
        session = client.send_request(apis.FETCH, first, 12)["session_id"]
        assert session
        waiting = fetch.FetchRequest(
            max_wait_ms=20_000, min_bytes=1, session_id=session, session_epoch=1
        )
        client.send(apis.FETCH, waiting, 12)
        set_rights(address, [])
        producer = Producer({"bootstrap.servers": address})
        producer.produce(topic, b"late")
        assert not producer.flush(TIMEOUT_S)
        (response,) = client.receive(apis.FETCH, 12)["responses"]
        (found,) = response["partitions"]
        after = fetch.FetchRequest(max_wait_ms=0, session_id=session, session_epoch=2)
        (refused,) = client.send_request(apis.FETCH, after, 12)["responses"]
        return found["error_code"], bool(found["records"]), refused["partitions"][0]["error_code"]


# --- regex subscriptions of consumer groups -------------------------------------------------------


class RegexMember:
    """A member of a consumer group that subscribes to `regex-.*`, from CLIENT_HOST."""

    GROUP = "regex-group"

    def __init__(self, address: str) -> None:
        self.address = address
        self.assigned: frozenset[str] = frozenset()
        """Names of topics."""
        self._epoch = 0
        self._owned: list[consumer_group_heartbeat.TopicPartitions] = []

    def has(self, *names: str) -> bool:
        """Send a heartbeat, and return whether exactly these topics are assigned. Until then the
        assignment must not change.
        """
        before = self.assigned
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            self.GROUP,
            "AAAAAAAAAAAAAAAAAAAAAA",
            self._epoch,
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex="regex-.*",
            topic_partitions=self._owned,
        )
        with HostClient(self.address) as client:
            response = client.send_request(apis.CONSUMER_GROUP_HEARTBEAT, request)
        if response["error_code"] and not self._epoch:
            return False  # the coordinator is still loading
        assert response["error_code"] == 0, response
        self._epoch = response["member_epoch"]
        if response["assignment"] is not None:
            parts = response["assignment"]["topic_partitions"]
            ids = [UUID(str(part["topic_id"])) for part in parts]
            self._owned = [
                consumer_group_heartbeat.TopicPartitions(topic_id, part["partitions"])
                for topic_id, part in zip(ids, parts, strict=True)
            ]
            self.assigned = frozenset(names_of(self.address, ids))
        assert self.assigned in (before, frozenset(names)), (before, self.assigned)
        return self.assigned == frozenset(names)


def names_of(address: str, ids: Sequence[UUID]) -> set[str]:
    requested = metadata.MetadataRequest(
        [metadata.MetadataRequestTopic(topic_id, None) for topic_id in ids], False
    )
    with HostClient(address, ADMIN_HOST) as admin:
        return {
            topic["name"] for topic in admin.send_request(apis.METADATA, requested, 12)["topics"]
        }


async def test_regex_matches_only_topics_that_the_member_may_describe(
    authorizing: str, cluster: Cluster
) -> None:
    """New topics are matched, too. The rights are checked again periodically."""
    await asyncio.gather(
        *(asyncio.to_thread(follow_rights, address) for address in (authorizing, cluster.bootstrap))
    )


def follow_rights(address: str) -> None:
    def describing(*prefixes: str) -> list[Creation]:
        return [
            allow(ResourceType.GROUP, RegexMember.GROUP, Operation.READ),
            *(allow(ResourceType.TOPIC, prefix, Operation.DESCRIBE) for prefix in prefixes),
        ]

    def wait_for(*names: str) -> None:
        wait_until(lambda: member.has(*names), timeout_s=PATIENCE_S)

    for topic in ("regex-hidden-a", "regex-seen-a"):
        create_topic(address, topic, 1)
    with HostClient(address, ADMIN_HOST) as admin:
        admin.send_request(
            apis.FIND_COORDINATOR,
            find_coordinator.FindCoordinatorRequest(RegexMember.GROUP, 0, [RegexMember.GROUP]),
        )
    set_rights(address, describing("regex-seen"))
    member = RegexMember(address)
    wait_for("regex-seen-a")
    for topic in ("regex-hidden-b", "regex-seen-b"):
        create_topic(address, topic, 1)
    wait_for("regex-seen-a", "regex-seen-b")
    set_rights(address, describing("regex-"))
    wait_for("regex-hidden-a", "regex-hidden-b", "regex-seen-a", "regex-seen-b")
    set_rights(address, describing("regex-seen-b"))
    wait_for("regex-seen-b")


# --- internal topics of streams groups ------------------------------------------------------------


async def test_streams_groups_require_the_same_rights_as_in_kafka(
    authorizing: str, cluster: Cluster
) -> None:
    expected, found = [
        await asyncio.to_thread(join_under_rights, address)
        for address in (authorizing, cluster.bootstrap)
    ]
    for response, wanted in zip(found, expected, strict=True):
        assert response == wanted


def join_under_rights(address: str) -> list[tuple[str, Any]]:
    """Return the responses to a streams group member that is granted one right after another."""
    lines = "streams-lines"
    admin, member = StreamsTalk(address), StreamsTalk(address, CLIENT_HOST)
    admin.create(lines, 2)
    group = allow(ResourceType.GROUP, "streams", Operation.READ)
    describe = allow(ResourceType.TOPIC, "streams", Operation.DESCRIBE)
    steps: dict[str, list[Creation]] = {
        "nothing": [],
        "read-topics": [allow(ResourceType.TOPIC, "streams", Operation.READ)],
        "read-group": [group],
        "describe-source": [
            group,
            allow(ResourceType.TOPIC, lines, Operation.DESCRIBE, pattern=PatternType.LITERAL),
        ],
        "describe-all": [group, describe],
        "create-one": [
            group,
            describe,
            allow(ResourceType.TOPIC, "streams-create-one-counts", Operation.CREATE),
        ],
        "create-all": [
            group,
            describe,
            allow(ResourceType.TOPIC, "streams-create-all", Operation.CREATE),
        ],
        "create-on-cluster": [group, describe, on_cluster(Operation.CREATE)],
    }
    responses: list[tuple[str, Any]] = []
    for step, rights in steps.items():
        name = f"streams-{step}"
        admin.coordinate(name)
        set_rights(address, rights)
        response = member.join(name, "m", counting(name, lines))
        responses.append((step, {key: response[key] for key in ("error_code", "status", "active")}))
        described = member.describe(name, operations=True)
        kept = ("error_code", "group_state", "authorized_operations")
        responses.append((step, {key: described[key] for key in kept}))
    member.close()
    admin.close()
    return responses
