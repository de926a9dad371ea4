"""Determine the required partition counts of a topology's topics and the missing topics
(KIP-1071).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.broker.groups.common.model import HeartbeatRefused, TopicsView
from penstock.broker.groups.streams.model import (
    SUBTOPOLOGIES_MAX,
    TASKS_MAX,
    TOPICS_MAX,
    MissingTopic,
    Status,
)
from penstock.broker.groups.streams.values import InternalTopic, Subtopology, Topology
from penstock.protocol.error_codes import ErrorCode

_SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    task_count: int
    subtopology: Subtopology
    """The subtopology, with the partition counts of its internal topics filled in."""

    @property
    def is_stateful(self) -> bool:
        return bool(self.subtopology.changelog_topics)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(
        default_factory=dict[str, ConfiguredSubtopology]
    )
    """Subtopologies ordered by id; empty if the topics are invalid."""
    missing: Mapping[str, MissingTopic] = field(default_factory=dict[str, MissingTopic])
    """Internal topics that do not exist yet."""
    problem: tuple[Status, str] | None = None
    """The reason why no tasks can be assigned."""

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _NotConfigured(Exception):
    """Raised if the topics do not match the topology, with the status to send to members."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.problem = (status, detail)


def required_topics(topology: Topology) -> set[str]:
    """Return the topics that the topology requires: source, repartition source and changelog
    topics.
    """
    names: set[str] = set()
    for subtopology in topology.subtopologies:
        names.update(subtopology.all_sources)
        names.update(topic.name for topic in subtopology.changelog_topics)
    return names


def source_subtopologies(topology: Topology) -> dict[str, str]:
    """Return the id of the subtopology that reads each source topic."""
    return {
        name: subtopology.subtopology_id
        for subtopology in topology.subtopologies
        for name in subtopology.all_sources
    }


def check_topology(topology: Topology) -> None:
    """Validate a topology before its topics are looked up. Raises HeartbeatRefused."""
    _check_size(topology)
    for subtopology in topology.subtopologies:
        for topic in subtopology.changelog_topics:
            if topic.partitions != 0:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it"
                    f" is set to {topic.partitions}."
                )
    if topology.epoch < 0:
        raise HeartbeatRefused(
            ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, "Topology epoch must be non-negative."
        )
    ids = [subtopology.subtopology_id for subtopology in topology.subtopologies]
    if len(set(ids)) < len(ids):
        raise _invalid("Subtopologies must have different ids.")
    for subtopology in topology.subtopologies:
        _check_positions(subtopology)
        if any(topic.partitions < 0 for topic in subtopology.repartition_source_topics):
            raise _invalid("Repartition topics must not have a negative partition count.")


def _check_size(topology: Topology) -> None:
    if len(topology.subtopologies) > SUBTOPOLOGIES_MAX:
        raise _invalid(f"A topology has at most {SUBTOPOLOGIES_MAX} subtopologies.")
    topic_count = sum(
        len(each.source_topics)
        + len(each.repartition_source_topics)
        + len(each.repartition_sink_topics)
        + len(each.changelog_topics)
        for each in topology.subtopologies
    )
    if topic_count > TOPICS_MAX:
        raise _invalid(f"A topology has at most {TOPICS_MAX} topics.")


def _check_positions(subtopology: Subtopology) -> None:
    for group in subtopology.copartition_groups:
        for positions, topics in (
            (group.source_topics, subtopology.source_topics),
            (group.repartition_source_topics, subtopology.repartition_source_topics),
        ):
            if any(not 0 <= position < len(topics) for position in positions):
                raise _invalid(
                    f"A copartition group of subtopology {subtopology.subtopology_id} names a"
                    " topic that the subtopology does not have."
                )


def _invalid(message: str) -> HeartbeatRefused:
    return HeartbeatRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def configure(topology: Topology, topics: TopicsView) -> ConfiguredTopology:
    """Configure the topology with the existing topics. Raises HeartbeatRefused with
    STREAMS_INVALID_TOPOLOGY.

    A repartition topic has as many partitions as the largest source topic of the subtopology that
    writes to it. The topics of a copartition group have equal partition counts, and changelog
    topics have one partition per task.
    """
    try:
        return _Configuration(topology, topics).result()
    except _NotConfigured as problem:
        return ConfiguredTopology(problem=problem.problem)


class _Configuration:
    def __init__(self, topology: Topology, topics: TopicsView) -> None:
        self._topology = topology
        self._subtopologies = topology.subtopologies
        self._topics = topics
        self._decided: dict[str, int] = {}
        """The computed partition counts of internal topics."""

    def result(self) -> ConfiguredTopology:
        """Return the configured topology. Raises _NotConfigured and HeartbeatRefused."""
        self._check_sources()
        self._decide_repartition_topics()
        for subtopology in self._subtopologies:
            for copartitioned in _copartition_groups(subtopology):
                self._enforce(copartitioned)
        self._decide_changelog_topics()
        configured = {
            subtopology.subtopology_id: self._configured(subtopology)
            for subtopology in sorted(self._subtopologies, key=lambda each: each.subtopology_id)
        }
        if sum(each.task_count for each in configured.values()) > TASKS_MAX:
            raise _invalid(f"A topology has at most {TASKS_MAX} tasks.")
        missing = self._missing(configured.values())
        problem = None
        if missing:
            detail = f"Internal topics are missing: {_shown(missing)}"
            problem = (Status.MISSING_INTERNAL_TOPICS, detail)
        return ConfiguredTopology(configured, missing, problem)

    def _existing(self, name: str) -> int | None:
        topic_id = self._topics.id_of(name)
        return None if topic_id is None else self._topics.partition_count(topic_id)

    def _count(self, name: str) -> int | None:
        """Return the partition count of the topic, or the computed one if the topic does not
        exist.
        """
        existing = self._existing(name)
        return self._decided.get(name) if existing is None else existing

    def _check_sources(self) -> None:
        missing = {
            name
            for subtopology in self._subtopologies
            for name in subtopology.source_topics
            if self._existing(name) is None
        }
        if missing:
            detail = f"Source topics {_shown(missing)} are missing."
            raise _NotConfigured(Status.MISSING_SOURCE_TOPICS, detail)

    # Repartition topics

    def _decide_repartition_topics(self) -> None:
        wanted = [
            topic
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
        ]
        counts = {topic.name: topic.partitions for topic in wanted if topic.partitions}
        sinks = [
            (name, subtopology)
            for subtopology in self._subtopologies
            for name in subtopology.repartition_sink_topics
        ]
        left = [sink for sink in sinks if sink[0] not in counts]
        while left:
            undecided: list[tuple[str, Subtopology]] = []
            for name, subtopology in left:
                count = counts.get(name) or self._largest_source(subtopology, counts)
                if count is None:
                    undecided.append((name, subtopology))
                else:
                    counts[name] = count
            if len(undecided) == len(left):
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may"
                    " be loops in the topology that cannot be resolved."
                )
            left = undecided
        if any(topic.name not in counts for topic in wanted):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a"
                " repartition source topic is never used as a sink topic."
            )
        self._decided.update(counts)

    def _largest_source(self, subtopology: Subtopology, counts: Mapping[str, int]) -> int | None:
        """Return the largest known partition count of the subtopology's sources, or None."""
        found = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        found += [self._existing(name) for name in subtopology.source_topics]
        return max((count for count in found if count is not None), default=None)

    # Copartition groups

    def _enforce(self, copartitioned: Collection[str]) -> None:
        internal = {
            topic.name: topic
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
        }
        fixed = {name for name in copartitioned if name in internal and internal[name].partitions}
        repartition = {
            name: self._known_count(name) for name in sorted(copartitioned) if name in internal
        }
        others = {
            name: self._known_count(name) for name in sorted(copartitioned) if name not in internal
        }
        if others:
            count = _same(others, others)
        elif fixed:
            count = _same({name: repartition[name] for name in fixed}, repartition)
        else:
            count = max(repartition.values(), default=0)
        for name, known in repartition.items():
            if name in fixed and known != count:
                raise _NotConfigured(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{known}] of repartition topic [{name}] doesn't match"
                    f" number of partitions [{count}] of the source topic.",
                )
            self._decided[name] = count

    def _known_count(self, name: str) -> int:
        count = self._count(name)
        assert count is not None, name
        return count

    # Changelog topics and the result

    def _decide_changelog_topics(self) -> None:
        for subtopology in self._subtopologies:
            count = self._task_count(subtopology)
            for topic in subtopology.changelog_topics:
                self._decided[topic.name] = count

    def _task_count(self, subtopology: Subtopology) -> int:
        if not subtopology.all_sources:
            raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
        return max(self._known_count(name) for name in subtopology.all_sources)

    def _configured(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        def counted(topics: Iterable[InternalTopic]) -> tuple[InternalTopic, ...]:
            return tuple(
                replace(topic, partitions=topic.partitions or self._decided[topic.name])
                for topic in topics
            )

        return ConfiguredSubtopology(
            self._task_count(subtopology),
            replace(
                subtopology,
                repartition_source_topics=counted(subtopology.repartition_source_topics),
                changelog_topics=counted(subtopology.changelog_topics),
            ),
        )

    def _missing(self, configured: Iterable[ConfiguredSubtopology]) -> dict[str, MissingTopic]:
        """Return the missing internal topics. Raises _NotConfigured if an existing one has a
        different partition count.
        """
        missing: dict[str, MissingTopic] = {}
        for each in configured:
            subtopology = each.subtopology
            for topic in (*subtopology.repartition_source_topics, *subtopology.changelog_topics):
                existing = self._existing(topic.name)
                if existing is None:
                    missing[topic.name] = MissingTopic(
                        topic.name, topic.partitions, topic.replication_factor or -1, topic.configs
                    )
                elif existing != topic.partitions:
                    raise _NotConfigured(
                        Status.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Existing topic {topic.name} has different number of partitions: expected"
                        f" {topic.partitions}, found {existing}",
                    )
        return missing


def _same(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    """Return the common partition count of the topics. Raises _NotConfigured if they differ."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={count}" for name, count in sorted(shown.items()))
        raise _NotConfigured(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values()))


def _copartition_groups(subtopology: Subtopology) -> list[set[str]]:
    groups = [
        {subtopology.source_topics[position] for position in group.source_topics}
        | {
            subtopology.repartition_source_topics[position].name
            for position in group.repartition_source_topics
        }
        for group in subtopology.copartition_groups
    ]
    return [group for group in groups if group]


def _shown(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = len(listed) - _SHOWN_MAX
    shown = ", ".join(listed[:_SHOWN_MAX])
    return f"{shown} and {rest} additional topics" if rest > 0 else shown
