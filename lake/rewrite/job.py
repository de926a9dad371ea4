"""One task of a bulk rewrite, on any machine: merge adjacent objects of a partition into one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base.clock import WallClock, wall_ms
from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.compaction.plan import Compaction, Output, check_outputs
from penstock.stream.compaction.rewrite import build_output, read_entries
from penstock.stream.errors import NotContiguous, ObjectCorrupt
from penstock.stream.ports import BrokerIncarnation, NewObject, ObjectRole, PreparedObject
from penstock.stream.read.object_reader import ObjectReader, ObjectReaderConfig
from penstock.stream.wal.wal_store_url import open_for_reads

NO_BROKER = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))
"""The writer in the headers of objects written by jobs."""

READING = ObjectReaderConfig(whole_bytes_max=64 << 10, get_bytes_max=8 << 20)
"""`whole_bytes_max` is small, because the blocks of an object that was read as a whole for its
index would be read again.
"""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """created_ms: the creation time in the object header, which is identical in every attempt.
    put_until_ms: no PUT begins later, by the executor's clock.
    """

    partition: int
    compaction: Compaction
    target: PreparedObject
    created_ms: Millis
    put_until_ms: int


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The result of a task: `new` is the object that was written. If there is none, plan again if
    the sources have changed (`gone`) or the deadline has passed (`late`); otherwise, the sources
    are damaged. `detail` contains the reason.
    """

    task: RewriteTask
    new: NewObject | None
    gone: bool = False
    late: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """A job for `Engine.map`: call it on a thread without an event loop, here or in an executor."""

    store_url: str
    wal_store_url: str = ""

    def __call__(self, task: RewriteTask, attempt: Callable[[], str]) -> RewriteResult:
        del attempt  # the same in every attempt
        return asyncio.run(self._run(task))

    async def _run(self, task: RewriteTask) -> RewriteResult:
        stores = open_for_reads(self.store_url, self.wal_store_url)
        try:
            return await rewrite(stores.store, task, wall_ms)
        finally:
            await stores.close()


async def rewrite(store: ObjectStore, task: RewriteTask, now_ms: WallClock) -> RewriteResult:
    """Run one task. Raise ObjectStoreError.

    Invariants: a task writes the same object as compaction by brokers from the same sources
    (`stream.compaction.rewrite`). Every attempt writes the same bytes, so a repeated task replaces
    an object with an identical one. Nothing is PUT after the task's deadline, because the
    controller may already have collected the object. A task uses only the store, and does not
    commit. Memory: its sources and the body of one PUT.
    """
    output = Output(ObjectRole.STREAM, (task.compaction,))
    reader = ObjectReader(store, BlockCache(1), READING)
    try:
        entries = await read_entries(reader, output.compactions)
        built = await build_output(output, NO_BROKER, task.created_ms, entries)
        check_outputs((output,), (built.ranges,))
    except ObjectNotFound as error:
        return RewriteResult(task, None, gone=True, detail=str(error))
    except (ObjectCorrupt, NotContiguous) as error:
        return RewriteResult(task, None, detail=str(error))
    finally:
        await reader.close()
    if now_ms() > task.put_until_ms:
        return RewriteResult(
            task, None, late=True, detail=f"{task.target.key} was prepared too long ago"
        )
    await store.put(task.target.key, built.chunks)
    return RewriteResult(
        task,
        NewObject(
            task.target.object_id, task.target.key, output.role, built.size_bytes, built.ranges
        ),
    )
