"""Share groups (KIP-932) compared with Apache Kafka 4.2: both get the same request sequences to the
group coordinator and the share coordinator, and Kafka's tools run against both.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, SHARE_STATES_TOPIC
from penstock.broker.groups.common.model import GroupType
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.share.state.model import SharePartitionKey
from penstock.broker.groups.share.state.records import (
    decode_share_key,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.brokers import MOVED
from penstock.protocol.gen.write_share_group_state import StateBatch
from tests.support.cluster import Cluster
from tests.support.group_client import GroupClient
from tests.support.group_records import decode_unchanged
from tests.support.in_thread import in_thread
from tests.support.internal_topic import read_internal_topic
from tests.support.java import JavaHome
from tests.support.kafka_comparison import Step, compare, hold
from tests.support.requests import make_request
from tests.support.waiting import wait_until

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
TOPICS = {"share-pages": 4, "share-clicks": 2}
PAGES, CLICKS = TOPICS
COMMIT, FETCH = (replace(api, max=9) for api in (apis.OFFSET_COMMIT, apis.OFFSET_FETCH))
"""The last version that contains topic names; later ones contain ids."""
UNKNOWN_TOPIC = UUID(int=99)


class Conversation(GroupClient):
    """A connection that tracks the epochs of members as clients do."""

    def __init__(self, address: str) -> None:
        super().__init__(address, TOPICS)

    def find(self, key: str, key_type: int) -> Any:
        response = self.ask(apis.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
        (found,) = response["coordinators"]
        return found

    def coordinate(self, *groups: str) -> None:
        """Wait until the groups have a coordinator and their partitions have a share
        coordinator.
        """
        for group in groups:
            wait_until(
                lambda group=group: (
                    not self.find(group, 0)["error_code"]
                    and self.describe(group)["error_code"] not in MOVED
                )
            )
            for topic, count in TOPICS.items():
                for index in range(count):
                    key = SharePartitionKey(group, self.topic_ids()[topic], index)
                    wait_until(
                        lambda key=key, topic=topic, index=index, group=group: (
                            not self.find(key.coordinator_key, 2)["error_code"]
                            and self.summary(group, topic, index)["error_code"] not in MOVED
                        )
                    )

    def beat(self, group: str, member: str, epoch: int | None = None, **fields: Any) -> Any:
        response = self.ask(
            apis.SHARE_GROUP_HEARTBEAT,
            group_id=group,
            member_id=member,
            member_epoch=self.epochs.get(member, 0) if epoch is None else epoch,
            **fields,
        )
        if response["error_code"] == 0:
            self.epochs[member] = response["member_epoch"]
        if response["assignment"] is not None:
            response["assignment"] = self.named(response["assignment"]["topic_partitions"])
        return response

    def join(self, group: str, member: str, *names: str, **fields: Any) -> Any:
        return self.beat(group, member, 0, subscribed_topic_names=list(names), **fields)

    def settle(self, group: str, *members: str) -> None:
        """Send heartbeats until all partitions are assigned."""

        def is_settled() -> bool:
            for member in members:
                self.beat(group, member)
            described = self.describe(group)
            return bool(described["members"]) and all(
                member["member_epoch"] == described["group_epoch"] and any(member["assignment"])
                for member in described["members"]
            )

        wait_until(is_settled)

    def describe(self, group: str) -> Any:
        (described,) = self.ask(apis.SHARE_GROUP_DESCRIBE, group_ids=[group])["groups"]
        for member in described["members"]:
            member["assignment"] = self.named(member["assignment"]["topic_partitions"])
            member["subscribed_topic_names"].sort()
        described["members"].sort(key=lambda member: member["member_id"])
        return described

    def described_offsets(
        self, group: str, *topics: tuple[str, list[int]], every: bool = False
    ) -> Any:
        named = [{"topic_name": name, "partitions": indexes} for name, indexes in topics]
        groups = [{"group_id": group, "topics": None if every else named}]
        (found,) = self.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups=groups)["groups"]
        for topic in found["topics"]:
            topic["topic_id"] = topic["topic_id"] == self.topic_ids().get(topic["topic_name"])
            topic["partitions"].sort(key=lambda part: part["partition_index"])
            for part in topic["partitions"]:
                del part["leader_epoch"]
        found["topics"].sort(key=lambda topic: topic["topic_name"])
        return found

    def alter_offsets(self, group: str, *topics: tuple[str, dict[int, int]]) -> Any:
        altered = [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "start_offset": offset}
                    for index, offset in offsets.items()
                ],
            }
            for name, offsets in topics
        ]
        response = self.ask(apis.ALTER_SHARE_GROUP_OFFSETS, group_id=group, topics=altered)
        return self._with_known_ids(response)

    def delete_offsets(self, group: str, *topics: str) -> Any:
        named = [{"topic_name": topic} for topic in topics]
        response = self.ask(apis.DELETE_SHARE_GROUP_OFFSETS, group_id=group, topics=named)
        return self._with_known_ids(response)

    def _with_known_ids(self, response: Any) -> Any:
        for topic in response["responses"]:
            topic["topic_id"] = topic["topic_id"] == self.topic_ids().get(topic["topic_name"])
            if "partitions" in topic:
                topic["partitions"].sort(key=lambda part: part["partition_index"])
        response["responses"].sort(key=lambda topic: topic["topic_name"])
        return response

    # --- share coordinator
    # --------------------------------------------------------------------------

    def _state(self, api: ApiSpec, group: str, topic: str, index: int, **fields: Any) -> Any:
        """Send a request about one share partition."""
        topic_id = self.topic_ids().get(topic, UNKNOWN_TOPIC)
        topics = [{"topic_id": topic_id, "partitions": [{"partition": index, **fields}]}]
        response = self.ask(api, group_id=group, topics=topics)
        ((result,),) = [result["partitions"] for result in response["results"]]
        return result

    def initialize(self, group: str, topic: str, index: int, epoch: int, start: int) -> Any:
        fields = {"state_epoch": epoch, "start_offset": start}
        return self._state(apis.INITIALIZE_SHARE_GROUP_STATE, group, topic, index, **fields)

    def read(self, group: str, topic: str, index: int, leader_epoch: int) -> Any:
        api = apis.READ_SHARE_GROUP_STATE
        return self._state(api, group, topic, index, leader_epoch=leader_epoch)

    def write(
        self,
        group: str,
        topic: str,
        index: int,
        epochs: tuple[int, int],
        start: int,
        count: int = -1,
        batches: Sequence[tuple[int, int, int, int]] = (),
    ) -> Any:
        return self._state(
            apis.WRITE_SHARE_GROUP_STATE,
            group,
            topic,
            index,
            state_epoch=epochs[0],
            leader_epoch=epochs[1],
            start_offset=start,
            delivery_complete_count=count,
            state_batches=[StateBatch(*batch) for batch in batches],
        )

    def summary(self, group: str, topic: str, index: int) -> Any:
        api = apis.READ_SHARE_GROUP_STATE_SUMMARY
        return self._state(api, group, topic, index, leader_epoch=-1)

    def delete_state(self, group: str, topic: str, index: int) -> Any:
        return self._state(apis.DELETE_SHARE_GROUP_STATE, group, topic, index)


def bad_input(talk: Conversation) -> Iterator[Step]:
    group = "share-bad-input"
    talk.coordinate(group, "share-absent")
    names = {"subscribed_topic_names": [PAGES]}
    wrong: list[tuple[str, str, int, dict[str, Any]]] = [
        ("", "m", 0, names),
        (" ", "m", 0, names),
        (group, " ", 0, names),
        (group, " ", 1, {}),
        (group, "m", -2, {}),
        (group, "m", 0, {}),
        (group, "m", 0, {"subscribed_topic_names": []}),
        (group, "m", 1, {"rack_id": ""}),
        ("share-absent", "m", 3, {}),
        ("share-absent", "m", -1, {}),
    ]
    for requested in wrong:
        yield str(requested), talk.beat(*requested[:3], **requested[3])
    yield "without an id", talk.beat(group, "", 0, **names)["error_code"]
    yield "no group was made", talk.listed(group)
    yield "describe an unknown group", talk.describe("share-absent")
    yield "delete an unknown group", talk.delete("share-absent")


def membership(talk: Conversation) -> Iterator[Step]:
    group = "share-members"
    talk.coordinate(group)
    yield "join a", talk.join(group, "a", PAGES, rack_id="r1")
    talk.settle(group, "a")
    yield "a has all", talk.describe(group)
    yield "a begins again", talk.join(group, "a", PAGES)
    yield "a full heartbeat", talk.beat(group, "a", subscribed_topic_names=[PAGES])
    yield "a heartbeat", talk.beat(group, "a")
    yield "states", [_state(talk.summary(group, PAGES, index)) for index in range(4)]
    yield "not subscribed", talk.summary(group, CLICKS, 0)
    yield "join b", _sized(talk.join(group, "b", PAGES))
    yield "a learns", _sized(talk.beat(group, "a"))
    yield "the previous epoch", _sized(talk.beat(group, "a", talk.epochs["a"] - 1))
    yield "too new an epoch", talk.beat(group, "a", 99)
    yield "too old an epoch", talk.beat(group, "a", talk.epochs["a"] - 2)
    yield "listed", talk.listed(group)
    yield "listed by type", talk.listed(group, types_filter=["Share"])
    yield "listed by other type", talk.listed(group, types_filter=["consumer"])
    yield "listed by state", talk.listed(group, states_filter=["stable"])
    yield "b adds a topic", _sized(talk.beat(group, "b", subscribed_topic_names=[PAGES, CLICKS]))
    wait_until(
        lambda: talk.beat(group, "b") and CLICKS in talk.describe(group)["members"][1]["assignment"]
    )
    yield "b has both", _sizes(talk.describe(group))
    yield "a", _sized(talk.beat(group, "a"))
    yield "an unknown topic", _sized(talk.beat(group, "a", subscribed_topic_names=["absent"]))
    yield "delete with members", talk.delete(group)
    yield "unknown member leaves", talk.beat(group, "z", -1)
    yield "unknown member", talk.beat(group, "z", 1)
    yield "a leaves", talk.beat(group, "a", -1)
    yield "a is gone", talk.beat(group, "a", 3)
    yield "b leaves", talk.beat(group, "b", -1)
    yield "empty", talk.describe(group)
    yield "listed", talk.listed(group)
    yield "delete", talk.delete(group)
    yield "deleted", talk.describe(group)
    yield "no state", talk.summary(group, PAGES, 0)


def many_members(talk: Conversation) -> Iterator[Step]:
    group = "share-many"
    talk.coordinate(group)
    members = [f"m{number}" for number in range(6)]
    for member in members:
        talk.join(group, member, PAGES)
    talk.settle(group, *members)
    described = talk.describe(group)
    yield "shared", sorted(len(m["assignment"][PAGES]) for m in described["members"])
    read = [i for member in described["members"] for i in member["assignment"][PAGES]]
    yield "all are read", sorted(set(read))


def types(talk: Conversation) -> Iterator[Step]:
    """A group id has one group type."""
    share, classic, consumer = "share-typed", "share-classic", "share-consumer"
    talk.coordinate(share, classic, consumer)
    talk.join(share, "a", PAGES)
    yield "a classic group", _commit(talk, classic)
    yield "share joins classic", talk.join(classic, "a", PAGES)
    yield "describe classic", talk.describe(classic)
    join = make_request(
        apis.CONSUMER_GROUP_HEARTBEAT,
        group_id=consumer,
        member_id="c",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[PAGES],
        topic_partitions=[],
    )
    yield "a consumer group", talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, join)["error_code"]
    yield "share joins consumer", talk.join(consumer, "a", PAGES)
    join.group_id = share
    yield "consumer joins share", talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, join)
    yield "commit to share", _commit(talk, share)
    groups = [{"group_id": share, "topics": [{"name": PAGES, "partition_indexes": [0]}]}]
    yield "fetch from share", talk.ask(FETCH, groups=groups)["groups"]
    topics = [{"name": PAGES, "partitions": [{"partition_index": 0}]}]
    deleted = talk.ask(apis.OFFSET_DELETE, group_id=share, topics=topics)
    yield "delete offsets of share", deleted
    join_classic = make_request(
        apis.JOIN_GROUP,
        group_id=share,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": bytes(10)}],
    )
    yield "classic joins share", talk.send_request(apis.JOIN_GROUP, join_classic)["error_code"]
    beat = {"group_id": share, "generation_id": 1, "member_id": "a"}
    yield "classic heartbeat", talk.ask(apis.HEARTBEAT, **beat)
    yield "classic describe", talk.ask(apis.DESCRIBE_GROUPS, groups=[share])
    yield "the member leaves", talk.beat(share, "a", -1)
    yield "commit to empty share", _commit(talk, share)
    yield (
        "classic joins empty share",
        talk.send_request(apis.JOIN_GROUP, join_classic)["error_code"],
    )
    yield "consumer joins empty share", talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, join)
    yield "still a share group", talk.listed(share)


def states(talk: Conversation) -> Iterator[Step]:
    """Requests to the share coordinator."""
    group = "share-states"
    talk.coordinate(group)
    at = (group, PAGES, 0)
    yield "read before", talk.read(*at, 0)
    yield "write before", talk.write(*at, (0, 0), 0)
    yield "summary before", talk.summary(*at)
    yield "delete before", talk.delete_state(*at)
    yield "initialize", talk.initialize(*at, 3, -1)
    yield "read", talk.read(*at, 2)
    yield "summary", talk.summary(*at)
    yield "an older leader reads", talk.read(*at, 1)
    yield "anyone reads", talk.read(*at, -1)
    yield "an older leader writes", talk.write(*at, (3, 1), 0)
    yield "an older group writes", talk.write(*at, (2, 2), 0)
    yield "an older group initializes", talk.initialize(*at, 2, 7)
    first = [(10, 19, 0, 1), (20, 29, 2, 1), (30, 39, 4, 2)]
    yield "write", talk.write(*at, (3, 2), 10, 20, first)
    yield "read", talk.read(*at, 2)
    yield "summary", talk.summary(*at)
    # Only other states overlap acknowledged ones. If an available state had a higher delivery
    # count, Kafka would make its records available again; Penstock does not (see the design note on
    # share groups).
    overlaps = [
        (12, 14, 2, 1),
        (15, 15, 4, 3),
        (19, 19, 0, 2),
        (35, 60, 0, 1),
        (61, 70, 0, 1),
        (80, 80, 2, 1),
    ]
    yield "overlaps", talk.write(*at, (3, 2), 12, 21, overlaps)
    yield "read", talk.read(*at, 2)
    yield "prune", talk.write(*at, (3, 2), 17)
    yield "read", talk.read(*at, 3)
    yield "no start", talk.write(*at, (3, 3), -1, 5, [(90, 95, 0, 4), (90, 99, 0, 2)])
    yield "read", talk.read(*at, 3)
    yield "a new start", talk.initialize(*at, 4, 40)
    yield "read", talk.read(*at, 3)
    yield "the old leader", talk.read(*at, 2)
    yield "a new epoch", talk.initialize(*at, 5, -1)
    yield "read", talk.read(*at, 4)
    yield "the old epoch", talk.write(*at, (4, 4), 0)
    yield "no epoch", talk.initialize(*at, -1, 60)
    yield "no epoch again", talk.initialize(*at, -1, 61)
    yield "an older group initializes", talk.initialize(*at, 4, 7)
    yield "an older group writes", talk.write(*at, (4, 4), 0)
    yield "delete", talk.delete_state(*at)
    yield "read after", talk.read(*at, 4)
    yield "summary after", talk.summary(*at)
    for name, where in {"unknown": (group, "none", 0), "beyond": (group, PAGES, 9)}.items():
        yield name, talk.initialize(*where, 1, 0)
        yield name, talk.read(*where, 1)
        yield name, talk.write(*where, (1, 1), 0)
        yield name, talk.summary(*where)
        yield name, talk.delete_state(*where)
    yield "negative", talk.initialize(group, PAGES, -1, 1, 0)
    for key in ("", "a", "a:b:0", f"{group}:x:y:0", f"{group}:{'A' * 22}:z"):
        yield f"coordinator of {key!r}", talk.find(key, 2)["error_code"]


def offsets(talk: Conversation) -> Iterator[Step]:
    group, absent, classic = "share-offsets", "share-no-offsets", "share-offsets-classic"
    talk.coordinate(group, absent, classic)
    yield "describe an unknown group", talk.described_offsets(absent, (PAGES, [0]))
    yield "describe all of an unknown group", talk.described_offsets(absent, every=True)
    yield "describe nothing", talk.described_offsets(group, every=False)
    yield "delete of an unknown group", talk.delete_offsets(absent, PAGES)
    yield "alter the empty group", talk.alter_offsets("", (PAGES, {0: 5}))
    yield "delete of the empty group", talk.delete_offsets("", PAGES)
    talk.join(group, "a", PAGES)
    talk.settle(group, "a")
    yield "describe with a member", talk.described_offsets(group, every=True)
    yield "alter with a member", talk.alter_offsets(group, (PAGES, {0: 5}))
    yield "delete with a member", talk.delete_offsets(group, PAGES)
    talk.beat(group, "a", -1)
    yield (
        "alter",
        talk.alter_offsets(group, (PAGES, {0: 5, 1: 6, 9: 7}), ("none", {0: 1}), (CLICKS, {1: 3})),
    )
    yield "describe all", talk.described_offsets(group, every=True)
    yield (
        "describe some",
        talk.described_offsets(group, (PAGES, [1, 9]), ("none", [0]), (CLICKS, [0, 1])),
    )
    yield "alter to below", talk.alter_offsets(group, (PAGES, {0: 2}))
    yield "describe it", talk.described_offsets(group, (PAGES, [0]))
    yield "nothing to alter", talk.alter_offsets(group)
    yield "delete", talk.delete_offsets(group, PAGES, "none", PAGES)
    yield "describe all", talk.described_offsets(group, every=True)
    yield "describe deleted", talk.described_offsets(group, (PAGES, [0]))
    yield "delete again", talk.delete_offsets(group, PAGES)
    yield "nothing to delete", talk.delete_offsets(group)
    yield "alter a new group", talk.alter_offsets(absent, (PAGES, {2: 8}))
    yield "describe the new group", talk.described_offsets(absent, every=True)
    yield "it is listed", talk.listed(absent)
    talk.join(absent, "b", PAGES)
    wait_until(
        lambda: (
            talk.beat(absent, "b")
            and len(talk.described_offsets(absent, every=True)["topics"][0]["partitions"]) == 4
        )
    )
    yield "with the offset", talk.described_offsets(absent, every=True)
    _commit(talk, classic)
    yield "describe a classic group", talk.described_offsets(classic, every=True)
    yield "describe some of a classic group", talk.described_offsets(classic, (PAGES, [0]))
    yield "alter a classic group", talk.alter_offsets(classic, (PAGES, {0: 5}))
    yield "delete of a classic group", talk.delete_offsets(classic, PAGES)


def _sized(response: Any) -> Any:
    """Replace partitions by their number, because the broker may choose which ones to assign."""
    assignment = response["assignment"]
    if assignment is not None:
        response["assignment"] = {name: len(indexes) for name, indexes in assignment.items()}
    return response


def _sizes(described: Any) -> Any:
    for member in described["members"]:
        _sized(member)
    return described


def _state(summary: Any) -> Any:
    return {name: summary[name] for name in ("error_code", "start_offset", "state_epoch")}


def _commit(talk: Conversation, group: str) -> Any:
    """Commit an offset to a group without members. Return the errors."""
    partition = {"partition_index": 0, "committed_offset": 5}
    response = talk.ask(
        COMMIT,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{"name": PAGES, "partitions": [partition]}],
    )
    return [part["error_code"] for topic in response["topics"] for part in topic["partitions"]]


LONG = [pytest.param(offsets, marks=pytest.mark.long)]


@pytest.mark.parametrize("scenario", [bad_input, membership, many_members, types, states, *LONG])
async def test_request_sequences_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[Conversation], Iterator[Step]]
) -> None:
    await compare(Conversation, scenario, (peer, cluster.bootstrap))


@pytest.mark.long
async def test_group_records_of_kafka_are_decoded_and_encoded_unchanged(peer: str) -> None:
    """Penstock encodes the values that Kafka wrote for these groups into the same records."""
    for scenario in (membership, states):
        await asyncio.to_thread(hold, Conversation, peer, scenario)
    kinds: set[ConsumerRecordKind] = set()
    records = await asyncio.to_thread(read_internal_topic, peer, OFFSETS_TOPIC)
    for key, found in decode_unchanged(records, lambda key: key.kind.group_type is GroupType.SHARE):
        if found is not None:
            kinds.add(key.kind)
    assert kinds == {kind for kind in ConsumerRecordKind if kind.group_type is GroupType.SHARE}
    seen: set[int] = set()
    for key, value in await asyncio.to_thread(read_internal_topic, peer, SHARE_STATES_TOPIC):
        share = decode_share_key(key)
        assert share is not None
        kind, share_partition = share
        assert encode_share_key(share_partition, kind) == key
        if value is not None:
            seen.add(kind)
            assert encode_share_value(decode_share_value(kind, value)) == value
    assert seen == {0, 1}


@pytest.mark.long
@in_thread
def test_kafka_tools_manage_share_groups(java: JavaHome, cluster: Cluster) -> None:
    group = "tools"

    def tool(main: str, *arguments: str) -> list[list[str]]:
        done = java.tool(main, "--bootstrap-server", cluster.bootstrap, *arguments)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines() if line]

    talk = Conversation(cluster.bootstrap)
    talk.coordinate(group)
    talk.join(group, "a", CLICKS)
    talk.settle(group, "a")
    write = talk.write(group, CLICKS, 1, (1, 0), 5, 0)
    assert write["error_code"] == 0
    assert [group, "Stable"] in tool(SHARE_GROUPS, "--list", "--state")
    assert [group, "Share", "share"] in tool(ALL_GROUPS, "--list")
    described = ("--describe", "--group", group)
    offsets = tool(SHARE_GROUPS, *described, "--offsets")[1:]
    assert offsets == [[group, CLICKS, "0", "-", "-"], [group, CLICKS, "1", "5", "0"]]
    (member,) = tool(SHARE_GROUPS, *described, "--members")[1:]
    assert (member[1], member[-1]) == ("a", f"{CLICKS}:0,1")
    (state,) = tool(SHARE_GROUPS, *described, "--state")[1:]
    assert state[-2:] == ["Stable", "1"]
    talk.beat(group, "a", -1)
    reset = ("--reset-offsets", "--group", group, "--topic", CLICKS)
    tool(SHARE_GROUPS, *reset, "--to-earliest", "--execute")
    offsets = tool(SHARE_GROUPS, *described, "--offsets")[1:]
    assert [row[3] for row in offsets] == ["0", "0"]
    tool(SHARE_GROUPS, "--delete-offsets", "--group", group, "--topic", CLICKS)
    tool(SHARE_GROUPS, "--delete", "--group", group)
    assert tool(SHARE_GROUPS, "--list") == []
    talk.close()
