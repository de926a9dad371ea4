"""Consumer groups (KIP-848) compared with Apache Kafka 4.2: both get the same sequences of
requests, and Kafka's tools and consumer run against both.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.groups.classic.embedded import decode_assignment
from penstock.broker.groups.common.model import GroupType
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.consumer.model import MemberMetadata
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.primitives import Writer
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.group_client import GroupClient
from tests.support.group_records import decode_unchanged
from tests.support.internal_topic import read_internal_topic
from tests.support.java import JavaHome
from tests.support.kafka_comparison import Step, compare, hold
from tests.support.waiting import wait_until

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = {"pages": 4, "clicks": 2, "views": 7, "visits": 7}


class Conversation(GroupClient):
    """A connection that tracks the state of members as clients do."""

    def __init__(self, address: str) -> None:
        super().__init__(address, TOPICS)
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.classic = ""
        self.generation = -1
        self.classic_owned: dict[str, list[int]] = {}

    def beat(self, group: str, member: str, epoch: int | None = None, **fields: Any) -> Any:
        """Send a heartbeat, by default with the partitions that the member owns."""
        owned = fields.pop("owned", self.owned.get(member))
        response = self.ask(
            apis.CONSUMER_GROUP_HEARTBEAT,
            group_id=group,
            member_id=member,
            member_epoch=self.epochs.get(member, 0) if epoch is None else epoch,
            topic_partitions=None
            if owned is None
            else [
                {"topic_id": self.topic_ids()[name], "partitions": indexes}
                for name, indexes in owned.items()
            ],
            **fields,
        )
        if response["error_code"] == 0:
            self.epochs[member] = response["member_epoch"]
        if response["assignment"] is not None:
            response["assignment"] = self.named(response["assignment"]["topic_partitions"])
            self.owned[member] = response["assignment"]
        return response

    def join(self, group: str, member: str, *names: str, **fields: Any) -> Any:
        fields = {
            "owned": {},
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": list(names),
        } | fields
        return self.beat(group, member, 0, **fields)

    def join_classic(
        self,
        group: str,
        member: str,
        owned: dict[str, list[int]] | None = None,
        *,
        protocol: str = "cooperative",
        kind: str = "consumer",
    ) -> Any:
        writer = Writer(b"\0\1")
        writer.length(1, False)
        writer.string("pages", False)
        writer.null(False)
        _write_partitions(writer, owned or {})
        response = self.ask(
            apis.JOIN_GROUP,
            group_id=group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=member,
            protocol_type=kind,
            protocols=[{"name": protocol, "metadata": bytes(writer)}],
        )
        if response["error_code"] in {0, int(ErrorCode.MEMBER_ID_REQUIRED)}:
            self.classic, self.generation = response["member_id"], response["generation_id"]
        return response

    def sync_classic(
        self, group: str, assignment: dict[str, list[int]], *, generation: int | None = None
    ) -> Any:
        """Sync as the leader if there is an assignment."""
        writer = Writer(b"\0\1")
        _write_partitions(writer, assignment)
        writer.null(False)
        assigned = {"member_id": self.classic, "assignment": bytes(writer)}
        response = self.ask(
            apis.SYNC_GROUP,
            group_id=group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.classic,
            protocol_type="consumer",
            protocol_name="cooperative",
            assignments=[assigned] if assignment else [],
        )
        if response["error_code"] == 0:
            found = decode_assignment(bytes(response["assignment"]))
            self.classic_owned = {topic: sorted(indexes) for topic, indexes in found.items()}
        return response

    def heartbeat_classic(self, group: str) -> Any:
        member = {"generation_id": self.generation, "member_id": self.classic}
        return self.ask(apis.HEARTBEAT, group_id=group, **member)

    def leave_classic(self, group: str, member: str) -> Any:
        response = self.ask(apis.LEAVE_GROUP, group_id=group, members=[{"member_id": member}])
        return [found["error_code"] for found in response["members"]]

    def commit(self, group: str, member: str, epoch: int, topic: str = "pages") -> Any:
        """Commit an offset. An unknown topic is sent with an unknown id."""
        topic_id = self.topic_ids().get(topic, UUID(int=77))
        partitions = [{"partition_index": 0, "committed_offset": 5}]
        response = self.ask(
            apis.OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=[{"topic_id": topic_id, "partitions": partitions}],
        )
        return response["topics"][0]["partitions"][0]["error_code"]

    def fetch(
        self, group: str, member: str | None, epoch: int, *, is_every_topic: bool = False
    ) -> Any:
        topics = [
            {"topic_id": self.topic_ids()["pages"], "partition_indexes": [0]},
            {"topic_id": UUID(int=77), "partition_indexes": [0, 9]},
        ]
        requested = {
            "group_id": group,
            "topics": None if is_every_topic else topics,
            "member_id": member,
            "member_epoch": epoch,
        }
        groups = self.ask(apis.OFFSET_FETCH, groups=[requested])["groups"]
        names = {topic_id: name for name, topic_id in self.topic_ids().items()}
        for found in groups:
            for topic in found["topics"]:
                topic["topic_id"] = names.get(topic["topic_id"], topic["topic_id"])
        return groups

    def describe(self, group: str) -> Any:
        (described,) = self.ask(apis.CONSUMER_GROUP_DESCRIBE, group_ids=[group])["groups"]
        for member in described["members"]:
            for name in ("assignment", "target_assignment"):
                member[name] = self.named(member[name]["topic_partitions"])
            member["subscribed_topic_names"].sort()
        described["members"].sort(key=lambda member: member["member_id"])
        return described


def _write_partitions(writer: Writer, partitions: dict[str, list[int]]) -> None:
    writer.length(len(partitions), False)
    for topic, indexes in partitions.items():
        writer.string(topic, False)
        writer.i32s(indexes, False)


def bad_input(talk: Conversation) -> Iterator[Step]:
    group, first = "bad-input", {"rebalance_timeout_ms": 1_000}
    names = {"subscribed_topic_names": ["pages"]}
    talk.coordinate(group, "bad-absent")
    wrong: list[tuple[str, str, int, dict[str, Any]]] = [
        ("", "m", 0, {"owned": {}, **first, **names}),
        (" ", "m", 0, {"owned": {}, **first, **names}),
        (group, "", 0, {"owned": {}, **first, **names}),
        (group, "", 1, {}),
        (group, "", -1, {}),
        (group, "m", -3, {}),
        (group, "m", -2, {}),
        (group, "m", 0, {"owned": {}, **names}),
        (group, "m", 0, {"owned": None, **first, **names}),
        (group, "m", 0, {"owned": {"pages": [0]}, **first, **names}),
        (group, "m", 0, {"owned": {}, **first}),
        (group, "m", 1, {"instance_id": ""}),
        (group, "m", 1, {"rack_id": ""}),
        (group, "m", 0, {"owned": {}, **first, **names, "server_assignor": "best"}),
        ("bad-absent", "m", 3, {}),
        ("bad-absent", "m", -1, {}),
        ("bad-absent", "m", -2, {"instance_id": "i"}),
    ]
    for requested in wrong:
        yield str(requested), talk.beat(*requested[:3], **requested[3])
    refused = talk.join(group, "m", subscribed_topic_names=None, subscribed_topic_regex="a(")
    refused["error_message"] = refused["error_message"].split(":")[0]
    yield "a bad regex", refused
    yield "no group was made", talk.listed(group)
    yield "describe an unknown group", talk.describe("bad-absent")


def first_version(talk: Conversation) -> Iterator[Step]:
    """In version 0 there are no regular expressions, and the coordinator assigns member ids."""
    group, api = "first-version", replace(apis.CONSUMER_GROUP_HEARTBEAT, max=0)
    talk.coordinate(group)
    join = ConsumerGroupHeartbeatRequest(
        group_id=group,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["pages"],
        topic_partitions=[],
    )
    joined = talk.send_request(api, join)
    member = joined["member_id"]
    partitions = joined["assignment"]["topic_partitions"][0]["partitions"]
    yield "join", (joined["error_code"], bool(member), joined["member_epoch"], partitions)
    for epoch in (1, -1, -1):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, topic_partitions=None
        )
        response = talk.send_request(api, beat)
        yield f"heartbeat {epoch}", (response["error_code"], response["member_epoch"])
    for epoch, instance in ((1, None), (-1, None), (-2, "i")):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=group, member_epoch=epoch, instance_id=instance, topic_partitions=None
        )
        yield f"without an id {epoch}", talk.send_request(api, beat)


def reconciliation(talk: Conversation) -> Iterator[Step]:
    group = "reconciles"
    talk.coordinate(group)
    yield "join a", talk.join(group, "a", "pages")
    yield "join b", talk.join(group, "b", "pages")
    before = talk.owned["a"]
    yield "b waits", talk.beat(group, "b")
    requested = talk.beat(group, "a", owned=before)
    yield "a learns what it loses", _sized(requested)
    kept = talk.owned["a"]
    yield "a still owns all", talk.beat(group, "a", owned=before)
    yield "a does not say", talk.beat(group, "a", owned=None)
    yield "b still waits", talk.beat(group, "b")
    yield "states", _sizes(talk.describe(group))
    talk.owned["a"] = kept
    yield "a has revoked", talk.beat(group, "a")
    yield "b gets its part", _sized(talk.beat(group, "b"))
    yield (
        "all of it is assigned",
        sorted(index for name in "ab" for index in talk.owned[name]["pages"]),
    )
    yield "states", _sizes(talk.describe(group))
    yield "listed", talk.listed(group)
    yield "listed by type", talk.listed(group, types_filter=["Consumer"])
    yield "listed by other type", talk.listed(group, types_filter=["classic"])
    yield "listed by state", talk.listed(group, states_filter=["STABLE"])
    yield "too new an epoch", talk.beat(group, "a", 9)
    yield "too old an epoch", talk.beat(group, "a", 0 + 1, owned={"pages": [0, 1, 2, 3]})
    yield "the previous epoch", talk.beat(group, "a", 1)
    yield "begin again", _sized(talk.join(group, "a", "pages"))
    full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["pages"]}
    yield "a full heartbeat", _sized(talk.beat(group, "a", **full))
    yield "another topic", _sized(talk.beat(group, "a", subscribed_topic_names=["pages", "clicks"]))
    for number in range(3):
        for name in "ab":
            yield f"round {number}", _sized(talk.beat(group, name))
    yield "states", _sizes(talk.describe(group))
    yield "classic API", talk.ask(apis.DESCRIBE_GROUPS, groups=[group])
    absent = talk.ask(apis.DESCRIBE_GROUPS, groups=["no-such-group"])
    yield "classic API, no such group", absent
    yield "unknown member leaves", talk.beat(group, "z", -1)
    yield "a leaves", talk.beat(group, "a", -1)
    yield "a is gone", talk.beat(group, "a", 3)
    talk.beat(group, "b")
    yield "b gets all", talk.beat(group, "b", **full)
    yield "delete a group with members", talk.delete(group)
    yield "b leaves", talk.beat(group, "b", -1)
    yield "empty", _sizes(talk.describe(group))
    yield "listed", talk.listed(group)
    yield "delete", talk.delete(group)
    yield "deleted", talk.describe(group)


def static_members(talk: Conversation) -> Iterator[Step]:
    group = "static"
    talk.coordinate(group)
    yield "join", _sized(talk.join(group, "a1", "pages", instance_id="a"))
    yield "join", _sized(talk.join(group, "b1", "pages", instance_id="b"))
    for _ in range(2):
        for name in ("a1", "b1"):
            yield "settle", _sized(talk.beat(group, name))
    mine = talk.owned["a1"]
    yield "twice", talk.join(group, "a2", "pages", instance_id="a")
    yield "fenced", talk.beat(group, "x", 2, instance_id="a")
    yield "unknown instance", talk.beat(group, "a1", 2, instance_id="c")
    yield "leave by another", talk.beat(group, "x", -2, instance_id="a")
    yield "away", talk.beat(group, "a1", -2, instance_id="a")
    yield "while away", talk.beat(group, "a1", 2, instance_id="a")
    yield "states", _sizes(talk.describe(group))
    back = talk.join(group, "a2", "pages", instance_id="a")
    yield "back", _sized(back)
    yield "with the same partitions", talk.owned["a2"] == mine
    yield "the old one", talk.beat(group, "a1", 2, instance_id="a")
    yield "the other one", talk.beat(group, "b1")
    yield "leaves for good", talk.beat(group, "a2", -1, instance_id="a")
    yield "states", _sizes(talk.describe(group))


def repeated_static_join(talk: Conversation) -> Iterator[Step]:
    group = "repeated"
    talk.coordinate(group)
    for label in ("join", "again"):
        yield label, talk.join(group, "a1", "pages", instance_id="a")["error_code"]


def ranges(talk: Conversation) -> Iterator[Step]:
    group = "ranges"
    talk.coordinate(group)
    members = {"m2": "z", "m1": None, "m3": "y", "m0": None}
    for name, instance in members.items():
        talk.join(group, name, "views", "visits", server_assignor="range", instance_id=instance)
    for _ in range(4):
        for name in members:
            talk.beat(group, name)
    yield "co-partitioned", talk.describe(group)
    talk.beat(group, "m1", server_assignor="uniform")
    yield "most votes", talk.describe(group)["assignor_name"]


def empty_subscriptions(talk: Conversation) -> Iterator[Step]:
    group = "subscribes-to-nothing"
    talk.coordinate(group)
    yield "no names", talk.join(group, "a")
    yield "no names", talk.join(group, "b")
    yield "names without topics", talk.beat(group, "a", subscribed_topic_names=["absent"])
    yield "heartbeat", talk.beat(group, "a")
    yield "states", _sizes(talk.describe(group))


def regexes(talk: Conversation) -> Iterator[Step]:
    """Kafka resolves a regular expression with a delay."""
    group, internal = "regexes", "regexes-internal"
    talk.coordinate(group, internal)
    for name, of_group, regex in (
        ("a", group, "(clicks|pages)"),
        ("i", internal, "(__consumer_off.*|clicks)"),
    ):
        talk.join(of_group, name, subscribed_topic_names=None, subscribed_topic_regex=regex)
        wait_until(lambda name=name, of_group=of_group: _gets(talk, of_group, name))
        yield regex, sorted(talk.owned[name])
    yield "described", talk.describe(group)["members"][0]["subscribed_topic_regex"]
    talk.beat(group, "a", subscribed_topic_regex="", subscribed_topic_names=["clicks"])
    wait_until(lambda: talk.beat(group, "a") and set(talk.owned["a"]) == {"clicks"})
    yield "described", talk.describe(group)["members"][0]["subscribed_topic_regex"]


def _gets(talk: Conversation, group: str, member: str) -> bool:
    if talk.epochs[member] == 0:
        return bool(talk.join(group, member, subscribed_topic_names=None)["assignment"])
    return bool(talk.beat(group, member) and talk.owned.get(member))


def offsets(talk: Conversation) -> Iterator[Step]:
    group = "commits"
    talk.coordinate(group, "commits-absent")
    yield "unknown group", talk.commit("commits-absent", "a", 1)
    talk.join(group, "a", "pages")
    for member, epoch in (("a", 1), ("a", 0), ("a", 2), ("b", 1), ("", -1), ("a", -1)):
        yield f"commit {member} {epoch}", talk.commit(group, member, epoch)
        yield f"fetch {member} {epoch}", talk.fetch(group, member, epoch)
    yield "fetch without a member", talk.fetch(group, None, -1)
    yield "fetch of every topic", talk.fetch(group, None, -1, is_every_topic=True)
    yield "commit for an unknown topic", talk.commit(group, "a", 1, "no-such-topic")
    yield "unknown group", talk.fetch("commits-absent", "a", 1)
    talk.commit(group, "a", 1, "clicks")
    for topic in ("pages", "clicks"):
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        deleted = talk.ask(apis.OFFSET_DELETE, group_id=group, topics=topics)
        yield f"delete offsets of {topic}", deleted


def migration(talk: Conversation) -> Iterator[Step]:
    """A classic group with members becomes a consumer group and then a classic group again."""
    group = "migrates"
    talk.coordinate(group)
    yield "no id", talk.join_classic(group, "")["error_code"]
    member = talk.join_classic(group, talk.classic)
    yield "classic", (member["error_code"], member["generation_id"], member["protocol_name"])
    synced = talk.sync_classic(group, {"pages": [0, 1, 2, 3]})
    yield "assigned", (synced["error_code"], talk.classic_owned)
    yield "listed", talk.listed(group)
    yield "the group is not a consumer group", talk.describe(group)
    yield "upgrade", talk.join(group, "new", "pages")
    yield "listed", talk.listed(group)
    described = talk.describe(group)
    for known in described["members"]:
        known["member_id"] = known["member_id"].split("-")[0]
    yield "described", _sizes(described)
    yield "classic member has to join again", talk.heartbeat_classic(group)
    yield "commit in the old generation", talk.commit(group, talk.classic, talk.generation)
    yield "commit in another one", talk.commit(group, talk.classic, 9)
    kept = talk.join_classic(group, talk.classic, owned={"pages": [0, 1, 2, 3]})
    yield "classic join", _classic(kept)
    yield "classic sync", (talk.sync_classic(group, {})["error_code"], _size(talk.classic_owned))
    yield "classic heartbeat", talk.heartbeat_classic(group)
    yield "the new member waits", talk.beat(group, "new")
    kept = talk.join_classic(group, talk.classic, owned=talk.classic_owned)
    yield "classic join", _classic(kept)
    yield "another generation", talk.sync_classic(group, {}, generation=77)["error_code"]
    yield "classic sync", (talk.sync_classic(group, {})["error_code"], _size(talk.classic_owned))
    yield "the new member gets its part", _sized(talk.beat(group, "new"))
    yield "classic heartbeat", talk.heartbeat_classic(group)
    yield "unknown protocol", talk.join_classic(group, talk.classic, protocol="best")["error_code"]
    yield "unknown type", talk.join_classic(group, talk.classic, kind="connect")["error_code"]
    yield "unknown member leaves", talk.leave_classic(group, "unknown")
    yield "downgrade", talk.leave_classic(group, "new")
    yield "the new member is gone", talk.beat(group, "new", -1)
    yield "listed", talk.listed(group)
    yield "classic member has to join again", talk.heartbeat_classic(group)
    member = talk.join_classic(group, talk.classic)
    yield "classic", (member["error_code"], member["generation_id"], len(member["members"]))
    synced = talk.sync_classic(group, {"pages": [0]})
    yield "assigned", (synced["error_code"], talk.classic_owned)
    yield "upgrade", _sized(talk.join(group, "newer", "pages"))
    yield "downgrade", talk.beat(group, "newer", -1)
    yield "listed", talk.listed(group)
    yield "upgrade while the group rebalances", _sized(talk.join(group, "newest", "pages"))
    yield "upgrade", _sized(talk.join(group, "newer", "pages"))
    yield "leaves", talk.beat(group, "newest", -1)
    yield "the classic member leaves", talk.leave_classic(group, talk.classic)
    yield "listed", talk.listed(group)
    full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["pages"]}
    talk.beat(group, "newer")
    yield "gets all", talk.beat(group, "newer", **full)


def upgrade_epochs(talk: Conversation) -> Iterator[Step]:
    """A classic member that rejoins with the consumer protocol and the same topics does not change
    the group epoch.
    """
    for generations in (1, 3):
        for same, topics in ((True, ["pages"]), (True, ["pages", "clicks"]), (False, ["pages"])):
            group = f"upgrade-epochs-{generations}-{same}-{len(topics)}"
            talk.coordinate(group)
            talk.join_classic(group, "")
            for _ in range(generations):
                joined = talk.join_classic(group, talk.classic)
                talk.sync_classic(group, {"pages": [0, 1, 2, 3]})
            yield f"{group} classic", joined["generation_id"]
            member = talk.classic if same else f"{group}-new"
            upgraded = talk.join(group, member, *topics)
            yield f"{group} upgraded", (upgraded["error_code"], upgraded["member_epoch"])
            described = talk.describe(group)
            names = ("group_state", "group_epoch", "assignment_epoch")
            yield f"{group} epochs", [described[name] for name in names]


def _classic(response: Any) -> Any:
    return [
        response[name]
        for name in ("error_code", "generation_id", "protocol_type", "protocol_name", "leader")
    ] + [response["members"], response["skip_assignment"]]


def _sized(response: Any) -> Any:
    """Return the response with only the number of assigned partitions, because Kafka may choose
    different ones.
    """
    if response["assignment"] is not None:
        response = response | {"assignment": _size(response["assignment"])}
    return response


def _size(assignment: dict[str, list[int]]) -> int:
    return sum(map(len, assignment.values()))


def _sizes(described: Any) -> Any:
    members = [
        member | {name: _size(member[name]) for name in ("assignment", "target_assignment")}
        for member in described["members"]
    ]
    return described | {"members": members}


SCENARIOS: list[Callable[[Conversation], Iterator[Step]]] = [
    bad_input,
    first_version,
    reconciliation,
    static_members,
    ranges,
    empty_subscriptions,
    regexes,
    offsets,
    migration,
    upgrade_epochs,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_request_sequences_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[Conversation], Iterator[Step]]
) -> None:
    await compare(Conversation, scenario, (peer, cluster.bootstrap))


async def test_static_member_may_repeat_its_first_heartbeat(peer: str, cluster: Cluster) -> None:
    """In Kafka, a static consumer fails with an error if the first response is lost."""
    of_kafka, found = [
        dict(await asyncio.to_thread(hold, Conversation, address, repeated_static_join))
        for address in (peer, cluster.bootstrap)
    ]
    assert of_kafka == {"join": ErrorCode.NONE, "again": ErrorCode.UNRELEASED_INSTANCE_ID}
    assert found == {"join": ErrorCode.NONE, "again": ErrorCode.NONE}


async def test_group_records_of_kafka_are_decoded_and_encoded_unchanged(peer: str) -> None:
    """Penstock encodes the values that Kafka wrote for these groups into the same records."""
    for scenario in (static_members, regexes, migration):
        await asyncio.to_thread(hold, Conversation, peer, scenario)
    records = await asyncio.to_thread(read_internal_topic, peer, OFFSETS_TOPIC)
    kinds: set[ConsumerRecordKind] = set()
    classic_count = 0
    for key, found in decode_unchanged(
        records, lambda key: key.kind.group_type is GroupType.CONSUMER
    ):
        if found is not None:
            kinds.add(key.kind)
        classic_count += isinstance(found, MemberMetadata) and found.classic is not None
    expected = {kind for kind in ConsumerRecordKind if kind.group_type is GroupType.CONSUMER}
    assert kinds == expected - {ConsumerRecordKind.PARTITION_METADATA}
    assert classic_count


@pytest.mark.long
async def test_kafka_console_consumer_and_group_tool_work(
    java: JavaHome, cluster: Cluster, tmp_path: Path
) -> None:
    """Two Java consumers share the partitions, and the group tool describes them."""
    group, topic = "java", "letters"
    await asyncio.to_thread(create_topic, cluster.bootstrap, topic, 4)
    await asyncio.to_thread(
        produce, cluster.bootstrap, topic, [b"%d" % number for number in range(40)], range(4)
    )
    consume = (
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group),
        *("--from-beginning", "--command-property", "group.protocol=consumer"),
    )
    tool = ("--bootstrap-server", cluster.bootstrap, "--describe", "--group", group)

    def members() -> list[list[str]]:
        shown = java.tool(GROUPS, *tool, "--members").stdout.splitlines()
        return [line.split() for line in shown if line.startswith(group)]

    def run() -> None:
        log = tmp_path / "console.log"
        with (
            java.application(CONSOLE, *consume, log=log),
            java.application(CONSOLE, *consume, log=log),
        ):
            wait_until(lambda: [row[-1] for row in members()] == ["2", "2"])
            wait_until(lambda: sorted(map(int, log.read_text().split())) == list(range(40)))
            state = java.tool(GROUPS, *tool, "--state").stdout
            assert "uniform" in state
            assert "Stable" in state
            shown = java.tool(GROUPS, *tool).stdout
            assert sum(topic in line for line in shown.splitlines()) == 4

    began = time.monotonic()
    await asyncio.to_thread(run)
    assert time.monotonic() - began < 4 * TIMEOUT_S
