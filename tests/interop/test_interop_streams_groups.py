"""Streams groups (KIP-1071) compared with Apache Kafka 4.2: both get the same request sequences to
the group coordinator.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.groups.common.model import GroupType
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.streams.values import (
    StreamsAssignment,
    StreamsEpoch,
    TaskIds,
    Tasks,
)
from penstock.protocol import apis
from penstock.protocol.gen import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    heartbeat,
    join_group,
    offset_delete,
    offset_fetch,
    share_group_heartbeat,
)
from penstock.protocol.gen.streams_group_heartbeat import Subtopology, Topology
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.group_records import decode_unchanged
from tests.support.internal_topic import read_internal_topic
from tests.support.kafka_comparison import Step, compare, hold
from tests.support.streams_groups import (
    CLICKS,
    GROUP,
    PAGES,
    TOPICS,
    StreamsTalk,
    begin,
    internal,
    reading,
    sized,
    sizes,
    until_ready,
)
from tests.support.waiting import wait_until


def bad_input(talk: StreamsTalk) -> Iterator[Step]:
    group, absent = "st-bad", "st-absent"
    begin(talk, group, absent)
    talk.join(group, "first", reading(PAGES))
    first: dict[str, Any] = {
        "topology": reading(PAGES),
        "process_id": "p",
        "rebalance_timeout_ms": 1_000,
        "active": {},
        "standby": {},
        "warmup": {},
        "tags": {},
    }
    wrong: list[tuple[str, str, int, dict[str, Any]]] = [
        ("", "m", 0, first),
        (" ", "m", 0, first),
        (group, "", 0, first),
        (group, " ", 0, first),
        (group, "m", -3, {}),
        (group, "m", -2, {}),
        (group, "m", -2, {"instance_id": "i"}),
        (group, "m", -1, {"instance_id": "i"}),
        (group, "m", 0, first | {"instance_id": "i"}),
        (group, "m", 1, {"instance_id": "i"}),
        (group, "m", 0, first | {"rebalance_timeout_ms": -1}),
        (group, "m", 0, first | {"topology": None}),
        (group, "m", 0, first | {"active": None}),
        (group, "m", 0, first | {"standby": None}),
        (group, "m", 0, first | {"warmup": None}),
        (group, "m", 0, first | {"active": {"0": [0]}}),
        (group, "m", 0, first | {"standby": {"0": [0]}}),
        (group, "m", 0, first | {"warmup": {"0": [0]}}),
        (group, "m", 0, first | {"process_id": None}),
        (group, "m", 0, first | {"process_id": ""}),
        (group, "m", 0, first | {"instance_id": ""}),
        (group, "m", 0, first | {"rack_id": ""}),
        (group, "m", 0, first | {"tags": None}),
        (group, "m", 1, {"topology": reading(PAGES)}),
        (group, "m", 1, {"rack_id": ""}),
        (group, "m", 1, {"active": {}}),
        (group, "m", 1, {"active": {"0": [0]}, "standby": {"0": [0]}, "warmup": {}}),
        (group, "m", 1, {"active": {"0": [0, 0]}, "standby": {}, "warmup": {}}),
        (group, "m", 0, first | {"endpoint": ("", 0)}),
        (absent, "m", 3, {}),
        (absent, "m", -1, {}),
        (absent, "m", -2, {"instance_id": "i"}),
    ]
    for requested in wrong:
        yield str(requested), talk.beat(*requested[:3], **requested[3])
        if "m" in talk.epochs:
            yield "described", talk.describe(group)
            talk.beat(group, "m", -1)
            del talk.epochs["m"]
    yield "listed", talk.listed(group)
    yield "describe an unknown group", talk.describe(absent)
    yield "delete an unknown group", talk.delete(absent)


def membership(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-members"
    begin(talk, group)
    yield "join a", talk.join(group, "a", reading(PAGES), rack_id="r1", tags={"zone": "z1"})
    yield "described", talk.describe(group)
    yield "a heartbeat", talk.beat(group, "a")
    yield "a owns all", talk.own(group, "a")
    yield "described", talk.describe(group)
    yield "a begins again", talk.join(group, "a", reading(PAGES))
    yield "a owns all", talk.own(group, "a")
    yield "join b", talk.join(group, "b", reading(PAGES))
    before = dict(talk.owned["a"])
    yield "b waits", talk.own(group, "b")
    yield "a learns what it loses", sized(talk.beat(group, "a", **before))
    kept = dict(talk.owned["a"])
    yield "described", sizes(talk.describe(group))
    yield "a still owns all", sized(talk.beat(group, "a", **before))
    yield "a does not say", sized(talk.beat(group, "a"))
    yield "b still waits", sized(talk.own(group, "b"))
    talk.owned["a"] = kept
    yield "a has revoked", sized(talk.own(group, "a"))
    yield "b gets its part", sized(talk.own(group, "b"))
    yield "shared", sorted(i for m in "ab" for i in talk.owned[m]["active"]["0"])
    yield "described", sizes(talk.describe(group))
    yield "listed", talk.listed(group)
    yield "listed by type", talk.listed(group, types_filter=["Streams"])
    yield "listed by other type", talk.listed(group, types_filter=["consumer"])
    yield "listed by state", talk.listed(group, states_filter=["stable"])
    yield "listed by other states", talk.listed(group, states_filter=["NotReady", "not_ready"])
    yield "the previous epoch", sized(talk.beat(group, "a", talk.epochs["a"] - 1))
    yield "the previous epoch, all", talk.beat(group, "a", talk.epochs["a"] - 1, **before)
    own = {"active": {"0": talk.owned["a"]["active"]["0"][:1]}, "standby": {}, "warmup": {}}
    yield "the previous epoch, a part", sized(talk.beat(group, "a", talk.epochs["a"] - 1, **own))
    yield "too new an epoch", talk.beat(group, "a", 99)
    yield "too old an epoch", talk.beat(group, "a", 1)
    yield "a changes its rack", sized(talk.beat(group, "a", rack_id="r2"))
    yield "a changes its tags", sized(talk.beat(group, "a", tags={"zone": "z2"}))
    yield "a changes its process", sized(talk.beat(group, "a", process_id="other"))
    yield "a changes its timeout", sized(talk.beat(group, "a", rebalance_timeout_ms=70_000))
    talk.settle(group, "a", "b")
    yield "described", sizes(talk.describe(group))
    full = {"process_id": "other", "rebalance_timeout_ms": 70_000, "rack_id": "r2"}
    yield "a full heartbeat", sized(talk.beat(group, "a", **full, **talk.owned["a"]))
    yield (
        "tasks that it does not have",
        sized(talk.beat(group, "a", active={"0": [0, 1, 2, 3, 9]}, standby={}, warmup={})),
    )
    yield (
        "tasks of an unknown subtopology",
        sized(talk.beat(group, "a", active={"9": [0]}, standby={}, warmup={})),
    )
    yield "delete with members", talk.delete(group)
    yield "unknown member leaves", talk.beat(group, "z", -1)
    yield "unknown member", talk.beat(group, "z", 1)
    yield "a leaves", talk.beat(group, "a", -1)
    yield "a is gone", talk.beat(group, "a", 3)
    yield "b gets all", sized(talk.own(group, "b"))
    yield "b leaves", talk.beat(group, "b", -1)
    yield "empty", talk.describe(group)
    yield "listed", talk.listed(group)
    yield "join again with another topology", talk.join(group, "c", reading(CLICKS))
    yield "described", talk.describe(group)
    talk.beat(group, "c", -1)
    yield "delete", talk.delete(group)
    yield "deleted", talk.describe(group)


def shutdown(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-shutdown"
    begin(talk, group)
    for name in "ab":
        talk.join(group, name, reading(PAGES))
    talk.settle(group, "a", "b")
    yield "a asks", sized(talk.beat(group, "a", shutdown_application=True))
    yield "b hears of it", sized(talk.beat(group, "b"))
    yield "described", sizes(talk.describe(group))
    yield "c joins", sized(talk.join(group, "c", reading(PAGES)))
    yield "a leaves", talk.beat(group, "a", -1, shutdown_application=True)
    yield "b is still told", sized(talk.own(group, "b"))
    for name in "bc":
        talk.beat(group, name, -1)
    yield "d joins", sized(talk.join(group, "d", reading(PAGES)))
    yield "d leaves, shutting down", talk.beat(group, "d", -1, shutdown_application=True)
    yield "e joins", sized(talk.join(group, "e", reading(PAGES)))
    talk.beat(group, "e", -1)


def endpoints(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-endpoints"
    begin(talk, group)
    topology = reading(PAGES, changelog=f"{group}-changelog")
    yield "join", talk.join(group, "a", topology, endpoint=("host-a", 1), process_id="p1")
    until_ready(talk, group, "a")
    yield "the same epoch", talk.beat(group, "a")
    yield "an old epoch", _located(talk.beat(group, "a", endpoint_epoch=-1))
    yield (
        "join b",
        _located(talk.join(group, "b", topology, endpoint=("host-b", 65_535), process_id="p2")),
    )
    talk.settle(group, "a", "b")
    yield "a, an old epoch", _located(talk.beat(group, "a", endpoint_epoch=-1))
    yield "a, the same epoch", _located(talk.beat(group, "a"))
    yield "c without an endpoint", _located(talk.join(group, "c", topology, process_id="p3"))
    talk.settle(group, "a", "b", "c")
    yield "c, an old epoch", _located(talk.beat(group, "c", endpoint_epoch=-1))
    yield "a moves", _located(talk.beat(group, "a", endpoint=("host-c", 2)))
    yield "a has moved", _located(talk.beat(group, "a", endpoint_epoch=-1))
    yield "described", [m["user_endpoint"] for m in talk.describe(group)["members"]]
    yield "a leaves", talk.beat(group, "a", -1)
    talk.settle(group, "b", "c")
    yield "b", _located(talk.beat(group, "b", endpoint_epoch=-1))
    for name in "bc":
        talk.beat(group, name, -1)


def _located(response: Any) -> Any:
    """Replace the partitions of endpoints by their number."""
    response = sized(response)
    if (found := response["partitions_by_user_endpoint"]) is not None:
        response["partitions_by_user_endpoint"] = sorted(
            (
                one["user_endpoint"]["host"],
                one["user_endpoint"]["port"],
                *(
                    sorted((topic["topic"], len(topic["partitions"])) for topic in one[name])
                    for name in ("active_partitions", "standby_partitions")
                ),
            )
            for one in found
        )
    return response


def standbys(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-standbys"
    begin(talk, group, num_standby_replicas="1", initial_rebalance_delay_ms="0")
    topology = Topology(
        0,
        [
            Subtopology("0", [PAGES], state_changelog_topics=[internal(f"{group}-changelog")]),
            Subtopology("1", [CLICKS]),
        ],
    )
    yield "join a", talk.join(group, "a", topology, process_id="p1")
    until_ready(talk, group, "a")
    yield "alone", talk.owned["a"]
    yield "join b", sized(talk.join(group, "b", topology, process_id="p2"))
    talk.settle(group, "a", "b")
    yield "two", sizes(talk.describe(group))
    yield "join c in the process of b", sized(talk.join(group, "c", topology, process_id="p2"))
    talk.settle(group, "a", "b", "c")
    described = talk.describe(group)
    yield (
        "three",
        [sum(len(t) for t in m["assignment"]["active"].values()) for m in described["members"]],
    )
    yield (
        "three, standbys by process",
        [
            sum(
                len(m["assignment"]["standby"].get("0", ()))
                for m in described["members"]
                if m["process_id"] == process
            )
            for process in ("p1", "p2")
        ],
    )
    yield (
        "none beside its active",
        [
            sorted(
                {
                    task
                    for m in described["members"]
                    if m["process_id"] == process
                    for task in m["assignment"]["standby"].get("0", ())
                }
                & {
                    task
                    for m in described["members"]
                    if m["process_id"] == process
                    for task in m["assignment"]["active"].get("0", ())
                }
            )
            for process in ("p1", "p2")
        ],
    )
    yield (
        "none for the task without a store",
        [m["assignment"]["standby"].get("1") for m in described["members"]],
    )
    yield "b leaves", talk.beat(group, "b", -1)
    talk.settle(group, "a", "c")
    yield "two again", sizes(talk.describe(group))
    alter_configs(talk.address, (GROUP, group), {"streams.num.standby.replicas": "0"})
    wait_until(lambda: not talk.own(group, "a")["standby"] and not talk.owned["a"]["standby"])
    talk.settle(group, "a", "c")
    yield "no standbys any more", sizes(talk.describe(group))
    for name in "ac":
        talk.beat(group, name, -1)


def balance(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-balance"
    begin(talk, group)
    topology = Topology(0, [Subtopology("0", [PAGES]), Subtopology("1", [CLICKS])])
    members = [f"m{number}" for number in range(7)]
    for number, member in enumerate(members):
        talk.join(group, member, topology)
        talk.settle(group, *members[: number + 1])
        described = talk.describe(group)
        yield f"{number + 1} members", sorted(_count(m["assignment"]) for m in described["members"])
    for member in members[:4]:
        talk.beat(group, member, -1)
    talk.settle(group, *members[4:])
    described = talk.describe(group)
    yield "3 members", sorted(_count(m["assignment"]) for m in described["members"])
    for member in members[4:]:
        talk.beat(group, member, -1)


def timeouts(talk: StreamsTalk) -> Iterator[Step]:
    """A member that does not revoke its tasks in time is removed."""
    group = "st-timeouts"
    begin(talk, group)
    talk.join(group, "a", reading(PAGES), rebalance_timeout_ms=500)
    talk.own(group, "a")
    yield "join b", talk.join(group, "b", reading(PAGES))
    yield "a learns", sized(talk.beat(group, "a"))
    wait_until(lambda: len(talk.describe(group)["members"]) == 1)
    yield "a is gone", talk.beat(group, "a")
    yield "b gets all", sized(talk.own(group, "b"))
    talk.beat(group, "b", -1)


def delays(talk: StreamsTalk) -> Iterator[Step]:
    """The first assignment is delayed."""
    group = "st-delays"
    begin(talk, group, initial_rebalance_delay_ms="10000")
    yield "join a", talk.join(group, "a", reading(PAGES))
    yield "join b", talk.join(group, "b", reading(PAGES))
    yield "described", talk.describe(group)
    yield "heartbeat", talk.own(group, "a")
    talk.settle(group, "a", "b")
    yield "described", sizes(talk.describe(group))
    yield "join c", sized(talk.join(group, "c", reading(PAGES)))
    for name in "abc":
        talk.beat(group, name, -1)


def offsets(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-commits"
    begin(talk, group)
    talk.join(group, "a", reading(PAGES))
    talk.settle(group, "a")
    current = talk.epochs["a"]
    requested = [
        ("a", current),
        ("a", current - 1),
        ("a", current + 1),
        ("b", 1),
        ("", -1),
        ("a", -1),
    ]
    for member, epoch in requested:
        yield f"commit {member} {epoch}", talk.commit(group, member, epoch)
        yield f"fetch {member} {epoch}", _fetch(talk, group, member, epoch)
    yield "fetch without a member", _fetch(talk, group, None, -1)
    for topic in TOPICS:
        yield f"delete offsets of {topic}", _delete_offsets(talk, group, topic)
    yield "a leaves", talk.beat(group, "a", -1)
    for member, epoch in requested:
        yield f"empty: commit {member} {epoch}", talk.commit(group, member, epoch)
    yield "a comes back", talk.join(group, "a", reading(PAGES))["member_epoch"]
    talk.settle(group, "a")
    old = talk.epochs["a"]
    talk.join(group, "b", reading(PAGES))
    talk.settle(group, "a", "b")
    kept, lost = (talk.owned[member]["active"]["0"][0] for member in "ab")
    new = talk.epochs["a"]
    yield "b has come", (old, new)
    for index in (kept, lost):
        for epoch in range(old - 1, new + 2):
            responses = [talk.commit(group, member, epoch, index) for member in "ab"]
            yield f"commit {epoch}, {'kept' if index == kept else 'lost'}", responses
            responses = [_fetch(talk, group, member, epoch) for member in "ab"]
            yield f"fetch {epoch}", responses
    for member in "ab":
        talk.beat(group, member, -1)
    yield "delete offsets", _delete_offsets(talk, group, PAGES)
    yield "delete", talk.delete(group)
    yield "fetch", _fetch(talk, group, None, -1)


def _fetch(talk: StreamsTalk, group: str, member: str | None, epoch: int) -> Any:
    topics = [offset_fetch.OffsetFetchRequestTopics(talk.topic_ids()[PAGES], partition_indexes=[0])]
    request = offset_fetch.OffsetFetchRequest(
        groups=[
            offset_fetch.OffsetFetchRequestGroup(
                group, topics=topics, member_id=member, member_epoch=epoch
            )
        ]
    )
    (found,) = talk.send_request(apis.OFFSET_FETCH, request)["groups"]
    offsets = [p["committed_offset"] for topic in found["topics"] for p in topic["partitions"]]
    return found["error_code"], offsets


def _delete_offsets(talk: StreamsTalk, group: str, topic: str) -> Any:
    partitions = [offset_delete.OffsetDeleteRequestPartition(0)]
    request = offset_delete.OffsetDeleteRequest(
        group, [offset_delete.OffsetDeleteRequestTopic(topic, partitions)]
    )
    return talk.send_request(apis.OFFSET_DELETE, request)


def types(talk: StreamsTalk) -> Iterator[Step]:
    """A group has one type."""
    streams, consumer, share, classic = (f"st-type-{kind}" for kind in ("s", "c", "q", "o"))
    begin(talk, streams, consumer, share, classic)
    talk.join(streams, "a", reading(PAGES))
    join_consumer = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=consumer,
        member_id="a",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[PAGES],
        topic_partitions=[],
    )
    join_share = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id=share, member_id="a", subscribed_topic_names=[PAGES]
    )
    join_classic = join_group.JoinGroupRequest(
        group_id=classic,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\0\0\0\0")],
    )
    for api, request in (
        (apis.CONSUMER_GROUP_HEARTBEAT, join_consumer),
        (apis.SHARE_GROUP_HEARTBEAT, join_share),
        (apis.JOIN_GROUP, join_classic),
    ):
        yield f"{api.name}", talk.send_request(api, request)["error_code"]
        request.group_id = streams
        response = talk.send_request(api, request)
        yield (
            f"{api.name} of a streams group",
            (response["error_code"], response.get("error_message")),
        )
    joined = talk.send_request(apis.JOIN_GROUP, join_classic)
    yield "join of a classic member", joined["error_code"]
    for group in (consumer, share, classic):
        yield f"heartbeat {group}", talk.join(group, "b", reading(PAGES))
        yield f"heartbeat {group}", talk.beat(group, "b", 1)
        yield f"leave {group}", talk.beat(group, "b", -1)
        yield f"describe {group}", talk.describe(group)
    old = describe_groups.DescribeGroupsRequest([streams])
    yield "described as a classic group", talk.send_request(apis.DESCRIBE_GROUPS, old)
    new = consumer_group_describe.ConsumerGroupDescribeRequest([streams])
    yield "described as a consumer group", talk.send_request(apis.CONSUMER_GROUP_DESCRIBE, new)
    beat = heartbeat.HeartbeatRequest(streams, 1, "a")
    yield "a classic heartbeat", talk.send_request(apis.HEARTBEAT, beat)
    yield "authorized operations", talk.describe(streams, operations=True)["authorized_operations"]
    # A group that has only committed offsets becomes a streams group.
    simple = "st-type-simple"
    begin(talk, simple)
    yield "commit to a simple group", talk.commit(simple, "", -1)
    yield "listed", talk.listed(simple)
    yield "join the simple group", talk.join(simple, "a", reading(PAGES))
    yield "listed", talk.listed(simple)
    yield "the offsets", _fetch(talk, simple, None, -1)
    for group in (streams, simple):
        talk.beat(group, "a", -1)
    join_share.group_id, join_share.member_id, join_consumer.group_id = streams, "n", streams
    yield (
        "an empty streams group: share",
        talk.send_request(apis.SHARE_GROUP_HEARTBEAT, join_share)["error_code"],
    )
    yield (
        "an empty streams group: consumer",
        talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, join_consumer)["error_code"],
    )
    yield "listed", talk.listed(streams)
    empty = "st-type-empty"
    begin(talk, empty)
    talk.join(empty, "a", reading(PAGES))
    talk.beat(empty, "a", -1)
    join_classic.group_id = empty
    yield (
        "an empty streams group: classic",
        talk.send_request(apis.JOIN_GROUP, join_classic)["error_code"],
    )
    # Kafka responds before the change is committed, and lists only committed groups.
    wait_until(lambda: talk.listed(empty)[0]["group_type"] == "classic")
    yield "listed", talk.listed(empty)


def _count(assignment: Any) -> int:
    return sum(len(tasks) for tasks in assignment["active"].values())


SCENARIOS: list[Callable[[StreamsTalk], Iterator[Step]]] = [
    bad_input,
    membership,
    shutdown,
    endpoints,
    standbys,
    balance,
    timeouts,
    delays,
    offsets,
    types,
]

pytestmark = pytest.mark.cluster(group_streams_initial_rebalance_delay_ms=0)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_request_sequences_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[StreamsTalk], Iterator[Step]]
) -> None:
    await compare(StreamsTalk, scenario, (peer, cluster.bootstrap))


RECORDED = "st-records"


def recorded(talk: StreamsTalk) -> Iterator[Step]:
    """Let members join and leave, so that all kinds of records are written."""
    changelog = f"{RECORDED}-changelog"
    talk.create(changelog, TOPICS[PAGES])
    begin(talk, RECORDED, num_standby_replicas="1", initial_rebalance_delay_ms="0")
    topology = reading(PAGES, changelog=changelog)
    described = {"endpoint": ("host-a", 65_535), "rack_id": "r", "tags": {"zone": "z"}}
    yield "join a", talk.join(RECORDED, "a", topology, **described)
    yield "join b", sized(talk.join(RECORDED, "b", topology))
    talk.settle(RECORDED, "a", "b")
    yield "a changes", sized(talk.beat(RECORDED, "a", process_id="other"))
    talk.settle(RECORDED, "a", "b")
    yield "b leaves", talk.beat(RECORDED, "b", -1)
    talk.settle(RECORDED, "a")
    yield "a leaves", talk.beat(RECORDED, "a", -1)
    yield "delete", talk.delete(RECORDED)


async def test_group_records_are_those_of_kafka(peer: str, cluster: Cluster) -> None:
    """Penstock writes the same records as Kafka, in the same order."""
    written: list[list[Any]] = []
    for address in (peer, cluster.bootstrap):
        await asyncio.to_thread(hold, StreamsTalk, address, recorded)
        written.append(await asyncio.to_thread(_records, address))
    expected, found = written
    for record, wanted in zip(found, expected, strict=True):
        assert record == wanted
    kinds = {key.kind for key, value in expected if value is not None}
    assert kinds == {kind for kind in ConsumerRecordKind if kind.group_type is GroupType.STREAMS}


def _records(address: str) -> list[Any]:
    """Return the records of the group, with the number of tasks instead of the tasks."""
    records = read_internal_topic(address, OFFSETS_TOPIC)
    return [
        (key, None if found is None else _comparable(found))
        for key, found in decode_unchanged(records, lambda key: key.group_id == RECORDED)
    ]


def _comparable(value: Any) -> Any:
    """Replace values that each side may choose: the hash contains topic ids, and all tasks are
    alike.
    """
    match value:
        case StreamsEpoch():
            return replace(value, metadata_hash=int(value.metadata_hash != 0))
        case Tasks():
            return [_numbers(value.active), _numbers(value.standby)]
        case StreamsAssignment():
            held = (value.assigned, value.revoking)
            epochs = [sorted(e for by in one.active.values() for e in by.values()) for one in held]
            tasks = [_comparable(one.without_epochs()) for one in held]
            return (value.epoch, value.previous_epoch, value.state, epochs, tasks)
        case _:
            return value


def _numbers(tasks: TaskIds) -> dict[str, int]:
    return {subtopology: len(partitions) for subtopology, partitions in tasks.items()}
