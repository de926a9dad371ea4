"""The four codecs of Kafka batches, with a limit on what comes out.

Invariant: never allocates more than the limit, nor by a length that the input merely declares; damaged input and input that would grow over
the limit raise BatchCorrupt. Output space grows fourfold from what is usual, so a bomb costs at most the limit once more by a third.
Snappy comes in two framings: raw (librdkafka, franz-go) and xerial blocks (Java, kafka-python, sarama); both are read, raw is written.
Source: Kafka `CompressionType`, snappy-java `SnappyOutputStream`.
"""

from collections.abc import Callable
from enum import IntEnum

import cramjam

from stream.errors import BatchCorrupt

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Default limit. Producers' batches are limited to about 1 MiB compressed (message.max.bytes); text compresses 5 to 20 times."""


class Compression(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_OUTPUT_BYTES_MIN = 64 << 10
_GROWTH = 4
_OUTPUT_TOO_SMALL = "failed to write whole buffer"

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SNAPPY_RATIO_MAX = 32
"""A snappy copy of 3 bytes gives 64 at most: a raw block that declares more than this per byte is a lie."""


def compress(compression: Compression, data: Buffer) -> bytes:
    if compression == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression == Compression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if compression == Compression.LZ4:
        return bytes(cramjam.lz4.compress(data))
    if compression == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return bytes(data)


def decompress(compression: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> memoryview:
    """The plain bytes; `data` itself if it is not compressed. Raises BatchCorrupt for unknown codecs, damage and bombs."""
    if compression == Compression.NONE:
        return memoryview(data)
    if compression == Compression.GZIP:
        return _bounded(cramjam.gzip.decompress_into, data, bytes_max)
    if compression == Compression.SNAPPY:
        return _snappy(memoryview(data), bytes_max)
    if compression == Compression.LZ4:
        return _bounded(cramjam.lz4.decompress_into, data, bytes_max)
    if compression == Compression.ZSTD:
        return _bounded(cramjam.zstd.decompress_into, data, bytes_max)
    raise BatchCorrupt(f"compression {compression} is not known; 0 none, 1 gzip, 2 snappy, 3 lz4 and 4 zstd are")


def _bounded(decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, bytes_max: int) -> memoryview:
    """The codecs stop at the end of the output they are given; a stream that wants more is tried again with more, up to the limit."""
    capacity = min(bytes_max, max(_OUTPUT_BYTES_MIN, _GROWTH * len(data)))
    while True:
        output = bytearray(capacity)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_TOO_SMALL:
                raise BatchCorrupt(f"records cannot be decompressed: {error}") from None
        if capacity >= bytes_max:
            raise BatchCorrupt(f"records decompress to more than {bytes_max} bytes")
        capacity = min(bytes_max, capacity * _GROWTH)


def _snappy(data: memoryview, bytes_max: int) -> memoryview:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, bytes_max)
    output = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size_bytes = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size_bytes > len(data) - at:
            raise BatchCorrupt(f"a snappy block of {size_bytes} bytes has {len(data) - at} left")
        output += _snappy_block(data[at : at + size_bytes], bytes_max - len(output))
        at += size_bytes
    return memoryview(output)


def _snappy_block(block: memoryview, bytes_max: int) -> memoryview:
    try:
        declared = cramjam.snappy.decompress_raw_len(block)
        if declared > bytes_max or declared > _SNAPPY_RATIO_MAX * len(block):
            raise BatchCorrupt(f"a snappy block of {len(block)} bytes declares {declared}, {bytes_max} are allowed")
        output = bytearray(declared)
        return memoryview(output)[: cramjam.snappy.decompress_raw_into(block, output)]
    except cramjam.DecompressionError as error:
        raise BatchCorrupt(f"records cannot be decompressed: {error}") from None
