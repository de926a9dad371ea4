"""Spark columns decoded with a schema registry."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.source import register
from penstock.lake.table.errors import InvalidSchema
from penstock.protocol.registry.wire_format import frame
from penstock.spark import from_avro, from_json, from_protobuf
from tests.support.schema_registry import SchemaRegistryServer, guid_of, serving
from tests.support.streaming_queries import until_ended
from tests.support.threaded_cluster import ThreadedCluster

SECRET = "a-secret-of-the-registry"
PROTO = 'syntax = "proto3"; message Sale { int64 price = 1; }'
FIRST = [("price", "long"), ("qty", "int")]
SECOND = [("qty", "int"), ("price", "long"), ("at", "long")]


def avro(fields: list[tuple[str, str]]) -> dict[str, Any]:
    described = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields]
    return {"type": "record", "name": "Sale", "fields": described}


def written(number: int, fields: list[tuple[str, str]], **row: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro(fields)), row)
    return frame(number) + out.getvalue()


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer(user_info=f"spark:{SECRET}")) as server:
        for fields in (FIRST, SECOND):
            server.register("sales-value", {"schema": json.dumps(avro(fields))})
        server.register("proto-value", {"schema": PROTO, "schemaType": "PROTOBUF"})
        schema = {"type": "object", "properties": {"price": {"type": "integer"}}}
        server.register("json-value", {"schema": json.dumps(schema), "schemaType": "JSON"})
        yield server


@pytest.fixture
def given(server: SchemaRegistryServer) -> dict[str, str]:
    return {
        "schema.registry.url": server.url,
        "basic.auth.user.info": f"spark:{SECRET}",
        "retry.ms": "0",
    }


def frame_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select("decoded.*").collect()]


@pytest.mark.costly("Spark starts, and runs a streaming query")
def test_stream_decodes_each_value_with_the_schema_of_its_id(
    spark: SparkSession, cluster: ThreadedCluster, given: dict[str, str], tmp_path: Path
) -> None:
    cluster.create("sales", 1)
    values = [
        written(1, FIRST, price=1, qty=2),
        written(2, SECOND, price=3, qty=4, at=5),
        None,
        frame(99) + b"\0",
        b"junk",
    ]
    cluster.produce([{"topic": "sales", "value": value, "partition": 0} for value in values])
    register(spark)
    source = spark.readStream.format("penstock").option("store", cluster.store_url)
    sales = source.option("subscribe", "sales").option("startingOffsets", "earliest").load()
    decoded = sales.select(
        "offset", from_avro("value", "sales-value", given, mode="PERMISSIVE").alias("decoded")
    )
    writer = decoded.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    until_ended(lambda: writer.start(str(tmp_path / "rows")))
    found = spark.read.parquet(str(tmp_path / "rows")).orderBy("offset").select("decoded.*")
    assert found.columns == ["qty", "price", "at", "_error"]
    good, second, tombstone, unknown, junk = (tuple(row) for row in found.collect())
    assert (good, second) == ((2, 1, None, None), (4, 3, 5, None))
    assert tombstone == (None, None, None, None)
    assert unknown[:3] == junk[:3] == (None, None, None)
    assert "404 for GET /schemas/ids/99" in unknown[3]
    assert "magic byte" in junk[3]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(SECRET.encode() in content for content in files)


def test_protobuf_and_json_are_decoded_and_registry_failures_raise(
    spark: SparkSession, server: SchemaRegistryServer, given: dict[str, str]
) -> None:
    proto = frame_of(spark, frame(3) + b"\0\x08\7", None)
    column = from_protobuf(col("value"), "proto-value", given)
    assert rows(proto.select(column.alias("decoded"))) == [(7,), (None,)]
    value = frame_of(spark, frame(4) + b'{"price": 7}')
    assert rows(value.select(from_json("value", "json-value", given).alias("decoded"))) == [(7,)]
    sales = frame_of(spark, written(1, FIRST, price=1, qty=2), written(5, FIRST, price=1, qty=2))
    strict = sales.select(from_avro("value", "sales-value", given).alias("decoded"))
    with pytest.raises(PythonException, match="404 for GET /schemas/ids/5") as failed:
        strict.collect()
    assert SECRET not in str(failed.value)
    with pytest.raises(InvalidSchema, match="format avro, not protobuf"):
        from_protobuf("value", "sales-value", given)
    with pytest.raises(InvalidOption, match="FAILFAST or PERMISSIVE"):
        from_avro("value", "sales-value", given, mode="DROPMALFORMED")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="PENSTOCK_SCHEMA_REGISTRY"):
        from_avro("value", "sales-value")
    header = ("__value_schema_id", b"\1" + UUID(guid_of(1)).bytes)
    value = written(1, FIRST, price=1, qty=2)
    headed = spark.createDataFrame(
        [(value[5:], [header]), (value, None), (value[5:], [])],
        "value binary, headers array<struct<key: string, value: binary>>",
    ).coalesce(1)
    column = from_avro("value", "sales-value", given, headers="headers", mode="PERMISSIVE")
    found = rows(headed.select(column.alias("decoded")))
    assert found[:2] == [(2, 1, None, None)] * 2
    assert "magic byte" in found[2][3]
    permissive = from_avro("value", "sales-value", given, mode="PERMISSIVE").alias("decoded")
    fresh = frame_of(spark, written(6, FIRST, price=1, qty=2)).select(permissive)
    server.fails = True
    try:
        with pytest.raises(PythonException, match=r"RegistryUnavailable.*returned 500"):
            fresh.collect()
    finally:
        server.fails = False
