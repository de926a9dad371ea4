"""Export topics whose records are deleted by DeleteRecords or removed by log compaction."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from penstock import scan
from penstock.lake.table.errors import RecordsLost
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.table_log import Log
from tests.support.table_runs import Run
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

TOPIC = "t"
KEYS = 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture(params=["iceberg", "parquet"])
def run(request: pytest.FixtureRequest, cluster: ThreadedCluster, tmp_path: Path) -> Run:
    return Run(Log(cluster.store_url, TOPIC, []), tmp_path / "warehouse", request.param)


def produce(cluster: ThreadedCluster, first: int, count: int, partition: int = 0) -> None:
    """Produce rows that contain their offsets, with repeating keys."""
    cluster.produce(
        {
            "topic": TOPIC,
            "partition": partition,
            "key": b"k%d" % (number % KEYS),
            "value": json.dumps({"n": number}).encode(),
        }
        for number in range(first, first + count)
    )


def bounds(cluster: ThreadedCluster, partition: int = 0) -> tuple[int, int]:
    """Return log start and end offset as store readers see them."""
    return scan(cluster.store_url, TOPIC).offsets[partition]


def delete_records(cluster: ThreadedCluster, end: int, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    at = TopicPartition(TOPIC, partition, end)
    admin.delete_records([at])[at].result(TIMEOUT_S)


def exported(run: Run) -> list[int]:
    """Return the offsets of the table's rows, which equal the numbers in the rows."""
    rows = run.rows()
    assert all(row["n"] == row["_offset"] for row in rows)
    return sorted(row["_offset"] for row in rows)


def test_records_deleted_by_a_client_are_reported_once(cluster: ThreadedCluster, run: Run) -> None:
    cluster.create(TOPIC, 2)
    produce(cluster, 0, 60)
    wait_until(lambda: bounds(cluster) == (0, 60))
    run.all()
    produce(cluster, 60, 40)
    delete_records(cluster, 80)
    wait_until(lambda: bounds(cluster) == (80, 100))
    with pytest.raises(RecordsLost):
        run.all()
    with capture_logs() as events:
        run.all(skip_lost=True)
        run.all(skip_lost=True)
    skipped = [event for event in events if event["event"] == "lost_records_skipped"]
    assert [(item["partition"], item["from_offset"], item["to_offset"]) for item in skipped] == [
        (0, 60, 80)
    ]
    assert exported(run) == [*range(60), *range(80, 100)]
    assert run.all() == [], "without the option, because nothing is lost any more"
    produce(cluster, 100, 5)
    wait_until(lambda: bounds(cluster) == (80, 105))
    run.all()
    assert exported(run) == [*range(60), *range(80, 105)]
    produce(cluster, 0, 10, partition=1)  # which was empty in all batches
    delete_records(cluster, 4, partition=1)
    wait_until(lambda: bounds(cluster, 1) == (4, 10))
    with pytest.raises(RecordsLost, match=r"t-1: offsets \[0, 4\)"):
        run.all()
    run.all(skip_lost=True)
    assert exported(run) == sorted([*range(60), *range(80, 105), *range(4, 10)])


@pytest.mark.parametrize("upsert", [False, True])
def test_compacted_topic_is_exported_with_its_gaps(
    cluster: ThreadedCluster, run: Run, upsert: bool
) -> None:
    """The second half of the log is exported after compaction has removed exported rows."""
    create_topic(
        cluster.bootstrap, TOPIC, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0"
    )
    wait_until(lambda: cluster.has(TOPIC))
    produce(cluster, 0, 60)
    cluster.compact(TOPIC)
    first = [*range(48, 60)]
    wait_until(lambda: left(cluster) == first)
    with capture_logs() as events:
        run.all(upsert=upsert)
        assert exported(run) == first
        assert run.state_offsets() == {0: 60}
        produce(cluster, 60, 41)
        cluster.compact(TOPIC)
        second = [*range(89, 101)]
        wait_until(lambda: left(cluster) == second)
        run.all(upsert=upsert)
    assert exported(run) == (second if upsert else [*first, *second])
    assert run.state_offsets() == {0: 101}
    assert [event for event in events if event["event"] == "lost_records_skipped"] == []
    assert run.all(upsert=upsert) == []


def left(cluster: ThreadedCluster) -> list[int]:
    """Return the offsets that compaction has left in the log."""
    table = scan(cluster.store_url, TOPIC, columns=["offset"]).to_table()
    return table["offset"].to_pylist()
