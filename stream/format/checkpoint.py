"""Entries of a partition's meta stream that are not read only by its leader. Fields are only added
at the end, with defaults (docs/reference/formats.md, section 5).
"""

from typing import Final

import msgspec

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset, StreamEpoch
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.records import decode_records

RECOVERY_KEY: Final = "recovery"
PRODUCERS_KEY: Final = "producers"
CLEANED_KEY: Final = "cleaned"


class Recovery(msgspec.Struct, frozen=True, array_like=True):
    """recovery_offset: the checkpoint covers the log below it, so opening a partition does not read
    that part. epochs: leader epochs and their start offsets.
    """

    recovery_offset: Offset
    epochs: list[tuple[StreamEpoch, Offset]]


class CleanedPart(msgspec.Struct, frozen=True, array_like=True):
    """The result of the last log compaction pass. end: no key occurs twice below it. size_bytes:
    the size of the log below it.
    """

    end: Offset = Offset(0)
    size_bytes: int = 0


decode_recovery = msgspec.msgpack.Decoder(Recovery).decode
decode_cleaned = msgspec.msgpack.Decoder(CleanedPart).decode


def decode_map(batch: Buffer) -> tuple[Offset, dict[str, bytes]]:
    """Return the first offset of a meta stream batch, and its entries. Raises BatchCorrupt."""
    records = decode_records(batch)
    if not records:
        raise BatchCorrupt("a batch of a meta stream without entries")
    try:
        values = {
            record.key.decode(): record.value
            for record in records
            if record.key is not None and record.value is not None
        }
    except UnicodeDecodeError as error:
        raise BatchCorrupt(f"a name is not UTF-8: {error}") from None
    return Offset(records[0].offset), values
