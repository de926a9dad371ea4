"""Describe streams groups: the tasks and partitions of their members.

Invariant: every failure is a KafkaFailed that contains the group. Source: Kafka's
`kafka-streams-groups`; KIP-1071.
"""

from collections.abc import Sequence

from penstock.deploy.admin.groups.views import DescribedGroup, MemberView, TasksView
from penstock.deploy.clients.brokers import Brokers
from penstock.protocol import apis
from penstock.protocol.client.brokers import GROUP, by_topic
from penstock.protocol.gen import streams_group_describe
from penstock.protocol.gen.streams_group_describe import (
    Assignment,
    Member,
    Subtopology,
    TaskIds,
    Topology,
)


def described_streams(brokers: Brokers, name: str) -> DescribedGroup:
    """Return the state and the members of a streams group; its assignor has no name."""
    response = brokers.send_request(
        apis.STREAMS_GROUP_DESCRIBE,
        streams_group_describe.StreamsGroupDescribeRequest([name]),
        streams_group_describe.StreamsGroupDescribeResponse,
        node=brokers.coordinator(GROUP, name),
    )
    (found,) = response.groups
    brokers.check(found.error_code, found.error_message, f"group {name!r} cannot be described")
    topology = found.topology or Topology()
    sources = {item.subtopology_id: _sources(item) for item in topology.subtopologies or ()}
    read = {
        member.member_id: [
            (topic, index)
            for task in (member.assignment or Assignment()).active_tasks
            for topic in sources.get(task.subtopology_id, ())
            for index in task.partitions
        ]
        for member in found.members
    }
    # A topic may have fewer partitions than its subtopology has tasks.
    there = set(brokers.existing({key for keys in read.values() for key in keys}))
    members = [
        _member(member, by_topic(sorted(there.intersection(read[member.member_id]))))
        for member in found.members
    ]
    return DescribedGroup(found.group_state, "", members, topology.epoch)


def _sources(subtopology: Subtopology) -> list[str]:
    internal = (topic.name for topic in subtopology.repartition_source_topics)
    return [*subtopology.source_topics, *internal]


def _member(member: Member, partitions: dict[str, list[int]]) -> MemberView:
    assigned = member.assignment or Assignment()
    return MemberView(
        member.member_id,
        member.instance_id,
        member.client_host,
        member.client_id,
        member.member_epoch,
        partitions,
        member.process_id,
        TasksView(
            _by_subtopology(assigned.active_tasks),
            _by_subtopology(assigned.standby_tasks),
            _by_subtopology(assigned.warmup_tasks),
        ),
    )


def _by_subtopology(tasks: Sequence[TaskIds]) -> dict[str, list[int]]:
    return {
        task.subtopology_id: sorted(task.partitions)
        for task in sorted(tasks, key=lambda task: task.subtopology_id)
    }
