"""Determine the uncompressed size of a batch from the sizes declared in its compressed bytes.

This takes O(1) per batch, or per block of xerial snappy; nothing is decompressed. The size is
declared by producers and not verified, so use it for planning, never for allocation.
"""

from collections.abc import Callable
from typing import Final

import cramjam

from penstock.base.buffers import Buffer
from penstock.protocol.batch.compression import XERIAL_HEADER_BYTES, XERIAL_MAGIC, Compression
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.walk import PlainSize

UNCOMPRESSED_UNKNOWN: Final = 0

_DECLARED_BYTES_MAX: Final = (1 << 31) - 1
"""Largest plausible size: a Java client cannot store more in one batch, so a larger number
indicates damage.
"""

_XERIAL_BLOCKS_MAX: Final = 1_024
"""Maximum number of blocks that are examined. Clients write blocks of 32 KiB, so this corresponds
to 32 MiB of records; examining them takes 0.5 ms.
"""

_ZSTD_BLOCKS_MAX: Final = 1_024
"""Maximum number of blocks that are examined: 128 MiB if all blocks are full; examining them takes
0.3 ms.
"""
_ZSTD_BLOCK_BYTES: Final = 128 << 10
_ZSTD_RLE: Final = 1
_ZSTD_COMPRESSED: Final = 2
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_GZIP_BYTES_MIN: Final = 18


def uncompressed_bytes(compression: int, batch: Buffer) -> int:
    """Return the uncompressed size of one whole batch including its header, or UNCOMPRESSED_UNKNOWN
    if its compressed bytes do not declare it.

    gzip declares the size modulo 2^32, and only that of the last member; zstd and lz4 declare the
    size of the first frame, if it was known when compression began.
    """
    if compression == Compression.NONE:
        return len(batch)
    declared_bytes = _DECLARED_BYTES.get(compression)
    if declared_bytes is None:
        return UNCOMPRESSED_UNKNOWN
    try:
        size_bytes = declared_bytes(memoryview(batch)[HEADER_BYTES:])
    except (IndexError, cramjam.DecompressionError):
        return UNCOMPRESSED_UNKNOWN
    if size_bytes is None or size_bytes > _DECLARED_BYTES_MAX:
        return UNCOMPRESSED_UNKNOWN
    return HEADER_BYTES + size_bytes


def _gzip(data: memoryview) -> int | None:
    return int.from_bytes(data[-4:], "little") if len(data) >= _GZIP_BYTES_MIN else None


def _snappy(data: memoryview) -> int | None:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_len(data))
    at, total = XERIAL_HEADER_BYTES, 0
    for _ in range(_XERIAL_BLOCKS_MAX):
        block_bytes = int.from_bytes(data[at : at + 4], "big")
        at += 4
        total += cramjam.snappy.decompress_raw_len(data[at : at + block_bytes])
        at += block_bytes
        if at >= len(data):
            return total if at == len(data) else None
    return None


def _lz4(data: memoryview) -> int | None:
    """Return the content size, if bit 3 of the flags shows that it is present."""
    if bytes(data[:4]) != _LZ4_MAGIC or not data[4] & 0x08 or len(data) < 14:
        return None
    return int.from_bytes(data[6:14], "little")


def _zstd(data: memoryview) -> int | None:
    """Return the frame content size if there is one."""
    head = _zstd_head(data)
    return None if head is None else head[1]


def _zstd_head(data: memoryview) -> tuple[int, int | None] | None:
    """Return the position after the header of a frame, and the content size. The content size
    follows the window descriptor, which a single-segment frame lacks, and the dictionary id.
    """
    if bytes(data[:4]) != _ZSTD_MAGIC:
        return None
    descriptor = data[4]
    is_single_segment = bool(descriptor & 0x20)
    field_bytes = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    at = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if at + field_bytes > len(data):
        return None
    if not field_bytes:
        return at, None
    size_bytes = int.from_bytes(data[at : at + field_bytes], "little")
    return at + field_bytes, size_bytes + 256 if field_bytes == 2 else size_bytes


def zstd_size(data: memoryview) -> PlainSize | None:
    """Return the decompressed size of the blocks in one zstd frame, or None if it cannot be
    determined. Java's producer compresses a stream, so it does not write the content size.
    """
    try:
        head = _zstd_head(data)
        if head is None:
            return None
        at, most = head[0], 0
        for _ in range(_ZSTD_BLOCKS_MAX):
            if at + 3 > len(data):
                return None
            block = int.from_bytes(data[at : at + 3], "little")
            kind, size_bytes = block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == _ZSTD_RLE else size_bytes)
            most += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size_bytes
            if block & 1:
                at += 4 if data[4] & 4 else 0
                # Encoders split some blocks, so not all blocks are full.
                return PlainSize(most * 3 // 4, most) if at == len(data) else None
    except IndexError:
        pass
    return None


_DECLARED_BYTES: Final[dict[int, Callable[[memoryview], int | None]]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
