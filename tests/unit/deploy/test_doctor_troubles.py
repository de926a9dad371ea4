"""The doctor's findings about partitions that fail to open and objects that brokers
could not read.
"""

from uuid import UUID

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
)
from penstock.controller.api.load_messages import (
    DamagedObject,
    FailingPartition,
    ProblemLog,
    UntunedClient,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    NodeRecord,
    ObjectCommitted,
    PartitionRecord,
    RangeEntry,
    StreamCreated,
    TopicRecord,
)
from penstock.deploy.doctor import checks as judge
from penstock.deploy.doctor.facts import ClusterFacts, FailingFacts, UnreadableFacts
from penstock.deploy.doctor.failing_partitions import failing, unreadable
from penstock.deploy.doctor.findings import Level
from penstock.stream.format.keys import data_key

TOPIC_ID = UUID(int=7)
SEEN = ClusterFacts(
    "c", 100, (), 1, 3, 5, leaderless=frozenset(), hanging={}, moving_count=0, wals={}
)


def image() -> MetadataImage:
    """Return an image in which broker 1 is leader of partition 0, whose data and meta streams share
    one object.
    """
    found = MetadataImage()
    node = NodeRecord(
        NodeId(1), NodeEpoch(1), UUID(int=1), "", 9092, "h", None, fenced=False, version="1.0"
    )
    streams = (StreamId(1), StreamId(2), StreamId(3))
    partition = PartitionRecord(
        TOPIC_ID, 0, (NodeId(1),), NodeId(1), NodeEpoch(1), StreamEpoch(1), *streams
    )
    ranges = tuple(
        RangeEntry(StreamId(number), Offset(5), Offset(9), 4, 100, Millis(0)) for number in (1, 2)
    )
    found.apply_all(
        [
            ClusterRecord("c"),
            node,
            TopicRecord(TOPIC_ID, "t"),
            StreamCreated(StreamId(1), TOPIC_ID, 0, "meta"),
            StreamCreated(StreamId(2), TOPIC_ID, 0, "data"),
            StreamCreated(StreamId(3), TOPIC_ID, 0, "txn"),
            partition,
            ObjectCommitted(ObjectId(1), data_key(ObjectId(1)), 3, 200, Millis(0), ranges),
        ]
    )
    return found


def cannot_open(number: int) -> FailingPartition:
    return FailingPartition(
        topic_id=TOPIC_ID, partition=number, tries=3, for_ms=9_000, error="ObjectMissing: gone"
    )


def gone(object_id: int, reads: int) -> DamagedObject:
    return DamagedObject(
        key=data_key(ObjectId(object_id)), kind="gone", reads=reads, for_ms=1, error="gone"
    )


def test_findings_contain_partition_broker_and_reason() -> None:
    fails = FailingFacts("t", 2, 1, 23, 41_000, "ObjectMissing: object data/1 is gone.")
    passing = FailingFacts("t", 1, 1, 2, 900, "StreamNotClosed: stream 4 is still open elsewhere")
    lost = UnreadableFacts(
        "data/1",
        "gone",
        (1, 2),
        7,
        "object data/1 is gone",
        ("t-0 [5, 9)", "t-2 (meta stream) [0, 3)"),
    )
    corrupt = UnreadableFacts(
        "data/2", "corrupt", (2,), 1, "object data/2 is corrupt at byte 9: x.", ("t-1 [0, 4)",)
    )
    check = judge.partitions(SEEN, 0, [fails, passing], [lost, corrupt])
    assert check.level is Level.FAIL
    assert (
        check.summary
        == "3 of 1 topic; 0 without a leader, 0 moving, 1 cannot open; 2 objects cannot be read"
    )
    assert [finding.sentence for finding in check.findings] == [
        (
            "t-2 does not open on broker 1, which leads it: 23 attempts in 41 s; the last one"
            " failed with: ObjectMissing: object data/1 is gone."
        ),
        (
            "data/1 is missing in the store: 7 reads of brokers 1, 2 failed. It holds t-0 [5,"
            " 9), t-2 (meta stream) [0, 3)."
        ),
        (
            "data/2 is corrupt (object data/2 is corrupt at byte 9: x): 1 read of broker 2 failed."
            " It holds t-1 [0, 4)."
        ),
    ]


def test_reports_of_brokers_are_used_only_if_the_metadata_confirms_them() -> None:
    said = {
        1: ProblemLog(
            failing=(cannot_open(0), cannot_open(1)), damaged=(gone(1, reads=3), gone(99, reads=3))
        ),
        2: ProblemLog(failing=(cannot_open(0),), damaged=(gone(1, reads=4),)),
    }
    assert failing(image(), said) == [FailingFacts("t", 0, 1, 3, 9_000, "ObjectMissing: gone")]
    (found,) = unreadable(image(), said)
    assert (found.key, found.node_ids, found.reads) == (data_key(ObjectId(1)), (1, 2), 7)
    assert found.ranges == ("t-0 [5, 9)", "t-0 (meta stream) [5, 9)")
    assert failing(image(), {}) == unreadable(image(), {}) == []


def test_clients_with_limiting_settings_are_hints() -> None:
    def untuned(client_id: str, host: str = "10.0.0.9") -> UntunedClient:
        return UntunedClient(
            client_id=client_id, host=host, settings="linger.ms=50", reason="it waits", for_ms=1
        )

    problems = {
        1: ProblemLog(untuned=(untuned("shop"), untuned(""))),
        2: ProblemLog(untuned=(untuned("shop"),)),
    }
    check = judge.clients(problems)
    assert (check.level, check.summary) == (Level.HINT, "2 producers could send more")
    assert [finding.sentence for finding in check.findings] == [
        "Producer without client.id at 10.0.0.9 would send more with linger.ms=50: it waits.",
        "Producer shop at 10.0.0.9 would send more with linger.ms=50: it waits.",
    ]
    assert judge.clients({}).level is Level.OK
