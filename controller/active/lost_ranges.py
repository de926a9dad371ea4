"""Replace the ranges in lost WAL stores, so that logs no longer refer to these stores (see
`controller.managers.lost_ranges`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import structlog

from penstock.base.clock import WallClock
from penstock.base.ids import NodeEpoch, NodeId, WalSequence, WalStoreId
from penstock.controller.active.writer import Runtime
from penstock.controller.api.messages import CommitObject, ObjectsPrepared, Reply, Status
from penstock.controller.managers.lost_ranges import (
    LostPart,
    objects_in,
    parts_to_replace,
    replace_lost,
    trim_lost,
)
from penstock.controller.managers.objects import PREPARED_TTL_MS, prepared_items
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import RangeEntry, Record, WalStoreLost
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.header import iter_headers
from penstock.stream.cleaning.batches import LOST_LEADER_EPOCH, fillers
from penstock.stream.format.builder import BuiltObject, RunEntry, StreamRun, build_object
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import BrokerIncarnation, ObjectRole

_log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 1.0
_NO_BROKER: Final = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))


class LostRanges:
    """The task of one active controller. It can safely be repeated after a crash, because an
    uncommitted object is destroyed when its preparation expires.
    """

    def __init__(self, runtime: Runtime, store: ObjectStore, *, now_ms: WallClock) -> None:
        self._runtime = runtime
        self._store = store
        self._now_ms = now_ms
        self._done: set[WalStoreId] = set()
        """Lost WAL stores that no log refers to any more."""
        self._wake = asyncio.Event()
        runtime.observe(self._note)

    def _note(self, records: Sequence[Record]) -> None:
        if any(isinstance(record, WalStoreLost) for record in records):
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled or until the runtime ends."""
        if not any(self._runtime.image.nodes.lost_wal_stores()):
            await self._wake.wait()
        while True:
            try:
                while await self.step():
                    pass
            except (ObjectStoreError, Refused, TimeoutError) as error:
                _log.warning("lost_ranges_not_replaced", error=str(error))
            await asyncio.sleep(_INTERVAL_S)

    async def step(self) -> bool:
        """Trim some streams, or replace some ranges. Return False if there was nothing to do.
        Raises ObjectStoreError, Refused, TimeoutError.
        """
        lost = await self._runtime.with_committed_image(self._lost_stores)
        if not lost:
            return False
        changed = False

        def trim(image: MetadataImage, _: int) -> Result[None]:
            nonlocal changed
            records = trim_lost(image, lost)
            changed = bool(records)
            return Result(records)

        _check(await self._runtime.submit("TrimLostRanges", trim))
        if changed:
            return True
        parts = await self._runtime.with_committed_image(
            lambda image: parts_to_replace(image, lost)
        )
        if not parts:
            return False
        await self._replace(parts)
        return True

    def _lost_stores(self, image: MetadataImage) -> list[WalStoreId]:
        found: list[WalStoreId] = []
        for store in image.nodes.lost_wal_stores():
            if store.store_id in self._done:
                continue
            if objects_in(image, {store.store_id}):
                found.append(store.store_id)
            elif not any(wal.store_id == store.store_id for wal in image.nodes.running_wals()):
                self._done.add(store.store_id)
        return found

    async def _replace(self, parts: Sequence[LostPart]) -> None:
        reply = await self._runtime.submit(
            "PrepareObjects", lambda image, _: prepared_items(image, 1, PREPARED_TTL_MS)
        )
        _check(reply)
        value = reply.value
        assert isinstance(value, ObjectsPrepared)
        (target,) = value.items
        built = self._build(parts)
        await self._store.put(target.key, built.chunks)
        newest_ms = {part.stream_id: part.max_timestamp_ms for part in parts}
        ranges = [
            RangeEntry(
                item.stream_id,
                item.start_offset,
                item.end_offset,
                item.record_count,
                item.size_bytes,
                newest_ms[item.stream_id],
            )
            for item in built.ranges
        ]
        item = CommitObject(
            object_id=target.object_id,
            key=target.key,
            role=ObjectRole.STREAM_SET,
            size_bytes=built.size_bytes,
            ranges=ranges,
        )
        reply = await self._runtime.submit(
            "ReplaceLostRanges",
            lambda image, now_ms: Result(replace_lost(image, item, parts, now_ms)),
        )
        _check(reply)
        _log.error(
            "lost_ranges_replaced",
            ranges=[(part.stream_id, part.start_offset, part.end_offset) for part in parts[:10]],
            count=len(parts),
        )

    def _build(self, parts: Sequence[LostPart]) -> BuiltObject:
        """Build an object with empty batches for the lost ranges."""
        runs = [
            StreamRun(
                part.stream_id,
                [
                    RunEntry.of_batch(batch, next(iter_headers(batch))[1])
                    for _, batch in fillers(part.start_offset, part.end_offset, LOST_LEADER_EPOCH)
                ],
            )
            for part in parts
        ]
        return build_object(
            ObjectRole.STREAM_SET, _NO_BROKER, WalSequence(NO_SEQUENCE), self._now_ms(), runs
        )


def _check(reply: Reply[Any]) -> None:
    """Raise Refused unless the changes were committed, so that `run` waits before it retries: each
    attempt writes another object.
    """
    if reply.status is not Status.OK:
        raise Refused(reply.status, reply.detail)
