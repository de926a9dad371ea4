"""Which clients may commit and fetch offsets, compared with Apache Kafka 4.2: standalone consumers,
which send no generation, and members, in groups of every type and state.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

import pytest

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    delete_groups,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
)
from penstock.protocol.gen.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.support.cluster import Cluster
from tests.support.kafka_comparison import Step, compare
from tests.support.streams_groups import StreamsTalk, reading
from tests.support.transaction_client import TOPIC, TransactionClient, create_ledger

PRODUCER: Final = "commits"
Caller = tuple[str, str | None, int]
"""Member id, group instance id, and generation or member epoch."""
Enter = Callable[["Talk", str], tuple[str, int]]
_RETRIED: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}

pytestmark = pytest.mark.cluster(group_streams_initial_rebalance_delay_ms=0)


class Talk(TransactionClient):
    """A connection that commits and fetches offsets with the identity of any caller."""

    def __init__(self, address: str) -> None:
        create_ledger(address)
        super().__init__(address)
        self.begin(PRODUCER)
        requested = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=TOPIC)])
        (found,) = self.send_request(apis.METADATA, requested)["topics"]
        self._topic_id = UUID(found["topic_id"])

    def commit(self, group: str, caller: Caller, version: int) -> str:
        member, instance, epoch = caller
        partitions = [offset_commit.OffsetCommitRequestPartition(0, 5)]
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            group_instance_id=instance if version >= 7 else None,
            topics=[offset_commit.OffsetCommitRequestTopic(self._topic_id, TOPIC, partitions)],
        )
        return self._repeat(apis.OFFSET_COMMIT, request, version)

    def commit_in_transaction(self, group: str, caller: Caller, version: int) -> str:
        member, instance, epoch = caller
        topic = txn_offset_commit.TxnOffsetCommitRequestTopic(
            TOPIC, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 6)]
        )
        request = txn_offset_commit.TxnOffsetCommitRequest(
            PRODUCER,
            group,
            self.producer_id,
            self.epoch,
            generation_id=epoch,
            member_id=member,
            group_instance_id=instance,
            topics=[topic],
        )
        return self._repeat(apis.TXN_OFFSET_COMMIT, request, version)

    def _repeat(self, api: apis.ApiSpec, request: object, version: int) -> str:
        while True:
            response = self.send_request(api, request, version)
            code = ErrorCode(response["topics"][0]["partitions"][0]["error_code"])
            if code not in _RETRIED:
                return code.name

    def fetch(self, group: str, member: str | None, epoch: int, version: int = 10) -> str:
        topics = [offset_fetch.OffsetFetchRequestTopics(self._topic_id, TOPIC, [0])]
        requested = offset_fetch.OffsetFetchRequestGroup(
            group, topics=topics, member_id=member, member_epoch=epoch
        )
        request = offset_fetch.OffsetFetchRequest(groups=[requested])
        (found,) = self.send_request(apis.OFFSET_FETCH, request, version)["groups"]
        offsets = [part["committed_offset"] for t in found["topics"] for part in t["partitions"]]
        return f"{ErrorCode(found['error_code']).name} {offsets}"

    def delete_offsets(self, group: str) -> Any:
        partitions = [offset_delete.OffsetDeleteRequestPartition(0)]
        topics = [offset_delete.OffsetDeleteRequestTopic(TOPIC, partitions)]
        response = self.send_request(
            apis.OFFSET_DELETE, offset_delete.OffsetDeleteRequest(group, topics)
        )
        return response["error_code"], response["topics"]

    def listed(self, group: str) -> Any:
        groups = self.send_request(apis.LIST_GROUPS, list_groups.ListGroupsRequest())["groups"]
        return [found for found in groups if found["group_id"] == group]

    def delete(self, group: str) -> Any:
        return self.send_request(apis.DELETE_GROUPS, delete_groups.DeleteGroupsRequest([group]))[
            "results"
        ]


def absent(talk: Talk, group: str) -> tuple[str, int]:
    return "", -1


def simple(talk: Talk, group: str) -> tuple[str, int]:
    """Create a group that has only offsets."""
    assert talk.commit(group, ("", None, -1), 8) == "NONE"
    return "", -1


def _join(talk: Talk, group: str, instance: str | None, kind: str) -> tuple[str, int]:
    request = join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=[join_group.JoinGroupRequestProtocol("range", _SUBSCRIPTION)],
    )
    response = talk.send_request(apis.JOIN_GROUP, request)
    if response["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = response["member_id"]
        response = talk.send_request(apis.JOIN_GROUP, request)
    assert response["error_code"] == 0, response
    return response["member_id"], response["generation_id"]


_NAME = TOPIC.encode()
_SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + len(_NAME).to_bytes(2) + _NAME + b"\0\0\0\0"


def completing(talk: Talk, group: str) -> tuple[str, int]:
    """Join as the leader without sending an assignment."""
    return _join(talk, group, None, "consumer")


def _sync(talk: Talk, group: str, member: str, generation: int) -> None:
    assignments = [sync_group.SyncGroupRequestAssignment(member, b"\0\0" + bytes(8))]
    request = sync_group.SyncGroupRequest(group, generation, member, assignments=assignments)
    assert talk.send_request(apis.SYNC_GROUP, request, 4)["error_code"] == 0


def stable(talk: Talk, group: str) -> tuple[str, int]:
    member, generation = _join(talk, group, None, "consumer")
    _sync(talk, group, member, generation)
    return member, generation


def stable_static(talk: Talk, group: str) -> tuple[str, int]:
    member, generation = _join(talk, group, "instance", "consumer")
    _sync(talk, group, member, generation)
    return member, generation


def empty_classic(talk: Talk, group: str) -> tuple[str, int]:
    member, generation = stable(talk, group)
    leaving = leave_group.LeaveGroupRequest(group, members=[leave_group.MemberIdentity(member)])
    assert talk.send_request(apis.LEAVE_GROUP, leaving)["error_code"] == 0
    return member, generation


def connect(talk: Talk, group: str) -> tuple[str, int]:
    """Join as a Connect worker does, with another protocol type."""
    member, generation = _join(talk, group, None, "connect")
    _sync(talk, group, member, generation)
    return member, generation


def consumer(talk: Talk, group: str, instance: str | None = None) -> tuple[str, int]:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="own",
        rebalance_timeout_ms=60_000,
        instance_id=instance,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    response = talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, request)
    assert response["error_code"] == 0, response
    return "own", response["member_epoch"]


def consumer_static(talk: Talk, group: str) -> tuple[str, int]:
    return consumer(talk, group, "instance")


def empty_consumer(talk: Talk, group: str) -> tuple[str, int]:
    member, epoch = consumer(talk, group)
    leaving = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=-1)
    assert talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, leaving)["error_code"] == 0
    return member, epoch


def mixed(talk: Talk, group: str) -> tuple[str, int]:
    """Let a member of the classic protocol join a consumer group; return that member."""
    consumer(talk, group)
    return _join(talk, group, None, "consumer")


def streams(talk: Talk, group: str, *, leaves: bool = False) -> tuple[str, int]:
    member = StreamsTalk(talk.address)
    response = member.join(group, "own", reading(TOPIC))
    assert response["error_code"] == 0, response
    if leaves:
        assert member.beat(group, "own", -1)["error_code"] == 0
    member.close()
    return "own", response["member_epoch"]


def empty_streams(talk: Talk, group: str) -> tuple[str, int]:
    return streams(talk, group, leaves=True)


def share(talk: Talk, group: str) -> tuple[str, int]:
    request = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id=group, member_id="own", subscribed_topic_names=[TOPIC]
    )
    response = talk.send_request(apis.SHARE_GROUP_HEARTBEAT, request)
    assert response["error_code"] == 0, response
    return "own", response["member_epoch"]


def empty_share(talk: Talk, group: str) -> tuple[str, int]:
    member, epoch = share(talk, group)
    leaving = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=-1
    )
    assert talk.send_request(apis.SHARE_GROUP_HEARTBEAT, leaving)["error_code"] == 0
    return member, epoch


def callers(member: str, epoch: int) -> list[tuple[str, Caller]]:
    """Return callers with their labels. member, epoch: those of a current or former member."""
    return [
        ("nobody", ("", None, -1)),
        ("standalone", ("standalone", None, -1)),
        ("standalone, static", ("standalone", "mine", -1)),
        ("an instance only", ("", "mine", -1)),
        ("below -1", ("standalone", None, -2)),
        ("nobody, below -1", ("", None, -2)),
        ("without a member, generation 0", ("", None, 0)),
        ("unknown member, generation 0", ("standalone", None, 0)),
        ("unknown member, this generation", ("standalone", None, max(epoch, 1))),
        ("member", (member, None, epoch)),
        ("member without a generation", (member, None, -1)),
        ("member of an earlier generation", (member, None, epoch - 1)),
        ("member of a later generation", (member, None, epoch + 1)),
        ("member as the static one", (member, "instance", epoch)),
        ("member as the static one, no generation", (member, "instance", -1)),
        ("another member as the static one", ("standalone", "instance", epoch)),
        ("member as another static one", (member, "mine", epoch)),
    ]


STATES: list[Enter] = [
    absent,
    simple,
    completing,
    stable,
    stable_static,
    empty_classic,
    connect,
    consumer,
    consumer_static,
    empty_consumer,
    mixed,
    streams,
    empty_streams,
    share,
    empty_share,
]


@pytest.mark.parametrize("enter", STATES, ids=lambda enter: enter.__name__)
async def test_offsets_are_committed_and_fetched_by_the_same_callers_as_in_kafka(
    peer: str, cluster: Cluster, enter: Enter
) -> None:
    """An absent group gets a new id for each request, because a commit creates the group."""

    def scenario(talk: Talk) -> Iterator[Step]:
        count = 0

        def group() -> str:
            nonlocal count
            count += enter is absent
            return f"{enter.__name__}-{count}"

        talk.coordinate_group(group())
        member, epoch = enter(talk, group())
        for label, caller in callers(member, epoch):
            for version in (2, 6, 8, 9, 10):
                requested = group()
                yield f"{label}: commit {version}", talk.commit(requested, caller, version)
            yield f"{label}: group", talk.listed(requested)
            for version in (9, 10):
                yield (
                    f"{label}: read {version}",
                    talk.fetch(requested, caller[0], caller[2], version),
                )
            # Kafka responds to an epoch without a member with UNKNOWN_SERVER_ERROR.
            if caller[2] < 0:
                yield f"{label}: read by an administrator", talk.fetch(requested, None, caller[2])
        for label, caller in callers(member, epoch):
            for version in (3, 4, 5):
                requested = group()
                if version < 5:
                    talk.add_offsets(PRODUCER, requested)
                done = talk.commit_in_transaction(requested, caller, version)
                yield f"{label}: commit {version} in a transaction", done
            yield f"{label}: group", talk.listed(requested)
        talk.end(PRODUCER, commit=False)
        yield "delete offsets", talk.delete_offsets(group())
        yield "delete offsets again", talk.delete_offsets(group())
        yield "delete", talk.delete(group())
        yield "read what was deleted", talk.fetch(group(), "standalone", -1)
        yield "commit to it", talk.commit(group(), ("standalone", None, -1), 9)
        yield "group", talk.listed(group())

    await compare(Talk, scenario, (peer, cluster.bootstrap))
