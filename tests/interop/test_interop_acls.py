"""Compare ACLs with Apache Kafka 4.2: under each set of ACLs the same requests go to both, and
`kafka-acls` changes both.

All clients are User:ANONYMOUS. The administrator connects from 127.0.0.1, the client whose rights
change from 127.0.0.2, and ACLs tell them apart by their hosts.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from base.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from benchmarks.kafka import kafka
from broker.security.config import STANDARD_AUTHORIZER, SecurityConfig
from broker.wire import apis
from broker.wire.gen import (
    consumer_group_heartbeat,
    create_acls,
    delete_acls,
    fetch,
    find_coordinator,
    init_producer_id,
    metadata,
)
from tests.support.acl_requests import (
    HIDDEN,
    SEEN,
    everything,
    questions,
    share_state_questions,
)
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.host_client import ADMIN_HOST, CLIENT_HOST, HostClient
from tests.support.java import JavaHome
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

ANYONE = "User:ANONYMOUS"
NAMED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
Creation = create_acls.AclCreation
Answers = dict[str, Any]
Side = tuple[str, dict[str, UUID]]
"""An address, and the ids of the topics there."""

REGEX_REFRESH_INTERVAL_MS = 10_000
"""Kafka does not allow less."""
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOT_COMPARED = frozenset(
    {
        # of each side
        "port",
        "host",
        "log_dir",
        "cluster_id",
        "controller_id",
        "brokers",
        "member_id",
        "producer_id",
        "leader_epoch",
        "node_endpoints",
        "error_message",
        # of fetched records, and of partitions that cannot be fetched
        "aborted_transactions",
        "records",
        "log_start_offset",
        "last_stable_offset",
        "acquisition_lock_timeout_ms",
    }
)
OTHER_REASONS = {
    "log dirs": "one log dir, with what the broker leads",
    "quorum": "the controller is another process",
}
"""Questions whose answers differ also without ACLs; compared while they are refused."""
NEVER_COMPARED = {"credentials": "Kafka's refusal names a user without a name"}
DELETING = frozenset({"all but describe"})
OF_DELETED_TOPICS = {
    "alter configs": "without a change, Penstock does not look for the topic",
    "alter share offsets": "Kafka looks for the topic first, Penstock for the group",
}
READ_BY_BROKERS = frozenset(
    {
        "offsets",
        "fetch offsets",
        "fetch offsets 1",
        "fetch offsets 7",
        "fetch offsets by id",
        "fetch all offsets",
        "list groups",
        "producers",
    }
)
"""Brokers of Penstock ask each other these with ClusterAction."""


def allow(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    pattern: PatternType = PatternType.PREFIXED,
    permission: Permission = Permission.ALLOW,
    host: str = CLIENT_HOST,
) -> Creation:
    return Creation(kind, name, pattern, ANYONE, host, operation, permission)


def on_cluster(operation: Operation) -> Creation:
    return allow(ResourceType.CLUSTER, CLUSTER_NAME, operation, pattern=PatternType.LITERAL)


def on_seen(operation: Operation) -> list[Creation]:
    return [allow(kind, SEEN, operation) for kind in NAMED]


def on_all_but_hidden(denied: Operation) -> list[Creation]:
    return [
        *(allow(kind, "*", Operation.ALL, pattern=PatternType.LITERAL) for kind in NAMED),
        *(allow(kind, HIDDEN, denied, permission=Permission.DENY) for kind in NAMED),
    ]


RIGHTS: dict[str, list[Creation]] = {
    "nothing": [],
    "describe": [*on_seen(Operation.DESCRIBE), on_cluster(Operation.DESCRIBE)],
    "read": on_seen(Operation.READ),
    "write": [*on_seen(Operation.WRITE), on_cluster(Operation.DESCRIBE_CONFIGS)],
    "delete": [*on_seen(Operation.DELETE), on_cluster(Operation.CREATE)],
    "configs": [*on_seen(Operation.DESCRIBE_CONFIGS), *on_seen(Operation.CREATE)],
    "alter": [*on_seen(Operation.ALTER), *on_seen(Operation.ALTER_CONFIGS)],
    "cluster": [on_cluster(Operation.CLUSTER_ACTION)],
    "all but hidden": on_all_but_hidden(Operation.ALL),
    "all but describe": on_all_but_hidden(Operation.DESCRIBE),
}
"""What the client may do. The last one deletes topics."""


@pytest.fixture(scope="module")
def authorizing(java: JavaHome) -> Iterator[str]:
    """Kafka with an authorizer, which lets everyone in until there are ACLs."""
    replicas = (
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    )
    settings = dict.fromkeys(replicas, "1") | {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.regex.refresh.interval.ms": str(REGEX_REFRESH_INTERVAL_MS),
    }
    with kafka(settings) as process:
        admit_administrator(process.bootstrap)
        yield process.bootstrap


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found=True)
    async with Cluster(
        tmp_path,
        brokers=0,
        security=security,
        group_consumer_regex_refresh_interval_ms=REGEX_REFRESH_INTERVAL_MS,
    ) as cluster:
        await cluster.start_broker(1)
        await asyncio.to_thread(admit_administrator, cluster.bootstrap)
        yield cluster


def admit_administrator(address: str) -> None:
    names = [(kind, "*") for kind in NAMED] + [(ResourceType.CLUSTER, CLUSTER_NAME)]
    create(
        address,
        [
            allow(kind, name, Operation.ALL, pattern=PatternType.LITERAL, host=ADMIN_HOST)
            for kind, name in names
        ],
    )


def create(address: str, acls: Sequence[Creation]) -> None:
    with HostClient(address, ADMIN_HOST) as admin:
        answer = admin.ask(apis.CREATE_ACLS, create_acls.CreateAclsRequest(acls))
    assert {result["error_code"] for result in answer["results"]} <= {0}, answer


def set_rights(address: str, acls: Sequence[Creation]) -> None:
    """Let the client have these ACLs and no others. Kafka's broker follows its controller."""
    wanted = delete_acls.DeleteAclsFilter(
        ResourceType.ANY, None, PatternType.ANY, None, CLIENT_HOST, Operation.ANY, Permission.ANY
    )
    with HostClient(address, ADMIN_HOST) as admin:
        admin.ask(apis.DELETE_ACLS, delete_acls.DeleteAclsRequest([wanted]))
    create(address, acls)

    def is_followed() -> bool:
        with HostClient(address, ADMIN_HOST) as admin:
            answer = admin.ask(apis.DESCRIBE_ACLS, everything())
        found = [
            acl
            for resource in answer["resources"]
            for acl in resource["acls"]
            if acl["host"] == CLIENT_HOST
        ]
        return len(found) == len(acls)

    wait_until(is_followed)


def prepare(address: str) -> dict[str, UUID]:
    """Create the topics, and the internal ones. Return the ids of the topics."""
    for name in (SEEN, HIDDEN):
        create_topic(address, name, 1)
    with HostClient(address, ADMIN_HOST) as admin:
        for key_type in (0, 1):
            request = find_coordinator.FindCoordinatorRequest("x", key_type, ["x"])
            admin.ask(apis.FIND_COORDINATOR, request)
        wait_until(lambda: has_producer_ids(admin))
        topics = [metadata.MetadataRequestTopic(name=name) for name in (SEEN, HIDDEN)]
        answer = admin.ask(apis.METADATA, metadata.MetadataRequest(topics), 12)
    return {topic["name"]: UUID(str(topic["topic_id"])) for topic in answer["topics"]}


def has_producer_ids(client: HostClient) -> bool:
    request = init_producer_id.InitProducerIdRequest(None, 10_000)
    return not client.ask(apis.INIT_PRODUCER_ID, request)["error_code"]


def talk(side: Side) -> Answers:
    """Return the answers to all questions, each on a connection of its own."""
    address, ids = side
    answers: Answers = {}
    for question in (*questions(ids), *share_state_questions(ids[HIDDEN])):
        with HostClient(address) as client:
            answer = client.ask(question.api, question.request, question.version)
        answers[question.name] = comparable(
            answer, {str(found): name for name, found in ids.items()}
        )
    return answers


def comparable(value: Any, names: dict[str, str]) -> Any:
    """Return an answer with names in place of ids, in an order that says nothing."""
    if isinstance(value, dict):
        return {
            key: bool(item) if key == "configs" else comparable(item, names)
            for key, item in value.items()
            if key not in NOT_COMPARED
        }
    if isinstance(value, list):
        items = [comparable(item, names) for item in value if not is_internal(item)]
        return sorted(items, key=lambda item: json.dumps(item, default=str, sort_keys=True))
    found = names.get(str(value), value)
    return "an id" if isinstance(found, str) and _ID.fullmatch(found) else found


def is_internal(item: Any) -> bool:
    """Return whether this is an internal topic, which has other partitions in Kafka."""
    return isinstance(item, dict) and str(item.get("name")).startswith("__")


def is_compared(rights: str, question: str) -> bool:
    if question in NEVER_COMPARED or (rights in DELETING and question in OF_DELETED_TOPICS):
        return False
    if question in OTHER_REASONS:
        return rights != "describe"
    return rights != "cluster" or (
        question not in READ_BY_BROKERS and not question.endswith((" state", " summary"))
    )


@pytest.mark.timeout(500)
async def test_rights_count_as_in_kafka(authorizing: str, cluster: Cluster) -> None:
    sides: list[Side] = [
        (address, await asyncio.to_thread(prepare, address))
        for address in (authorizing, cluster.bootstrap)
    ]
    differences: list[str] = []
    for rights, acls in RIGHTS.items():
        answers: list[Answers] = []
        for side in sides:
            await asyncio.to_thread(set_rights, side[0], acls)
            answers.append(await asyncio.to_thread(talk, side))
        expected, given = answers
        differences += [
            f"{rights}: {name}\n  Kafka    {expected[name]}\n  Penstock {given[name]}"
            for name in expected
            if is_compared(rights, name) and expected[name] != given[name]
        ]
    assert not differences, "\n".join(differences)


ACLS = "org.apache.kafka.tools.AclCommand"
"""What `kafka-acls.sh` runs."""


@pytest.mark.timeout(400)
async def test_kafka_acls_prints_the_same(
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
    """Return the lines without their order: Kafka keeps ACLs in sets."""
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def first_error(text: str) -> str:
    return next((line for line in text.splitlines() if not line[:1].isdigit()), "")


@pytest.mark.timeout(400)
async def test_without_an_authorizer_acls_are_refused_as_by_kafka(
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


@pytest.mark.timeout(400)
async def test_a_waiting_fetch_is_not_checked_again(authorizing: str, cluster: Cluster) -> None:
    """The next request of the session is."""
    outcomes: list[tuple[int, bool, int]] = []
    for address in (authorizing, cluster.bootstrap):
        outcomes.append(await asyncio.to_thread(fetch_while_denied, address))
    assert outcomes == [(0, True, TOPIC_DENIED)] * 2


TOPIC_DENIED = 29


def fetch_while_denied(address: str) -> tuple[int, bool, int]:
    """Return the error and whether there are records of a fetch that waits while its right is taken
    away, and the error of the next one.
    """
    topic = "waiting"
    create_topic(address, topic, 1)
    set_rights(address, [allow(ResourceType.TOPIC, topic, Operation.READ)])
    partition = fetch.FetchPartition(0, partition_max_bytes=1_000)
    wanted = [fetch.FetchTopic(None, topic, [partition])]
    first = fetch.FetchRequest(max_wait_ms=0, session_epoch=0, topics=wanted)
    with HostClient(address) as client:
        session = client.ask(apis.FETCH, first, 12)["session_id"]
        assert session
        waiting = fetch.FetchRequest(
            max_wait_ms=20_000, min_bytes=1, session_id=session, session_epoch=1
        )
        client.send(apis.FETCH, waiting, 12)
        set_rights(address, [])
        producer = Producer({"bootstrap.servers": address})
        producer.produce(topic, b"late")
        assert not producer.flush(TIMEOUT_S)
        (answer,) = client.receive(apis.FETCH, 12)["responses"]
        (found,) = answer["partitions"]
        after = fetch.FetchRequest(max_wait_ms=0, session_id=session, session_epoch=2)
        (refused,) = client.ask(apis.FETCH, after, 12)["responses"]
        return found["error_code"], bool(found["records"]), refused["partitions"][0]["error_code"]


# --- regular expressions of consumer groups -------------------------------------------------------


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
        """Send a heartbeat, and return whether exactly these topics are assigned now. Until then
        the assignment must stay as it is.
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
            answer = client.ask(apis.CONSUMER_GROUP_HEARTBEAT, request)
        if answer["error_code"] and not self._epoch:
            return False  # the coordinator is loading
        assert answer["error_code"] == 0, answer
        self._epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            parts = answer["assignment"]["topic_partitions"]
            ids = [UUID(str(part["topic_id"])) for part in parts]
            self._owned = [
                consumer_group_heartbeat.TopicPartitions(topic_id, part["partitions"])
                for topic_id, part in zip(ids, parts, strict=True)
            ]
            self.assigned = frozenset(names_of(self.address, ids))
        assert self.assigned in (before, frozenset(names)), (before, self.assigned)
        return self.assigned == frozenset(names)


def names_of(address: str, ids: Sequence[UUID]) -> set[str]:
    wanted = metadata.MetadataRequest(
        [metadata.MetadataRequestTopic(topic_id, None) for topic_id in ids], False
    )
    with HostClient(address, ADMIN_HOST) as admin:
        return {topic["name"] for topic in admin.ask(apis.METADATA, wanted, 12)["topics"]}


@pytest.mark.timeout(400)
async def test_a_regex_matches_what_its_member_may_describe(
    authorizing: str, cluster: Cluster
) -> None:
    """New topics too; and the rights are looked at again from time to time."""
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
        wait_until(lambda: member.has(*names), timeout_s=30)

    for topic in ("regex-hidden-a", "regex-seen-a"):
        create_topic(address, topic, 1)
    with HostClient(address, ADMIN_HOST) as admin:
        admin.ask(
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
