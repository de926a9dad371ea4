"""Stage rows in the store until their transaction: Spark's tasks write the rows, and the driver
produces them.

Source: `docs/reference/formats.md` 11.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from penstock.lake.arrow.background import background
from penstock.lake.arrow.pyarrow_untyped import RecordBatch, pa
from penstock.lake.spark.sink.rows import check_rows
from penstock.stream.format.keys import staged_key, staged_prefix

OBJECT_BYTES_MAX: Final = 16 << 20
_DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Staging:
    """`write_id` is a UUID of the streaming query or of the write, so its prefix contains no other
    rows.

    Invariants: only the message that a task returns to the driver contains its objects, so objects
    of a failed attempt are never read. Objects are deleted, together with older ones, when their
    batch is known to be committed. Memory: the rows of one object, never those of a whole task.
    """

    store_url: str
    write_id: str

    def put(
        self, batches: Iterator[RecordBatch], topic: str | None, batch_id: int, task: int
    ) -> tuple[int, list[str]]:
        """Stage the rows of one attempt of one task. Return the number of rows, and the keys in
        order. Raise InvalidRow or the store's errors.
        """
        attempt = uuid4()
        keys: list[str] = []
        row_count = 0
        for body, rows in _bodies(batches, topic):
            keys.append(staged_key(self.write_id, batch_id, task, attempt, len(keys)))
            background().run(self._put(keys[-1], body), _DEADLINE_S)
            row_count += rows
        return row_count, keys

    def read(self, keys: Sequence[str]) -> Iterator[RecordBatch]:
        for key in keys:
            with pa.ipc.open_stream(background().run(self._get(key), _DEADLINE_S)) as reader:
                yield from reader

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            background().run(self._delete(keys), _DEADLINE_S)

    def delete_through(self, batch_id: int) -> None:
        """Delete the objects of this batch and all earlier ones, from any attempt."""
        background().run(self._delete_through(batch_id), _DEADLINE_S)

    async def _put(self, key: str, body: memoryview) -> None:
        store = await background().store(self.store_url)
        await store.put(key, body)

    async def _get(self, key: str) -> bytes:
        store = await background().store(self.store_url)
        return await store.get(key)

    async def _delete(self, keys: Sequence[str]) -> None:
        store = await background().store(self.store_url)
        await store.delete(keys)

    async def _delete_through(self, batch_id: int) -> None:
        store = await background().store(self.store_url)
        prefix = staged_prefix(self.write_id)
        end = staged_prefix(self.write_id, batch_id + 1)
        keys: list[str] = []
        async for info in store.list(prefix):
            if info.key >= end:
                break
            keys.append(info.key)
        if keys:
            await store.delete(keys)


def _bodies(batches: Iterator[RecordBatch], topic: str | None) -> Iterator[tuple[memoryview, int]]:
    """Yield Arrow IPC streams, and the number of their rows."""
    waiting: list[RecordBatch] = []
    for batch in batches:
        check_rows(batch, topic)
        waiting.append(batch)
        if sum(item.nbytes for item in waiting) >= OBJECT_BYTES_MAX:
            yield _encoded(waiting)
            waiting = []
    if sum(item.num_rows for item in waiting):
        yield _encoded(waiting)


def _encoded(batches: Sequence[RecordBatch]) -> tuple[memoryview, int]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue()), sum(batch.num_rows for batch in batches)
