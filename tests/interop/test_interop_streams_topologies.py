"""How brokers handle topologies of streams groups (KIP-1071), compared with Apache Kafka 4.2:
validation, partition counts, internal topics, epochs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.protocol.gen.streams_group_heartbeat import CopartitionGroup, Subtopology, Topology
from tests.support.cluster import Cluster
from tests.support.conversation import describe_configs_of
from tests.support.kafka_comparison import Step, compare
from tests.support.streams_groups import (
    CLICKS,
    PAGES,
    StreamsTalk,
    begin,
    counting,
    internal,
    reading,
    sized,
    sizes,
    timeless,
    until_ready,
)
from tests.support.waiting import wait_until

TOPIC = 2
"""The config resource type of topics."""


def bad_topologies(talk: StreamsTalk) -> Iterator[Step]:
    repartition = internal("st-t-repartition")
    topologies: dict[str, list[Subtopology]] = {
        "no sources": [Subtopology("0")],
        "an empty id": [Subtopology("", [PAGES])],
        "the same source twice": [Subtopology("0", [PAGES]), Subtopology("1", [PAGES])],
        "a bad name": [Subtopology("0", ["bad name"])],
        "an empty name": [Subtopology("0", [""])],
        "a bad changelog": [
            Subtopology("0", [PAGES], state_changelog_topics=[internal("bad name")])
        ],
        "partitions of a changelog": [
            Subtopology("0", [PAGES], state_changelog_topics=[internal("st-t-changelog", 3)])
        ],
        "a repartition topic without a sink": [
            Subtopology("0", [PAGES], repartition_source_topics=[repartition])
        ],
        "a sink without a source": [
            Subtopology("0", [PAGES], repartition_sink_topics=["st-t-other"])
        ],
        "a source that is a changelog": [
            Subtopology("0", [PAGES], state_changelog_topics=[internal(PAGES)])
        ],
        "a regex": [Subtopology("0", source_topic_regex=["st-cl.*"])],
        "nothing": [],
        "a bad config": [
            Subtopology("0", [PAGES], state_changelog_topics=[internal("st-t-c", no_such="1")])
        ],
        "a bad config value": [
            Subtopology(
                "0", [PAGES], state_changelog_topics=[internal("st-t-d", cleanup_policy="x")]
            )
        ],
        "a loop": [
            Subtopology(
                "0",
                repartition_source_topics=[internal("st-t-loop")],
                repartition_sink_topics=["st-t-loop"],
            )
        ],
        "an internal topic of Kafka": [Subtopology("0", ["__consumer_offsets"])],
    }
    for number, (label, subtopologies) in enumerate(topologies.items()):
        group = f"st-t{number}"
        begin(talk, group)
        # The creation may fail before a broker responds.
        yield label, _without_failures(talk.join(group, "m", Topology(0, subtopologies)))
        if "m" in talk.epochs:
            if talk.beat(group, "m")["status"]:
                wait_until(lambda group=group: _fails(talk.beat(group, "m")))
            yield f"{label}, later", talk.beat(group, "m")
            talk.beat(group, "m", -1)
            del talk.epochs["m"]
        yield f"{label}, described", talk.describe(group)


def _without_failures(response: Any) -> Any:
    for status in response.get("status") or ():
        status["status_detail"] = status["status_detail"].partition("; Creation failed")[0]
    return response


def _fails(response: Any) -> bool:
    return any("Creation failed" in status["status_detail"] for status in response["status"])


def topologies(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-epochs"
    begin(talk, group)
    yield "join", talk.join(group, "a", reading(PAGES, epoch=3))
    yield "settled", talk.own(group, "a")
    yield (
        "another topology of the same epoch",
        sized(talk.join(group, "b", reading(CLICKS, epoch=3))),
    )
    yield "described", sizes(talk.describe(group))
    yield "an older one", sized(talk.join(group, "c", reading(PAGES, epoch=2)))
    yield "a newer one", sized(talk.join(group, "d", reading(CLICKS, epoch=4)))
    yield "described", sizes(talk.describe(group))
    for _ in range(2):
        for member in "abcd":
            if member in talk.epochs:
                yield f"{member} heartbeat", sized(talk.own(group, member))
    yield "a with a newer one", sized(talk.join(group, "a", reading(CLICKS, epoch=4)))
    yield "described", sizes(talk.describe(group))
    for member in "abcd":
        talk.beat(group, member, -1)
    yield "described", talk.describe(group)
    yield "an older one after all left", sized(talk.join(group, "e", reading(PAGES, epoch=1)))
    talk.beat(group, "e", -1)
    yield "described", talk.describe(group)


def missing_topics(talk: StreamsTalk) -> Iterator[Step]:
    group = "st-missing"
    begin(talk, group)
    yield "join", talk.join(group, "a", reading(PAGES, "st-later-b", "st-later-a"))
    yield "described", talk.describe(group)
    yield "listed", talk.listed(group)
    yield "heartbeat", talk.own(group, "a")
    talk.create("st-later-a", 3)
    talk.create("st-later-b", 1)
    until_ready(talk, group, "a")
    yield "tasks", talk.owned["a"]
    yield "described", timeless(talk.describe(group))
    talk.beat(group, "a", -1)


def copartitions(talk: StreamsTalk) -> Iterator[Step]:
    """Joined topics must have equal partition counts."""
    group = "st-copartitions"
    both = [CopartitionGroup([0, 1])]
    wrong = Topology(0, [Subtopology("0", [PAGES, CLICKS], copartition_groups=both)])
    begin(talk, group)
    yield "join", talk.join(group, "a", wrong)
    yield "described", talk.describe(group)
    yield "heartbeat", talk.own(group, "a")
    talk.beat(group, "a", -1)
    for number, count in enumerate((0, 2, 3)):
        group = f"st-copartitions-{number}"
        begin(talk, group)
        repartition = internal(f"{group}-repartition", count)
        topology = Topology(
            0,
            [
                Subtopology("0", [CLICKS], repartition_sink_topics=[repartition.name]),
                Subtopology(
                    "1",
                    [PAGES],
                    repartition_source_topics=[repartition],
                    copartition_groups=[CopartitionGroup([0], [], [0])],
                ),
            ],
        )
        yield f"join {count}", (talk.join(group, "a", topology))
        yield f"described {count}", talk.describe(group)
        talk.beat(group, "a", -1)
    group = "st-copartitions-free"
    begin(talk, group)
    names = [f"{group}-{name}-repartition" for name in "xy"]
    topology = Topology(
        0,
        [
            Subtopology("0", [CLICKS], repartition_sink_topics=names[:1]),
            Subtopology("1", [PAGES], repartition_sink_topics=names[1:]),
            Subtopology(
                "2",
                repartition_source_topics=[internal(name) for name in names],
                state_changelog_topics=[internal(f"{group}-changelog", segment_bytes="99999999")],
                copartition_groups=[CopartitionGroup([], [], [0, 1])],
            ),
        ],
    )
    yield "join", (talk.join(group, "a", topology))
    until_ready(talk, group, "a")
    yield "tasks", talk.owned["a"]
    yield "described", timeless(talk.describe(group))
    yield "topics", _topics(talk, group)
    talk.beat(group, "a", -1)


def internal_topics(talk: StreamsTalk) -> Iterator[Step]:
    group, wrong = "st-internal", "st-wrong"
    begin(talk, group, wrong)
    topology = counting(group, PAGES, cleanup_policy="delete", retention_ms="-1")
    yield "join", (talk.join(group, "a", topology))
    yield "described", talk.describe(group)
    until_ready(talk, group, "a")
    yield "tasks", talk.owned["a"]
    yield "described", timeless(talk.describe(group))
    yield "topics", _topics(talk, group)
    talk.create(f"{wrong}-counts-changelog", 3)
    talk.join(wrong, "a", counting(wrong, PAGES))
    # The coordinator may learn of the topic later.
    wait_until(lambda: [s["status_code"] for s in talk.beat(wrong, "a")["status"]] == [2])
    yield "wrong number of partitions", timeless(talk.beat(wrong, "a"))
    yield "described", timeless(talk.describe(wrong))
    talk.beat(wrong, "a", -1)
    yield "delete with topics", talk.beat(group, "a", -1) and talk.delete(group)
    yield "topics stay", _topics(talk, group)


def _topics(talk: StreamsTalk, prefix: str) -> Any:
    """Return the topics with this prefix: partition count and topic configs."""
    return {
        name: (
            count,
            {
                config: found["value"]
                for config, found in describe_configs_of(talk.address, (TOPIC, name)).items()
                if found["config_source"] == 1
            },
        )
        for name, count in sorted(talk.topics().items())
        if name.startswith(f"{prefix}-")
    }


SCENARIOS: list[Callable[[StreamsTalk], Iterator[Step]]] = [
    bad_topologies,
    topologies,
    missing_topics,
    copartitions,
    internal_topics,
]

pytestmark = pytest.mark.cluster(group_streams_initial_rebalance_delay_ms=0)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_request_sequences_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[StreamsTalk], Iterator[Step]]
) -> None:
    await compare(StreamsTalk, scenario, (peer, cluster.bootstrap))
