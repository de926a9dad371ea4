"""What `penstock mirror` copies from Apache Kafka 4.2 besides records, and what it omits: topic
configs, ACLs, users and quotas.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks.kafka import LIGHT_JVM, kafka
from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.topic_configs import MIRROR_SOURCE
from penstock.deploy.clients import configs
from penstock.deploy.clients.quotas import QuotaView, alter_quotas, list_quotas
from penstock.deploy.clients.wire import WireClient
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.mirrors import commit_offsets, committed, mirrored

ANYONE = "User:ANONYMOUS"
OFFSETS = {("plain", 0): 2}
ORDERS: Mapping[str, str] = {
    "cleanup.policy": "compact,delete",
    "compression.type": "zstd",
    "delete.retention.ms": "3600000",
    "max.message.bytes": "2000000",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "1000",
    "retention.bytes": "1000000000",
    "retention.ms": "86400000",
    "segment.ms": "7200000",
    "unclean.leader.election.enable": "true",
}
THROTTLES: Mapping[str, str] = {
    "leader.replication.throttled.replicas": "*",
    "follower.replication.throttled.replicas": "0:1",
}
"""Configs that contain broker ids of the source."""


@pytest.fixture(scope="module")
def source(java: JavaHome) -> Iterator[str]:
    """Return the address of a Kafka with an authorizer, where everyone is a super user. One of its
    broker defaults differs from Penstock's.
    """
    assert java.class_path
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": ANYONE,
        "log.retention.ms": "123456789",
    }
    with kafka(settings, jvm=LIGHT_JVM) as process:
        yield process.bootstrap


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[str]:
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER, super_users=ANYONE)
    async with Cluster(tmp_path, brokers=1, security=security) as cluster:
        yield cluster.bootstrap


def acl(
    kind: str, name: str, pattern: str, who: str, host: str, operation: str, permission: str
) -> AclBinding:
    return AclBinding(
        ResourceType[kind],
        name,
        ResourcePatternType[pattern],
        who,
        host,
        AclOperation[operation],
        AclPermissionType[permission],
    )


READS = acl("TOPIC", "orders", "LITERAL", "User:bob", "*", "READ", "ALLOW")
ACLS = (
    READS,
    acl("TOPIC", "orders", "LITERAL", "User:eve", "10.0.0.7", "WRITE", "DENY"),
    acl("TOPIC", "pay-", "PREFIXED", "User:ann", "*", "ALL", "ALLOW"),
    acl("GROUP", "billing", "LITERAL", "User:bob", "*", "READ", "ALLOW"),
    acl("TRANSACTIONAL_ID", "tx-", "PREFIXED", "User:ann", "*", "WRITE", "ALLOW"),
    acl("BROKER", "kafka-cluster", "LITERAL", "User:*", "*", "DESCRIBE", "ALLOW"),
)
OF_TARGET = acl("TOPIC", "local", "LITERAL", "User:local", "*", "READ", "ALLOW")
LATE = acl("TOPIC", "orders", "LITERAL", "User:late", "*", "READ", "ALLOW")


class Side:
    """One cluster."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._admin: Any = AdminClient({"bootstrap.servers": address})

    def add(self, *acls: AclBinding) -> None:
        for done in self._admin.create_acls(list(acls)).values():
            done.result(TIMEOUT_S)

    def remove(self, binding: AclBinding) -> None:
        requested = AclBindingFilter(
            *(binding.restype, binding.name, binding.resource_pattern_type, binding.principal),
            *(binding.host, binding.operation, binding.permission_type),
        )
        assert len(self._admin.delete_acls([requested])[requested].result(TIMEOUT_S)) == 1

    def acls(self) -> set[AclBinding]:
        everything = AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
        return set(self._admin.describe_acls(everything).result(TIMEOUT_S))

    def topics(self) -> set[str]:
        found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name for name in found if not name.startswith("__")}

    def add_user(self, name: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
        requested = UserScramCredentialUpsertion(name, info, b"secret")
        self._admin.alter_user_scram_credentials([requested])[name].result(TIMEOUT_S)

    def users(self) -> set[str]:
        return set(self._admin.describe_user_scram_credentials().result(TIMEOUT_S))

    def quotas(self) -> list[QuotaView]:
        with WireClient(self.address) as client:
            return list_quotas(client, {})

    def configs(self, topic: str) -> dict[str, str]:
        """Return the configs that are set on the topic itself."""
        found = configs.describe(self.address, (TOPIC_RESOURCE, topic))
        return {view.name: view.value for view in found if view.source == "topic"}

    def alter(self, topic: str, changes: Mapping[str, str | None]) -> None:
        configs.alter(self.address, (TOPIC_RESOURCE, topic), changes)


def fill(source: Side, target: Side) -> None:
    create_topic(source.address, "orders", 2)
    source.alter("orders", {**ORDERS, **THROTTLES})
    create_topic(source.address, "plain", 1)
    create_topic(source.address, "private-notes", 1, retention_ms="5000")
    produce(source.address, "plain", [b"v"] * 3)
    for group in ("billing", "hidden"):
        commit_offsets(source.address, group, OFFSETS)
    source.add(*ACLS)
    target.add(OF_TARGET)
    source.add_user("ann")
    with WireClient(source.address) as client:
        alter_quotas(client, {"user": "ann"}, {"producer_byte_rate": 1_000.0})


def copy(source: Side, target: Side, *more: str) -> str:
    options = ("--once", "--exclude", "private-.*", "--groups", "bill.*", *more)
    done = mirrored(source.address, target.address, *options)
    assert done.returncode == 0, done.stderr
    return done.stderr


async def test_only_configs_and_acls_are_copied(source: str, target: str) -> None:
    await asyncio.to_thread(_compare, Side(source), Side(target))


def _compare(source: Side, target: Side) -> None:
    fill(source, target)
    assert copy(source, target) == ""
    assert target.topics() == {"orders", "plain"}
    found = target.configs("orders")
    assert found.pop(MIRROR_SOURCE)
    assert found == ORDERS
    # Broker defaults of the source are not copied to topics.
    assert target.configs("plain").keys() == {MIRROR_SOURCE}
    assert source.acls() == set(ACLS)
    assert target.acls() == {*ACLS, OF_TARGET}
    assert (source.users(), target.users()) == ({"ann"}, set())
    assert (len(source.quotas()), target.quotas()) == (1, [])
    assert committed(target.address, "billing") == OFFSETS
    assert committed(target.address, "hidden") == {}

    # Later changes are copied, but no ACL is removed.
    source.alter("orders", {"retention.ms": "7200000", "max.message.bytes": None})
    source.add(LATE)
    source.remove(READS)
    target.alter("plain", {"retention.ms": "1000"})
    assert copy(source, target, "--no-acls") == ""
    assert target.acls() == {*ACLS, OF_TARGET}
    found = target.configs("orders")
    del found[MIRROR_SOURCE]
    expected = {**ORDERS, "retention.ms": "7200000"}
    del expected["max.message.bytes"]
    assert found == expected
    assert target.configs("plain").keys() == {MIRROR_SOURCE}
    assert copy(source, target) == ""
    assert target.acls() == {*ACLS, OF_TARGET, LATE}
    assert source.acls() == {*ACLS, LATE} - {READS}
    assert target.topics() == {"orders", "plain"}
