"""Correct the checksums of mutated inputs, so that fuzzing gets past checksum verification."""

import struct
from collections.abc import Callable

from crc32c import crc32c

from penstock.protocol.batch.header import BATCH_OVERHEAD, CRC_AT, CRC_START, HEADER_BYTES
from penstock.stream.format import layout
from penstock.stream.format.manifest import codec

_METADATA_HEADER_BYTES = 16
_METADATA_CRC_AT = 12
_JOURNAL_HEADER = struct.Struct("<IIII")


def batch(data: bytes) -> bytes:
    """Return the record batches with a correct length and CRC in the first one."""
    if len(data) < HEADER_BYTES:
        return data
    sealed = bytearray(data)
    length = min(int.from_bytes(sealed[8:12], "big"), len(sealed) - BATCH_OVERHEAD)
    struct.pack_into(">i", sealed, 8, length)
    sealed[16] = 2
    struct.pack_into(">I", sealed, CRC_AT, crc32c(sealed[CRC_START : BATCH_OVERHEAD + length]))
    return bytes(sealed)


def object_(data: bytes) -> bytes:
    """Return the object with correct CRCs of its header, index, footer and blocks."""
    sealed = bytearray(data)
    if len(sealed) < layout.HEADER_BYTES:
        return data
    _crc_of(sealed, 0, layout.HEADER_CRC_AT, layout.HEADER_CRC_AT)
    footer_at = len(sealed) - layout.FOOTER_BYTES
    if footer_at < 2 * layout.HEADER_BYTES:
        return bytes(sealed)
    index_at = int.from_bytes(sealed[footer_at : footer_at + 8], "big")
    if layout.HEADER_BYTES <= index_at <= footer_at - layout.HEADER_BYTES:
        _crc_of(sealed, index_at, index_at + layout.HEADER_CRC_AT, index_at + layout.HEADER_CRC_AT)
        for at in range(
            index_at + layout.HEADER_BYTES, footer_at - layout.ENTRY_BYTES + 1, layout.ENTRY_BYTES
        ):
            fields = layout.ENTRY.unpack_from(sealed, at)
            crc = crc32c(sealed[fields[6] : fields[6] + fields[7]])
            struct.pack_into(">I", sealed, at + layout.ENTRY_BYTES - 4, crc)
        struct.pack_into(">I", sealed, footer_at + 16, crc32c(sealed[index_at:footer_at]))
    crc_at = footer_at + layout.FOOTER_CRC_AT
    _crc_of(sealed, footer_at, crc_at, crc_at)
    return bytes(sealed)


def manifest(data: bytes) -> bytes:
    """Return the manifest with correct CRCs of its root and footer."""
    sealed = bytearray(data)
    footer_at = len(sealed) - codec.FOOTER.size
    if footer_at < codec.HEADER.size:
        return data
    position, stored_bytes = struct.unpack_from(">QI", sealed, footer_at)
    root = sealed[position : position + stored_bytes]
    struct.pack_into(">I", sealed, footer_at + 16, crc32c(root))
    crc_at = footer_at + codec.FOOTER_CRC_AT
    _crc_of(sealed, footer_at, crc_at, crc_at)
    return bytes(sealed)


def metadata(data: bytes) -> bytes:
    """Return the snapshot, or the object of the metadata log, with a correct CRC."""
    if len(data) < _METADATA_HEADER_BYTES:
        return data
    crc = crc32c(data[_METADATA_HEADER_BYTES:], crc32c(data[:_METADATA_CRC_AT]))
    return data[:_METADATA_CRC_AT] + crc.to_bytes(4, "big") + data[_METADATA_HEADER_BYTES:]


def journal(data: bytes) -> bytes:
    """Return the journal segment with correct frame lengths and CRCs, as far as the frames can be
    followed.
    """
    sealed, at = bytearray(data), 0
    while len(sealed) - at >= _JOURNAL_HEADER.size:
        magic, length, _, _ = _JOURNAL_HEADER.unpack_from(sealed, at)
        start = at + _JOURNAL_HEADER.size
        length = min(length, len(sealed) - start)
        crc = crc32c(sealed[start : start + length])
        _JOURNAL_HEADER.pack_into(sealed, at, magic, length, crc, 0)
        struct.pack_into("<I", sealed, at + 12, crc32c(sealed[at : at + 12]))
        at = start + length
    return bytes(sealed)


def _crc_of(sealed: bytearray, start: int, end: int, crc_at: int) -> None:
    struct.pack_into(">I", sealed, crc_at, crc32c(sealed[start:end]))


Seal = Callable[[bytes], bytes]
