"""CreateTopics, CreatePartitions and DeleteTopics get the responses of Kafka 4.2: both get the same
valid and invalid requests.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_partitions, create_topics, delete_topics
from tests.support.cluster import Cluster
from tests.support.conversation import send_request

NODE_ID = 1
"""The id of the only broker on both sides."""
TIMEOUT_MS = 180_000
DEFAULT = -1
LONGEST = "n" * 249
UNKNOWN_ID = UUID(int=5)
Step = tuple[str, Any]
"""A request and its response."""


class Topics:
    """Sends topic requests to one cluster."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.ids: dict[str, UUID] = {}

    def create(
        self, *topics: create_topics.CreatableTopic, validate_only: bool = False, version: int = 7
    ) -> list[Any]:
        request = create_topics.CreateTopicsRequest(topics, TIMEOUT_MS, validate_only)
        response = send_request(self._address, replace(apis.CREATE_TOPICS, max=version), request)
        found: list[Any] = []
        for topic in response["topics"]:
            if topic["topic_id"] is not None:
                self.ids[topic["name"]] = UUID(topic["topic_id"])
            counts = topic["num_partitions"], topic["replication_factor"]
            has_id = topic["topic_id"] is not None
            found.append((topic["name"], _name(topic), has_id, counts, bool(topic["configs"])))
        return sorted(found)

    def add(
        self,
        *topics: tuple[str, int, list[list[int]] | None],
        validate_only: bool = False,
    ) -> list[Any]:
        requested = [
            create_partitions.CreatePartitionsTopic(
                name,
                count,
                None
                if assignments is None
                else [create_partitions.CreatePartitionsAssignment(item) for item in assignments],
            )
            for name, count, assignments in topics
        ]
        request = create_partitions.CreatePartitionsRequest(requested, TIMEOUT_MS, validate_only)
        response = send_request(self._address, apis.CREATE_PARTITIONS, request)
        return sorted((topic["name"], _name(topic)) for topic in response["results"])

    def delete(self, *topics: tuple[str | None, UUID | None]) -> list[Any]:
        states = [delete_topics.DeleteTopicState(name, topic_id) for name, topic_id in topics]
        request = delete_topics.DeleteTopicsRequest(states, timeout_ms=TIMEOUT_MS)
        response = send_request(self._address, apis.DELETE_TOPICS, request)
        return self._deleted(response)

    def delete_by_name(self, *names: str, version: int = 5) -> list[Any]:
        request = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS)
        return self._deleted(
            send_request(self._address, replace(apis.DELETE_TOPICS, max=version), request)
        )

    def _deleted(self, response: Any) -> list[Any]:
        names = {str(topic_id): name for name, topic_id in self.ids.items()}
        found = [
            (topic["name"], names.get(topic["topic_id"], topic["topic_id"]), _name(topic))
            for topic in response["responses"]
        ]
        return sorted(found, key=str)


def _name(result: Any) -> str:
    return ErrorCode(result["error_code"]).name


def _topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> create_topics.CreatableTopic:
    """Return the element of a CreateTopics request for one topic."""
    return create_topics.CreatableTopic(
        name,
        partitions,
        replicas,
        [
            create_topics.CreatableReplicaAssignment(index, brokers)
            for index, brokers in (assignments or {}).items()
        ],
        [
            create_topics.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in configs.items()
        ],
    )


def _assigned(
    name: str, assignments: dict[int, list[int]], partitions: int = -1, replicas: int = -1
) -> create_topics.CreatableTopic:
    return _topic(name, partitions, replicas, assignments)


# --- CreateTopics ---------------------------------------------------------------------------------

# Not covered: Kafka refuses names that differ only in "." and "_", because they collide in its
# metrics.

GOOD = [
    _topic("t-one", 3),
    _topic("t-defaults", DEFAULT, DEFAULT),
    _topic("t-configs", retention_ms="1000", cleanup_policy="compact,delete"),
    _assigned("t-assigned", {0: [NODE_ID], 1: [NODE_ID]}),
    _topic(LONGEST),
    _topic("t.dots_and-dashes"),
]
BAD = [
    _topic(""),
    _topic("."),
    _topic(".."),
    _topic("t bad"),
    _topic("t/bad"),
    _topic("t-ü"),
    _topic("n" * 250),
    _topic("t-zero", 0),
    _topic("t-negative", -2),
    _topic("t-no-replicas", 1, 0),
    _topic("t-negative-replicas", 1, -2),
    _topic("t-unknown-config", no_such="1"),
    _topic("t-bad-config", retention_ms="soon"),
    _topic("t-low-config", retention_ms="-5"),
    _topic("t-null-config", retention_ms=None),
    _topic("t-bad-policy", cleanup_policy="keep"),
    _topic("t-broker-config", log_retention_ms="1000"),
    _assigned("t-unknown-broker", {0: [9]}),
    _assigned("t-twice", {0: [NODE_ID, NODE_ID]}),
    _assigned("t-empty", {0: []}),
    _assigned("t-gap", {0: [NODE_ID], 2: [NODE_ID]}),
    _assigned("t-not-from-zero", {1: [NODE_ID]}),
    _assigned("t-negative-index", {-1: [NODE_ID], 0: [NODE_ID]}),
    _assigned("t-both-counts", {0: [NODE_ID]}, 1, 1),
    _assigned("t-partitions-too", {0: [NODE_ID]}, 1),
    _assigned("t-replicas-too", {0: [NODE_ID]}, -1, 1),
    _assigned("t-other-count", {0: [NODE_ID]}, 2),
]


def create(topics: Topics) -> Iterator[Step]:
    yield "validate", topics.create(*GOOD, validate_only=True)
    for topic in BAD:
        yield f"validate {topic.name!r}", topics.create(topic, validate_only=True)
    yield "good and bad", topics.create(*GOOD, *BAD)
    yield "again", topics.create(*GOOD)
    yield "validate again", topics.create(*GOOD, validate_only=True)
    yield "twice", topics.create(_topic("t-dup"), _topic("t-other"), _topic("t-dup", 2))
    yield "three times", topics.create(*[_topic("t-dup")] * 3)
    yield "config twice", topics.create(_config_twice("t-config-twice"))
    yield "none", topics.create()
    yield "internal", topics.create(_topic("__consumer_offsets_of_mine"))
    for version in range(2, 8):
        yield f"version {version}", topics.create(_topic(f"t-v{version}"), version=version)
        yield f"again in {version}", topics.create(_topic(f"t-v{version}"), version=version)
    for version in (2, 3):
        topic = _topic(f"t-defaults-{version}", DEFAULT, DEFAULT)
        yield f"defaults in {version}", topics.create(topic, version=version)


def _config_twice(name: str) -> create_topics.CreatableTopic:
    topic = _topic(name)
    topic.configs = [
        create_topics.CreatableTopicConfig("retention.ms", value) for value in ("1000", "2000")
    ]
    return topic


# --- CreatePartitions -----------------------------------------------------------------------------


def add(topics: Topics) -> Iterator[Step]:
    topics.create(_topic("p-one"), _topic("p-two", 2), _topic("p-three", 3))
    for validate_only in (True, False):
        for requested in (
            *(("p-one", 0, None), ("p-one", -1, None), ("p-one", 1, None), ("p-two", 1, None)),
            *(("p-none", 2, None), ("", 2, None), ("p bad", 2, None)),
            *(("p-one", 3, [[NODE_ID]]), ("p-one", 2, [[NODE_ID], [NODE_ID]])),
            *(("p-one", 2, [[9]]), ("p-one", 2, [[]]), ("p-one", 2, [[NODE_ID, NODE_ID]])),
            ("p-one", 2, []),
        ):
            step = f"{requested} {validate_only}"
            yield step, topics.add(requested, validate_only=validate_only)
        good = ("p-one", 4, None), ("p-two", 3, [[NODE_ID]])
        yield f"good {validate_only}", topics.add(*good, validate_only=validate_only)
    yield "again", topics.add(("p-one", 4, None))
    yield "twice", topics.add(("p-one", 5, None), ("p-three", 4, None), ("p-one", 6, None))
    yield "one is bad", topics.add(("p-one", 7, None), ("p-none", 4, None), ("p-two", 1, None))
    yield "none", topics.add()


# --- DeleteTopics ---------------------------------------------------------------------------------


def delete(topics: Topics) -> Iterator[Step]:
    topics.create(*(_topic(f"d-{number}") for number in range(12)))
    ids = topics.ids
    yield "by name", topics.delete(("d-0", None))
    yield "again", topics.delete(("d-0", None))
    yield "by id", topics.delete((None, ids["d-1"]))
    yield "by id again", topics.delete((None, ids["d-1"]))
    yield "unknown", topics.delete(("d-none", None), (None, UNKNOWN_ID))
    yield "neither", topics.delete((None, None))
    yield "both", topics.delete(("d-2", ids["d-2"]))
    yield "both, different", topics.delete(("d-2", ids["d-3"]))
    yield "name twice", topics.delete(("d-4", None), ("d-5", None), ("d-4", None))
    yield "id twice", topics.delete((None, ids["d-6"]), (None, ids["d-6"]))
    yield "name and id of one", topics.delete(("d-7", None), (None, ids["d-7"]))
    yield "empty name", topics.delete(("", None))
    yield "bad name", topics.delete(("d bad", None))
    yield "none", topics.delete()
    yield "names", topics.delete_by_name("d-8", "d-none", "d-8")
    for version in range(1, 6):
        yield f"version {version}", topics.delete_by_name("d-9", "d-none", version=version)


@pytest.mark.parametrize("told", [create, add, delete], ids=lambda told: told.__name__)
async def test_topic_requests_get_the_responses_of_kafka(
    told: Any, peer: str, cluster: Cluster
) -> None:
    def tell(address: str) -> list[Step]:
        return list(told(Topics(address)))

    expected, found = [await asyncio.to_thread(tell, at) for at in (peer, cluster.bootstrap)]
    differing = [
        f"{wanted[0]}\n    of Kafka:    {wanted[1]}\n    of Penstock: {response[1]}"
        for wanted, response in zip(expected, found, strict=True)
        if wanted != response
    ]
    assert not differing, "\n".join(differing)
