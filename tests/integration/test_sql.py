"""`penstock.sql` returns from the store what clients have written: types, transactions, tombstones
and earlier states. It reads only the objects that a statement needs.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import polars
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import penstock
from penstock import SqlError, SqlStopped, ValueFormat, scan, topics
from penstock.lake.arrow.background import background
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.sql.session import Session, SessionOptions
from penstock.lake.sql.tokens import quoted
from penstock.lake.table.engines import LocalEngine
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.model import Layout
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import BatchReport, TableSync
from penstock.lake.table.warehouse import Warehouse
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store
from penstock.protocol.registry.model import RegistryUnavailable
from penstock.protocol.registry.settings import registry_settings
from penstock.protocol.registry.wire_format import frame
from tests.support.clients import PATIENT_TRANSACTION
from tests.support.schema_registry import SchemaRegistryServer, guid_of, serving
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

BASE_MS = 1_700_000_000_000
ORDERS = 3_000
PARTITIONS = 3
HOSTILE = """a"b.c''$'; DROP TABLE x --"""


class CountingStore:
    """A store that counts the bytes read from data objects."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.size_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = await self._store.get_range(key, start, length)
        if key.startswith("data/"):
            self.size_bytes += len(found)
        return found


class Sql:
    """A cluster, and queries on its store."""

    def __init__(self, cluster: ThreadedCluster) -> None:
        self.cluster = cluster
        self.url = cluster.store_url

    def __call__(self, query: str, **options: Any) -> list[tuple[Any, ...]]:
        return penstock.sql(query, store=self.url, **options).rows()

    def result(self, query: str, **options: Any) -> penstock.SqlResult:
        result = penstock.sql(query, store=self.url, **options)
        result.arrow()
        return result

    def write(self, topic: str, values: list[bytes | None], partitions: int = 1) -> None:
        self.cluster.create(topic, partitions)
        self.cluster.produce(
            {"topic": topic, "value": value, "partition": 0, "timestamp": BASE_MS + number}
            for number, value in enumerate(values)
        )


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sql]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as cluster:
        cluster.create("orders", PARTITIONS)
        cluster.produce(
            {
                "topic": "orders",
                "partition": number % PARTITIONS,
                "key": b"k%d" % number,
                "value": json.dumps(
                    {
                        "id": number,
                        "amount": number / 4,
                        "user": ["ann", "bob"][number % 2],
                        "placed": f"2026-03-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
                        "tags": ["a", str(number)],
                        "address": {"city": "Zürich", "zip": number},
                        "note": "x" * 200,
                    }
                ).encode(),
                "timestamp": BASE_MS + number * 1_000,
                "headers": [("trace", b"%d" % number)] if number % 2 else None,
            }
            for number in range(ORDERS)
        )
        yield Sql(cluster)


def test_result_has_the_expected_columns_types_and_formats(sql: Sql) -> None:
    described = {name: kind for name, kind, *_ in sql("DESCRIBE orders")}
    assert described == {
        "_partition": "INTEGER",
        "_offset": "BIGINT",
        "_timestamp": "TIMESTAMP WITH TIME ZONE",
        "_key": "VARCHAR",
        "id": "BIGINT",
        "amount": "DOUBLE",
        "user": "VARCHAR",
        "placed": "TIMESTAMP WITH TIME ZONE",
        "tags": "VARCHAR[]",
        "address": "STRUCT(city VARCHAR, zip BIGINT)",
        "note": "VARCHAR",
    }
    query = (
        "SELECT id, amount, tags[2], address.city, _key, _partition, _offset, _timestamp, placed, "
        "_headers[1].value, decode(_value) AS raw FROM orders WHERE id = 7"
    )
    result = sql.result(query)
    (row,) = result.rows()
    assert row[:7] == (7, 1.75, "7", "Zürich", "k7", 1, 2)
    assert row[7] == datetime.fromtimestamp(BASE_MS / 1_000 + 7, UTC)
    assert row[8] == datetime(2026, 3, 1, 0, 0, 7, tzinfo=UTC)
    assert row[9] == b"7"
    assert json.loads(row[10])["id"] == 7
    assert result.warnings == []
    assert result.pandas()["id"].tolist() == [7]
    assert result.polars()["id"].to_list() == [7]
    assert isinstance(result.polars(), polars.DataFrame)
    assert [name for name, _, count in sql("SHOW TABLES") if name == "orders" and count == 3]
    assert sql(
        "WITH big AS (SELECT * FROM orders WHERE amount > 700) SELECT a.user, count(*) FROM big a"
        " JOIN orders b USING (id) GROUP BY 1 ORDER BY 1"
    ) == [("ann", 99), ("bob", 100)]


def test_filters_columns_and_limits_read_only_needed_blocks(sql: Sql) -> None:
    """Each block of the topic contains one partition, and blocks are small enough to tell which
    ones a statement reads.
    """
    filler = b"y" * 900_000
    sql.cluster.create("wide", 4)
    for number in range(24):
        sql.cluster.produce(
            [
                {
                    "topic": "wide",
                    "partition": number % 4,
                    "value": b'{"n": %d, "filler": "%s"}' % (number, filler),
                    "timestamp": BASE_MS + number * 1_000,
                }
            ]
        )

    wait_until(lambda: all(part.key.startswith("data/") for part in scan(sql.url, "wide")._plan()))

    async def counted() -> CountingStore:
        store = CountingStore(open_store(sql.url))
        background()._stores[sql.url] = store  # type: ignore[assignment]
        return store

    url, sql.url = sql.url, f"{sql.url}&region=us-east-1"
    try:
        store = background().run(counted())
        session = Session(sql.url)

        def read(query: str) -> tuple[list[tuple[Any, ...]], int]:
            before = store.size_bytes
            rows = session.run(query).rows()
            return rows, (store.size_bytes - before) // len(filler)

        with session:
            everything, all_mb = read("SELECT n FROM wide ORDER BY n")
            assert [n for (n,) in everything] == list(range(24))
            assert all_mb >= 24
            rows, mb = read("SELECT n FROM wide WHERE _partition = 2 ORDER BY n")
            assert ([n for (n,) in rows], mb) == ([2, 6, 10, 14, 18, 22], 6)
            rows, mb = read("SELECT n FROM wide WHERE _partition = 1 AND _offset >= 4 ORDER BY n")
            assert [n for (n,) in rows] == [17, 21]
            assert mb <= 2
            moment = datetime.fromtimestamp(BASE_MS / 1_000 + 20, UTC).isoformat()
            rows, mb = read(f"SELECT n FROM wide WHERE _timestamp >= '{moment}' ORDER BY n")
            assert [n for (n,) in rows] == [20, 21, 22, 23]
            assert mb <= 8
            assert read("SELECT count(*) FROM wide") == ([(24,)], 0)
            rows, mb = read("SELECT n FROM wide LIMIT 1")
            assert len(rows) == 1
            assert mb < all_mb
            assert session.run("SELECT 1").rows() == [(1,)], "a session works after LIMIT"
    finally:
        sql.url = url


def test_values_of_another_type_are_null_and_reported(sql: Sql) -> None:
    fine = [
        b'{"n": %d, "ok": true, "s": {"x": 1}, "t": "2026-01-01T00:00:00Z"}' % n for n in range(600)
    ]
    odd = [
        b'{"n": 1.5}',
        b'{"n": "many"}',
        b'{"n": 99999999999999999999}',
        b'{"n": 9007199254740993}',
        b'{"s": {"x": "text"}, "t": "later"}',
        b"not json",
        b"[1, 2]",
        b'{"s": "\xff"}',
        b"",
        None,
        b'{"n": null}',
        b'{"deep": ' + b"[" * 5_000 + b"]" * 5_000 + b', "n": 5}',
    ]
    sql.write("odd", [*fine, *odd, *fine])
    first = len(fine)
    result = sql.result(
        f"SELECT _offset, n, ok, s.x, t FROM odd ORDER BY 1 LIMIT {len(odd)} OFFSET {first}"
    )
    assert [row[1] for row in result.rows()] == [None, None, None, 2**53 + 1, *[None] * 7, 5]
    place = "the first at partition 0, offset "
    assert [warning.replace(place, "") for warning in result.warnings] == [
        f"odd: 4 values cannot be decoded, and give NULLs, {first + 5}",
        f"odd: 3 values of n do not fit BIGINT and are NULL, {first}",
        f"odd: 1 values of s do not fit STRUCT and are NULL, {first + 4}",
        f"odd: 1 values of t do not fit TIMESTAMP WITH TIME ZONE and are NULL, {first + 4}",
    ]
    assert sql("SELECT count(*), count(n), sum(n) FROM odd WHERE n < 600") == [
        (1_201, 1_201, 2 * sum(range(600)) + 5)
    ]
    assert sql("SELECT count(*) FROM odd WHERE _value IS NULL") == [(1,)]
    with pytest.raises(SqlError, match=r"odd: .* values .* without strict"):
        sql("SELECT n FROM odd", strict=True)
    assert len(sql("SELECT n FROM odd WHERE _offset < 100", strict=True)) == 100


def test_topics_without_json_and_with_unusual_names_are_queried(sql: Sql) -> None:
    sql.write("raw.topic-1", [b"\x00\xff", b"plain", None])
    assert sql('SELECT _offset, value FROM "raw.topic-1" ORDER BY 1') == [
        (0, b"\x00\xff"),
        (1, b"plain"),
        (2, None),
    ]
    with pytest.raises(SqlError, match=r'need quotes: "raw.topic-1"'):
        sql("SELECT * FROM raw.topic-1")
    sql.write("text", [b"plain", b"72", b"[1]"])
    assert sql("SELECT value FROM text ORDER BY _offset") == [("plain",), ("72",), ("[1]",)]
    sql.write(
        "names",
        [
            json.dumps(
                {"Id": 1, "id": 2, "id_1": 6, "": 3, "_offset": 4, HOSTILE: 5, "a\0": 7}
            ).encode()
        ],
    )
    result = sql.result(f"SELECT *, {quoted(HOSTILE)} AS odd FROM names")
    assert result.columns[4:] == ["Id", "id_2", "id_1", HOSTILE, "odd"]
    assert result.rows()[0][4:] == (1, 2, 6, 5, 5)
    assert sql("SELECT decode(_value)->>'_offset' FROM names") == [("4",)]
    sql.cluster.create("empty", 1)
    assert sql("SELECT count(*) FROM empty") == [(0,)]
    assert sql("SELECT * FROM empty") == []
    schema = {
        "type": "record",
        "name": "Trip",
        "fields": [
            {"name": "km", "type": "int"},
            {"name": "to", "type": "string"},
            {"name": "_id", "type": "int"},
            {"name": "_OFFSET", "type": "int"},
            {"name": "_key", "type": "bytes"},
        ],
    }
    values = b"\x54\x06JFK\x02\x02\x02\xff"
    sql.write("trips", [b"\0\0\0\0\1" + values, b"junk", None, b"\0\0\0\0\2" + values])
    given = [(1, json.dumps(schema).encode())]
    formats = {"trips": ValueFormat.of("avro", given, framed=True)}
    query = 'SELECT _offset, _key, km, "to", _id FROM trips ORDER BY 1'
    result = sql.result(query, formats=formats)
    missing = (None, None, None, None)
    assert result.rows() == [(0, None, 42, "JFK", 1), *((n, *missing) for n in (1, 2, 3))]
    assert "trips: 2 values cannot be decoded" in result.warnings[0]
    assert "offset 1: ValueError: the value does not begin with a magic byte" in result.warnings[0]


def sale(*names: str) -> str:
    fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "Sale", "fields": fields})


def test_columns_follow_schemas_in_record_headers(sql: Sql) -> None:
    """The values have no wire format prefix. Columns follow the schema of most sampled records."""
    value = b"\2\2\2\4"
    with serving(SchemaRegistryServer()) as server:
        number = server.register("headed-value", {"schema": sale("price", "qty")})
        header = ("__value_schema_id", b"\1" + UUID(guid_of(number)).bytes)
        sql.cluster.create("headed", 1)
        records: list[tuple[bytes, list[Any]]] = [
            (value, [header]),
            (frame(number) + value, []),
            (value, [("__value_schema_id", b"junk")]),
        ]
        sql.cluster.produce(
            {"topic": "headed", "partition": 0, "value": value, "headers": headers}
            for value, headers in records
        )
        query = "SELECT price, qty FROM headed ORDER BY _offset"
        result = sql.result(query, schema_registry=server.url)
        assert result.rows() == [(1, 2), (1, 2), (None, None)]
        assert "does not contain the id or GUID" in result.warnings[0]
        (row,) = sql("SELECT len(_headers) AS n FROM headed LIMIT 1", schema_registry=server.url)
        assert row == (1,)


def test_topic_has_columns_as_soon_as_its_schema_is_registered(sql: Sql) -> None:
    """The process caches for a while that an id is not registered."""
    with serving(SchemaRegistryServer()) as server:
        sql.write("early", [frame(1) + b"\2\2\2\4"])
        assert len(sql("SELECT value FROM early", schema_registry=server.url)) == 1
        assert server.register("early-value", {"schema": sale("price", "qty")}) == 1
        found = sql("SELECT price, qty FROM early", schema_registry=server.url)
        assert found == [(1, 2)]


def test_columns_follow_the_newest_schema_of_a_registry(sql: Sql, tmp_path: Path) -> None:
    """Confluent serializers write the records; statements and exports decode each record by its
    schema id. A failing registry creates no dead letters.
    """
    place = SerializationContext("sales", MessageField.VALUE)
    with serving(SchemaRegistryServer(user_info="reader:a secret")) as server:
        given = {
            "schema.registry.url": server.url,
            "basic.auth.user.info": "reader:a secret",
            "retry.ms": "0",
        }
        client = {"url": server.url, "basic.auth.user.info": "reader:a secret"}
        with SchemaRegistryClient(client) as registry:
            first, second = (
                AvroSerializer(registry, sale(*names))
                for names in (("price", "qty"), ("qty", "price", "tip"))
            )
            values = [first({"price": 1, "qty": 2}, place), b"\0\0\0\0\x63\2\2", None]
            sql.write("sales", values)

            def export() -> list[BatchReport]:
                settings = registry_settings(given)
                assert settings is not None
                value_format = ValueFormat.registered(settings, "sales-value")
                warehouse = Warehouse(kind="parquet", location=str(tmp_path / "tables"))
                tables = (warehouse.table(name, Layout()) for name in ("sales", "sales__dlq"))
                options = SyncOptions(value_format=value_format)
                source = TopicSource(StoreCluster(sql.url), "sales")
                sync = TableSync(source, *tables, LocalEngine(1), options)
                return list(iter(sync.run_batch, None))

            assert [(report.rows, report.rejected) for report in export()] == [(2, 1)]
            sql.cluster.produce(
                [{"topic": "sales", "value": second({"price": 3, "qty": 4, "tip": 5}, place)}]
            )
            query = "SELECT _offset, price, qty, tip FROM sales ORDER BY 1"
            for options in ({}, {"max_seconds": 60}):
                result = sql.result(query, schema_registry=given, **options)
                assert result.rows() == [
                    (0, 1, 2, None),
                    (1, None, None, None),
                    (2, None, None, None),
                    (3, 3, 4, 5),
                ]
                assert "returned 404 for GET /schemas/ids/99" in result.warnings[0]
            counters: list[bytes | None] = [number.to_bytes(8) for number in (1, 255, 1 << 40)]
            sql.write("counters", counters)
            found = sql("SELECT value FROM counters ORDER BY _offset", schema_registry=given)
            assert [value for (value,) in found] == counters, "no ids 0 and 65,536"
            server.fails = True
            with pytest.raises(RegistryUnavailable, match="returned 500"):
                export()
            server.fails = False
            assert [(report.rows, report.rejected) for report in export()] == [(1, 0)]
    warehouse = Warehouse(kind="parquet", location=str(tmp_path / "tables"))
    rows = warehouse.read("sales", 1 << 30).sort_by("_offset").select(["price", "qty", "tip"])
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (1, 2, None),
        (None, None, None),
        (3, 4, 5),
    ]
    (dead,) = warehouse.read("sales__dlq", 1 << 30).to_pylist()
    assert "404 for GET /schemas/ids/99" in dead["error"]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"a secret" in content for content in files)


def test_transactions_compacted_topics_and_binary_keys_are_queried(sql: Sql) -> None:
    sql.cluster.create("ledger", 1)
    producer = Producer(
        {"bootstrap.servers": sql.cluster.bootstrap, "transactional.id": "sql"}
        | PATIENT_TRANSACTION
    )
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce("ledger", b'{"n": %d}' % number, b"\xff%d" % number)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(60)
    producer.begin_transaction()
    producer.produce("ledger", b'{"n": 99}')
    producer.flush(PATIENCE_S)
    query = "SELECT n, _key FROM ledger ORDER BY n"
    assert sql(query) == [(1, b"\xff1"), (3, b"\xff3")]
    assert sql("SELECT count(*) FROM ledger") == [(2,)]
    producer.commit_transaction(60)
    wait_until(lambda: len(sql(query)) == 3)

    admin = AdminClient({"bootstrap.servers": sql.cluster.bootstrap})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    admin.create_topics([NewTopic("compacted", 1, 1, config=config)])["compacted"].result(
        PATIENCE_S
    )
    wait_until(lambda: sql.cluster.has("compacted"))
    sql.cluster.produce(
        {"topic": "compacted", "key": b"k%d" % (n % 5), "value": b'{"n": %d}' % n}
        for n in range(50)
    )
    sql.cluster.produce([{"topic": "compacted", "key": b"k0", "value": None}])
    sql.cluster.compact("compacted")
    newest = [(f"k{n % 5}", n) for n in range(46, 50)]
    wait_until(
        lambda: sql("SELECT _key, n FROM compacted WHERE n IS NOT NULL ORDER BY n") == newest
    )
    assert sql("SELECT _key FROM compacted WHERE _value IS NULL") == [("k0",)]


def test_earlier_states_are_queried_by_time_and_by_snapshot(sql: Sql) -> None:
    moment = datetime.fromtimestamp(BASE_MS / 1_000 + 10, UTC)
    query = f"SELECT count(*), max(o.id) FROM orders AS OF TIMESTAMP '{moment.isoformat()}' o"
    assert sql(query) == [(10, 9)]
    assert sql("SELECT count(*) FROM orders", as_of=moment) == [(10,)]
    assert sql(
        f"SELECT count(*) FROM orders LEFT JOIN orders AS OF TIMESTAMP '{moment.isoformat()}' old"
        " USING (id) WHERE old.id IS NULL"
    ) == [(ORDERS - 10,)]
    query = "SELECT count(*) FROM orders AS OF SNAPSHOT 'nightly'"
    with pytest.raises(SqlError, match="'orders@nightly' does not exist"):
        sql(query)
    admin = AdminClient({"bootstrap.servers": sql.cluster.bootstrap})
    config = {"penstock.fork.source": "orders"}
    snapshot = NewTopic("orders@nightly", -1, -1, config=config)
    admin.create_topics([snapshot])["orders@nightly"].result(PATIENCE_S)
    wait_until(lambda: any(topic.snapshot for topic in topics(sql.url, snapshots=True)))
    count = sql("SELECT count(*) FROM orders")
    sql.cluster.produce([{"topic": "orders", "partition": 0, "value": b"{}"}])
    assert sql(query) == count == sql("SELECT count(*) FROM orders", snapshot="nightly")
    assert sql("SHOW TABLES", snapshot="nightly") == [("orders", "topic", PARTITIONS)]


def test_recreated_topic_has_columns_of_its_own(sql: Sql) -> None:
    cluster = sql.cluster
    with Session(cluster.store_url) as session:
        for value, columns, row in (
            ({"a": 1}, ["a"], (1,)),
            ({"b": "x", "c": True}, ["b", "c"], ("x", True)),
        ):
            cluster.create("again", 1)
            cluster.produce([{"topic": "again", "value": json.dumps(value).encode()}])
            found = session.run("SELECT * FROM again")
            assert [*zip(found.columns, *found.rows(), strict=True)][4:] == [
                *zip(columns, row, strict=True)
            ]
            cluster.delete("again")
            wait_until(lambda: not cluster.has("again"))


def test_errors_list_existing_topics_and_columns(sql: Sql, tmp_path: Path) -> None:
    sql.write("fields", [json.dumps({f"f{number}": number for number in range(10_000)}).encode()])
    assert sql("SELECT f999, decode(_value)->>'$.f9999' FROM fields") == [(999, "9999")]
    for query, message in {
        "SELECT * FROM ordres": "did you mean orders",
        "SELECT * FROM nothing": "named 'nothing'; topics are: .*orders.*; SHOW TABLES lists them",
        "SELECT extract(day FROM _timestamp) FROM nowhere": "topic or view is named 'nowhere'",
        "SELECT * FROM orders o JOIN a.b USING (id)": "no topic or view is named 'a.b'",
        "SELECT amont FROM orders": "FROM clause; columns of orders: _partition, .* amount",
        "SELECT fields.f1100 FROM fields": r"columns of fields: .* and .* more; .*>>'\$\.f1100'",
        'SELECT "f 1" FROM fields': r"""decode\(_value\)->>'\$\."f 1"'""",
        "INSERT INTO orders VALUES (1)": "'orders' cannot be changed by SQL: .*produce orders",
        'UPDATE "orders" SET amount = 1': "topic 'orders' cannot be changed",
        "DELETE FROM ORDERS": "topic 'orders' cannot be changed",
        "DROP VIEW orders": "topic 'orders' cannot be changed",
        "WITH x AS (SELECT 1) INSERT INTO orders SELECT * FROM x": "cannot be changed",
        "INSERT INTO nothing VALUES (1)": "named 'nothing'",
        "SELECT * FROM main.orders": "'orders' is a topic.* without a schema",
        "SELECT 1; SELECT 2": "one statement; there are 2",
        " -- nothing": "the statement is empty",
        "SELEC 1": "syntax error",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'": "neither read nor write files: use SELECT",
        f"COPY orders TO '{tmp_path}/out.csv'": "neither read nor write files: use SELECT",
        "SELECT * FROM read_csv('/etc/passwd')": "disabled by configuration",
        "SELECT * FROM '/etc/passwd'": "does not exist|disabled|no topic",
        f"ATTACH '{tmp_path}/x.db'": "disabled by configuration",
        "INSTALL httpfs": "disabled by configuration",
        "SET enable_external_access = true": "locked|cannot",
    }.items():
        with pytest.raises(SqlError, match=f"(?i){message}"):
            sql(query)
    assert list(tmp_path.iterdir()) == []
    missing = {"temp_directory": f"{tmp_path}/none"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"memory_limit": "lots"}, "memory_limit 'lots'"),
        (missing, "temp_directory .*/none' cannot be used: No such"),
        (missing | {"cancel": threading.Event()}, "temp_directory .*/none' cannot be used"),
        ({"snapshot": "none"}, "no topic has a snapshot 'none'; `penstock snapshots list`"),
    ]
    for options, message in refused:
        with pytest.raises(SqlError, match=message):
            sql("SELECT * FROM orders", **options)
    with pytest.raises(ValueError, match="max_rows must not be negative, got -1"):
        sql("SELECT 1", max_rows=-1)


def test_limits_cancel_a_statement_and_remove_its_temporary_files(sql: Sql, tmp_path: Path) -> None:
    endless = "SELECT sum(a.id * b.id * c.id) FROM orders a, orders b, orders c"
    with pytest.raises(SqlStopped, match="longer than its limit"):
        sql(endless, max_seconds=0.5)
    cancel = threading.Event()
    options = SessionOptions(temp_directory=str(tmp_path))
    with Session(sql.url, options) as session:
        timer = threading.Timer(0.5, session.interrupt)
        timer.start()
        with pytest.raises(SqlStopped, match="canceled"):
            session.run(endless, cancel=cancel).rows()
        assert cancel.is_set()
        count = session.run("SELECT count(*) FROM orders WHERE id > 0")
        assert count.rows() == [(ORDERS - 1,)]
        session.run("CREATE VIEW big AS SELECT id FROM orders WHERE id > 2990")
        assert session.run("SELECT count(*) FROM big").rows() == [(9,)]
        sql.cluster.produce([{"topic": "orders", "partition": 0, "value": b'{"id": 2991}'}])
        assert session.run("SELECT count(*) FROM big").rows() == [(10,)], "new records are seen"
        result = session.run("SELECT id FROM orders", max_rows=7)
        assert (len(result.rows()), result.is_truncated) == (7, True)
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []
    cancel.set()
    with pytest.raises(SqlStopped, match="canceled"):
        sql("SELECT id FROM orders", cancel=cancel)


ENDLESS_CALL = "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000))"
"""A single function call that computes for minutes without a cancellation check."""


FAILING_QUERIES = """
import json, resource, sys
import penstock
store, options, *queries = sys.argv[1:]
for query in queries:
    try:
        penstock.sql(query, store=store, **json.loads(options)).rows()
    except penstock.SqlError as error:
        print(" ".join(str(error).split()))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Prints the errors and the peak memory of the largest child process. Measured in a separate
process, because the test process also has children of other tests.
"""


def test_limits_apply_within_one_function_call(sql: Sql, tmp_path: Path) -> None:
    given: dict[str, Any] = {"memory_limit": "300MB", "temp_directory": str(tmp_path)}
    queries = (
        "SELECT length(repeat('x', 2000000000))",
        "SELECT repeat('x', 1500000000)",
        "SELECT generate_series(1, 1000000000)",
        "SELECT list(id || repeat('x', 1000000)) FROM orders",
    )
    command = [sys.executable, "-c", FAILING_QUERIES, sql.url, json.dumps(given), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    *errors, largest_kib = done.stdout.splitlines()
    assert len(errors) == len(queries)
    assert all("memory" in error for error in errors), errors
    assert int(largest_kib) < 1_000_000
    for query in (
        ENDLESS_CALL,
        f"SELECT count(*) FROM orders WHERE id < length(({ENDLESS_CALL})::VARCHAR)",
        "WITH RECURSIVE r(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM r)"
        " SELECT max(n) FROM r",
    ):
        with pytest.raises(SqlStopped, match="longer than its limit"):
            sql(query, max_seconds=1, **given)
    cancel = threading.Event()
    threading.Timer(1, cancel.set).start()
    with pytest.raises(SqlStopped, match="canceled"):
        sql(ENDLESS_CALL, cancel=cancel, **given)
    assert os.listdir(tmp_path) == []


def test_statement_in_a_separate_process_returns_the_same_result(sql: Sql) -> None:
    query = "SELECT *, _headers, id::VARCHAR::ENUM('1', '2') FROM orders WHERE id IN (1, 2)"
    assert sorted(sql(query, max_seconds=60)) == sorted(sql(query))
    with pytest.raises(SqlError, match="did you mean orders"):
        sql("SELECT * FROM ordres", max_seconds=60)
    with pytest.raises(SqlError, match="disabled"):
        sql("SELECT * FROM read_text('/etc/hostname')", max_seconds=60)
    result = sql.result("SELECT id FROM orders", max_seconds=60, max_rows=7)
    assert (len(result.rows()), result.is_truncated) == (7, True)
    result = sql.result("SELECT note FROM orders", max_bytes=100_000)
    assert 0 < len(result.rows()) < ORDERS
    assert result.is_truncated
    with pytest.raises(SqlError, match="a row exceeds 100,000 bytes"):
        sql("SELECT repeat('x', 200000) FROM orders", max_bytes=100_000)
