"""Parts of stream tests: entries with real batches, brokers with storage, and a store that holds
PUTs until the test releases them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from penstock.base.errors import StreamError
from penstock.base.ids import (
    Millis,
    Offset,
    StreamEpoch,
    StreamId,
)
from penstock.objectstore.body import join_body
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body, ObjectInfo, ObjectStore, ObjectTail
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.stream.config import StreamConfig
from penstock.stream.ports import BrokerIncarnation, OpenStream
from penstock.stream.recovery.recoverer import CacheSlot, RecoveryReport, recover_wal
from penstock.stream.storage import AppendEntry, Storage, StreamHandle
from tests.support.stream_metadata import MemoryController, MemoryStreamMetadata
from tests.support.waiting import until

NOW_MS = Millis(1_700_000_000_000)

FAST = StreamConfig(
    wal_linger_ms=0,
    wal_hedge_factor=0,
    retry_backoff_ms=1,
    retry_backoff_max_ms=4,
    block_age_max_ms=600_000,
    block_slots_max=1_000_000,
)
"""A configuration with short delays. Blocks are closed only by the test or at their
maximum size.
"""


def entry(
    stream_id: int,
    base_offset: int,
    record_count: int = 1,
    *,
    text: str = "v",
    timestamp_ms: int = 1_000,
    size: int = 0,
) -> AppendEntry:
    """Build a batch of `record_count` records. Record i of the stream has the value
    b"<text>-<stream>-<offset>" and the timestamp timestamp_ms + offset.
    """
    records = [
        Record(
            offset=offset,
            timestamp_ms=timestamp_ms + offset,
            key=None,
            value=f"{stream_id}-{offset}".encode().ljust(size, b"."),
            headers=(),
        )
        for offset in range(base_offset, base_offset + record_count)
    ]
    batch = encode_batch(records, base_offset=base_offset)
    last = base_offset + record_count - 1
    return AppendEntry(
        StreamId(stream_id),
        Offset(base_offset),
        Offset(last + 1),
        record_count,
        Millis(timestamp_ms + base_offset),
        Millis(timestamp_ms + last),
        len(batch),
        memoryview(batch),
    )


def offsets(batches: Sequence[bytes | bytearray | memoryview]) -> list[int]:
    """Return the offsets of all records returned by a read."""
    found: list[int] = []
    for chunk in batches:
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            size = 12 + int.from_bytes(view[at + 8 : at + 12], "big")
            found += [record.offset for record in decode_records(view[at : at + size])]
            at += size
    return found


class GatedStore:
    """A store that holds PUTs of keys with `prefix` until `release`, which may fail them."""

    def __init__(self, store: ObjectStore, prefix: str = "wal/") -> None:
        self.store = store
        self.prefix = prefix
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def put_if_absent(self, key: str, body: Body) -> str:
        await self._gate(key)
        return await self.store.put_if_absent(key, join_body(body))

    async def put(self, key: str, body: Body) -> str:
        await self._gate(key)
        return await self.store.put(key, join_body(body))

    async def _gate(self, key: str) -> None:
        if key.startswith(self.prefix):
            gate = self.waiting[key] = asyncio.get_running_loop().create_future()
            await gate

    async def until_waiting(self, count: int) -> list[str]:
        """Wait for `count` held PUTs and return their keys."""
        await until(lambda: len(self.waiting) >= count)
        return sorted(self.waiting)

    async def release(self, key: str, error: Exception | None = None) -> None:
        gate = self.waiting.pop(key)
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)
        await settle()

    async def get(self, key: str) -> bytes:
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.store.get_range(key, start, length)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        return await self.store.get_tail(key, length)

    async def head(self, key: str) -> ObjectInfo:
        return await self.store.head(key)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        return await self.store.put_if_match(key, body, etag)

    def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        return self.store.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    async def close(self) -> None:
        await self.store.close()


async def settle(turns: int = 30) -> None:
    """Run all tasks that are ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Node:
    """One start of a broker: its storage, and its acknowledged and rejected appends."""

    def __init__(
        self,
        store: ObjectStore,
        controller: MemoryController,
        node_id: int = 1,
        node_epoch: int = 1,
        config: StreamConfig = FAST,
    ) -> None:
        self.metadata: MemoryStreamMetadata = controller.of(node_id, node_epoch)
        self.identity: BrokerIncarnation = self.metadata.writer
        self.fenced_by: list[StreamError] = []
        self.acknowledged: list[tuple[int, int]] = []
        """(stream, end offset) in the order of the acknowledgements."""
        self.failed: list[tuple[int, int, Exception]] = []
        self.handles: dict[int, StreamHandle] = {}
        self.check_session: Callable[[], None] = lambda: None
        self.storage = Storage(
            store,
            self.metadata,
            self.identity,
            config,
            now_ms=lambda: Millis(1_700_000_000_000),
            rng=Random(7),
            on_fenced=self.fenced_by.append,
            check_session=lambda: self.check_session(),
        )

    async def open(self, *stream_ids: int, epoch: int = 1) -> list[StreamHandle]:
        opened = await self.storage.open_streams(
            [OpenStream(StreamId(key), StreamEpoch(epoch)) for key in stream_ids]
        )
        handles: list[StreamHandle] = []
        for handle in opened:
            if isinstance(handle, Exception):
                raise handle
            self.handles[handle.stream_id] = handle
            handles.append(handle)
        return handles

    def append(self, stream_id: int, record_count: int = 1, *, size: int = 0) -> AppendEntry:
        """Append a group of one entry at the end of the stream."""
        item = entry(stream_id, self.handles[stream_id].next_offset, record_count, size=size)
        self.append_group([item])
        return item

    def append_group(self, entries: list[AppendEntry]) -> None:
        def done(error: Exception | None) -> None:
            for item in entries:
                if error is None:
                    assert self.handles[item.stream_id].confirmed_offset >= item.end_offset
                    self.acknowledged.append((item.stream_id, item.end_offset))
                else:
                    self.failed.append((item.stream_id, item.end_offset, error))

        self.storage.append(entries, done)

    async def write(self, stream_id: int, record_count: int = 1, *, size: int = 0) -> None:
        """Append and wait for the acknowledgement: one WAL slot."""
        self.append(stream_id, record_count, size=size)
        await self.storage.flush()

    async def read_all(self, stream_id: int, start: int = 0) -> list[int]:
        """Return every offset from `start` to the end of this node's log."""
        handle = self.handles.get(stream_id)
        end = (
            handle.confirmed_offset
            if handle is not None
            else self.metadata.committed_end(StreamId(stream_id))
        )
        found: list[int] = []
        at = start
        while at < end:
            got = offsets(
                await self.storage.reader.read(StreamId(stream_id), Offset(at), end, 1 << 20)
            )
            found += [offset for offset in got if offset >= at]
            at = got[-1] + 1
        return found


async def recover(
    store: ObjectStore,
    recoverer: Node,
    failed: Node,
    *,
    cache_slot: CacheSlot | None = None,
    **config: int,
) -> RecoveryReport:
    """Fence the failed broker and recover its WAL. config: differences from FAST."""
    controller = recoverer.metadata.controller
    controller.fence(failed.identity)
    return await recover_wal(
        store,
        recoverer.metadata,
        failed.identity,
        controller.wals[failed.identity].committed,
        recoverer=recoverer.identity,
        now_ms=NOW_MS,
        config=replace(FAST, **config),
        cache_slot=cache_slot,
    )


class Nodes:
    """Brokers of one controller that knows the streams 1 to 5."""

    def __init__(self) -> None:
        self.controller = MemoryController()
        for stream_id in range(1, 6):
            self.controller.create_stream(stream_id)
        self._started: list[Node] = []

    def start(self, store: ObjectStore | None = None, node_id: int = 1, **config: Any) -> Node:
        """Start a broker, by default on its own empty store. config: differences from FAST."""
        node = Node(
            store or MemoryStore(), self.controller, node_id, config=replace(FAST, **config)
        )
        self._started.append(node)
        return node

    async def crashed(self, store: ObjectStore, streams: Sequence[int]) -> tuple[Node, Node]:
        """Start two brokers. The first writes one slot for each of these streams in turn, and
        crashes.
        """
        dead, recoverer = self.start(store, 1), self.start(store, 2)
        await dead.open(*sorted(set(streams)))
        for stream_id in streams:
            await dead.write(stream_id)
        await dead.storage.abandon()
        return dead, recoverer

    async def abandon(self) -> None:
        for node in self._started:
            await node.storage.abandon()
