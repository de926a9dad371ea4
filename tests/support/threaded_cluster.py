"""A cluster on an event loop in another thread, with moto in a process, for tests with blocking
clients such as Spark.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.base.ids import NodeId, Offset
from penstock.broker.partition.partition import Partition
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.local.moto_store import listen
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.cluster import Found, SparkCluster
from penstock.lake.spark.offsets import TopicPartition as SparkPartition
from penstock.lake.spark.options import Topics
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store
from penstock.stream.config import StreamConfig
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S, wait_until

_T = TypeVar("_T")
_WAIT_S = PATIENCE_S
FAST_UPLOADS = StreamConfig(wal_linger_ms=0, block_age_max_ms=500, wal_delete_grace_ms=12_000)
"""Brokers upload data early, and delete WAL slots soon after that, so a reader encounters both WAL
slots and objects, and deleted objects, but not while a slow machine plans a query.
"""

Row = tuple[
    bytes | None,
    bytes | None,
    str,
    int,
    int,
    int,
    int,
    "tuple[tuple[str, bytes | None], ...] | None",
]
"""key, value, topic, partition, offset, timestamp in ms, timestamp type, headers."""


class ThreadedCluster:
    def __init__(
        self, directory: Path, *, brokers: int = 2, stream_config: StreamConfig = FAST_UPLOADS
    ) -> None:
        self._stream_config = stream_config
        listening = listen(0)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with listening:
            command = (
                sys.executable,
                "-m",
                "penstock.deploy.local.moto_store",
                "--bucket",
                "penstock",
                "--fd",
                str(listening.fileno()),
            )
            self._moto = subprocess.Popen(command, pass_fds=(listening.fileno(),), env=environment)
            self.store_url = f"s3://penstock?endpoint=http://127.0.0.1:{listening.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._directory = directory
        self._brokers = brokers
        self._store: ObjectStore | None = None
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._cluster = self.run(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._moto.kill()
            self._moto.wait()

    @property
    def bootstrap(self) -> str:
        assert self._cluster is not None
        return self._cluster.bootstrap

    @property
    def controller(self) -> str:
        assert self._cluster is not None
        assert self._cluster.controller is not None
        return f"127.0.0.1:{self._cluster.controller.port}"

    @property
    def store(self) -> ObjectStore:
        """Return the store; use it only in coroutines for `run`, on the cluster's loop."""
        assert self._store is not None
        return self._store

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)

    async def _start(self) -> Cluster:
        self._store = open_store(self.store_url)
        cluster = Cluster(
            self._directory,
            brokers=self._brokers,
            store=self._store,
            stream_config=self._stream_config,
        )
        await cluster.__aenter__()
        return cluster

    async def _stop(self) -> None:
        if self._cluster is not None:
            await self._cluster.stop()
        if self._store is not None:
            await self._store.close()

    # --- operations of tests ----------------------------------------------------------------------

    def kill_broker(self, node_id: int, *, recovered: bool = True) -> None:
        """Kill the broker. recovered: wait until another broker has recovered its WAL."""
        assert self._cluster is not None
        self.run(self._cluster.kill_broker(node_id))
        if not recovered:
            return

        def is_over(image: MetadataImage) -> bool:
            node = image.nodes.get(NodeId(node_id))
            return (
                node is not None
                and node.fenced
                and all(image.nodes.is_alive(wal.writer) for wal in image.nodes.running_wals())
            )

        wait_until(lambda: self.image(is_over))

    def start_broker(self, node_id: int, **settings: Any) -> int:
        """Start the broker and return its port."""
        assert self._cluster is not None
        return self.run(self._cluster.start_broker(node_id, **settings)).port

    def stop_broker(self, node_id: int) -> None:
        assert self._cluster is not None
        self.run(self._cluster.stop_broker(node_id))

    def image(self, look: Callable[[MetadataImage], _T]) -> _T:
        """Return the result of `look` for the image of the first broker."""

        async def looked() -> _T:
            assert self._cluster is not None
            return look(self._cluster.broker.image)

        return self.run(looked())

    def create(
        self,
        topic: str,
        partitions: int,
        *,
        published: bool = True,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic. published: wait until the manifest contains it.

        A broker repeats a request to a slow controller, which may have executed the first request.
        """
        admin = self._admin()  # its requests stop when it is deleted
        assert topic not in admin.list_topics(timeout=PATIENCE_S).topics, (
            f"{topic!r} is another test's"
        )
        try:
            requested = NewTopic(topic, partitions, 1, config=dict(configs or {}))
            _wait(admin.create_topics([requested]).values())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        wait_until(lambda: not published or self.has(topic))

    def grow(self, topic: str, partitions: int) -> None:
        admin = self._admin()  # its requests stop when it is deleted
        _wait(admin.create_partitions([NewPartitions(topic, partitions)]).values())

    def delete(self, topic: str) -> None:
        admin = self._admin()  # its requests stop when it is deleted
        _wait(admin.delete_topics([topic]).values())

    def trim(self, topic: str, before: int) -> None:
        """Move the log start of the only partition, as retention does, and wait until the manifest
        contains it.
        """

        async def trimmed() -> None:
            assert self._cluster is not None
            broker = await self._cluster.until_served(topic)
            partition = broker.partitions.get(topic, 0)
            assert isinstance(partition, Partition)
            await broker.storage.trim(partition.log.data, Offset(before))

        self.run(trimmed())
        wait_until(lambda: self.look(topic).bounds[SparkPartition(topic, 0)].log_start == before)

    def compact(self, topic: str) -> None:
        """In the only partition, remove each record that has a newer one with the same key. The
        topic has min.cleanable.dirty.ratio=0.
        """

        def is_clean() -> bool:
            return self.run(self._compact(topic))

        wait_until(is_clean)

    async def _compact(self, topic: str) -> bool:
        assert self._cluster is not None
        broker = await self._cluster.until_served(topic)
        partition = broker.partitions.get(topic, 0)
        assert isinstance(partition, Partition)
        await broker.cleaner.check()
        return partition.log.cleaned.end == partition.high_watermark

    def has(self, topic: str) -> bool:
        return (
            SparkCluster(self.store_url, "")
            .find(Topics(names=(topic,)), read_committed=False, missing_ok=True)
            .topic_ids
            != {}
        )

    def look(self, topic: str) -> Found:
        return SparkCluster(self.store_url, "").find(Topics(names=(topic,)), read_committed=False)

    # --- contents of the store --------------------------------------------------------------------

    def keys(self, prefix: str) -> set[str]:
        async def listed() -> set[str]:
            return {info.key async for info in self.store.list(prefix)}

        return self.run(listed())

    def until_deleted(self, keys: set[str]) -> None:
        wait_until(lambda: not keys & self.keys("wal/"))

    def until_uploaded(self, topic: str, before: set[str]) -> str:
        """Return the key of the object that contains all of the topic's only partition, once there
        is one.
        """

        def planned() -> list[Slice]:
            requested = [
                OffsetRange(*item, *bounds) for item, bounds in self.look(topic).bounds.items()
            ]
            return SparkCluster(self.store_url, "").plan(requested)

        wait_until(
            lambda: (
                [part.key for part in planned() if part.key in self.keys("data/") - before] != []
            )
        )
        return planned()[0].key

    def damage(self, key: str, value: bytes) -> None:
        """Flip a bit of this value only, because the object may also contain other topics."""

        async def flip() -> None:
            data = bytearray(await self.store.get(key))
            data[data.index(value)] ^= 0xFF
            await self.store.put(key, bytes(data))

        self.run(flip())

    # --- operations of clients --------------------------------------------------------------------

    def produce(self, records: Iterable[Mapping[str, Any]], **settings: Any) -> int:
        """Produce the records, and wait until all are acknowledged. A record has the keyword
        arguments of `Producer.produce`.
        """
        failed: list[object] = []

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        count = 0
        for record in records:
            producer.produce(**record, on_delivery=delivered)
            producer.poll(0)
            count += 1
        assert producer.flush(_WAIT_S) == 0
        assert failed == []
        return count

    def consume(self, topic: str, partitions: int, count: int, **settings: Any) -> list[Row]:
        """Consume up to `count` records through the brokers; return them sorted by partition and
        offset.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                **settings,
            }
        )
        rows: list[Row] = []
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            while len(rows) < count:
                found = consumer.consume(min(1_000, count - len(rows)), _WAIT_S)
                assert found, f"{len(rows)} of {count} records came"
                rows += [_row(message) for message in found]
        finally:
            consumer.close()
        return sorted(rows, key=lambda row: row[2:5])

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})


def _wait(responses: Iterable[Any]) -> None:
    for done in responses:
        done.result(_WAIT_S)


def _row(message: Message) -> Row:
    assert message.error() is None, message.error()
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return (
        message.key(),
        message.value(),
        str(message.topic()),
        int(message.partition() or 0),
        int(message.offset() or 0),
        timestamp_ms,
        kind - 1,
        None if headers is None else tuple(headers),
    )
