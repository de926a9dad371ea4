"""Measure forks: the metadata cost with 100,000 objects, and a fork of 1,000 partitions as a client
sees it.
"""

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients, harness
from benchmarks.controllers import large_image
from benchmarks.harness import Measure
from penstock.base.ids import Millis, NodeId, Offset
from penstock.controller.api.messages import CreateTopics, ForkedPartition, TopicFork
from penstock.controller.api.messages import NewTopic as WantedTopic
from penstock.controller.managers.topics import TopicDefaults, create_topics
from penstock.controller.metadata.codec import decode_record, encode_record
from penstock.controller.metadata.records import Record

PARTITIONS: Final = 1_000
OBJECTS: Final = 100_000
_ROUNDS: Final = 5
_SOURCE: Final = "source"
_FORK: Final = "fork"
_RECORDS_PER_PARTITION: Final = 20
_TIMEOUT_S: Final = 60.0
_COUNTED: Final = ("data_reads", "data_writes", "wal_reads", "wal_writes")


def forks() -> list[Measure]:
    """Fork a topic in two ways: in the metadata only, and over the Kafka protocol."""
    return [_metadata(), *_over_kafka()]


def _metadata() -> Measure:
    """Return the median time of planning, encoding, decoding and applying the records to two
    images.
    """
    times: list[float] = []
    for _ in range(_ROUNDS):
        images = [large_image(PARTITIONS, OBJECTS) for _ in range(2)]
        topic = images[0].topics.by_name("large")
        assert topic is not None
        ends = [
            images[0].streams.known(item.data_stream_id).end_offset for item in topic.partitions
        ]
        nothing = Offset(0)
        points = [
            ForkedPartition(end_offset=end, scan_offset=end, txn_end_offset=nothing) for end in ends
        ]
        fork = TopicFork(source_topic_id=topic.topic_id, partitions=points)
        requested = WantedTopic(name=_FORK, partitions=PARTITIONS, fork=fork)
        began = time.perf_counter()
        records = create_topics(
            images[0],
            CreateTopics(topics=[requested]),
            new_uuid=lambda: UUID(int=9),
            live=[NodeId(0)],
            defaults=TopicDefaults(),
            now_ms=Millis(0),
            move_timeout_ms=10_000,
        ).records
        images[0].apply_all(records)
        images[1].apply_all(_transferred(records))
        times.append(time.perf_counter() - began)
        forked = images[1].topics.by_name(_FORK)
        assert forked is not None
        entries = images[1].streams.known(forked.partitions[0].data_stream_id).entries
        assert len(entries) == OBJECTS // PARTITIONS
    return Measure(
        f"fork of {PARTITIONS:,} partitions with {OBJECTS:,} objects: metadata",
        harness.quantile(times, 0.5),
        "s",
        1.0,
        "lower",
        note="controller and broker, one after the other",
    )


def _transferred(records: Sequence[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) for record in records]


def _over_kafka() -> list[Measure]:
    with harness.server(store="memory:", log_cache_bytes_max=128 << 20) as system:
        admin = AdminClient({"bootstrap.servers": system.bootstrap})
        _create(admin, NewTopic(_SOURCE, PARTITIONS, 1))
        producer = clients.producer(system.bootstrap)
        for number in range(PARTITIONS * _RECORDS_PER_PARTITION):
            producer.produce(_SOURCE, b"x" * 1_000, partition=number % PARTITIONS)
        assert producer.flush(_TIMEOUT_S) == 0
        times = [_fork(admin, 0)]
        before = system.send_request()
        times += [_fork(admin, number) for number in range(1, _ROUNDS)]
        after = system.send_request()
    assert before["data_writes"], "the first fork uploads its source"
    made = {name: after[name] - before[name] for name in _COUNTED}
    return [
        Measure(
            f"fork of {PARTITIONS:,} partitions by CreateTopics",
            harness.quantile(times, 0.5),
            "s",
            1.0,
            "lower",
            note=f"first {times[0]:.2f} s, which uploads",
        ),
        Measure(
            f"GETs and PUTs of objects and WAL slots by {_ROUNDS - 1} more forks",
            sum(made.values()),
            "",
            0,
            "lower",
            note=", ".join(f"{name} {count}" for name, count in made.items()),
        ),
    ]


def _fork(admin: AdminClient, number: int) -> float:
    config = {"penstock.fork.source": _SOURCE}
    began = time.perf_counter()
    _create(admin, NewTopic(f"{_FORK}{number}", -1, -1, config=config))
    return time.perf_counter() - began


def _create(admin: AdminClient, topic: NewTopic) -> None:
    admin.create_topics([topic], request_timeout=_TIMEOUT_S)[topic.topic].result(_TIMEOUT_S)
