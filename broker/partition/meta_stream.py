"""A small key/value map on a partition's meta stream.

Every write appends one record batch that holds the *whole* map, one record for each key. So the
last batch alone is the state: opening a partition reads one block, however long its history is, and
compaction is nothing but a trim below the last durable batch. The map is small (the producer
snapshot dominates it), and it is written at checkpoints only.

Invariant: the state is what the newest batch says; a batch is durable as a whole or not at all.
Must not: append by itself. Callers put the entry into their own group, so that it lands in the WAL
object that they want it in.
Source: AutoMQ `MetaStream`, without its replay and its re-appending compaction: the newest batch
holds the whole state.
"""

from collections.abc import Mapping
from typing import Final

from base.ids import Millis, Offset
from stream.batch.records import Record, decode_records, encode_batch
from stream.errors import BatchCorrupt, StreamError
from stream.storage import AppendEntry, Storage, StreamHandle

TRIM_RECORDS_MIN: Final = 96
"""Trim when so many records are dead. One controller RPC; at 2 to 3 records a checkpoint that is
every 16 minutes of steady writing.
"""
_READ_BYTES: Final = 4 * 1024 * 1024


class MetaCorrupt(StreamError):
    """The newest batch of a meta stream cannot be read as a map. Nothing is guessed: the partition
    does not open.
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
        """Read the newest batch: one read of one block. Raises MetaCorrupt, and what `Storage.read`
        raises.
        """
        end = handle.next_offset
        if end <= handle.start_offset:
            return cls(handle, {}, end)
        batches = await storage.read(handle.stream_id, Offset(end - 1), end, _READ_BYTES)
        try:
            records = decode_records(batches[0])
            values = {
                record.key.decode(): record.value
                for record in records
                if record.key is not None and record.value is not None
            }
        except (BatchCorrupt, UnicodeDecodeError, IndexError) as error:
            raise MetaCorrupt(handle, str(error)) from error
        if not records or records[-1].offset != end - 1:
            raise MetaCorrupt(handle, "the last record is not where the stream ends")
        return cls(handle, values, Offset(records[0].offset))

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, changes: Mapping[str, bytes], now_ms: Millis) -> AppendEntry:
        """Change the map; the caller appends the entry in the same step (before anything else is
        appended to this stream).
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
            memoryview(payload),
        )

    @property
    def trim_offset(self) -> Offset | None:
        """Where the stream may begin, once that is worth an RPC: at the newest batch that is
        durable.
        """
        base_offset = self._durable_base()
        return base_offset if base_offset - self.handle.start_offset >= TRIM_RECORDS_MIN else None

    def _durable_base(self) -> Offset:
        return (
            self._last_base_offset
            if self.handle.confirmed_offset > self._last_base_offset
            else self._durable_base_offset
        )
