"""Fetch the parts of slices from the store in order, ahead of the decoder. Objects that the caller
already has are not fetched.

Source: AutoMQ `ObjectReader`.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.base.buffers import Buffer
from penstock.lake.fetch.errors import ObjectGone, ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.parts import (
    Part,
    Piece,
    Wanted,
    all_blocks,
    coalesce,
    pieces_of,
    rest_of,
)
from penstock.lake.fetch.slices import Slice
from penstock.objectstore.errors import ObjectNotFound, RangeNotSatisfiable
from penstock.objectstore.ports import ObjectStore
from penstock.stream.cache.block_cache import ByteLru
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.layout import TAIL_BYTES

IndexCache = ByteLru[str, ObjectIndex]

_Numbered = tuple[int, Slice]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A part and its bytes."""

    part: Part
    data: memoryview

    def block(self, piece: Piece) -> memoryview:
        at = piece.block.position - self.part.start
        return self.data[at : at + piece.block.size_bytes]


class Fetch:
    """One pass over slices: call `next` until it returns None, and call `close` then or at any
    earlier time. Belongs to one event loop.

    Invariant: parts are returned in the order of the slices. At most the bytes of `parts_ahead_max`
    parts (or one larger part) and the indexes of `gets_in_flight_max` objects are in flight; small
    objects are read completely. A missing object raises ObjectGone with the remaining slices. The
    store implements deadlines and retries.
    """

    def __init__(
        self,
        store: ObjectStore,
        slices: Sequence[Slice],
        config: ReadConfig,
        indexes: IndexCache,
        *,
        wanted: Wanted = all_blocks,
        bodies: Mapping[str, bytes] | None = None,
    ) -> None:
        """`wanted` selects the blocks to read. `bodies` contains whole objects by key."""
        self._store = store
        self._slices = slices
        self._config = config
        self._indexes = indexes
        self._wanted = wanted
        self._bodies = bodies or {}
        objects = groupby(enumerate(slices), key=lambda numbered: numbered[1].key)
        self._objects: deque[list[_Numbered]] = deque(list(group) for _, group in objects)
        self._opening: deque[asyncio.Task[list[tuple[Part, Buffer | None]]]] = deque()
        self._planned: deque[tuple[Part, Buffer | None]] = deque()
        self._loading: deque[tuple[Part, asyncio.Task[memoryview]]] = deque()
        self._loading_bytes = 0

    async def next(self) -> Fetched | None:
        """Return the next part, or None after the last one. Raise ObjectGone, ReadError or the
        store's errors.
        """
        while True:
            self._go_ahead()
            if self._loading:
                part, task = self._loading[0]
                data = await task
                self._loading.popleft()
                self._loading_bytes -= part.end - part.start
                self._go_ahead()
                return Fetched(part, data)
            if not self._opening:
                return None
            self._planned.extend(await self._opening[0])
            self._opening.popleft()

    async def close(self) -> None:
        """Cancel the running requests and wait until they have ended."""
        tasks: list[asyncio.Task[object]] = [*self._opening, *(task for _, task in self._loading)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._objects.clear()
        self._opening.clear()
        self._planned.clear()
        self._loading.clear()

    def _go_ahead(self) -> None:
        """Start every request that the limits allow. The error of a failed object is kept until
        `next` reaches that object.
        """
        config = self._config
        while True:
            while self._objects and len(self._opening) < config.gets_in_flight_max:
                self._opening.append(asyncio.ensure_future(self._open(self._objects.popleft())))
            while self._planned and len(self._loading) < config.gets_in_flight_max:
                part, data = self._planned[0]
                size_bytes = part.end - part.start
                if (
                    self._loading
                    and self._loading_bytes + size_bytes
                    > config.parts_ahead_max * config.part_bytes_max
                ):
                    return
                self._planned.popleft()
                self._loading_bytes += size_bytes
                self._loading.append((part, asyncio.ensure_future(self._load(part, data))))
            opened = self._opening[0] if self._opening else None
            if (
                self._planned
                or opened is None
                or not opened.done()
                or opened.cancelled()
                or opened.exception() is not None
            ):
                return
            self._planned.extend(opened.result())
            self._opening.popleft()

    # --- the store --------------------------------------------------------------------------------

    async def _open(self, numbered: list[_Numbered]) -> list[tuple[Part, Buffer | None]]:
        """Return the parts of one object to read, with the object's bytes if they were read
        together with the index.
        """
        first, slice_ = numbered[0]
        try:
            index, data = await self._index(slice_)
            pieces = [
                piece
                for number, s in numbered
                for piece in pieces_of(number, s, index, self._config, self._wanted)
            ]
        except ObjectNotFound:
            raise ObjectGone(slice_, tuple(self._slices[first + 1 :])) from None
        except ObjectCorrupt as error:
            raise ReadError(
                slice_.key, slice_.topic, slice_.partition, slice_.start_offset, str(error)
            ) from None
        return [(part, data) for part in coalesce(pieces, self._config)]

    async def _index(self, slice_: Slice) -> tuple[ObjectIndex, Buffer | None]:
        """Return the object's index, and the complete object if it is small."""
        body = self._bodies.get(slice_.key)
        index = self._indexes.get(slice_.key)
        if index is not None:
            return index, body
        size_bytes = slice_.object_size_bytes
        is_small = body is not None or size_bytes <= max(self._config.gap_bytes_max, TAIL_BYTES)
        position = 0 if is_small else size_bytes - TAIL_BYTES
        tail = body or await self._get(slice_.key, position, size_bytes)
        parsed = parse_tail(tail, size_bytes, slice_.key)
        if isinstance(parsed, NeedMore):
            tail = await self._get(slice_.key, parsed.position, size_bytes)
            parsed = parse_tail(tail, size_bytes, slice_.key)
        if isinstance(parsed, NeedMore):
            raise ObjectCorrupt(slice_.key, parsed.position, "the footer changed between two reads")
        self._indexes.put(slice_.key, parsed, parsed.size_bytes)
        return parsed, tail if is_small else None

    async def _load(self, part: Part, data: Buffer | None) -> memoryview:
        if data is not None:
            return memoryview(data)[part.start : part.end]
        piece = part.pieces[0]
        try:
            return memoryview(await self._get(piece.slice.key, part.start, part.end))
        except ObjectNotFound:
            raise ObjectGone(*rest_of(self._slices, piece)) from None
        except ObjectCorrupt as error:
            slice_ = piece.slice
            raise ReadError(
                slice_.key, slice_.topic, slice_.partition, piece.block.start_offset, str(error)
            ) from None

    async def _get(self, key: str, start: int, end: int) -> Buffer:
        if end <= start:
            raise ObjectCorrupt(key, start, f"an object of {end} bytes")
        try:
            data = await self._store.get_range(key, start, end - start)
        except RangeNotSatisfiable:
            raise ObjectCorrupt(key, start, f"is shorter than the expected {end} bytes") from None
        if len(data) != end - start:
            raise ObjectCorrupt(key, start, f"got {len(data)} bytes instead of {end - start}")
        return data
