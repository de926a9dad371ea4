"""Requirements of a topology: partition counts of internal topics, missing topics, and
validation.
"""

from typing import Any
from uuid import UUID

import pytest

from penstock.broker.groups.common.model import HeartbeatRefused
from penstock.broker.groups.streams.endpoints import endpoint_partitions
from penstock.broker.groups.streams.model import (
    SUBTOPOLOGIES_MAX,
    TASKS_MAX,
    TOPICS_MAX,
    Status,
    StreamsMember,
)
from penstock.broker.groups.streams.topology import ConfiguredTopology, check_topology, configure
from penstock.broker.groups.streams.values import (
    CopartitionGroup,
    HeldTasks,
    InternalTopic,
    StreamsAssignment,
    StreamsMetadata,
    Subtopology,
    Topology,
)
from penstock.protocol.error_codes import ErrorCode


class Topics:
    """Topics with partition counts. Implements `TopicsView`."""

    version = 0

    def __init__(self, **counts: int) -> None:
        self._counts = counts
        self._names = {UUID(int=place): name for place, name in enumerate(counts, 1)}

    def matching(self, expression: str) -> frozenset[str]:
        raise NotImplementedError

    def id_of(self, name: str) -> UUID | None:
        return next((key for key, known in self._names.items() if known == name), None)

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def is_gone(self, topic_id: UUID) -> bool:
        return topic_id not in self._names

    def partition_count(self, topic_id: UUID) -> int:
        return self._counts[self._names[topic_id]]


def counts_of(found: ConfiguredTopology) -> dict[str, int]:
    return {name: topic.partitions for name, topic in found.missing.items()}


def of(*subtopologies: Subtopology) -> Topology:
    return Topology(0, subtopologies)


def repartitioned(**again: Any) -> Topology:
    """Return a topology with a repartition topic and a changelog topic."""
    return of(
        Subtopology("0", ("in",), repartition_sink_topics=("again",)),
        Subtopology(
            "1",
            repartition_source_topics=(InternalTopic("again", **again),),
            changelog_topics=(InternalTopic("changes", configs=(("a", "b"),)),),
        ),
    )


def test_internal_topics_get_the_partitions_of_their_sources() -> None:
    found = configure(repartitioned(), Topics(**{"in": 3}))
    assert counts_of(found) == {"again": 3, "changes": 3}
    assert found.problem == (
        Status.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: again, changes",
    )
    assert found.missing["changes"].configs == (("a", "b"),)
    assert found.missing["changes"].replication_factor == -1
    assert {key: each.task_count for key, each in found.subtopologies.items()} == {"0": 3, "1": 3}
    assert not found.subtopologies["0"].is_stateful
    assert found.subtopologies["1"].is_stateful


def test_a_fixed_repartition_topic_determines_downstream_topics() -> None:
    found = configure(repartitioned(partitions=5, replication_factor=2), Topics(**{"in": 3}))
    assert counts_of(found) == {"again": 5, "changes": 5}
    assert found.missing["again"].replication_factor == 2


def test_chained_repartition_topics_are_resolved_in_any_order() -> None:
    links = [
        Subtopology(
            str(place),
            repartition_source_topics=(InternalTopic(f"r{place}"),),
            repartition_sink_topics=(f"r{place + 1}",),
        )
        for place in range(3)
    ]
    first = Subtopology("in", ("in", "more"), repartition_sink_topics=("r0",))
    last = Subtopology("out", repartition_source_topics=(InternalTopic("r3"),))
    found = configure(of(last, *links[::-1], first), Topics(**{"in": 2, "more": 4}))
    assert set(counts_of(found).values()) == {4}


def test_a_topology_is_ready_once_all_topics_exist() -> None:
    found = configure(repartitioned(), Topics(**{"in": 3, "again": 3, "changes": 3}))
    assert found.is_ready
    assert not found.missing


def test_a_topic_with_a_wrong_partition_count_is_reported() -> None:
    found = configure(repartitioned(), Topics(**{"in": 3, "changes": 4}))
    assert found.problem == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic changes has different number of partitions: expected 3, found 4",
    )
    assert not found.subtopologies
    assert not found.missing


def test_missing_sources_are_reported() -> None:
    found = configure(of(Subtopology("0", ("e", "d", "c", "b", "a"))), Topics(c=1))
    assert found.problem == (
        Status.MISSING_SOURCE_TOPICS,
        "Source topics a, b, d and 1 additional topics are missing.",
    )


def joined(*topics: str, again: int | None = None) -> Topology:
    internal = () if again is None else (InternalTopic("again", again),)
    group = CopartitionGroup(tuple(range(len(topics))), (), tuple(range(len(internal))))
    joining = Subtopology(
        "0", topics, repartition_source_topics=internal, copartition_groups=(group,)
    )
    return of(joining, Subtopology("1", ("w",), repartition_sink_topics=("again",)))


@pytest.mark.parametrize(
    ("topology", "detail"),
    [
        (joined("x", "y"), "do not have the same number of partitions: [{x=2, y=4}]"),
        (
            joined("x", again=3),
            "[3] of repartition topic [again] doesn't match number of partitions [2] of the source",
        ),
    ],
)
def test_joined_topics_must_have_equal_partition_counts(topology: Topology, detail: str) -> None:
    found = configure(topology, Topics(x=2, y=4, w=8))
    assert found.problem is not None
    assert found.problem[0] is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert detail in found.problem[1]


def test_a_repartition_topic_without_count_follows_the_other_topics_of_its_join() -> None:
    found = configure(joined("x", again=0), Topics(x=2, w=8))
    assert counts_of(found) == {"again": 2}


def test_repartition_topics_of_a_join_get_the_largest_partition_count() -> None:
    found = configure(
        of(
            Subtopology("0", ("x",), repartition_sink_topics=("rx",)),
            Subtopology("1", ("y",), repartition_sink_topics=("ry",)),
            Subtopology(
                "2",
                repartition_source_topics=(InternalTopic("rx"), InternalTopic("ry")),
                copartition_groups=(CopartitionGroup((), (), (0, 1)),),
            ),
        ),
        Topics(x=2, y=4),
    )
    assert counts_of(found) == {"rx": 4, "ry": 4}


def refusal(topology: Topology, **counts: int) -> tuple[ErrorCode, str]:
    def check() -> None:
        check_topology(topology)
        configure(topology, Topics(**counts))

    with pytest.raises(HeartbeatRefused) as refused:
        check()
    return refused.value.result.error, refused.value.result.message or ""


def loop() -> Topology:
    return of(
        Subtopology(
            "0",
            repartition_source_topics=(InternalTopic("r"),),
            repartition_sink_topics=("r",),
        )
    )


def position(place: int) -> Topology:
    return of(Subtopology("0", ("x",), copartition_groups=(CopartitionGroup((place,)),)))


@pytest.mark.parametrize(
    ("topology", "detail"),
    [
        (of(Subtopology("0", ("x",), changelog_topics=(InternalTopic("c", 2),))), "undefined"),
        (of(Subtopology("0")), "No source topics found for subtopology 0"),
        (of(Subtopology("0", repartition_source_topics=(InternalTopic("r"),))), "sink topic"),
        (loop(), "There may be loops"),
        (of(Subtopology("0", ("x",)), Subtopology("0", ("x",))), "different ids"),
        (position(1), "names a topic that the subtopology does not have"),
        (position(-1), "names a topic that the subtopology does not have"),
        (
            of(Subtopology("0", repartition_source_topics=(InternalTopic("r", -1),))),
            "negative partition count",
        ),
        (of(*(Subtopology(str(i), ("x",)) for i in range(SUBTOPOLOGIES_MAX + 1))), "at most 1000"),
        (of(Subtopology("0", ("x",) * (TOPICS_MAX + 1))), "at most 10000 topics"),
        (of(Subtopology("0", ("large",))), "at most 10000 tasks"),
    ],
)
def test_an_invalid_topology_is_rejected(topology: Topology, detail: str) -> None:
    error, message = refusal(topology, x=2, large=TASKS_MAX + 1)
    assert error is ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert detail in message


def test_endpoints_contain_only_existing_partitions() -> None:
    topics = Topics(small=2, large=4)
    configured = configure(of(Subtopology("0", ("small", "large"))), topics)
    held = StreamsAssignment(assigned=HeldTasks({"0": {1: 2, 3: 2}}, {"0": frozenset({0})}))
    metadata = StreamsMetadata(endpoint=("host", 1))
    members = [StreamsMember("a", metadata, held), StreamsMember("b", current=held)]
    (found,) = endpoint_partitions(members, configured, topics)
    assert found.endpoint == ("host", 1)
    assert found.active == {"small": [1], "large": [1, 3]}
    assert found.standby == {"small": [0], "large": [0]}


def test_a_negative_epoch_is_rejected() -> None:
    assert refusal(Topology(-1))[0] is ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH


def test_a_topology_without_subtopologies_has_no_tasks() -> None:
    assert configure(of(), Topics()) == ConfiguredTopology()
