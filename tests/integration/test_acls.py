"""ACLs over real sockets. Clients share one principal and differ in their hosts. Changes must reach
all brokers, and a broker without a controller must not serve requests under outdated ACLs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.base.acls import STANDARD_AUTHORIZER, Operation, PatternType, Permission
from penstock.base.acls import ResourceType as Resource
from penstock.broker.errors import ErrorCode
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateAcls, CreateTopics, NewTopic
from penstock.controller.metadata.records import AclEntry
from penstock.deploy.errors import UsageError
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import known_code
from penstock.protocol.gen import (
    consumer_group_heartbeat,
    create_acls,
    create_topics,
    delete_acls,
    fetch,
    find_coordinator,
    metadata,
    produce,
)
from tests.support import clients
from tests.support.cli import Cli
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.host_client import ADMIN_HOST, CLIENT_HOST, HostClient
from tests.support.waiting import until, wait_until

ANYONE = "User:ANONYMOUS"
CLUSTER = "kafka-cluster"
SECURITY = SecurityConfig(authorizer=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with secured(tmp_path) as cluster:
        yield cluster


@asynccontextmanager
async def secured(directory: Path, **settings: Any) -> AsyncIterator[Cluster]:
    async with Cluster(directory, brokers=2, security=SECURITY, **settings) as cluster:
        names = ((Resource.TOPIC, "*"), (Resource.GROUP, "*"), (Resource.CLUSTER, CLUSTER))
        await create(
            cluster, *(creation(kind, name, Operation.ALL, ADMIN_HOST) for kind, name in names)
        )
        yield cluster


def creation(
    kind: Resource, name: str, operation: Operation, host: str = CLIENT_HOST
) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        kind, name, PatternType.LITERAL, ANYONE, host, operation, Permission.ALLOW
    )


def address_of(cluster: Cluster, node_id: int) -> str:
    return f"127.0.0.1:{cluster.brokers[node_id].port}"


async def create(cluster: Cluster, *acls: create_acls.AclCreation) -> None:
    def send_request() -> list[int]:
        with HostClient(address_of(cluster, 0), ADMIN_HOST) as admin:
            response = admin.send_request(apis.CREATE_ACLS, create_acls.CreateAclsRequest(acls))
        return [result["error_code"] for result in response["results"]]

    assert await asyncio.to_thread(send_request) == [0] * len(acls)


async def remove(cluster: Cluster, host: str = CLIENT_HOST) -> None:
    def send_request() -> int:
        requested = delete_acls.DeleteAclsFilter(
            Resource.ANY, None, PatternType.ANY, None, host, Operation.ANY, Permission.ANY
        )
        with HostClient(address_of(cluster, 0), ADMIN_HOST) as admin:
            request = delete_acls.DeleteAclsRequest([requested])
            (result,) = admin.send_request(apis.DELETE_ACLS, request)["filter_results"]
        return len(result["matching_acls"])

    assert await asyncio.to_thread(send_request)


async def described(address: str, topic: str, host: str = CLIENT_HOST) -> ErrorCode:
    def send_request() -> int:
        requested = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)], False)
        with HostClient(address, host) as client:
            (found,) = client.send_request(apis.METADATA, requested, 12)["topics"]
        return int(found["error_code"])

    return known_code(await asyncio.to_thread(send_request))


async def test_acl_change_reaches_all_brokers(cluster: Cluster) -> None:
    await create_topic(cluster, "t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for node_id in cluster.brokers:
        assert await described(address_of(cluster, node_id), "t") is denied
    await create(cluster, creation(Resource.TOPIC, "t", Operation.READ))
    for node_id in cluster.brokers:
        await until_code(cluster, node_id, ErrorCode.NONE)
    await remove(cluster)
    assert await described(address_of(cluster, 0), "t") is denied, "the broker that was asked"
    await until_code(cluster, 1, denied)
    assert await described(address_of(cluster, 1), "t", ADMIN_HOST) is ErrorCode.NONE


async def create_topic(cluster: Cluster, name: str) -> None:
    await asyncio.to_thread(clients.create_topic, cluster.bootstrap, name, 1)


async def until_code(cluster: Cluster, node_id: int, code: ErrorCode, topic: str = "t") -> None:
    address = address_of(cluster, node_id)

    async def has_response() -> bool:
        return await described(address, topic) is code

    await until(has_response)


async def test_broker_without_a_controller_rejects_produce_and_fetch(tmp_path: Path) -> None:
    """The broker cannot tell whether its ACLs are outdated, so it neither accepts nor returns
    records.
    """
    async with secured(tmp_path, controller_settings=SHORT_SESSION) as cluster:
        await create_topic(cluster, "t")
        await create(
            cluster,
            creation(Resource.TOPIC, "t", Operation.READ),
            creation(Resource.TOPIC, "t", Operation.WRITE),
        )
        leader = cluster.leader_of("t")
        broker = cluster.brokers[leader]
        await until_code(cluster, leader, ErrorCode.NONE)
        await cluster.stop_controller()
        await until(lambda: not broker.can_write())
        codes = await asyncio.to_thread(codes_without_session, address_of(cluster, leader))
        assert codes == (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), "closed")
        await cluster.start_controller()


def codes_without_session(address: str) -> tuple[int, str]:
    with HostClient(address) as client:
        partition = fetch.FetchPartition(0, partition_max_bytes=1_000)
        requested = fetch.FetchRequest(topics=[fetch.FetchTopic(None, "t", [partition])])
        (found,) = client.send_request(apis.FETCH, requested, 12)["responses"]
        code = found["partitions"][0]["error_code"]
        data = [produce.TopicProduceData(None, "t", [produce.PartitionProduceData(0, b"")])]
        try:
            client.send_request(apis.PRODUCE, produce.ProduceRequest(None, -1, 1_000, data), 12)
        except EOFError:
            return code, "closed"
        return code, "responded"


async def test_fetch_with_a_denied_topic_still_waits_for_records_of_the_others(
    cluster: Cluster,
) -> None:
    for name in ("mine", "other"):
        await create_topic(cluster, name)
        await until(lambda name=name: cluster.leader_of(name) >= 0)
    await create(cluster, creation(Resource.TOPIC, "mine", Operation.READ))
    leader = address_of(cluster, cluster.leader_of("mine"))

    def fetch_both() -> dict[str, tuple[int, bool]]:
        partition = fetch.FetchPartition(0, partition_max_bytes=1_000)
        requested = [fetch.FetchTopic(None, name, [partition]) for name in ("mine", "other")]
        with HostClient(leader) as client:
            client.send(
                apis.FETCH, fetch.FetchRequest(None, None, -1, 20_000, 1, topics=requested), 12
            )
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            producer.produce("mine", b"late")
            assert not producer.flush(TIMEOUT_S)
            response = client.receive(apis.FETCH, 12)
        return {
            topic["topic"]: (part["error_code"], bool(part["records"]))
            for topic in response["responses"]
            for part in topic["partitions"]
        }

    await until_code(cluster, cluster.leader_of("mine"), ErrorCode.NONE, "mine")
    assert await asyncio.to_thread(fetch_both) == {
        "mine": (0, True),
        "other": (int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), False),
    }


async def test_snapshot_succeeds_if_brokers_have_cluster_action(tmp_path: Path) -> None:
    """The brokers request log end offsets, groups and committed offsets from each other."""
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER)
    async with Cluster(tmp_path, brokers=2, security=security) as cluster:
        rights = [
            (Resource.CLUSTER, CLUSTER, Operation.CLUSTER_ACTION, ADMIN_HOST),
            *(
                (Resource.TOPIC, "t", operation, CLIENT_HOST)
                for operation in (Operation.CREATE, Operation.READ)
            ),
        ]
        acls = [
            AclEntry(kind, PatternType.LITERAL, name, ANYONE, host, operation, Permission.ALLOW)
            for kind, name, operation, host in rights
        ]
        requested = NewTopic(name="t", partitions=4, replication_factor=2)
        await cluster.broker.client.create_acls(CreateAcls(acls=acls))
        await cluster.broker.client.create_topics(CreateTopics(topics=[requested]))

        def take_snapshot() -> int:
            source = create_topics.CreatableTopicConfig("penstock.fork.source", "t")
            topic = create_topics.CreatableTopic("t@before", -1, -1, configs=[source])
            with HostClient(address_of(cluster, 0)) as client:
                request = create_topics.CreateTopicsRequest([topic], timeout_ms=30_000)
                (result,) = client.send_request(apis.CREATE_TOPICS, request)["topics"]
            return int(result["error_code"])

        assert await asyncio.to_thread(take_snapshot) == ErrorCode.NONE


async def test_librdkafka_creates_lists_and_deletes_acls(cluster: Cluster) -> None:
    def talk() -> list[str]:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        binding = AclBinding(
            ResourceType.TOPIC,
            "t-",
            ResourcePatternType.PREFIXED,
            "User:x",
            "*",
            AclOperation.WRITE,
            AclPermissionType.DENY,
        )
        for done in admin.create_acls([binding]).values():
            done.result(TIMEOUT_S)
        requested = AclBindingFilter(
            ResourceType.TOPIC,
            "t-1",
            ResourcePatternType.MATCH,
            "User:x",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found = admin.describe_acls(requested).result(TIMEOUT_S)
        removed = [
            acl
            for done in admin.delete_acls([requested]).values()
            for acl in done.result(TIMEOUT_S)
        ]
        assert found == removed == [binding]
        return [str(acl.name) for acl in found]

    assert await asyncio.to_thread(talk) == ["t-"]


async def test_producer_gets_an_authorization_error_for_a_denied_topic(tmp_path: Path) -> None:
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER)
    async with Cluster(tmp_path, security=security) as cluster:
        errors: list[KafkaError | None] = []

        def produce_one() -> None:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
            assert not producer.flush(TIMEOUT_S)

        await asyncio.to_thread(produce_one)
        (error,) = errors
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

        def change() -> None:
            binding = AclBinding(
                ResourceType.TOPIC,
                "t",
                ResourcePatternType.LITERAL,
                "User:x",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            (done,) = admin.create_acls([binding]).values()
            done.result(TIMEOUT_S)

        with pytest.raises(KafkaException) as failed:
            await asyncio.to_thread(change)
        code = failed.value.args[0].code()
        assert code == KafkaError.CLUSTER_AUTHORIZATION_FAILED


# --- the command ----------------------------------------------------------------------------------


async def test_acls_command_adds_lists_and_deletes(cluster: Cluster, tmp_path: Path) -> None:
    cli = Cli(cluster, tmp_path)
    who = ("--principal", "User:alice")
    added = json.loads(
        await cli.run(
            *("acls", "add", "--topic", "or", "--prefix", *who, "--json"),
            *("--operation", "read", "--operation", "describe-configs"),
        )
    )
    assert [item["operation"] for item in added] == ["read", "describe-configs"]
    await cli.run("acls", "add", "--topic", "orders", *who, "--operation", "all", "--deny")
    await cli.run("acls", "add", "--cluster", *who, "--operation", "alter", "--host", "10.0.0.1")
    shown = await cli.run("acls", "list", "--topic", "orders", *who)
    assert "prefixed" in shown
    assert "deny" in shown
    listed = json.loads(await cli.run("acls", "list", *who, "--json"))
    assert len(listed) == 4
    assert {item["host"] for item in listed} == {"*", "10.0.0.1"}
    removed = json.loads(
        await cli.run("acls", "remove", "--yes", "--topic", "orders", *who, "--json")
    )
    assert [(item["name"], item["permission"]) for item in removed] == [("orders", "deny")]
    removed = json.loads(await cli.run("acls", "remove", "--yes", *who, "--json"))
    assert len(removed) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "--principal", "User:a", "--operation", "read"),
        ("add", "--topic", "t", "--operation", "read"),
        ("add", "--topic", "t", "--principal", "User:a", "--operation", "fly"),
        ("add", "--topic", "t", "--principal", "alice", "--operation", "read"),
        ("add", "--topic", "t", "--cluster", "--principal", "User:a", "--operation", "read"),
        ("remove",),
    ],
)
async def test_acls_command_explains_invalid_options(
    cluster: Cluster, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError):
        await Cli(cluster, tmp_path).run("acls", *arguments)


async def test_acls_command_reports_a_missing_authorizer(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        with pytest.raises(KafkaFailed, match=r"no authorizer .*: set authorizer"):
            await Cli(cluster, tmp_path).run("acls", "list")


async def test_regex_subscription_matches_only_topics_that_the_member_may_describe(
    cluster: Cluster,
) -> None:
    for name in ("mine-1", "other"):
        await create_topic(cluster, name)
    await create(
        cluster,
        creation(Resource.GROUP, "g", Operation.READ),
        *(creation(Resource.TOPIC, name, Operation.DESCRIBE) for name in ("mine-1", "mine-2")),
    )
    for node_id in cluster.brokers:
        await until_code(cluster, node_id, ErrorCode.NONE, "mine-1")
    coordinator = await asyncio.to_thread(coordinator_of, cluster, "g")
    member = partial(subscribed_by_regex, address_of(cluster, coordinator), "g", "mine.*|other.*")
    epoch, assigned = await asyncio.to_thread(member, 0)
    assert assigned == {"mine-1"}
    await create_topic(cluster, "other-2")
    await create_topic(cluster, "mine-2")

    async def has_new_topic() -> bool:
        nonlocal epoch, assigned
        epoch, found = await asyncio.to_thread(member, epoch)
        assigned = assigned if found is None else found
        return assigned != {"mine-1"}

    await until(has_new_topic)
    assert assigned == {"mine-1", "mine-2"}


def coordinator_of(cluster: Cluster, group: str) -> int:
    request = find_coordinator.FindCoordinatorRequest(group, 0, [group])

    def found() -> list[int]:
        with HostClient(address_of(cluster, 0), ADMIN_HOST) as admin:
            (response,) = admin.send_request(apis.FIND_COORDINATOR, request)["coordinators"]
        return [] if response["error_code"] else [response["node_id"]]

    node_id: int = wait_until(found)[0]
    return node_id


def subscribed_by_regex(
    address: str, group: str, regex: str, epoch: int
) -> tuple[int, set[str] | None]:
    """Send a heartbeat of a member. Return its epoch and its assigned topics, or None if the
    assignment is unchanged.
    """
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group,
        "AAAAAAAAAAAAAAAAAAAAAA",
        epoch,
        rebalance_timeout_ms=30_000 if not epoch else -1,
        subscribed_topic_regex=None if epoch else regex,
        topic_partitions=None if epoch else [],
    )

    def heartbeat() -> Any:
        with HostClient(address) as client:
            response = client.send_request(apis.CONSUMER_GROUP_HEARTBEAT, request)
        return (
            None if response["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else response
        )

    response = wait_until(heartbeat)
    assert response["error_code"] == 0, response
    if response["assignment"] is None:
        return response["member_epoch"], None
    ids = [UUID(str(part["topic_id"])) for part in response["assignment"]["topic_partitions"]]
    requested = [metadata.MetadataRequestTopic(topic_id, None) for topic_id in ids]
    with HostClient(address, ADMIN_HOST) as admin:
        found = admin.send_request(apis.METADATA, metadata.MetadataRequest(requested, False), 12)[
            "topics"
        ]
    return response["member_epoch"], {topic["name"] for topic in found}
