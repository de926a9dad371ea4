"""Create, find and restore snapshots of topics.

Invariant: all state is in the cluster, none on this machine. Nothing is printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.deploy.admin.groups.reset import set_offsets
from penstock.deploy.clients.brokers import Brokers, no_topic
from penstock.deploy.clients.forks import create_forks, delete_all
from penstock.deploy.clients.frozen_topics import frozen_topics, full_name
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import UsageError, near_hint
from penstock.deploy.output import counted, iso_time
from penstock.protocol.client.errors import DoesNotExist, KafkaFailed, Refused
from penstock.protocol.error_codes import explain
from penstock.protocol.frozen_topics import FrozenTopicInfo
from penstock.stream.format.manifest.model import in_snapshot


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot. created: an ISO time in UTC. size_bytes: size of the snapshot's records in
    objects, including shared objects.
    """

    name: str
    created: str
    topics: int
    partitions: int
    records: int
    size_bytes: int
    groups: int


@dataclass(frozen=True, slots=True)
class RestoredView:
    """One restored topic. groups: number of consumer groups whose offsets were reset. problems: the
    reasons why other groups were not reset, or why the topic was not created.
    """

    topic: str
    source: str
    groups: int
    problems: list[str]


def create_snapshot(bootstrap: str, name: str, topics: Sequence[str]) -> list[FrozenTopicInfo]:
    """Create a snapshot of topics; without names, of all topics except internal ones. Raise
    KafkaFailed.
    """
    if not name:  # without a name, topics would be forked to themselves
        raise UsageError("the name of the snapshot is empty")
    known = [topic.name for topic in Kafka(bootstrap).topics()]
    for topic in topics:
        if topic not in known:
            raise DoesNotExist(f"snapshot {name!r} was not created: {no_topic(topic, known)}")
    chosen = list(topics) or [topic for topic in known if topic not in INTERNAL_TOPICS]
    if not chosen:
        raise UsageError("the cluster contains no topics for a snapshot")
    wanted = {in_snapshot(topic, name): topic for topic in chosen}
    problems = create_forks(bootstrap, wanted)
    if problems:
        # One invalid topic rejects the whole request; its reason does not mention another topic.
        reason = min(problems.values(), key=lambda item: len(item.error_message or ""))
        raise Refused(f"snapshot {name!r} was not created", reason.error_code, reason.error_message)
    return frozen_topics(bootstrap, list(wanted))


def find_snapshot(bootstrap: str, name: str, topics: Sequence[str] = ()) -> list[FrozenTopicInfo]:
    """Return the topics of a snapshot, sorted by name. Raise KafkaFailed if it does not exist, or
    UsageError for a topic that it does not contain.
    """
    everything = [topic for topic in frozen_topics(bootstrap) if topic.snapshot]
    found = [topic for topic in everything if topic.snapshot == name]
    if not found:
        known = {topic.snapshot for topic in everything}
        hint = near_hint(name, known, "`penstock snapshots list` lists them")
        raise DoesNotExist(f"snapshot {name!r} does not exist; {hint}")
    names = [topic.name for topic in found]
    if missing := [topic for topic in topics if topic not in names]:
        raise UsageError(
            f"topic {missing[0]!r} is not in snapshot {name!r}, which contains "
            f"{', '.join(names[:20])}"
        )
    return [topic for topic in found if not topics or topic.name in topics]


def view_snapshots(topics: Iterable[FrozenTopicInfo]) -> list[SnapshotView]:
    """Return the snapshots of these frozen topics, oldest first."""
    by_name: dict[str, list[FrozenTopicInfo]] = {}
    for topic in topics:
        if topic.snapshot:
            by_name.setdefault(topic.snapshot, []).append(topic)
    views = [
        SnapshotView(
            name,
            iso_time(min(topic.since_ms for topic in found)),
            len(found),
            sum(len(topic.partitions) for topic in found),
            sum(part.record_count for topic in found for part in topic.partitions),
            sum(part.size_bytes for topic in found for part in topic.partitions),
            len({group for topic in found for group in topic.group_offsets}),
        )
        for name, found in by_name.items()
    ]
    return sorted(views, key=lambda view: (view.created, view.name))


def delete_snapshot(bootstrap: str, topics: Sequence[FrozenTopicInfo]) -> None:
    """Delete the topics of a snapshot."""
    delete_all(bootstrap, [full_name(topic) for topic in topics])


def planned(
    bootstrap: str, topics: Sequence[FrozenTopicInfo], *, new_name: str, replaces: bool
) -> list[RestoredView]:
    """Return the topics that a restore would create, in order. Raises UsageError like `restore`."""
    if new_name and len(topics) != 1:
        raise UsageError(
            f"--as {new_name!r} is one name, but the snapshot has"
            f" {counted(len(topics), 'topic')}: choose one with --topics"
        )
    names = [new_name or topic.name for topic in topics]
    present = sorted({*names} & {topic.name for topic in Kafka(bootstrap).topics()})
    if present and not replaces:
        raise UsageError(
            f"topic {present[0]!r} exists ({len(present)} of {len(names)} do): delete it first,"
            " restore under another name with --as, or pass --replace, which deletes it"
        )
    return [
        RestoredView(name, full_name(topic), len(topic.group_offsets), [])
        for name, topic in zip(names, topics, strict=True)
    ]


def restore(
    bootstrap: str,
    topics: Sequence[FrozenTopicInfo],
    *,
    new_name: str,
    replaces: bool,
    groups: bool,
) -> list[RestoredView]:
    """Create topics by forking the topics of a snapshot. new_name: empty to keep the names;
    otherwise the name of the only topic.

    Raise UsageError, before any change, if a topic exists and may not be replaced.
    """
    plan = planned(bootstrap, topics, new_name=new_name, replaces=replaces)
    names = {view.topic: topic for view, topic in zip(plan, topics, strict=True)}
    present = sorted(names.keys() & {topic.name for topic in Kafka(bootstrap).topics()})
    if present:
        delete_all(bootstrap, present)
    problems = create_forks(bootstrap, {name: full_name(topic) for name, topic in names.items()})
    views: list[RestoredView] = []
    for name, topic in names.items():
        problem = problems.get(name)
        found = [] if problem is None else [explain(problem.error_code, problem.error_message)]
        count = 0
        if groups and not found:
            count, found = _reset_groups(bootstrap, name, topic.group_offsets)
        views.append(RestoredView(name, full_name(topic), count, found))
    return views


def _reset_groups(
    bootstrap: str, topic: str, groups: Mapping[str, Mapping[int, int]]
) -> tuple[int, list[str]]:
    """Return the number of groups whose offsets were set, and the reasons why those of other groups
    were not.
    """
    problems: list[str] = []
    with Brokers(bootstrap) as brokers:
        for group, offsets in groups.items():
            try:
                set_offsets(brokers, group, topic, offsets)
            except KafkaFailed as error:
                problems.append(str(error))
    return len(groups) - len(problems), problems
