"""Measure controllers alone: commits per second of a quorum, and the start with a large snapshot.

The three voters run in this process on the local disk, with gRPC between them. One event loop does
the work of all three, so the figure is a lower bound. Requests go directly to the writer, as from
the server, without a client's gRPC.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import uvloop

from benchmarks import harness
from penstock.base.collector import tune_collector
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.active.writer import Runtime
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.messages import Status
from penstock.controller.backup.layout import LogObject
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore, copy_image
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.controller.managers.result import Result
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    KeyValueRecord,
    MetadataOffset,
    NodeRecord,
    ObjectCommitted,
    PartitionRecord,
    RangeEntry,
    Record,
    StreamCreated,
    StreamOpened,
    TopicRecord,
    WalRecord,
)
from penstock.controller.raft.messages import Base, Members
from penstock.deploy.node import logs
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.url import open_store
from penstock.stream.format.keys import data_key
from penstock.stream.ports import ObjectRole

RECORD_BYTES: Final = 200
IN_FLIGHT_COUNT: Final = 64
PARTITIONS: Final = 10_000
OBJECTS: Final = 100_000
_OBJECT_BYTES: Final = 64 << 20
_RECORDS_PER_OBJECT: Final = 1_000
_READY_S: Final = 30.0
_CLUSTER_ID: Final = "bench"


def commits_per_s(seconds: float) -> float:
    """Send requests of one record each. A sender sends its next request after a majority has
    committed the previous one.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        return uvloop.run(_commits_per_s(Path(directory), seconds))


async def _commits_per_s(directory: Path, seconds: float) -> float:
    tune_collector()
    logs.configure("error")
    ports = [harness.free_port() for _ in range(3)]
    peers = tuple(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
    store = MemoryStore()
    servers = [
        ControllerServer(
            ControllerConfig(
                data_dir=directory / str(number),
                cluster_id=_CLUSTER_ID,
                controller_id=number,
                peers=peers,
                listeners=(f"127.0.0.1:{port}",),
            ),
            store,
        )
        for number, port in enumerate(ports)
    ]
    await asyncio.gather(*(server.start() for server in servers))
    try:
        runtime = await _writer_of(servers)
        counts = [0] * IN_FLIGHT_COUNT
        until = time.perf_counter() + seconds
        await asyncio.gather(
            *(_commit(runtime, sender, counts, until) for sender in range(IN_FLIGHT_COUNT))
        )
        return sum(counts) / seconds
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def _writer_of(servers: list[ControllerServer]) -> Runtime:
    async with asyncio.timeout(_READY_S):
        while True:
            found = next((server.runtime for server in servers if server.is_leading), None)
            if found is not None:
                return found
            await asyncio.sleep(0.01)


async def _commit(runtime: Runtime, sender: int, counts: list[int], until: float) -> None:
    key = f"sender-{sender:02}"
    value = bytes(RECORD_BYTES - len(encode_record(KeyValueRecord(key, b""))))
    while time.perf_counter() < until:
        reply = await runtime.submit(
            "Bench", lambda image, now_ms: Result([KeyValueRecord(key, value)])
        )
        assert reply.status is Status.OK
        counts[sender] += 1


def start_s(store_url: str, directory: Path) -> float:
    """Measure from the exec of a controller to its first response as leader, with an empty disk and
    the newest snapshot in `store_url`.
    """
    port = harness.free_port()
    command = (
        sys.executable,
        "-P",
        "-m",
        "penstock.deploy.cli",
        "controller",
        "--store",
        store_url,
        "--metadata-log-dir",
        str(directory),
    )
    settings = (
        "--cluster-id",
        _CLUSTER_ID,
        "--listeners",
        f"127.0.0.1:{port}",
        "--log-level",
        "error",
    )
    began = time.perf_counter()
    process = subprocess.Popen(
        (*command, *settings), env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        asyncio.run(_until_leading(f"127.0.0.1:{port}"))
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(30)


async def _until_leading(address: str) -> None:
    client = ControllerClient([address])
    try:
        async with asyncio.timeout(_READY_S):
            while not (await client.describe(timeout_s=_READY_S)).active:  # noqa: ASYNC110 - another process, which sends no event
                await asyncio.sleep(0.01)
    finally:
        await client.close()


def write_snapshot(store_url: str) -> int:
    """Write a snapshot of 10,000 partitions with 100,000 stream objects, and the end of the
    metadata log. Return the number of records.
    """
    return asyncio.run(_write_snapshot(store_url))


async def _write_snapshot(store_url: str) -> int:
    image = large_image(PARTITIONS, OBJECTS)
    store = open_store(store_url)
    try:
        copied, offset = copy_image(image)
        base = Base(offset, 1, offset, Members((0,)))
        last = msgspec.Raw(encode_record(KeyValueRecord("last", b"")))
        await BackupLog(store, _CLUSTER_ID).put(
            LogObject(offset - 1, base, 0, _CLUSTER_ID, False, [last])
        )
        return await SnapshotStore(store, _CLUSTER_ID, kept=2).save(copied, base)
    finally:
        await store.close()


def large_image(partitions: int, objects: int) -> MetadataImage:
    """Build one topic whose partitions are led and opened by one broker. Each object contains a
    range of one data stream.
    """
    topic_id = UUID(int=1)
    me, epoch = NodeId(0), NodeEpoch(1)
    records: list[Record] = [
        ClusterRecord(_CLUSTER_ID),
        NodeRecord(me, epoch, UUID(int=2), "127.0.0.1", 9092, "127.0.0.1", None, fenced=False),
        WalRecord(me, epoch, WalSequence(0)),
        TopicRecord(topic_id, "large"),
    ]
    for index in range(partitions):
        meta, data, txn = (StreamId(3 * index + more) for more in range(3))
        records += [
            PartitionRecord(topic_id, index, (me,), me, epoch, StreamEpoch(0), meta, data, txn),
            StreamCreated(meta, topic_id, index, "meta"),
            StreamCreated(data, topic_id, index, "data"),
            StreamCreated(txn, topic_id, index, "txn"),
            StreamOpened(meta, StreamEpoch(0), me, epoch),
            StreamOpened(data, StreamEpoch(0), me, epoch),
            StreamOpened(txn, StreamEpoch(0), me, epoch),
        ]
    for number in range(objects):
        object_id, (lap, index) = ObjectId(number), divmod(number, partitions)
        start = Offset(lap * _RECORDS_PER_OBJECT)
        end = Offset(start + _RECORDS_PER_OBJECT)
        part = RangeEntry(
            StreamId(3 * index + 1), start, end, _RECORDS_PER_OBJECT, _OBJECT_BYTES, Millis(0)
        )
        records.append(
            ObjectCommitted(
                object_id, data_key(object_id), ObjectRole.STREAM, _OBJECT_BYTES, Millis(0), (part,)
            )
        )
    image = MetadataImage()
    image.apply_all(records)
    assert image.end_offset == MetadataOffset(len(records))
    return image
