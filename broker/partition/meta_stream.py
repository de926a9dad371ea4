"""A small key-value map in a partition's meta stream.

Every write appends one batch with the whole map, one record per key, so that opening a partition
takes one block read, regardless of its history. The map is written only at checkpoints.
"""

from collections.abc import Mapping
from typing import Final

from penstock.base.errors import StreamError
from penstock.base.ids import Millis, Offset
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.format.checkpoint import decode_map
from penstock.stream.storage import AppendEntry, Storage, StreamHandle

TRIM_RECORDS_MIN: Final = 96
"""Number of obsolete records after which the stream is trimmed, which takes one controller RPC.
With 2 to 3 records per checkpoint, this happens every 16 minutes under a steady write load.
"""
_READ_BYTES: Final = 4 * 1024 * 1024


class MetaCorrupt(StreamError):
    """Raised when the newest batch of a meta stream cannot be decoded. The partition cannot be
    opened.
    """

    def __init__(self, handle: StreamHandle, what: str) -> None:
        super().__init__(
            f"meta stream {handle.stream_id} is corrupt before offset {handle.next_offset}: {what}"
        )


class MetaStream:
    __slots__ = ("_durable_base_offset", "_last_base_offset", "_values", "handle")

    def __init__(
        self, handle: StreamHandle, values: Mapping[str, bytes], last_base_offset: Offset
    ) -> None:
        self.handle = handle
        self._values = dict(values)
        self._last_base_offset = last_base_offset
        self._durable_base_offset = last_base_offset

    @classmethod
    async def restore(cls, storage: Storage, handle: StreamHandle) -> "MetaStream":
        """Read the newest batch, with one read of one block. Raises MetaCorrupt, and the errors of
        `StreamReader.read`.
        """
        end = handle.next_offset
        if end <= handle.start_offset:
            return cls(handle, {}, end)
        batches = await storage.reader.read(handle.stream_id, Offset(end - 1), end, _READ_BYTES)
        try:
            base_offset, values = decode_map(batches[0])
            next_offset = parse_header(batches[0]).next_offset
        except (BatchCorrupt, IndexError) as error:
            raise MetaCorrupt(handle, str(error)) from error
        if next_offset != end:
            raise MetaCorrupt(handle, "the last record is not where the stream ends")
        return cls(handle, values, base_offset)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, changes: Mapping[str, bytes], now_ms: Millis) -> AppendEntry:
        """Change the map, and return the entry to append. The caller must append it in its own
        group without an await, before any other append to this stream.
        """
        self._values.update(changes)
        self._durable_base_offset = self._durable_base()
        base_offset = self.handle.next_offset
        records = [
            Record(base_offset + at, now_ms, key.encode(), value, ())
            for at, (key, value) in enumerate(self._values.items())
        ]
        payload = encode_batch(records, base_offset=base_offset, leader_epoch=self.handle.epoch)
        self._last_base_offset = base_offset
        return AppendEntry(
            self.handle.stream_id,
            base_offset,
            Offset(base_offset + len(records)),
            len(records),
            now_ms,
            now_ms,
            len(payload),
            memoryview(payload),
        )

    @property
    def is_trimmed_away(self) -> bool:
        """Return whether the newest batch was in a lost store and the controller has trimmed it."""
        return self.handle.start_offset > self._last_base_offset

    @property
    def trim_offset(self) -> Offset | None:
        """Return the offset of the newest durable batch, up to which the stream may be trimmed, or
        None if trimming is not worth an RPC yet.
        """
        base_offset = self._durable_base()
        return base_offset if base_offset - self.handle.start_offset >= TRIM_RECORDS_MIN else None

    def _durable_base(self) -> Offset:
        return (
            self._last_base_offset
            if self.handle.confirmed_offset > self._last_base_offset
            else self._durable_base_offset
        )
