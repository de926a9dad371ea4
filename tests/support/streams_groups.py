"""Send single requests to the coordinator of streams groups (KIP-1071), as Kafka
Streams does.

A scenario sends requests: it yields each response with a label.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    delete_groups,
    find_coordinator,
    list_groups,
    metadata,
    offset_commit,
    streams_group_describe,
)
from penstock.protocol.gen.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from tests.support.clients import create_topic
from tests.support.conversation import alter_configs
from tests.support.host_client import ADMIN_HOST, HostClient
from tests.support.waiting import wait_until

TOPICS = {"st-pages": 4, "st-clicks": 2}
"""Topics that exist in every scenario, with their partition counts."""
PAGES, CLICKS = TOPICS
GROUP = 32
ROLES = ("active", "standby", "warmup")
_RETRIED = {
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    int(ErrorCode.NOT_COORDINATOR),
}
Tasks = Mapping[str, Sequence[int]]


def internal(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> TopicInfo:
    """Return a repartition or changelog topic of a subtopology."""
    pairs = [KeyValue(key.replace("_", "."), value) for key, value in configs.items()]
    return TopicInfo(name, partitions, replicas, pairs)


def counting(prefix: str, source: str, **configs: str) -> Topology:
    """Return the topology of a word count: a repartition topic, then a store with a changelog."""
    repartition = internal(f"{prefix}-words-repartition", **configs)
    return Topology(
        0,
        [
            Subtopology("0", [source], repartition_sink_topics=[repartition.name]),
            Subtopology(
                "1",
                repartition_source_topics=[repartition],
                state_changelog_topics=[
                    internal(f"{prefix}-counts-changelog", cleanup_policy="compact")
                ],
            ),
        ],
    )


def reading(*topics: str, epoch: int = 0, changelog: str = "") -> Topology:
    """Return a topology of one subtopology, with or without a store."""
    stores = [internal(changelog, cleanup_policy="compact")] if changelog else []
    return Topology(epoch, [Subtopology("0", list(topics), state_changelog_topics=stores)])


def _tasks(tasks: Tasks | None) -> list[TaskIds] | None:
    return None if tasks is None else [TaskIds(*task) for task in tasks.items()]


def _found(tasks: Any) -> dict[str, list[int]] | None:
    if tasks is None:
        return None
    return {task["subtopology_id"]: sorted(task["partitions"]) for task in tasks}


def _sorted_names(detail: str) -> str:
    """Sort the topics in a status, because Kafka returns them in any order; drop the reason why one
    was not created.
    """
    parts = [part.partition(" (")[0].rstrip(".") for part in detail.split("; ")]
    if not parts[0].startswith("Internal topics are missing: "):
        return detail
    names = [re.split(r": | on topics ", part) for part in parts]
    return "; ".join(f"{said}: {sorted(topics.split(', '))}" for said, topics in names)


class StreamsTalk:
    """One connection, with the epochs and tasks of members as a client has them."""

    def __init__(self, address: str, host: str = ADMIN_HOST) -> None:
        """host: the address from which it connects."""
        self.address = address
        self._client = HostClient(address, host)
        self.epochs: dict[str, int] = {}
        self.endpoints: dict[str, int] = {}
        self.owned: dict[str, dict[str, Tasks]] = {}

    def close(self) -> None:
        self._client.close()

    def send_request(self, api: ApiSpec, request: object) -> Any:
        return self._client.send_request(api, request)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        response = self.send_request(apis.METADATA, metadata.MetadataRequest(topics=None))
        return {topic["name"]: len(topic["partitions"]) for topic in response["topics"]}

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, and wait until the broker lists it."""
        if topic not in self.topics():
            create_topic(self.address, topic, partitions)
        wait_until(lambda: self.topics().get(topic) == partitions)

    def topic_ids(self) -> dict[str, UUID]:
        response = self.send_request(apis.METADATA, metadata.MetadataRequest(topics=None))
        return {topic["name"]: UUID(topic["topic_id"]) for topic in response["topics"]}

    def coordinate(self, *groups: str) -> None:
        """Wait until the groups have a coordinator."""
        for group in groups:
            wait_until(
                lambda group=group: (
                    self.coordinator(group)[0] >= 0
                    and self.describe(group)["error_code"] not in _RETRIED
                )
            )

    def coordinator(self, group: str) -> tuple[int, str]:
        """Return the id and the address of the coordinator of a group; -1 if there is none."""
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        (found,) = self.send_request(apis.FIND_COORDINATOR, request)["coordinators"]
        return found["node_id"], f"{found['host']}:{found['port']}"

    def beat(self, group: str, member: str, epoch: int | None = None, **fields: Any) -> Any:
        """Send a heartbeat. Owned tasks are included only if given."""
        for role in ROLES:
            fields[f"{role}_tasks"] = _tasks(fields.pop(role, None))
        if (address := fields.pop("endpoint", None)) is not None:
            fields["user_endpoint"] = Endpoint(*address)
        if (tags := fields.pop("tags", None)) is not None:
            tags = [KeyValue(*tag) for tag in tags.items()]
        known = fields.pop("endpoint_epoch", self.endpoints.get(member, 0))
        request = StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=self.epochs.get(member, 0) if epoch is None else epoch,
            endpoint_information_epoch=known,
            client_tags=tags,
            task_offsets=None,
            task_end_offsets=None,
            **fields,
        )
        response = self.send_request(apis.STREAMS_GROUP_HEARTBEAT, request)
        if response["error_code"] == 0:
            self.epochs[member] = response["member_epoch"]
            self.endpoints[member] = response["endpoint_information_epoch"]
        for role in ROLES:
            response[role] = _found(response.pop(f"{role}_tasks"))
            if response[role] is not None:
                self.owned.setdefault(member, {})[role] = response[role]
        for status in response["status"] or ():
            status["status_detail"] = _sorted_names(status["status_detail"])
        return response

    def join(self, group: str, member: str, topology: Topology | None, **fields: Any) -> Any:
        fields = {
            "topology": topology,
            "process_id": f"process-{member}",
            "rebalance_timeout_ms": 60_000,
            "active": {},
            "standby": {},
            "warmup": {},
            "tags": {},
        } | fields
        return self.beat(group, member, 0, **fields)

    def own(self, group: str, member: str) -> Any:
        """Send a heartbeat that confirms the assignment."""
        return self.beat(
            group, member, **({role: {} for role in ROLES} | self.owned.get(member, {}))
        )

    def settle(self, group: str, *members: str) -> None:
        """Send heartbeats until all tasks are assigned as intended."""

        def is_settled() -> bool:
            for member in members:
                self.own(group, member)
            described = self.describe(group)
            return described["group_state"] == "Stable" and all(
                member["member_epoch"]
                == described["group_epoch"]
                == self.epochs[member["member_id"]]
                for member in described["members"]
            )

        wait_until(is_settled)

    def describe(self, group: str, *, operations: bool = False) -> Any:
        request = streams_group_describe.StreamsGroupDescribeRequest([group], operations)
        (described,) = self.send_request(apis.STREAMS_GROUP_DESCRIBE, request)["groups"]
        for member in described["members"]:
            for name in ("assignment", "target_assignment"):
                member[name] = {role: _found(member[name][f"{role}_tasks"]) for role in ROLES}
            member["client_tags"].sort(key=lambda tag: tag["key"])
        described["members"].sort(key=lambda member: member["member_id"])
        if described["topology"] is not None:
            for one in described["topology"]["subtopologies"] or ():
                one["source_topics"].sort()
                one["repartition_sink_topics"].sort()
                for name in ("state_changelog_topics", "repartition_source_topics"):
                    one[name].sort(key=lambda topic: topic["name"])
                    for topic in one[name]:
                        topic["topic_configs"].sort(key=lambda pair: pair["key"])
        return described

    def listed(self, group: str, **filters: Any) -> Any:
        groups = self.send_request(apis.LIST_GROUPS, list_groups.ListGroupsRequest(**filters))[
            "groups"
        ]
        return [found for found in groups if found["group_id"] == group]

    def commit(
        self, group: str, member: str, epoch: int, index: int = 0, topic: str = PAGES
    ) -> int:
        """Commit offset 5 of a partition; return the error."""
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    self.topic_ids()[topic],
                    partitions=[offset_commit.OffsetCommitRequestPartition(index, 5)],
                )
            ],
        )
        response = self.send_request(apis.OFFSET_COMMIT, request)
        return response["topics"][0]["partitions"][0]["error_code"]

    def delete(self, group: str) -> Any:
        return self.send_request(apis.DELETE_GROUPS, delete_groups.DeleteGroupsRequest([group]))[
            "results"
        ]


def talk_to_coordinator(bootstrap: str, group: str) -> StreamsTalk:
    """Return a connection to the coordinator of a group."""
    with closing(StreamsTalk(bootstrap.partition(",")[0])) as guide:
        wait_until(lambda: guide.coordinator(group)[0] >= 0)
        talk = StreamsTalk(guide.coordinator(group)[1])
    talk.coordinate(group)
    return talk


def begin(talk: StreamsTalk, *groups: str, **configs: str) -> None:
    """Wait for coordinators. configs: group configs, applied at the end."""
    for topic, count in TOPICS.items():
        talk.create(topic, count)
    talk.coordinate(*groups)
    if not configs:
        return
    values = {f"streams.{name.replace('_', '.')}": value for name, value in configs.items()}
    for group in groups:
        assert alter_configs(talk.address, (GROUP, group), values)[0] == 0
    # A broker receives configs in order; at this point, it has the config that a heartbeat response
    # contains.
    probe = f"{groups[0]}-probe"
    talk.coordinate(probe)
    interval = {"streams.heartbeat.interval.ms": "6000"}
    assert alter_configs(talk.address, (GROUP, probe), interval)[0] == 0
    talk.join(probe, "probe", reading(PAGES))
    wait_until(lambda: talk.beat(probe, "probe")["heartbeat_interval_ms"] == 6_000)
    talk.beat(probe, "probe", -1)


def until_ready(talk: StreamsTalk, group: str, *members: str) -> None:
    """Send heartbeats until the topology is ready and the members have tasks."""
    wait_until(
        lambda: (
            all(talk.own(group, m)["status"] == [] for m in members)
            and all(talk.owned[m].get("active") for m in members)
        )
    )


def timeless(response: Any) -> Any:
    """Return a response without epochs, because internal topics may be created in one step or in
    several.
    """
    epochs = {"group_epoch", "assignment_epoch", "member_epoch"}
    kept = {name: value for name, value in response.items() if name not in epochs}
    if "members" in kept:
        kept["members"] = [timeless(member) for member in kept["members"]]
    return kept


def _numbers(tasks: Any) -> Any:
    return None if tasks is None else {name: len(found) for name, found in tasks.items()}


def sized(response: Any) -> Any:
    """Return the response with task counts instead of tasks, because Kafka may assign
    other tasks.
    """
    return response | {role: _numbers(response[role]) for role in ("active", "standby", "warmup")}


def sizes(described: Any) -> Any:
    return described | {
        "members": [
            member
            | {
                name: {role: _numbers(tasks) for role, tasks in member[name].items()}
                for name in ("assignment", "target_assignment")
            }
            for member in described["members"]
        ]
    }
