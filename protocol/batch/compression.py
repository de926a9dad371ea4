"""Compress and decompress Kafka batches with the four codecs, limiting the size of the output.

Never allocates more than the limit, and ignores declared lengths. Snappy has two framings: raw
(librdkafka, franz-go) and xerial blocks (Java, kafka-python, sarama). Both are read; raw is
written.
"""

from collections.abc import Callable
from enum import IntEnum
from mmap import mmap

import cramjam

from penstock.base.buffers import Buffer
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Limit for readers. Brokers have a lower limit: `decompressed.batch.max.bytes`. Producers send
batches of up to about 1 MiB compressed (`message.max.bytes`), and text compresses 5 to 20 times.
"""


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

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16
_SNAPPY_RATIO_MAX = 32
"""Maximum accepted compression ratio of a raw snappy block. A copy element of 3 bytes yields at
most 64 bytes, so a block that declares a higher ratio is invalid.
"""

_LZ4_FRAME_HEADER = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks, block size 64 KiB, checksum of these two bytes."""
_LZ4_HEADER_BYTES = len(_LZ4_FRAME_HEADER)
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_BLOCK_BYTES_MAX = {
    bytes.fromhex("04224d18604082"): _LZ4_BLOCK_BYTES,
    bytes.fromhex("04224d186050fb"): 256 << 10,
    bytes.fromhex("04224d18606051"): 1 << 20,
    bytes.fromhex("04224d18607073"): 4 << 20,
}
"""The maximum block size by frame header, for frames of independent blocks without checksums and
content size, which is what the Java and librdkafka producers write.
"""
_LZ4_UNCOMPRESSED = 1 << 31
_LZ4_END_MARK = bytes(4)


def compress(compression: Compression, data: Buffer) -> bytes:
    if compression == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression == Compression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if compression == Compression.LZ4:
        return _compress_lz4(memoryview(data))
    if compression == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return bytes(data)


def _compress_lz4(data: memoryview) -> bytes:
    """Return a frame of independent blocks. `cramjam.lz4.compress` links blocks, which Kafka's Java
    clients reject.
    """
    frame = bytearray(_LZ4_FRAME_HEADER)
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[at : at + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            frame += len(packed).to_bytes(4, "little")
            frame += packed
        else:
            frame += (len(block) | _LZ4_UNCOMPRESSED).to_bytes(4, "little")
            frame += block
    frame += _LZ4_END_MARK
    return bytes(frame)


def decompress_mapped(
    compression: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """Like `decompress`, but for use in a thread, because the codecs release the GIL. The result is
    in mapped memory, because zeroing a bytearray of 64 MiB would hold the GIL for 30 ms.
    """
    if compression == Compression.NONE:
        return memoryview(data)
    inflater = Inflater(bytes_max, allocate=lambda size_bytes: mmap(-1, size_bytes))
    end = inflater.append(compression, data, 0)
    return memoryview(inflater.output)[:end]


def decompress(
    compression: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """Return the decompressed bytes, or `data` itself if it is not compressed. Raises BatchCorrupt
    for unknown codecs, damage and decompression bombs.
    """
    if compression == Compression.NONE:
        return memoryview(data)
    inflater = Inflater(bytes_max)
    end = inflater.append(compression, data, 0)
    return memoryview(inflater.output)[:end]


class ReusingInflater:
    """Decompresses batches one after another into reused memory, which grows to the size of the
    largest batch. A decompression bomb of 64 MiB takes 73 ms with fresh memory, and 11 ms with
    reused memory.
    """

    __slots__ = ("_inflater",)

    def __init__(self) -> None:
        self._inflater = Inflater()

    def decompress(self, compression: int, data: Buffer, bytes_max: int) -> memoryview:
        """Like `decompress`. The result is valid until the next call."""
        if compression == Compression.NONE:
            return memoryview(data)
        self._inflater.limit(bytes_max)
        end = self._inflater.append(compression, data, 0)
        return memoryview(self._inflater.output)[:end]


class Inflater:
    """Decompresses batches one after another into the same memory, because allocating new memory
    takes as long as decompressing lz4.

    The output grows by a factor of four, so a decompression bomb allocates at most four thirds of
    the limit, or twice the limit with xerial framing.
    """

    __slots__ = ("_allocate", "_bytes_max", "output")

    def __init__(
        self,
        bytes_max: int = DECOMPRESSED_BYTES_MAX,
        allocate: Callable[[int], bytearray | mmap] = bytearray,
    ) -> None:
        self._bytes_max = bytes_max
        self._allocate = allocate
        self.output: bytearray | mmap = bytearray()
        """The output buffer. To grow, it is replaced instead of resized, so that views of the
        earlier buffer remain valid.
        """

    def limit(self, bytes_max: int) -> None:
        """Change the maximum size of one batch."""
        self._bytes_max = bytes_max

    def reserve(self, bytes_min: int) -> None:
        """Allocate `output` for a batch of this size, if it is larger."""
        self._room(0, min(self._bytes_max, bytes_min))

    def append(self, compression: int, data: Buffer, used: int, plain_bytes: int = 0) -> int:
        """Write the decompressed bytes after the first `used` bytes of `output` and return their
        end. Raises the errors of `decompress`. plain_bytes: the maximum decompressed size, if
        known, which avoids repeated attempts.
        """
        if compression == Compression.SNAPPY:
            return self._snappy(memoryview(data), used)
        if compression == Compression.LZ4:
            end = self._lz4_blocks(memoryview(data), used, plain_bytes)
            if end is not None:
                return end
        decompress_into = _DECOMPRESS_INTO.get(compression)
        if decompress_into is None:
            raise BatchCorrupt(
                f"compression {compression} is unknown; use 0 none, 1 gzip, 2 snappy, 3 lz4"
                " and 4 zstd"
            )
        wanted = plain_bytes or max(_OUTPUT_BYTES_MIN, _GROWTH * len(data))
        capacity = self._room(used, min(self._bytes_max, wanted))
        while True:
            try:
                return used + decompress_into(data, memoryview(self.output)[used : used + capacity])
            except cramjam.DecompressionError as error:
                if str(error) != _OUTPUT_TOO_SMALL:
                    raise BatchCorrupt(f"records cannot be decompressed: {error}") from None
            # The codecs stop at the end of the output, so retry with more space, up to the limit.
            if capacity >= self._bytes_max:
                raise BatchTooLarge(f"records decompress to more than {self._bytes_max} bytes")
            capacity = self._room(used, min(self._bytes_max, capacity * _GROWTH))

    def renew(self, bytes_min: int) -> None:
        """Allocate a new `output` of at least this size. Views of the old output keep it alive."""
        self.output = bytearray(bytes_min)

    def _room(self, used: int, bytes_min: int) -> int:
        """Return the number of bytes that may follow the first `used`, at least `bytes_min`."""
        if len(self.output) - used < bytes_min:
            grown = self._allocate(used + bytes_min)
            # Assign to a view: assigning to a bytearray would copy the bytes twice.
            memoryview(grown)[:used] = memoryview(self.output)[:used]
            self.output = grown
        return min(self._bytes_max, len(self.output) - used)

    def _lz4_blocks(self, data: memoryview, used: int, plain_bytes_max: int) -> int | None:
        """Return the end of the decompressed bytes, or None for frames that cramjam must read as a
        whole because they have a different header, are damaged or are too large. This takes 0.6 to
        0.8 times the CPU of cramjam, which first copies whole frames to new memory.
        """
        block_bytes_max = _LZ4_BLOCK_BYTES_MAX.get(bytes(data[:_LZ4_HEADER_BYTES]))
        if block_bytes_max is None:
            return None
        self._room(used, min(self._bytes_max, plain_bytes_max or _GROWTH * len(data)))
        position, end, limit = _LZ4_HEADER_BYTES, used, used + self._bytes_max
        is_full = True
        while position + 4 <= len(data):
            word = int.from_bytes(data[position : position + 4], "little")
            position += 4
            if not word:
                return end if position == len(data) else None
            size_bytes = word & ~_LZ4_UNCOMPRESSED
            # This loop would take longer than cramjam for many small blocks.
            if not is_full or not 0 < size_bytes <= block_bytes_max:
                return None
            if not plain_bytes_max and len(self.output) - end < block_bytes_max:
                self._room(end, min(limit - end, max(block_bytes_max, end // 2)))
            block = data[position : position + size_bytes]
            output = memoryview(self.output)[end : min(limit, end + block_bytes_max)]
            position += size_bytes
            if not word & _LZ4_UNCOMPRESSED:
                try:
                    plain_bytes = cramjam.lz4.decompress_block_into(
                        block, output, output_len=len(output)
                    )
                except cramjam.DecompressionError:
                    return None
            elif size_bytes == len(block) <= len(output):
                output[:size_bytes] = block
                plain_bytes = size_bytes
            else:
                return None
            end += plain_bytes
            is_full = plain_bytes == block_bytes_max
        return None

    def _snappy(self, data: memoryview, used: int) -> int:
        if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
            return self._snappy_block(data, used, self._bytes_max)
        at, limit = XERIAL_HEADER_BYTES, used + self._bytes_max
        while at < len(data):
            size_bytes = int.from_bytes(data[at : at + 4], "big")
            at += 4
            if size_bytes > len(data) - at:
                raise BatchCorrupt(
                    f"a snappy block of {size_bytes} bytes has {len(data) - at} left"
                )
            used = self._snappy_block(data[at : at + size_bytes], used, limit - used)
            at += size_bytes
        return used

    def _snappy_block(self, block: memoryview, used: int, bytes_max: int) -> int:
        try:
            declared = cramjam.snappy.decompress_raw_len(block)
            if declared > _SNAPPY_RATIO_MAX * len(block):
                raise BatchCorrupt(
                    f"a snappy block of {len(block)} bytes declares {declared}, which is impossible"
                )
            if declared > bytes_max:
                raise BatchTooLarge(f"records decompress to more than {self._bytes_max} bytes")
            if len(self.output) - used < declared:
                # Xerial input has dozens of blocks, so growing by half limits the copies.
                self._room(used, max(declared, min(bytes_max, used // 2)))
            return used + cramjam.snappy.decompress_raw_into(
                block, memoryview(self.output)[used : used + declared]
            )
        except cramjam.DecompressionError as error:
            raise BatchCorrupt(f"records cannot be decompressed: {error}") from None


_DECOMPRESS_INTO: dict[int, Callable[[Buffer, memoryview], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}
