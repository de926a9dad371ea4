"""The readers called as Spark calls them, without a Spark session but with a real cluster: data
loss, micro-batch limits, and the start of a query over several runs.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.lake.spark.cluster import SparkCluster
from penstock.lake.spark.errors import DataLoss, OffsetsMismatch
from penstock.lake.spark.limit_types import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from penstock.lake.spark.offsets import OffsetsJson
from penstock.lake.spark.source import BatchReader, StreamReader
from penstock.lake.spark.starts import QueryStart
from pyspark_penstock import DefaultSource
from tests.support.spark_session import needs_limits, needs_pushdown
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

Place = tuple[int, int]
PATIENT = {"fetchOffset.retryIntervalMs": 200, "fetchOffset.numRetries": 5 * PATIENCE_S}


def source(cluster: ThreadedCluster, topic: str, **options: object) -> DefaultSource:
    given = {
        "store": cluster.store_url,
        "subscribe": topic,
        # Without the timestamp column, rows would come from the plan, and objects would not be
        # read.
        "columns": "partition,offset,timestamp",
        "fetchOffset.retryIntervalMs": "10",
        **options,
    }
    return DefaultSource({name: str(value) for name, value in given.items()})


def stream(cluster: ThreadedCluster, topic: str, **options: object) -> StreamReader:
    made = source(cluster, topic, **{"startingOffsets": "earliest", **options})
    return made.streamReader(made.schema())


def batch(cluster: ThreadedCluster, topic: str, **options: object) -> BatchReader:
    made = source(cluster, topic, **options)
    return made.reader(made.schema())


def read(reader: StreamReader | BatchReader, partitions: Sequence[InputPartition]) -> list[Place]:
    found: list[Place] = []
    for task in partitions:
        for rows in reader.read(task):
            found += zip(
                rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True
            )
    return sorted(found)


def plain(offsets: OffsetsJson) -> OffsetsJson:
    """Return offsets without topic ids, as Kafka's source writes them."""
    return {topic: parts for topic, parts in offsets.items() if parts}


def without_bodies(tasks: Sequence[InputPartition]) -> list[InputPartition]:
    """Return the tasks as they are for large slots, without the bytes already read during planning.
    Each object must exist when its task runs; otherwise its offsets are planned again.
    """
    return [InputPartition(replace(task.value, bodies={})) for task in tasks]


def fill(cluster: ThreadedCluster, topic: str, count: int, partitions: int = 1) -> None:
    cluster.produce(
        {"topic": topic, "partition": number % partitions, "value": b"%d" % number * 20}
        for number in range(count)
    )


@needs_pushdown
def test_spark_sees_the_inherited_push_filters_method(
    cluster: ThreadedCluster,
) -> None:
    """Spark refuses readers that override this method while push-down is disabled."""
    assert DefaultSource.name() == "penstock"
    cluster.create("found", 1)
    assert batch(cluster, "found").pushFilters.__func__ is DataSourceReader.pushFilters


def test_query_waits_for_a_newly_created_topic(cluster: ThreadedCluster) -> None:
    cluster.create("fresh", 1, published=False)
    reader = stream(cluster, "fresh", **PATIENT)
    assert plain(reader.initialOffset()) == {"fresh": {"0": 0}}
    with pytest.raises(
        OffsetsMismatch, match=r"topics do not exist: nothing; the cluster has .*fresh"
    ):
        stream(cluster, "nothing").initialOffset()


def test_restarted_query_rejects_topics_that_never_existed(cluster: ThreadedCluster) -> None:
    cluster.create("known", 1)
    fill(cluster, "known", 3)
    names = "known,knwon"
    start = {"known": {"0": 0}}
    with pytest.raises(OffsetsMismatch, match="topics do not exist: knwon"):
        stream(cluster, names).latestOffset(start, ReadAllAvailable())
    loose = stream(cluster, names, failOnDataLoss="false")
    assert plain(loose.latestOffset(start, ReadAllAvailable())) == {"known": {"0": 3}}
    cluster.create("knwon", 1, published=False)
    waiting = stream(cluster, names, **PATIENT)
    assert plain(waiting.latestOffset(start, ReadAllAvailable()))["known"] == {"0": 3}


def test_objects_deleted_between_plan_and_read_are_planned_again(cluster: ThreadedCluster) -> None:
    cluster.create("gone", 2)
    before = cluster.keys("wal/")
    fill(cluster, "gone", 300, 2)
    reader = stream(cluster, "gone")
    tasks = reader.partitions(reader.initialOffset(), {"gone": {"0": 150, "1": 120}})
    named = {part.key for task in tasks for part in task.value.slices}
    assert named & (cluster.keys("wal/") - before), "the plan must name WAL objects"
    cluster.until_deleted(named)
    expected = [(0, offset) for offset in range(150)] + [(1, offset) for offset in range(120)]
    assert read(reader, tasks) == expected, "the tasks must carry the slots that planning has read"
    assert read(reader, without_bodies(tasks)) == expected
    again = stream(cluster, "gone").partitions(
        {"gone": {"0": 0, "1": 0}}, {"gone": {"0": 150, "1": 120}}
    )
    assert read(reader, again) == expected, "a replay must give the same rows from other objects"
    reader.stop()


def test_query_on_a_recreated_topic_reports_data_loss(cluster: ThreadedCluster) -> None:
    cluster.create("vanish", 1)
    cluster.create("stays", 1)
    fill(cluster, "vanish", 10)
    fill(cluster, "stays", 10)
    strict = stream(cluster, "vanish,stays", queryId="vanish")
    loose = stream(cluster, "vanish,stays", failOnDataLoss="false")
    start = strict.initialOffset()
    assert start == loose.initialOffset()
    assert plain(start) == {"stays": {"0": 0}, "vanish": {"0": 0}}
    tasks = strict.partitions(start, {"stays": {"0": 10}, "vanish": {"0": 10}})
    cluster.delete("vanish")
    wait_until(lambda: not cluster.has("vanish"))
    with pytest.raises(DataLoss, match=r"Partitions Set\(vanish-0\) have been deleted\."):
        strict.latestOffset(start, ReadAllAvailable())
    end = loose.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"stays": {"0": 10}}
    assert read(loose, loose.partitions(start, end)) == [(0, offset) for offset in range(10)]
    cluster.create("vanish", 1)
    fill(cluster, "vanish", 20)
    restarted = stream(cluster, "vanish,stays", queryId="vanish")
    for broken in (strict, restarted):
        with pytest.raises(
            DataLoss, match=r"Topics have been deleted and created again: vanish \(id .*, now .*\)"
        ):
            broken.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="deleted"):
        wait_until(lambda: read(strict, without_bodies(tasks)) == [])
    strict.stop()


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(3), ReadMaxBytes(1 << 20)])
def test_checkpoint_of_a_recreated_topic_is_detected(
    cluster: ThreadedCluster, limit: ReadLimit
) -> None:
    """Without `queryId`, after a restart, when the new topic is longer than the old one."""
    name = f"again-{type(limit).__name__}"
    for topic in (name, f"{name}-stays"):
        cluster.create(topic, 1)
        fill(cluster, topic, 10)
    names = f"{name},{name}-stays"
    first = stream(cluster, names)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {name: {"0": 10}, f"{name}-stays": {"0": 10}}
    assert json.loads(json.dumps(end)) == end
    assert batch(cluster, names, startingOffsets=json.dumps(end)).partitions() == []
    cluster.delete(name)
    wait_until(lambda: not cluster.has(name))
    cluster.create(name, 1)
    fill(cluster, name, 20)
    copied = {"startingOffsets": json.dumps(end)}
    for first_call in (
        stream(cluster, names, **copied).latestOffset,
        batch(cluster, names, **copied).partitions,
    ):
        with pytest.raises(OffsetsMismatch, match=f"created again: {name} "):
            first_call()
    strict = stream(cluster, names)
    for call in (
        lambda: strict.latestOffset(end, limit),
        lambda: strict.partitions(start, end),
        lambda: first.latestOffset(end, limit),
    ):
        with pytest.raises(
            DataLoss, match=rf"failOnDataLoss to false.*created again: {name} \(id .*, now .*\)"
        ):
            call()
    loose = stream(cluster, names, failOnDataLoss="false")
    rows: list[Place] = []
    assert read(loose, loose.partitions(start, end)) == [(0, offset) for offset in range(10)]
    for _ in range(8):
        later = loose.latestOffset(end, limit)
        assert plain(later)[f"{name}-stays"] == {"0": 10}
        rows += read(loose, loose.partitions(end, later))
        end = later
    assert rows == [(0, offset) for offset in range(20)], "the new topic begins at its start"
    restarted = stream(cluster, names)
    assert restarted.latestOffset(end, limit) == end


def test_checkpoint_without_topic_ids_continues(cluster: ThreadedCluster) -> None:
    """Kafka's source and older versions write such checkpoints."""
    cluster.create("older", 1)
    fill(cluster, "older", 10)
    reader = stream(cluster, "older", queryId="older")
    start = {"older": {"0": 4}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"older": {"0": 10}} != end
    assert read(reader, reader.partitions(start, end)) == [(0, offset) for offset in range(4, 10)]


def test_deleted_records_fail_a_micro_batch_or_are_skipped(cluster: ThreadedCluster) -> None:
    cluster.create("old", 1)
    fill(cluster, "old", 30)
    strict, loose = stream(cluster, "old"), stream(cluster, "old", failOnDataLoss="false")
    cluster.trim("old", 12)
    start, end = {"old": {"0": 5}}, {"old": {"0": 25}}
    with pytest.raises(
        DataLoss,
        match=(
            r"Could not read records in offset \[5, 12\) for topic partition old-0: the log starts"
            r" at 12"
        ),
    ):
        strict.partitions(start, end)
    assert read(loose, loose.partitions(start, end)) == [(0, offset) for offset in range(12, 25)]
    with pytest.raises(DataLoss, match="Partition old-0 offset was changed from 99 to 30"):
        strict.latestOffset({"old": {"0": 99}}, ReadAllAvailable())
    assert plain(loose.latestOffset({"old": {"0": 99}}, ReadAllAvailable())) == {
        "old": {"0": 99}
    }, "offsets must not go back"
    with pytest.raises(DataLoss, match=r"Added partition old-0 starts from 12 instead of 0"):
        strict.partitions({}, end)


@pytest.mark.parametrize("is_told_start", [True, False], ids=["4.2", "4.1"])
def test_query_waits_for_a_manifest_as_new_as_its_checkpoint(
    cluster: ThreadedCluster, is_told_start: bool
) -> None:
    """Spark 4.0 and 4.1 plan the end offsets of the checkpoint, and then request the latest offsets
    without passing a start.
    """
    topic = f"behind-{is_told_start}"
    cluster.create(topic, 2)
    fill(cluster, topic, 20, 2)
    ahead = {topic: {"0": 15, "1": 10}}

    def end_of(reader: StreamReader) -> OffsetsJson:
        assert list(reader.partitions(ahead, ahead)) == [], "nothing to read, so nothing is lost"
        return plain(reader.latestOffset(ahead) if is_told_start else reader.latestOffset())

    with pytest.raises(DataLoss, match=r"from 15 to 10\..*increase fetchOffset\.numRetries"):
        end_of(stream(cluster, topic))
    assert end_of(stream(cluster, topic, failOnDataLoss="false")) == ahead, "never go back"
    other = {topic: {"0": 15, "1": 4}}
    with pytest.raises(DataLoss, match="changed from 15 to 10"):
        stream(cluster, topic).partitions(other, {topic: {"0": 10, "1": 10}})
    tasks = stream(cluster, topic).partitions(other, ahead)
    assert read(stream(cluster, topic), tasks) == [(1, offset) for offset in range(4, 10)]
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(end_of, stream(cluster, topic, **PATIENT))
        fill(cluster, topic, 10)
        assert late.result(PATIENCE_S) == {topic: {"0": 20, "1": 10}}


def test_query_that_starts_at_latest_begins_before_its_first_end(
    cluster: ThreadedCluster,
) -> None:
    """Spark 4.0 and 4.1 request the start after the end, and records arrive in between."""
    cluster.create("busy", 1)
    fill(cluster, "busy", 5)
    reader = stream(cluster, "busy", startingOffsets="latest", queryId="busy")
    end = reader.latestOffset()
    fill(cluster, "busy", 5)
    start = reader.initialOffset()
    assert (plain(start), plain(end)) == ({"busy": {"0": 5}}, {"busy": {"0": 5}})
    assert reader.partitions(start, end) == []
    later = reader.latestOffset()
    assert read(reader, reader.partitions(end, later)) == [(0, offset) for offset in range(5, 10)]
    stored = stream(cluster, "busy", startingOffsets="latest", queryId="busy")
    assert plain(stored.latestOffset()) == {"busy": {"0": 10}}
    assert plain(stored.initialOffset()) == {"busy": {"0": 5}}
    ahead = stream(cluster, "busy", startingOffsets='{"busy":{"0":12}}')
    with pytest.raises(DataLoss, match="changed from 12 to 10"):
        ahead.latestOffset()


@pytest.mark.parametrize(
    "starting",
    [
        {"startingOffsets": '{"grows":{"0":2,"1":-2}}'},
        {"startingOffsetsByTimestamp": '{"grows":{"0":0,"1":0}}', "allowVolatileStart": "true"},
    ],
    ids=["offsets", "timestamps"],
)
def test_partitions_added_before_a_crash_in_the_first_batch_do_not_stop_the_query(
    cluster: ThreadedCluster, starting: dict[str, str]
) -> None:
    """Kafka's source stores the start in the checkpoint and only checks it in the first run."""
    topic = f"grows-{len(starting)}"
    cluster.create(topic, 2)
    fill(cluster, topic, 10, 2)
    options = {name: text.replace("grows", topic) for name, text in starting.items()}
    first = stream(cluster, topic, **options)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    expected = read(first, first.partitions(start, end))
    cluster.grow(topic, 3)
    wait_until(lambda: "2" in stream(cluster, topic).latestOffset()[topic])
    again = stream(cluster, topic, **options)
    assert read(again, again.partitions(again.initialOffset(), end)) == expected
    assert "2" in again.latestOffset(end, ReadAllAvailable())[topic]
    new = stream(cluster, topic, **options)
    with pytest.raises(OffsetsMismatch, match="don't match what are assigned"):
        new.latestOffset(new.initialOffset(), ReadAllAvailable())


def test_available_now_run_extends_an_end_that_is_older_than_its_start(
    cluster: ThreadedCluster,
) -> None:
    cluster.create("frozen", 2)
    fill(cluster, "frozen", 20, 2)
    reader = stream(cluster, "frozen", startingOffsets="latest", allowVolatileStart="true")
    reader.prepareForTriggerAvailableNow()
    fill(cluster, "frozen", 10, 1)
    start = reader.initialOffset()
    assert plain(start) == {"frozen": {"0": 20, "1": 10}}
    fill(cluster, "frozen", 10, 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"frozen": {"0": 25, "1": 10}}, "other partitions stay frozen"
    assert read(reader, reader.partitions(start, end)) == [(0, offset) for offset in range(20, 25)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def test_batch_query_waits_for_the_offsets_in_its_options(cluster: ThreadedCluster) -> None:
    cluster.create("named", 1)
    fill(cluster, "named", 10)
    limits = [{"endingOffsets": '{"named":{"0":15}}'}, {"startingOffsets": '{"named":{"0":15}}'}]
    with pytest.raises(DataLoss, match=r"offset \[10, 15\) for topic partition named-0"):
        batch(cluster, "named", **limits[0]).partitions()
    with pytest.raises(OffsetsMismatch, match="start offset 15 is greater than"):
        batch(cluster, "named", **limits[1]).partitions()
    nothing = {"endingOffsets": '{"named":{"0":15}}', "startingOffsets": '{"named":{"0":15}}'}
    assert batch(cluster, "named", **nothing).partitions() == [], "as Kafka's source"
    readers = [batch(cluster, "named", **limit, **PATIENT) for limit in limits]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(reader.partitions) for reader in readers]
        fill(cluster, "named", 10)
        planned = [found.result(PATIENCE_S) for found in waiting]
    assert read(readers[0], planned[0]) == [(0, offset) for offset in range(15)]
    assert [offset for _, offset in read(readers[1], planned[1])][:5] == list(range(15, 20))


@needs_limits
def test_micro_batches_respect_limits_of_rows_and_bytes(cluster: ThreadedCluster) -> None:
    cluster.create("limits", 2)
    fill(cluster, "limits", 200, 2)
    unlimited = stream(cluster, "limits")
    start = unlimited.initialOffset()
    assert unlimited.getDefaultReadLimit() == ReadAllAvailable()
    assert (
        plain(unlimited.latestOffset(start, ReadAllAvailable()))
        == unlimited.reportLatestOffset()
        == {"limits": {"0": 100, "1": 100}}
    )
    rows = stream(cluster, "limits", maxOffsetsPerTrigger=40)
    assert rows.getDefaultReadLimit() == ReadMaxRows(40)
    assert plain(rows.latestOffset(start, ReadMaxRows(40))) == {"limits": {"0": 20, "1": 20}}
    assert plain(rows.latestOffset({"limits": {"0": 100}}, ReadMaxRows(40))) == {
        "limits": {"0": 100, "1": 40}
    }, "a new partition must begin at its start"
    assert plain(rows.latestOffset(start, ReadAllAvailable())) == {"limits": {"0": 100, "1": 100}}
    sizes = stream(cluster, "limits", maxBytesPerTrigger=1_000)
    assert sizes.getDefaultReadLimit() == ReadMaxBytes(1_000)
    end = sizes.latestOffset(start, ReadMaxBytes(1_000))["limits"]
    assert all(0 < end[partition] < 50 for partition in "01")
    few = stream(cluster, "limits", minOffsetsPerTrigger=300, maxOffsetsPerTrigger=400)
    assert few.getDefaultReadLimit() == ReadMinRows(300)
    assert plain(few.latestOffset(start, ReadMinRows(300))) == {"limits": {"0": 100, "1": 100}}, (
        "the minimum must not delay the first batch"
    )
    assert few.latestOffset(start, ReadMinRows(300)) == start, (
        "the minimum must delay the next batch"
    )
    few.prepareForTriggerAvailableNow()
    assert few.getDefaultReadLimit() == ReadMaxRows(400)
    fill(cluster, "limits", 20, 2)
    end_now = few.latestOffset(start, ReadMaxRows(400))
    assert plain(end_now) == {"limits": {"0": 100, "1": 100}}, (
        "later records must not be part of an available-now run"
    )
    assert len(read(few, few.partitions(start, end_now))) == 200
    with pytest.raises(
        OffsetsMismatch,
        match="lower or equal offset per each topic partition than pre-fetched offset",
    ):
        few.partitions(start, {"limits": {"0": 101, "1": 100}})
    few.stop()


def test_start_of_a_query_is_determined_once(cluster: ThreadedCluster, tmp_path: object) -> None:
    cluster.create("begin", 1)
    fill(cluster, "begin", 7)
    ways = {"queryId": "begin"}, {"initialOffsetsLocation": f"file:{tmp_path}"}
    for way in ways:
        reader = stream(cluster, "begin", startingOffsets="latest", **way)
        assert plain(reader.initialOffset()) == {"begin": {"0": 7}}
    fill(cluster, "begin", 5)
    for way in ways:
        reader = stream(cluster, "begin", startingOffsets="latest", **way)
        assert plain(reader.initialOffset()) == {"begin": {"0": 7}}
    reader = stream(cluster, "begin", startingOffsets="latest", queryId="another")
    assert plain(reader.initialOffset()) == {"begin": {"0": 12}}
    with pytest.raises(
        OffsetsMismatch, match=r"queryId 'begin' contains the start of a query .* topics: begin"
    ):
        stream(cluster, "other", queryId="begin").initialOffset()
    racing = QueryStart(SparkCluster(cluster.store_url, ""), "race", "")
    assert racing.load() is None
    assert (
        racing.decide({"begin": {"0": 3}})
        == racing.decide({"begin": {"0": 4}})
        == racing.load()
        == {"begin": {"0": 3}}
    )


@pytest.mark.parametrize("options", [{}, {"queryId": "grown"}], ids=["resolved", "stored"])
def test_first_micro_batch_is_replayed_after_partitions_were_added(
    cluster: ThreadedCluster, options: dict[str, str]
) -> None:
    topic = f"grown{len(options)}"
    cluster.create(topic, 1)
    fill(cluster, topic, 10)
    crashed = stream(cluster, topic, **options)
    end = crashed.latestOffset(crashed.initialOffset(), ReadAllAvailable())
    cluster.grow(topic, 2)
    wait_until(lambda: len(cluster.look(topic).bounds) == 2)
    fill(cluster, topic, 10, 2)
    restarted = stream(cluster, topic, **options)
    start = json.loads(json.dumps(restarted.initialOffset()))
    assert ("1" in start[topic]) == (not options)
    rows = read(restarted, restarted.partitions(start, end))
    assert rows == [(0, offset) for offset in range(10)], "the same rows as before the crash"
    later = restarted.latestOffset(end, ReadAllAvailable())
    assert (
        read(restarted, restarted.partitions(end, later))
        == [(partition, offset) for partition, ends in ((0, 15), (1, 5)) for offset in range(ends)][
            10:
        ]
    )


def test_volatile_start_never_stops_a_query(cluster: ThreadedCluster) -> None:
    """After a crash in the first micro-batch, the new start may be beyond its end."""
    cluster.create("beyond", 1)
    volatile = {"startingOffsets": "latest", "allowVolatileStart": "true"}
    crashed = stream(cluster, "beyond", **volatile)
    start = crashed.initialOffset()
    fill(cluster, "beyond", 10)
    end = crashed.latestOffset(start, ReadAllAvailable())
    fill(cluster, "beyond", 5)
    restarted = stream(cluster, "beyond", **volatile)
    start = restarted.initialOffset()
    assert plain(start) == {"beyond": {"0": 15}}
    assert restarted.partitions(start, end) == [], "these records may be lost"
    later = restarted.latestOffset(end, ReadAllAvailable())
    rows = read(restarted, restarted.partitions(end, later))
    assert rows == [(0, offset) for offset in range(10, 15)]


def test_lease_is_held_while_a_query_runs(cluster: ThreadedCluster) -> None:
    cluster.create("lease", 1)
    fill(cluster, "lease", 3)
    before = cluster.keys("leases/")
    reader = stream(cluster, "lease")
    for _ in range(2):
        reader.partitions({"lease": {"0": 0}}, {"lease": {"0": 3}})
    assert len(cluster.keys("leases/") - before) == 1
    reader.stop()
    assert cluster.keys("leases/") - before == set()
    batch(cluster, "lease").partitions()
    assert len(cluster.keys("leases/") - before) == 1
    batch(cluster, "lease", readLeaseTtl="0").partitions()
    assert len(cluster.keys("leases/") - before) == 1
