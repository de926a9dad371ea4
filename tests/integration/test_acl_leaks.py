"""Clients without rights to a resource cannot reach it through internal topics of streams groups,
undeletion, null fields, share-group cursors or frozen topics. Runs over real sockets with one
broker.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.base.acls import Operation, PatternType, ResourceType
from penstock.broker.errors import ErrorCode
from penstock.protocol import apis
from penstock.protocol.error_codes import known_code
from penstock.protocol.frozen_topics import FrozenTopicInfo, decode_frozen_topic
from penstock.protocol.gen import (
    create_topics,
    delete_topics,
    find_coordinator,
    metadata,
    offset_commit,
    sync_group,
)
from penstock.protocol.gen.streams_group_heartbeat import (
    KeyValue,
    Subtopology,
    TopicInfo,
    Topology,
)
from tests.support.acl_rights import Creation, allow, cluster_with_acls, on_cluster, set_rights
from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster
from tests.support.host_client import ADMIN_HOST, CLIENT_HOST, HostClient
from tests.support.streams_groups import StreamsTalk
from tests.support.waiting import wait_until

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OWN_CONFIGS = {
    "penstock.undelete": "payroll",
    "penstock.fork.source": "salaries",
    "penstock.mirror.source": "cluster/topic",
    "penstock.mirror.finished": "true",
    "penstock.delete.grace.ms": "1",
    "penstock.value.schema": "not a schema",
    "penstock.key.schema.validation": "true",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_with_acls(tmp_path) as cluster:
        yield cluster


def literal(name: str, operation: Operation) -> Creation:
    return allow(ResourceType.TOPIC, name, operation, pattern=PatternType.LITERAL)


def delete(address: str, name: str) -> None:
    request = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState(name)], [], 10_000)
    with HostClient(address, ADMIN_HOST) as admin:
        (result,) = admin.send_request(apis.DELETE_TOPICS, request)["responses"]
    assert result["error_code"] == 0, result


def made(address: str, name: str, host: str = CLIENT_HOST, **configs: str) -> ErrorCode:
    """Create a topic with Penstock's own configs; return the error code."""
    pairs = [
        create_topics.CreatableTopicConfig(f"penstock.{key.replace('_', '.')}", value)
        for key, value in configs.items()
    ]
    requested = create_topics.CreateTopicsRequest(
        [create_topics.CreatableTopic(name, -1, -1, configs=pairs)], timeout_ms=10_000
    )
    with HostClient(address, host) as client:
        (result,) = client.send_request(apis.CREATE_TOPICS, requested)["topics"]
    return known_code(result["error_code"])


# --- topics that streams groups create ------------------------------------------------------------


async def test_streams_groups_create_internal_topics_with_kafka_configs_only(
    cluster: Cluster,
) -> None:
    await asyncio.to_thread(join_with_own_configs, cluster.bootstrap)


def join_with_own_configs(address: str) -> None:
    for name in ("payroll", "salaries"):
        create_topic(address, name, 1, penstock_delete_grace_ms="3600000")
        produce(address, name, [b"secret"])
    delete(address, "payroll")
    with closing(StreamsTalk(address)) as admin:
        admin.create("lines", 1)
        admin.coordinate("mine")
        rights = [
            literal("lines", Operation.READ),
            allow(ResourceType.GROUP, "mine", Operation.READ),
        ]
        set_rights(address, [*rights, allow(ResourceType.TOPIC, "mine-", Operation.ALL)])
        changelogs = {f"mine-{at}-changelog": pair for at, pair in enumerate(OWN_CONFIGS.items())}
        topics = [TopicInfo(name, 0, 0, [KeyValue(*pair)]) for name, pair in changelogs.items()]
        plain = TopicInfo("mine-plain-changelog", 0, 0, [KeyValue("cleanup.policy", "compact")])
        topology = Topology(
            0, [Subtopology("0", ["lines"], state_changelog_topics=[*topics, plain])]
        )
        with closing(StreamsTalk(address, CLIENT_HOST)) as member:
            member.join("mine", "m", topology)
            wait_until(lambda: plain.name in admin.topics())
            wait_until(lambda: "Creation failed" in str(member.own("mine", "m")["status"]))
        assert not changelogs.keys() & admin.topics().keys()
    assert made(address, "payroll", ADMIN_HOST, undelete="payroll") is ErrorCode.NONE


# --- undeletion -----------------------------------------------------------------------------------

UNDELETIONS: dict[str, tuple[str, list[Operation], ErrorCode]] = {
    "read only": ("payroll", [Operation.READ], DENIED),
    "write only": ("payroll", [Operation.WRITE, Operation.ALTER_CONFIGS], DENIED),
    "read, elsewhere": ("mine", [Operation.READ], DENIED),
    "delete, elsewhere": ("mine", [Operation.DELETE], DENIED),
    "nothing": ("mine", [], DENIED),
    "delete": ("payroll", [Operation.DELETE], ErrorCode.NONE),
    "alter": ("payroll", [Operation.ALTER], ErrorCode.NONE),
    "delete and read, elsewhere": ("mine", [Operation.DELETE, Operation.READ], ErrorCode.NONE),
}
"""Rights that a client has when it restores `payroll`: the new name and the expected error code."""


async def test_undelete_requires_delete_or_alter_on_the_original_name(cluster: Cluster) -> None:
    found = await asyncio.to_thread(undeletions, cluster.bootstrap)
    assert found == {case: expected for case, (_, _, expected) in UNDELETIONS.items()}


def changes_of_brokers(logs: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the resources of audit log lines, except those written by the controller in this
    process.
    """
    return [
        log["resources"]
        for log in logs
        if log["event"] == "admin_change" and "certificate" not in log
    ]


def undeletions(address: str) -> dict[str, ErrorCode]:
    found: dict[str, ErrorCode] = {}
    for case, (name, operations, _) in UNDELETIONS.items():
        for by_id in (False, True):
            create_topic(address, "payroll", 1, penstock_delete_grace_ms="3600000")
            requested = topic_id_of(address, "payroll") if by_id else "payroll"
            delete(address, "payroll")
            rights = [literal("payroll", operation) for operation in operations]
            set_rights(address, [on_cluster(Operation.CREATE), *rights])
            with capture_logs() as logs:
                found[case] = made(address, name, undelete=requested)
            changes = changes_of_brokers(logs)
            if found[case] is ErrorCode.NONE:
                ((change,),) = changes
                assert change.startswith(f"{name} (undeleted payroll")
                delete(address, name)
            else:
                assert not changes
    return found


def topic_id_of(address: str, name: str) -> str:
    requested = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=name)], False)
    with HostClient(address, ADMIN_HOST) as admin:
        (topic,) = admin.send_request(apis.METADATA, requested, 12)["topics"]
    return str(topic["topic_id"])


async def test_mirror_within_one_cluster_requires_read_on_the_source_topic(
    cluster: Cluster,
) -> None:
    def create_mirrors() -> list[ErrorCode]:
        address = cluster.bootstrap
        create_topic(address, "payroll", 1)
        source = f"{cluster.broker.cluster_id}/{topic_id_of(address, 'payroll')}"
        set_rights(address, [on_cluster(Operation.CREATE)])
        denied = made(address, "mine", mirror_source=source)
        elsewhere = made(address, "other", mirror_source="elsewhere/topic")
        set_rights(address, [on_cluster(Operation.CREATE), literal("payroll", Operation.READ)])
        return [denied, elsewhere, made(address, "mine", mirror_source=source)]

    assert await asyncio.to_thread(create_mirrors) == [DENIED, ErrorCode.NONE, ErrorCode.NONE]


async def test_audit_log_contains_the_source_topic_of_a_fork(cluster: Cluster) -> None:
    def fork() -> list[list[str]]:
        address = cluster.bootstrap
        create_topic(address, "orders", 1)
        set_rights(address, [on_cluster(Operation.CREATE), literal("orders", Operation.READ)])
        with capture_logs() as logs:
            assert made(address, "mine", fork_source="orders") is ErrorCode.NONE
            assert made(address, "orders@before", fork_source="orders") is ErrorCode.NONE
        return changes_of_brokers(logs)

    expected = [["mine (fork of orders)"], ["orders@before (fork of orders)"]]
    assert await asyncio.to_thread(fork) == expected


# --- null fields ----------------------------------------------------------------------------------

SYNCS: list[tuple[int, str | None, str | None, ErrorCode]] = [
    (5, None, None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (5, "consumer", None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (5, None, "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (5, "", "", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (5, "consumer", "range", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (4, None, None, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (0, None, None, ErrorCode.GROUP_AUTHORIZATION_FAILED),
]


async def test_sync_group_without_a_protocol_still_checks_authorization(cluster: Cluster) -> None:
    def codes() -> list[ErrorCode]:
        found: list[ErrorCode] = []
        for version, protocol_type, protocol, _ in SYNCS:
            request = sync_group.SyncGroupRequest("g", 1, "m", None, protocol_type, protocol)
            with HostClient(cluster.bootstrap) as client:
                response = client.send_request(apis.SYNC_GROUP, request, version)
            found.append(known_code(response["error_code"]))
        return found

    assert await asyncio.to_thread(codes) == [code for *_, code in SYNCS]


# --- frozen topics --------------------------------------------------------------------------------


async def test_frozen_topic_info_hides_configs_and_group_offsets_without_rights(
    cluster: Cluster,
) -> None:
    infos = await asyncio.to_thread(frozen_under_rights, cluster.bootstrap)
    assert [(set(info.group_offsets), bool(info.configs)) for info in infos] == [
        (set(), False),
        ({"mine"}, False),
        ({"mine", "other"}, True),
    ]


def is_committed(address: str, group: str) -> bool:
    """Commit offset 1 for a group; return whether the coordinator accepted it."""
    partition = offset_commit.OffsetCommitRequestPartition(0, 1)
    topic = offset_commit.OffsetCommitRequestTopic(None, "orders", [partition])
    with HostClient(address, ADMIN_HOST) as admin:
        admin.send_request(
            apis.FIND_COORDINATOR, find_coordinator.FindCoordinatorRequest(group, 0, [group])
        )
        request = offset_commit.OffsetCommitRequest(group, topics=[topic])
        (response,) = admin.send_request(apis.OFFSET_COMMIT, request, 9)["topics"]
    return int(response["partitions"][0]["error_code"]) == 0


def frozen_under_rights(address: str) -> list[FrozenTopicInfo]:
    create_topic(address, "orders", 1, retention_ms="777777777")
    produce(address, "orders", [b"x"])
    for group in ("mine", "other"):
        wait_until(partial(is_committed, address, group))
    assert made(address, "orders@before", ADMIN_HOST, fork_source="orders") is ErrorCode.NONE
    describe = literal("orders", Operation.DESCRIBE)
    groups = [
        allow(ResourceType.GROUP, name, Operation.DESCRIBE, pattern=PatternType.LITERAL)
        for name in ("mine", "other")
    ]
    found: list[FrozenTopicInfo] = []
    for rights in ([], groups[:1], [*groups, literal("orders", Operation.DESCRIBE_CONFIGS)]):
        set_rights(address, [describe, *rights])
        requested = metadata.MetadataRequest([], False, frozen_topics=True)
        with HostClient(address) as client:
            (topic,) = client.send_request(apis.METADATA, requested, 12)["topics"]
        found.append(decode_frozen_topic(b64decode(topic["frozen_topic"])))
    return found
