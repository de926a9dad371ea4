"""`scan` reads from the store alone the same records that clients consume through brokers, and
passes them to any consumer of Arrow streams.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from penstock import (
    ManifestNotFound,
    OffsetsMissing,
    ReadConfig,
    Scan,
    TopicReplaced,
    UnknownPartition,
    scan,
)
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.arrow.columns import NAMES
from penstock.lake.arrow.topic_scan import ScanLease
from penstock.lake.manifest.plan import OffsetRange
from penstock.stream.format.layout import TAIL_BYTES
from tests.support.threaded_cluster import Row, ThreadedCluster
from tests.support.waiting import PATIENCE_S

PARTITIONS = 3
COUNT = 900
BASE_MS = 1_700_000_000_000
ONE_BY_ONE = ReadConfig(
    gets_in_flight_max=1, parts_ahead_max=1, part_bytes_max=1, gap_bytes_max=0, rows_max=50
)
"""Reads ahead as little as possible, so most objects are requested late."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def create(cluster: ThreadedCluster, topic: str, partitions: int) -> None:
    """Create the topic and wait until the manifest contains it."""
    cluster.create(topic, partitions)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            scan(cluster.store_url, topic)
        except UnknownPartition:
            assert time.monotonic() < deadline
        else:
            return


def records(topic: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    for i in range(first, first + count):
        headers: list[tuple[str, Any]] = [("n", b"%d" % i), ("null", None)][: i % 3]
        value = None if i % 11 == 0 else b"%d" % i * (i % 7)
        yield {
            "topic": topic,
            "partition": i % PARTITIONS,
            "key": None if i % 5 == 0 else b"k%d" % i,
            "value": value,
            "timestamp": BASE_MS + i,
            "headers": headers,
        }


@pytest.fixture(scope="module")
def topic(cluster: ThreadedCluster) -> str:
    create(cluster, "t", PARTITIONS)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        cluster.produce(
            records("t", number * COUNT // 5, COUNT // 5), **{"compression.type": codec}
        )
    return "t"


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of all columns in the form of a consumer's records."""
    at = table.schema.get_field_index("timestamp")
    found: list[Row] = []
    for row in table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist():
        headers = (
            None
            if row["headers"] is None
            else tuple((item["key"], item["value"]) for item in row["headers"])
        )
        timestamp_ms = row["timestamp"] // 1_000
        found.append(
            (
                row["key"],
                row["value"],
                row["topic"],
                row["partition"],
                row["offset"],
                timestamp_ms,
                row["timestampType"],
                headers,
            )
        )
    return found


def offsets(found: Scan) -> dict[int, list[int]]:
    rows = found.to_table().to_pylist()
    return {
        number: [row["offset"] for row in rows if row["partition"] == number]
        for number in found.offsets
    }


def test_scan_returns_the_records_of_a_consumer_including_the_wal_tail(
    cluster: ThreadedCluster, topic: str
) -> None:
    found = scan(cluster.store_url, topic, columns=NAMES)
    consumed = cluster.consume(topic, PARTITIONS, COUNT)
    assert rows_of(found.to_table()) == consumed
    cluster.produce(records(topic, COUNT, 30))
    assert rows_of(found.to_table()) == consumed, "a scan is of fixed offsets"
    longer = scan(cluster.store_url, topic, columns=NAMES).to_table()
    assert longer.num_rows == COUNT + 30, "what was acknowledged is there at once"
    create(cluster, "empty", 1)
    assert scan(cluster.store_url, "empty").to_table().num_rows == 0


def test_scan_selects_ranges_by_offset_timestamp_and_partition(
    cluster: ThreadedCluster, topic: str
) -> None:
    url = cluster.store_url
    assert offsets(scan(url, topic, start=10, end=20)) == {
        number: list(range(10, 20)) for number in range(PARTITIONS)
    }
    assert offsets(scan(url, topic, partitions=[2], start=7, end={2: 9})) == {2: [7, 8]}
    assert offsets(scan(url, topic, start={1: 5, 0: 0}, end={0: 0, 1: 7})) == {0: [], 1: [5, 6]}
    assert offsets(scan(url, topic, partitions=[0], start="latest")) == {0: []}
    moment = datetime.fromtimestamp(BASE_MS // 1_000, UTC)
    by_time = scan(
        url,
        topic,
        start=moment + timedelta(milliseconds=300),
        end=moment + timedelta(milliseconds=330),
        columns=["timestamp"],
    )
    found = [
        int(row["timestamp"].timestamp() * 1_000 + 0.5) - BASE_MS
        for row in by_time.to_table().to_pylist()
    ]
    assert sorted(found) == list(range(300, 330))
    assert scan(url, topic, start=moment + timedelta(days=1)).to_table().num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "none"}, UnknownPartition),
        ({"partitions": [7]}, UnknownPartition),
        ({"end": 10**9}, OffsetsMissing),
        ({"start": 10**9}, ValueError),
        ({"start": 5, "end": 4}, ValueError),
        ({"start": {0: 1}, "end": {1: 2}}, ValueError),
        ({"start": "begin"}, ValueError),
        ({"start": datetime(2020, 1, 1)}, ValueError),  # noqa: DTZ001 - the point
        ({"columns": ["offset", "offset"]}, ValueError),
        ({"columns": ["body"]}, ValueError),
    ],
)
def test_scan_rejects_missing_topics_and_invalid_arguments(
    cluster: ThreadedCluster, topic: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        scan(cluster.store_url, **{"topic": topic} | arguments)


def test_scan_does_not_read_a_recreated_topic_in_place_of_the_old_one(
    cluster: ThreadedCluster,
) -> None:
    create(cluster, "short", PARTITIONS)
    cluster.produce(records("short", 0, 60))
    before = scan(cluster.store_url, "short")
    streams = stream_ids(cluster)
    cluster.delete("short")
    create(cluster, "short", PARTITIONS)
    deadline = time.monotonic() + PATIENCE_S
    while stream_ids(cluster) == streams:
        assert time.monotonic() < deadline
    cluster.produce(records("short", 0, 90))
    with pytest.raises(TopicReplaced):
        before.to_table()


def stream_ids(cluster: ThreadedCluster) -> set[int]:
    """Return the stream ids as a reader sees them, up to 1 s old; empty if there is no
    such topic.
    """
    try:
        return {state.stream_id for state in StoreCluster(cluster.store_url).partitions("short")}
    except UnknownPartition:
        return set()


def test_arrow_stream_consumers_read_a_scan(cluster: ThreadedCluster, topic: str) -> None:
    found = scan(cluster.store_url, topic, columns=["partition", "offset", "value"], end=100)
    expected = [(number, 100, 4950) for number in range(PARTITIONS)]
    query = (
        'SELECT partition, count(*), sum("offset")::BIGINT FROM source GROUP BY partition ORDER BY'
        " partition"
    )
    with duckdb.connect() as database:
        for source in (found, found.to_reader(), found.to_table()):
            database.register("source", source)
            assert database.sql(query).fetchall() == expected
    reader = found.to_reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == found.schema
    frame = found.to_table().to_pandas()
    assert frame.groupby("partition")["offset"].sum().to_dict() == dict.fromkeys(
        range(PARTITIONS), 4950
    )


def test_polars_pandas_and_duckdb_get_the_same_rows(cluster: ThreadedCluster, topic: str) -> None:
    found = scan(cluster.store_url, topic)
    expected = found.to_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert expected.num_rows
    frame = polars.DataFrame(found).sort("partition", "offset")
    assert frame.equals(polars.from_arrow(expected))
    assert frame.to_dicts() == expected.to_pylist()
    pandas_frame = expected.to_pandas()
    assert pandas_frame.equals(
        polars.from_arrow(found.to_table())
        .sort("partition", "offset")
        .to_arrow()
        .cast(found.schema)
        .to_pandas()
    )
    with duckdb.connect() as database:
        database.register("source", found)
        database.sql("SET TimeZone = 'UTC'")
        rows = database.sql('SELECT * FROM source ORDER BY partition, "offset"').to_arrow_table()
    assert rows.cast(found.schema).equals(expected)


def test_view_columns_have_the_same_rows_in_polars_pandas_duckdb_and_parquet(
    cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    expected = scan(cluster.store_url, topic).to_table()
    found = scan(cluster.store_url, topic, views=True)
    assert found.schema.field("value").type == pa.binary_view()
    assert found.to_table().cast(expected.schema).equals(expected)
    assert polars.DataFrame(found).equals(polars.from_arrow(expected))
    assert found.to_table().to_pandas().equals(expected.to_pandas())
    with duckdb.connect() as database:
        database.register("source", found)
        query = 'SELECT key, value FROM source ORDER BY partition, "offset"'
        assert (
            database.sql(query)
            .to_arrow_table()
            .cast(expected.schema.empty_table().select(["key", "value"]).schema)
            .equals(
                expected.sort_by([("partition", "ascending"), ("offset", "ascending")]).select(
                    ["key", "value"]
                )
            )
        )
    pq.write_table(found.to_table(), tmp_path / "views.parquet")
    assert pq.read_table(tmp_path / "views.parquet", schema=expected.schema).equals(expected)


def test_scan_survives_the_upload_and_deletion_of_its_objects(
    cluster: ThreadedCluster,
) -> None:
    create(cluster, "uploaded", 1)
    tail = bytes(TAIL_BYTES)  # a smaller slot would arrive completely together with its index
    for number in range(12):
        cluster.produce([{"topic": "uploaded", "partition": 0, "value": b"%d" % number + tail}])
    found = scan(
        cluster.store_url,
        "uploaded",
        columns=["offset", "value"],
        config=replace(ONE_BY_ONE, rows_max=1),
    )
    keys = {
        part.key
        for part in StoreCluster(cluster.store_url).plan([OffsetRange("uploaded", 0, 0, 12)])
    }
    with structlog.testing.capture_logs() as logs:
        batches = iter(found)
        rows = next(batches).to_pylist()
        deadline = time.monotonic() + PATIENCE_S
        while keys & cluster.run(keys_of(cluster)):
            cluster.produce([{"topic": "uploaded", "partition": 0, "value": b"later"}])
            assert time.monotonic() < deadline
            time.sleep(0.1)  # sets the rate: the store does not signal changes
        for batch in batches:
            rows += batch.to_pylist()
    assert rows == [{"offset": i, "value": b"%d" % i + tail} for i in range(12)]
    assert any(entry["event"] == "plan_renewed" for entry in logs)


async def keys_of(cluster: ThreadedCluster) -> set[str]:
    return {info.key async for info in cluster.store.list("wal/")}


def test_long_scan_holds_a_lease_and_removes_it_at_its_end(
    cluster: ThreadedCluster, topic: str
) -> None:
    async def leases() -> list[str]:
        return [info.key async for info in cluster.store.list("leases/")]

    source = StoreCluster(cluster.store_url)
    source.partitions(topic)
    now = [0.0]
    lease = ScanLease(source, lambda: now[0])
    lease.renew_if_due()
    assert cluster.run(leases()) == [], "short passes cost nothing"
    for now[0] in (31.0, 100.0, 300.0):
        lease.renew_if_due()
        assert len(cluster.run(leases())) == 1
    lease.close()
    assert cluster.run(leases()) == []


def test_program_exits_silently_after_a_scan(
    cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from penstock import ManifestNotFound, scan\n"
        "try: scan(sys.argv[1], 't')\n"
        "except ManifestNotFound: print(scan(sys.argv[2], 't', end=5).to_table().num_rows)"
    )
    command = [sys.executable, "-c", code, f"file:{tmp_path}", cluster.store_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (done.stdout, done.stderr) == (f"{5 * PARTITIONS}\n", "")


def test_scan_of_a_local_directory_needs_no_server(tmp_path: Path) -> None:
    with pytest.raises(ManifestNotFound):
        scan(f"file:{tmp_path}", "t")


def test_scan_of_lost_data_fails_with_advice(
    cluster: ThreadedCluster,
) -> None:
    """The stdout of the program contains only its own output."""
    create(cluster, "lost", 1)
    cluster.produce(
        {"topic": "lost", "partition": 0, "value": b"%d" % number} for number in range(8)
    )
    key = cluster.until_uploaded("lost", set())
    deadline = time.monotonic() + PATIENCE_S
    while {
        part.key for part in StoreCluster(cluster.store_url).replan([OffsetRange("lost", 0, 0, 8)])
    } != {key}:
        assert time.monotonic() < deadline
    data = cluster.run(cluster.store.get(key))
    cluster.run(cluster.store.delete([key]))
    code = (
        "import sys\n"
        "from penstock import ObjectStillMissing, scan\n"
        "try:\n"
        "    scan(sys.argv[1], 'lost').to_table()\n"
        "except ObjectStillMissing as error:\n"
        "    sys.stderr.write(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, cluster.store_url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    cluster.run(cluster.store.put(key, data))
    assert done.stdout == ""
    assert done.stderr.startswith(
        f"lost-0: offsets [0, 8) cannot be read: object {key} is gone from the store, and 4 plans"
        " named it"
    )
    assert scan(cluster.store_url, "lost").to_table().num_rows == 8


def test_count_equals_the_number_of_rows(cluster: ThreadedCluster) -> None:
    create(cluster, "counted", PARTITIONS)
    cluster.produce(records("counted", 0, COUNT), **{"compression.type": "zstd"})
    assert scan(cluster.store_url, "counted").count() == COUNT
    part = scan(
        cluster.store_url, "counted", start={0: 0, 1: 1, 2: 2}, end={0: 250, 1: 250, 2: 250}
    )
    assert part.count() == part.to_table().num_rows == 747
    moment = datetime.fromtimestamp((BASE_MS + 400) / 1_000, UTC)
    for views in (False, True):
        older = scan(cluster.store_url, "counted", until=moment, views=views)
        assert older.count() == older.to_table().num_rows == 400
    both = scan(
        cluster.store_url,
        "counted",
        since=moment,
        until=moment + timedelta(milliseconds=7),
        columns=NAMES,
    )
    assert both.count() == 7
    found = rows_of(both.to_table())
    assert sorted(row[5] for row in found) == list(range(BASE_MS + 400, BASE_MS + 407))
    assert scan(cluster.store_url, "counted", until=moment, since=moment).count() == 0
    with pytest.raises(ValueError, match="time zone"):
        scan(cluster.store_url, "counted", since=datetime(2026, 1, 1))  # noqa: DTZ001 - refused
    wrong: Any = "2026-01-01"
    with pytest.raises(ValueError, match="'2026-01-01' is not a datetime"):
        scan(cluster.store_url, "counted", since=wrong)
    for wrong in ("first", None, 1.5):
        with pytest.raises(ValueError, match=f"{wrong!r} is not a position"):
            scan(cluster.store_url, "counted", start=wrong)
        with pytest.raises(ValueError, match=f"{wrong!r} is not an offset"):
            scan(cluster.store_url, "counted", start={0: wrong})
