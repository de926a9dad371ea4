"""Records that clients produce to a real broker are read directly from its objects: the same
records as consumers get.
"""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from kafka import KafkaProducer

from penstock.lake.arrow.columns import arrow_schema
from penstock.lake.arrow.read import read_slices
from penstock.lake.fetch.slices import Slice
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.format.decoder import parse_tail
from penstock.stream.format.keys import WAL_ROOT, parse_wal_key
from tests.support.clients import confluent_consumer, create_topic, read_records
from tests.support.cluster import Cluster
from tests.support.reader_objects import ALL, Row, rows_of
from tests.support.waiting import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def produce_with_confluent(bootstrap: str, codec: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 20,
            "enable.idempotence": True,
        }
    )
    for i in range(60):
        headers: list[tuple[str, Any]] = [("codec", codec.encode()), ("null", None)][: i % 3]
        producer.produce(
            "t",
            None if i % 7 == 0 else b"%d" % i * i,
            None if i % 5 == 0 else b"k%d" % i,
            0,
            headers=headers,
        )
    assert producer.flush(PATIENCE_S) == 0


def produce_with_kafka_python(bootstrap: str, codec: str) -> None:
    """Produce with the codecs of the standard library; the others need packages that only this test
    would use.
    """
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
    )
    futures = [
        producer.send("t", b"%d" % i * 50, b"", partition=0, headers=[("h", b"x")])
        for i in range(40)
    ]
    for future in futures:
        future.get(PATIENCE_S)
    producer.close()


def consume(bootstrap: str, count: int) -> list[Row]:
    from confluent_kafka import TopicPartition

    consumer = confluent_consumer(bootstrap, "none")
    consumer.assign([TopicPartition("t", 0, 0)])
    messages = read_records(consumer, count)
    consumer.close()
    return [
        (
            m.offset() or 0,
            m.timestamp()[1],
            _bytes(m.key()),
            _bytes(m.value()),
            tuple((n, _bytes(v)) for n, v in m.headers() or ()),
        )
        for m in messages
    ]


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


async def slices_of(store: ObjectStore, stream_id: int) -> list[Slice]:
    """Return slices of the WAL, whose slots contain everything in order until brokers upload."""
    found: list[Slice] = []
    async for info in store.list(WAL_ROOT):
        data = await store.get(info.key)
        assert parse_wal_key(info.key) is not None
        index = parse_tail(data, len(data), info.key)
        for r in getattr(index, "ranges", ()):
            if r.stream_id == stream_id:
                found.append(
                    Slice(
                        info.key,
                        len(data),
                        "t",
                        0,
                        stream_id,
                        r.start_offset,
                        r.end_offset,
                        r.size_bytes,
                        r.record_count,
                    )
                )
    return found


async def test_consumers_and_the_store_reader_return_the_same_records(tmp_path: Path) -> None:
    kept = StreamConfig(wal_linger_ms=0, block_age_max_ms=3_600_000)
    async with Cluster(tmp_path, stream_config=kept) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        for codec in CODECS:
            await asyncio.to_thread(produce_with_confluent, cluster.bootstrap, codec)
        for codec in ("none", "gzip"):
            await asyncio.to_thread(produce_with_kafka_python, cluster.bootstrap, codec)
        consumed = await asyncio.to_thread(consume, cluster.bootstrap, 60 * len(CODECS) + 80)
        topic = cluster.broker.image.topics.by_name("t")
        assert topic is not None
        slices = await slices_of(cluster.store, topic.partitions[0].data_stream_id)
        table = pa.Table.from_batches(
            [batch async for batch in read_slices(cluster.store, slices, ALL)],
            schema=arrow_schema(ALL),
        )
    assert rows_of(table) == consumed
