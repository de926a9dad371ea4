"""Readers report unreadable records or skip them, and read every record that Kafka's consumers can
read.
"""

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import ReadError, scan, sql
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.formats import shown_bytes
from penstock.deploy.console.records import RecordSelection, find_records
from penstock.deploy.output import counted
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.source import PenstockSource
from penstock.lake.table.engines import LocalEngine
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.model import Layout
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import TableSync
from penstock.lake.table.values import ValueFormat
from penstock.lake.table.warehouse import Warehouse
from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.gen import describe_producers
from tests.support.bad_batches import (
    BAD,
    NOW_MS,
    ODD,
    UNCHECKED,
    batch_of,
    good,
    odd,
    record,
    store,
)
from tests.support.cli import run_here
from tests.support.clients import PATIENT_TRANSACTION
from tests.support.reader_objects import sealed
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

READABLE: list[int] = []
for _at, _bad in enumerate(BAD.values()):
    READABLE += [
        6 * _at,
        6 * _at + 1,
        6 * _at + 2,
        *(6 * _at + 3 + delta for delta in _bad.readable),
    ]
END = 6 * len(BAD) + 3
READABLE += [END - 3, END - 2, END - 1]
LOST = sum(max(1, 3 - len(bad.readable)) for bad in BAD.values())
"""In a batch with bytes after its last record, one offset is lost."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as started:
        started.create("bad", 1, configs=UNCHECKED)
        batches = [batch for bad in BAD.values() for batch in (good(), bad.data)]
        store(started.bootstrap, "bad", [*batches, good()])
        started.create("odd", 1, configs=UNCHECKED)
        store(started.bootstrap, "odd", [odd(name) for name in ODD])
        yield started


def test_scan_raises_at_or_skips_unreadable_records(cluster: ThreadedCluster) -> None:
    with pytest.raises(ReadError, match=r"bad-0 at offset 4: .*on_error=\"skip\"") as raised:
        scan(cluster.store_url, "bad").to_table()
    assert (raised.value.partition, raised.value.offset) == (0, 4)
    found = scan(cluster.store_url, "bad", on_error="skip")
    assert found.to_table()["offset"].to_pylist() == READABLE
    reasons = [error.what for error in found.unreadable.errors]
    assert found.unreadable.count == LOST
    assert len(reasons) == len(BAD)
    for reason, bad in zip(reasons, BAD.values(), strict=True):
        assert bad.what in reason
    for columns in (None, ("offset",)):
        skipping = scan(cluster.store_url, "bad", on_error="skip", columns=columns)
        assert skipping.count() == len(READABLE)
        assert skipping.counts() == {0: len(READABLE)}
        assert skipping.unreadable.count == LOST
        assert skipping.to_table().num_rows == len(READABLE)
    # A reader that starts after an unreadable record is not affected by it.
    assert scan(cluster.store_url, "bad", start=5, end=9).to_table()["offset"].to_pylist() == [
        5,
        6,
        7,
        8,
    ]
    with pytest.raises(ValueError, match="on_error 'dead-letter' is not allowed: raise, skip"):
        scan(cluster.store_url, "bad", on_error="dead-letter")  # type: ignore[arg-type]


def test_sql_raises_at_or_skips_unreadable_records(cluster: ThreadedCluster) -> None:
    query = "SELECT _offset FROM bad WHERE a = 1 ORDER BY 1"
    with pytest.raises(ReadError, match="offset 4"):
        sql(query, store=cluster.store_url).rows()
    result = sql(query, store=cluster.store_url, on_error="skip")
    assert [offset for (offset,) in result.rows()] == READABLE
    (warning,) = result.warnings
    assert f"bad: {LOST} offsets cannot be read" in warning
    assert "partition 0, offset 4: the key of a record header is null" in warning
    result = sql("SELECT count(*) FROM bad WHERE a = 1", store=cluster.store_url, on_error="skip")
    assert result.rows() == [(len(READABLE),)]
    query = "SELECT count(*) FROM bad"
    for filtered in ("", " WHERE _offset >= 0"):
        result = sql(query + filtered, store=cluster.store_url, on_error="skip")
        assert result.rows() == [(len(READABLE),)]
    query = "SELECT _partition, count(*) FROM bad GROUP BY ALL"
    assert sql(query, store=cluster.store_url, on_error="skip").rows() == [(0, len(READABLE))]


@pytest.mark.parametrize("streaming", [False, True])
def test_spark_raises_at_or_skips_unreadable_records(
    cluster: ThreadedCluster, streaming: bool
) -> None:
    def offsets(**options: str) -> list[int]:
        given = {
            "store": cluster.store_url,
            "subscribe": "bad",
            "columns": "value,offset",
            **options,
        }
        if streaming:
            given |= {"startingOffsets": "earliest"}
        source = PenstockSource(given)
        reader: Any = (
            source.streamReader(source.schema()) if streaming else source.reader(source.schema())
        )
        if streaming:
            begin = reader.initialOffset()
            tasks = reader.partitions(
                begin, reader.latestOffset(begin, reader.getDefaultReadLimit())
            )
        else:
            tasks = reader.partitions()
        return [
            offset
            for task in tasks
            for batch in reader.read(task)
            for offset in batch.column("offset").to_pylist()
        ]

    with pytest.raises(ReadError, match="offset 4"):
        offsets()
    assert offsets(on_error="skip") == READABLE
    with pytest.raises(ValueError, match="on_error 'x' is not allowed: raise, skip"):
        offsets(on_error="x")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_table_sync_raises_at_skips_or_dead_letters_unreadable_records(
    cluster: ThreadedCluster, mode: str, tmp_path: Path
) -> None:
    # In upsert mode, records without keys are dead letters.
    expected = 0 if mode == "upsert" else len(READABLE)

    def synced(name: str, on_error: str) -> tuple[Any, list[dict[str, Any]]]:
        warehouse = Warehouse(kind="parquet", location=str(tmp_path))
        upsert = mode == "upsert"
        options = SyncOptions(value_format=ValueFormat("raw"), upsert=upsert, on_error=on_error)
        tables = warehouse.table(name, options.layout), warehouse.table(f"{name}__dlq", Layout())
        source = TopicSource(StoreCluster(cluster.store_url), "bad")
        run = TableSync(source, *tables, LocalEngine(1), options)
        report = run.run_batch()
        assert report is not None
        assert run.run_batch() is None
        letters = warehouse.table(f"{name}__dlq", Layout())
        rejects = [
            row
            for file in (letters.files() if letters.state().batch_id else ())
            for row in letters.place().read(file).to_pylist()
            if row["value"] is None
        ]
        return report, rejects

    with pytest.raises(ReadError, match="offset 4"):
        synced("raised", "raise")
    report, rejects = synced("skipped", "skip")
    assert (report.rows, report.skipped, rejects) == (expected, LOST, [])
    report, rejects = synced("lettered", "dead-letter")
    assert (report.rows, report.skipped) == (expected, 0)
    assert [row["offset"] for row in rejects][:2] == [4, 10]
    assert "the key of a record header is null" in rejects[0]["error"]
    assert len(rejects) == len(BAD)
    with pytest.raises(ValueError, match="raise, skip, dead-letter"):
        SyncOptions(on_error="x")


def test_console_lists_readable_records_and_reports_the_others(cluster: ThreadedCluster) -> None:
    query = RecordSelection(topic="bad", start="earliest", value="a", limit=100)
    found = find_records(cluster.store_url, query, lambda _, data, __: shown_bytes(data))
    assert [view.offset for view in found.records] == READABLE
    assert f"{LOST} offsets cannot be read" in found.problem
    since = datetime.fromtimestamp(NOW_MS / 1_000 - 60, UTC)
    query = RecordSelection(topic="bad", start="time", since=since)
    assert find_records(cluster.store_url, query, lambda _, data, __: shown_bytes(data)).records
    query = RecordSelection(topic="odd", start="earliest", limit=100)
    found = find_records(cluster.store_url, query, lambda _, data, __: shown_bytes(data))
    assert (len(found.records), found.problem) == (sum(map(len, ODD.values())), "")


def test_unusual_records_that_kafka_can_read_are_read(cluster: ThreadedCluster) -> None:
    expected = [3 * at + delta for at, deltas in enumerate(ODD.values()) for delta in deltas]
    found = scan(cluster.store_url, "odd", columns=("offset", "timestamp", "headers")).to_table()
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == expected
    by_offset = {row["offset"]: row for row in rows}
    names = list(ODD)
    assert by_offset[3 * names.index("nanoseconds")]["timestamp"].year == 9999
    assert by_offset[3 * names.index("negative timestamps")]["timestamp"].year == 1
    header = by_offset[3 * names.index("header key that is not UTF-8")]["headers"][0]
    assert header["key"] == "��"
    query = "SELECT _offset, _timestamp, a FROM odd ORDER BY 1"
    shown = sql(query, store=cluster.store_url).rows()
    assert [(offset, a) for offset, _, a in shown] == [(offset, 1) for offset in expected]


def test_time_filters_do_not_trust_a_wrong_max_timestamp(cluster: ThreadedCluster) -> None:
    """sarama 1.43 writes -1 as the max timestamp."""
    first = 3 * list(ODD).index("max timestamp -1")
    since, until = (datetime.fromtimestamp(NOW_MS / 1_000 + s, UTC) for s in (-1, 1))
    rows = scan(cluster.store_url, "odd", start=first, since=since, until=until).to_table()
    assert rows["offset"].to_pylist() == [first, first + 1, first + 2]
    query = (
        f"SELECT count(*) FROM odd WHERE _offset >= {first} AND _timestamp > TIMESTAMPTZ '{since}'"
    )
    assert sql(query, store=cluster.store_url).rows() == [(3,)]


def consumed(cluster: ThreadedCluster, topic: str, *arguments: str) -> CompletedProcess[str]:
    command = ("consume", topic, "-b", cluster.bootstrap)
    template = ("--template", "%o %h\\n", "--until-end", "--from-beginning")
    return run_here(*command, *template, *arguments)


@pytest.mark.parametrize("name", ["garbage", "framed snappy", "a truncated record"])
def test_consume_raises_at_or_skips_unreadable_records(cluster: ThreadedCluster, name: str) -> None:
    """librdkafka itself reports only the second kind."""
    topic = name.replace(" ", "-")
    cluster.create(topic, 1, published=False, configs=UNCHECKED)
    store(cluster.bootstrap, topic, [BAD[name].data, good(), BAD[name].data, good()])
    raised = consumed(cluster, topic)
    assert raised.returncode == 1
    assert f"{topic}-0 at offset {len(BAD[name].readable)}: " in raised.stderr
    assert "--on-error skip" in raised.stderr
    skipped = consumed(cluster, topic, "--on-error", "skip")
    readable = BAD[name].readable
    offsets = [*readable, 3, 4, 5, *(6 + delta for delta in readable), 9, 10, 11]
    assert [int(line.split()[0]) for line in skipped.stdout.splitlines()] == offsets, skipped.stderr
    assert (
        f"left out {counted(2 * (3 - len(readable)), 'offset')} that cannot be read"
        in skipped.stderr
    )


@pytest.mark.parametrize("delta", [5, 9, 2**31 - 1])
def test_consume_does_not_end_at_a_record_offset_beyond_its_batch(
    cluster: ThreadedCluster, delta: int
) -> None:
    """librdkafka returns that record; 5 is the last offset of the partition."""
    topic = f"behind-{delta}"
    cluster.create(topic, 1, published=False, configs=UNCHECKED)
    store(cluster.bootstrap, topic, [batch_of(record(0) + record(1) + record(delta)), good()])
    raised = consumed(cluster, topic)
    assert raised.returncode == 1
    assert f"{topic}-0 at offset 2: " in raised.stderr
    skipped = consumed(cluster, topic, "--on-error", "skip")
    assert [int(line.split()[0]) for line in skipped.stdout.splitlines()] == [0, 1, 3, 4, 5]
    assert "left out 1 offset that cannot be read" in skipped.stderr


def test_consume_counts_records_with_an_offset_beyond_their_batch(cluster: ThreadedCluster) -> None:
    """Kafka's consumers return these records, too."""
    topic = "behind"
    cluster.create(topic, 1, published=False, configs=UNCHECKED)
    store(cluster.bootstrap, topic, [batch_of(record(0) + record(1) + record(9)), *[good()] * 5])
    done = consumed(cluster, topic)
    assert [int(line.split()[0]) for line in done.stdout.splitlines()] == [0, 1, 9, *range(3, 18)]
    assert "1 record with an offset beyond the end of its batch" in done.stderr


def test_consume_prints_no_aborted_records_of_a_damaged_batch(cluster: ThreadedCluster) -> None:
    topic = "aborted"
    cluster.create(topic, 1, published=False, configs=UNCHECKED)
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic}
    settings |= PATIENT_TRANSACTION
    for ends in ("commit_transaction", "abort_transaction"):
        producer = Producer(settings)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"sound")
        producer.flush()
        with WireClient(cluster.bootstrap) as client:
            found = client.send_request(
                apis.DESCRIBE_PRODUCERS,
                describe_producers.DescribeProducersRequest(
                    [describe_producers.TopicRequest(topic, [0])]
                ),
                describe_producers.DescribeProducersResponse,
            )
        active = found.topics[0].partitions[0].active_producers
        (state,) = (item for item in active if item.current_txn_start_offset >= 0)
        damaged = bytearray(BAD["a truncated record"].data)
        damaged[22] |= TRANSACTIONAL_MASK
        struct.pack_into(">qhi", damaged, 43, state.producer_id, state.producer_epoch, 1)
        store(cluster.bootstrap, topic, [sealed(damaged)], transactional_id=topic)
        getattr(producer, ends)()
    shown = consumed(cluster, topic, "--on-error", "skip")
    # Each transaction contains one record, the damaged batch of three records, and a marker.
    assert [int(line.split()[0]) for line in shown.stdout.splitlines()] == [0, 1, 2]
    assert "left out 1 offset that cannot be read" in shown.stderr
    everything = consumed(cluster, topic, "--on-error", "skip", "--isolation", "read_uncommitted")
    offsets = [int(line.split()[0]) for line in everything.stdout.splitlines()]
    assert offsets == [0, 1, 2, 5, 6, 7]


def test_count_of_metadata_includes_records_that_repeat_an_offset(cluster: ThreadedCluster) -> None:
    """Kafka's consumers and all readers return the first record of an offset. Only reading the
    batch shows that there is another one.
    """
    first = 3 * list(ODD).index("repeated offsets")
    found = scan(cluster.store_url, "odd", start=first, end=first + 3)
    assert found.to_table()["offset"].to_pylist() == [first, first + 2]
    assert found.count() == 3
    assert scan(cluster.store_url, "odd", start=first, end=first + 3, on_error="skip").count() == 2


def test_consume_returns_records_that_kafka_can_read(cluster: ThreadedCluster) -> None:
    done = consumed(cluster, "odd")
    assert done.returncode == 0, done.stderr
    expected = {3 * at + delta for at, deltas in enumerate(ODD.values()) for delta in deltas}
    assert {int(line.split()[0]) for line in done.stdout.splitlines()} == expected, done.stderr
    named = 3 * list(ODD).index("header key that is not UTF-8")
    assert f"\n{named} \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}=" in done.stdout


def test_consume_shows_header_keys_that_are_not_utf_8(cluster: ThreadedCluster) -> None:
    """In compressed batches of several records, beside valid header keys, with a group, and as
    JSON.
    """
    topic = "names"
    cluster.create(topic, 1, published=False, configs=UNCHECKED)
    headers = b"\x04\x02a\x02x\x02\xff\x02y"
    packed = compress(Compression.ZSTD, b"".join(record(at, headers) for at in range(3)))
    store(cluster.bootstrap, topic, [good(), batch_of(packed, 4), good()])
    for arguments in (
        ("--from-beginning", "--until-end"),
        ("--from-beginning", "--group", "g", "--max-messages", "9"),
    ):
        done = run_here("consume", topic, "-b", cluster.bootstrap, "--json", *arguments)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["offset"] for row in rows] == list(range(9))
        assert {str(row["headers"]) for row in rows[3:6]} == {
            str([["a", "x"], ["\N{REPLACEMENT CHARACTER}", "y"]])
        }


def moment(shift_s: float) -> str:
    return datetime.fromtimestamp(NOW_MS / 1_000 + shift_s, UTC).isoformat()


def deleted_before(cluster: ThreadedCluster, topic: str, shift_s: float) -> str:
    arguments = ("--before-time", moment(shift_s), "--yes", "-b", cluster.bootstrap)
    done = run_here("topics", "delete-records", topic, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_time_lookups_do_not_trust_inconsistent_batch_headers(
    cluster: ThreadedCluster,
) -> None:
    """Deleting records before a time never deletes newer records, nor all records."""
    topic, wrong = "sarama", odd("max timestamp -1")
    cluster.create(topic, 1, configs=UNCHECKED)
    old = bytearray(good())
    struct.pack_into(">qq", old, 27, NOW_MS - 9_000, NOW_MS - 9_000)
    store(cluster.bootstrap, topic, [sealed(old), wrong, BAD["garbage"].data, sealed(old), wrong])

    def first_at(shift_s: float) -> int:
        with Brokers(cluster.bootstrap) as brokers:
            found = brokers.offsets([(topic, 0)], NOW_MS + int(1_000 * shift_s))
        return found[topic, 0]

    def check() -> None:
        assert (first_at(-5), first_at(0)) == (3, 3)
        found = scan(cluster.store_url, topic, start=datetime.fromisoformat(moment(-5)), end=6)
        assert found.offsets == {0: (3, 6)}
        since = datetime.fromisoformat(moment(-5))
        rows = scan(cluster.store_url, topic, since=since, on_error="skip").to_table()
        assert rows["offset"].to_pylist() == [3, 4, 5, 12, 13, 14]

    check()
    everything = [OffsetRange(topic, 0, 0, 15)]
    wait_until(
        lambda: (
            not any(
                part.key.startswith("wal/")
                for part in StoreCluster(cluster.store_url, "").replan(everything)
            )
        )
    )
    check()
    assert deleted_before(cluster, topic, -3_600) == ""
    assert scan(cluster.store_url, topic, start=0, end=3).count() == 3
    kept = deleted_before(cluster, topic, 3_600)
    assert f"{topic}: partitions 0 have no record as new as --before-time" in kept
    assert scan(cluster.store_url, topic).offsets == {0: (0, 15)}


def test_deleting_before_a_time_newer_than_all_records_deletes_nothing(
    cluster: ThreadedCluster,
) -> None:
    cluster.create("idle", 1)
    store(cluster.bootstrap, "idle", [good(), good()])
    assert "idle: partitions 0 have no record as new as --before-time" in deleted_before(
        cluster, "idle", 3_600
    )
    assert scan(cluster.store_url, "idle").count() == 6


def test_doctor_reports_unreadable_records(cluster: ThreadedCluster) -> None:
    command = ("doctor", "--json", "--no-objects")
    places = ("--store", cluster.store_url, "--controller", cluster.controller)

    def unreadable(newest: int) -> dict[str, dict[str, Any]]:
        done = run_here(*command, *places, "--records", str(newest))
        assert done.returncode == 1, done.stderr
        (check,) = (item for item in json.loads(done.stdout)["checks"] if item["name"] == "records")
        assert not check["failed"], check
        return {found["values"]["partition"]: found for found in check["findings"]}

    found = unreadable(1_000)
    assert "odd-0" not in found
    assert found["bad-0"]["code"] == "records-unreadable"
    assert found["bad-0"]["values"]["count"] == LOST
    sentence = found["bad-0"]["sentence"]
    assert "the key of a record header is null (offset 4)" in sentence
    assert "--on-error skip" in found["bad-0"]["mend"]
    # The last batch is valid, and the one before it has one unreadable offset.
    assert unreadable(6)["bad-0"]["values"]["count"] == 1
