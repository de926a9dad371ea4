"""Committed offsets of groups end with their topic: a new topic of the same name starts without
offsets, and an undeleted topic gets its own offsets back. With real clients, two broker processes,
and coordinator moves.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.groups.offsets.records import OffsetKey, decode_key
from penstock.controller.api.errors import RequestRefused
from penstock.controller.api.messages import FeatureUpdate, UpdateFeatures
from penstock.controller.metadata.features import OFFSETS_VERSION, SUPPORTED
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import offset_commit
from tests.integration.test_undelete import delete, undelete
from tests.support.clients import TIMEOUT_S, create_topic, produce, read_records
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.coordinator_client import CoordinatorClient, end_coordinator
from tests.support.in_thread import in_thread
from tests.support.internal_topic import read_internal_topic
from tests.support.share_client import ACCEPT, ShareMember
from tests.support.waiting import wait_until

TOPIC, GROUP, SHARE_GROUP = "orders", "g", "s"
GROUP_RESOURCE, RESET = 32, "share.auto.offset.reset"


@pytest.fixture(params=[0, 3_600_000], ids=["no grace", "grace"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(
        tmp_path,
        brokers=2,
        controller_settings={"delete_grace_ms": request.param},
        auto_create_topics_enable=False,
        group_min_session_timeout_ms=1_000,
    ) as cluster:
        yield cluster


@pytest.fixture(params=[0, 3_600_000], ids=["no grace", "grace"])
async def alone(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start one broker, which coordinates all groups."""
    async with Cluster(
        tmp_path,
        controller_settings={"delete_grace_ms": request.param},
        auto_create_topics_enable=False,
    ) as cluster:
        yield cluster


with_grace = pytest.mark.parametrize("cluster", [3_600_000], indirect=True)


def consumer(cluster: Cluster, protocol: str = "classic") -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": GROUP,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer(settings)


def consume(cluster: Cluster, protocol: str, count: int) -> list[int]:
    """Read with a new member, commit and leave. Return the offsets of the records."""
    member = consumer(cluster, protocol)
    member.subscribe([TOPIC])
    found = [message.offset() or 0 for message in read_records(member, count)]
    member.commit(asynchronous=False)
    member.close()
    return found


def committed(cluster: Cluster, *topics: str) -> list[int]:
    member = consumer(cluster)
    found = member.committed([TopicPartition(topic, 0) for topic in topics], TIMEOUT_S)
    member.close()
    return [max(part.offset, -1) for part in found]


def commit(cluster: Cluster, offset: int, topic: str = TOPIC) -> None:
    member = consumer(cluster)
    member.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    member.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@in_thread
def test_group_starts_at_the_beginning_of_a_recreated_topic(
    cluster: Cluster, protocol: str
) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, TOPIC)
    produce(bootstrap, TOPIC, [b"old"] * 100)
    assert consume(cluster, protocol, 100) == list(range(100))
    assert committed(cluster, TOPIC) == [100]
    delete(bootstrap)
    create_topic(bootstrap, TOPIC)
    assert committed(cluster, TOPIC) == [-1]
    produce(bootstrap, TOPIC, [b"new"] * 200)
    assert consume(cluster, protocol, 200) == list(range(200))
    assert committed(cluster, TOPIC) == [200]


@pytest.mark.parametrize("end", ["moved", "killed"])
async def test_next_coordinator_returns_no_offsets_of_the_deleted_topic(
    cluster: Cluster, end: str
) -> None:
    """The next coordinator may take over before the tombstones are written."""

    def recreate() -> None:
        create_topic(cluster.bootstrap, TOPIC)
        commit(cluster, 100)
        delete(cluster.bootstrap)
        create_topic(cluster.bootstrap, TOPIC)

    await asyncio.to_thread(recreate)
    await end_coordinator(cluster, GROUP, end)
    assert await asyncio.to_thread(committed, cluster, TOPIC) == [-1]
    await asyncio.to_thread(commit, cluster, 1)
    assert await asyncio.to_thread(committed, cluster, TOPIC) == [1]


async def test_member_of_a_deleted_topic_cannot_commit_for_the_recreated_one(
    cluster: Cluster,
) -> None:
    """Its commit requests contain topic names, but its assignment contains topic ids (KIP-848)."""
    member = consumer(cluster, "consumer")

    def recreate() -> None:
        create_topic(cluster.bootstrap, TOPIC)
        produce(cluster.bootstrap, TOPIC, [b"old"])
        member.subscribe([TOPIC])
        read_records(member, 1)
        delete(cluster.bootstrap)
        create_topic(cluster.bootstrap, TOPIC)

    await asyncio.to_thread(recreate)
    client = CoordinatorClient(cluster, GROUP)
    part = offset_commit.OffsetCommitRequestPartition(0, 1)
    request = offset_commit.OffsetCommitRequest(
        GROUP,
        1,
        member.memberid() or "",
        topics=[offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
    )
    response = await asyncio.to_thread(
        client.send_request,
        replace(apis.OFFSET_COMMIT, max=9),
        request,
        lambda found: found.topics[0].partitions[0].error_code,
    )
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await asyncio.to_thread(committed, cluster, TOPIC) == [-1]
    await asyncio.to_thread(member.close)


@with_grace
@pytest.mark.parametrize("name", [TOPIC, "orders-again"])
async def test_undeleted_topic_gets_its_offsets_back(cluster: Cluster, name: str) -> None:
    def run() -> None:
        create_topic(cluster.bootstrap, TOPIC)
        commit(cluster, 100)
        delete(cluster.bootstrap)
        assert committed(cluster, TOPIC) == [-1]
        undelete(cluster.bootstrap, name=name)
        assert committed(cluster, name) == [100]
        if name != TOPIC:
            create_topic(cluster.bootstrap, TOPIC)
            assert committed(cluster, TOPIC) == [-1]

    await asyncio.to_thread(run)
    await end_coordinator(cluster, GROUP, "moved")
    assert await asyncio.to_thread(committed, cluster, name) == [100]


@with_grace
@in_thread
def test_commit_for_the_recreated_topic_replaces_the_old_offset(
    cluster: Cluster,
) -> None:
    create_topic(cluster.bootstrap, TOPIC)
    commit(cluster, 100)
    delete(cluster.bootstrap)
    create_topic(cluster.bootstrap, TOPIC)
    commit(cluster, 3)
    undelete(cluster.bootstrap, name="orders-again")
    assert committed(cluster, TOPIC, "orders-again") == [3, -1]


def worked_off(cluster: Cluster) -> list[tuple[int, int, int]]:
    """Accept the records that a new member of a share group gets. Return their ranges: first
    offset, last offset, delivery count.
    """
    with closing(ShareMember(cluster.bootstrap, SHARE_GROUP)) as member:
        member.join(TOPIC)
        found: list[tuple[int, int, int]] = []

        def has_some() -> bool:
            found.extend(member.acquired((TOPIC, 0)))
            return bool(found)

        wait_until(has_some)
        acks = [(first, last, [ACCEPT]) for first, last, _ in found]
        member.acknowledge({(TOPIC, 0): acks})
        member.leave()
        return found


@in_thread
def test_share_group_starts_at_the_beginning_of_a_recreated_topic(alone: Cluster) -> None:
    bootstrap = alone.bootstrap
    create_topic(bootstrap, TOPIC)
    alter_configs(bootstrap, (GROUP_RESOURCE, SHARE_GROUP), {RESET: "earliest"})
    produce(bootstrap, TOPIC, [b"old"] * 10)
    assert worked_off(alone) == [(0, 9, 1)]
    delete(bootstrap)
    create_topic(bootstrap, TOPIC)
    produce(bootstrap, TOPIC, [b"new"] * 20)
    assert worked_off(alone) == [(0, 19, 1)]


async def test_snapshot_of_a_recreated_topic_contains_no_old_offsets(alone: Cluster) -> None:
    bootstrap = alone.bootstrap

    def run() -> None:
        create_topic(bootstrap, TOPIC)
        commit(alone, 100)
        delete(bootstrap)
        create_topic(bootstrap, TOPIC)
        produce(bootstrap, TOPIC, [b"new"] * 200)
        create_topic(bootstrap, f"{TOPIC}@s", -1, penstock_fork_source=TOPIC)

    await asyncio.to_thread(run)
    frozen = alone.broker.image.frozen_topics.by_full_name(f"{TOPIC}@s")
    assert frozen is not None
    assert frozen.group_offsets == ()


async def set_level(cluster: Cluster, level: int, kind: int = 1) -> None:
    update = FeatureUpdate(name=OFFSETS_VERSION, level=level, type=kind)
    await cluster.broker.client.update_features(UpdateFeatures(updates=[update]))


def is_stored(cluster: Cluster, version: int) -> bool:
    """Return whether the newest record for the group's offset has this version."""
    values = [
        value
        for key, value in read_internal_topic(cluster.bootstrap, OFFSETS_TOPIC)
        if decode_key(key) == OffsetKey(GROUP, TOPIC, 0) and value is not None
    ]
    return int.from_bytes(values[-1][:2], "big") == version


async def test_offset_records_contain_topic_ids_only_with_the_feature_enabled(
    cluster: Cluster,
) -> None:
    """Older software, which cannot read version 4, may join again after a downgrade."""
    await set_level(cluster, 0, kind=3)
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
    await asyncio.to_thread(commit, cluster, 7)
    for level, version in ((0, 3), (1, 4), (0, 3)):
        await set_level(cluster, level, kind=1 if level else 3)
        await asyncio.to_thread(wait_until, partial(is_stored, cluster, version))
        assert await asyncio.to_thread(committed, cluster, TOPIC) == [7]
    await end_coordinator(cluster, GROUP, "moved")
    assert await asyncio.to_thread(committed, cluster, TOPIC) == [7]


async def test_broker_without_the_feature_prevents_enabling_it(
    alone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(feature for feature in SUPPORTED if feature.name != OFFSETS_VERSION)
    monkeypatch.setattr("penstock.controller.metadata.features.SUPPORTED", older)
    await set_level(alone, 0, kind=3)
    await alone.start_broker(1)
    with pytest.raises(RequestRefused, match="Broker 1 does not support this feature"):
        await set_level(alone, 1)
    await asyncio.to_thread(create_topic, alone.bootstrap, TOPIC)
    await asyncio.to_thread(commit, alone, 7)
    assert await asyncio.to_thread(is_stored, alone, 3)
    await alone.stop_broker(1)
    await set_level(alone, 1)
    with pytest.raises(RequestRefused, match=f"finalized version 1 of {OFFSETS_VERSION}"):
        await alone.start_broker(1)
    await asyncio.to_thread(wait_until, partial(is_stored, alone, 4))
