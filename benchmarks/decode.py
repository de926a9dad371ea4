"""Decoding to Arrow on one core, in CPU time: the best of several passes, since other work on the machine only ever takes away.

Blocks are distinct and larger together than the CPU's inner caches; "MB/s" are uncompressed record bytes. Run alone:
`python -m benchmarks.decode`.
"""

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from rich.console import Console

from benchmarks.harness import Measure
from stream.batch.compression import Compression, Inflater, decompress
from stream.batch.header import HEADER_BYTES
from stream.batch.records import Record, encode_batch
from stream.reader.columns import DEFAULT
from stream.reader.config import ReadConfig
from stream.reader.decode import Decoder, Place

REPEATS: Final = int(os.environ.get("BENCH_DECODE_REPEATS", "20"))
BLOCKS: Final = 12
BATCH_BYTES: Final = 1 << 20
_WORDS: Final = [b"carrier", b"delay", b"minutes", b"JFK", b"LAX", b"2013", b"departure", b"arrival", b"flight", b"tailnum"]


def batches(value_bytes: int, codec: Compression, *, batch_bytes: int = BATCH_BYTES) -> tuple[list[bytes], int]:
    """Blocks of one batch each, and their uncompressed bytes."""
    rng, found, plain_bytes, offset = Random(value_bytes), list[bytes](), 0, 0
    for _ in range(BLOCKS):
        count = max(1, batch_bytes // (value_bytes + 25))
        records = [
            Record(offset + i, 1_700_000_000_000 + i, b"key-%011d" % (offset + i), _value(rng, value_bytes, codec)) for i in range(count)
        ]
        found.append(bytes(encode_batch(records, base_offset=offset, compression=codec)))
        plain_bytes += len(decompress(codec, found[-1][HEADER_BYTES:]))
        offset += count
    return found, plain_bytes


def _value(rng: Random, size: int, codec: Compression) -> bytes:
    """Something like JSON, about half of which compresses away."""
    if codec == Compression.NONE:
        return rng.randbytes(size)
    parts: list[bytes] = []
    filled = 0
    while filled < size:
        parts.append(b'"%s":%d,' % (rng.choice(_WORDS), rng.randrange(1_000_000)))
        filled += len(parts[-1])
    return b"".join(parts)[:size]


def best_s(work: Callable[[], None]) -> float:
    """CPU seconds of the fastest pass."""
    seconds: list[float] = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def decode_all(decoder: Decoder, blocks: Sequence[bytes]) -> None:
    place = Place("data", "flights", 0)
    for block in blocks:
        for _ in decoder.decode(block, place):
            pass
    for _ in decoder.flush():
        pass


def decoded_mb_per_s(
    blocks: Sequence[bytes], plain_bytes: int, columns: Sequence[str] = DEFAULT, *, compiled: bool = True, views: bool = False
) -> float:
    decoder = Decoder(columns, ReadConfig(views=views), compiled=compiled)
    return plain_bytes / best_s(lambda: decode_all(decoder, blocks)) / 1e6


def inflated_mb_per_s(blocks: Sequence[bytes], codec: Compression, plain_bytes: int) -> float:
    inflater = Inflater()

    def inflate_all() -> None:
        for block in blocks:
            inflater.append(codec, memoryview(block)[HEADER_BYTES:], 0)

    return plain_bytes / best_s(inflate_all) / 1e6


def copied_mb_per_s(blocks: Sequence[bytes]) -> float:
    """What the machine copies at this moment, for judging the figures above."""
    target = memoryview(bytearray(4 * BATCH_BYTES))

    def copy_all() -> None:
        for number, block in enumerate(blocks):
            at = number % 3 * BATCH_BYTES
            target[at : at + len(block)] = block

    return sum(map(len, blocks)) / best_s(copy_all) / 1e6


def decode() -> list[Measure]:
    """The bars: uncompressed per core, and lz4 and zstd against decompressing alone. Those of views are our own."""
    measures: list[Measure] = []
    for value_bytes, bar, views_bar in ((100, 3_000, 3_000), (1_024, 5_000, 7_000)):
        blocks, plain_bytes = batches(value_bytes, Compression.NONE)
        note = f"a plain copy {copied_mb_per_s(blocks):,.0f}"
        value = decoded_mb_per_s(blocks, plain_bytes)
        measures.append(Measure(f"decode to Arrow per core, {value_bytes} B records", value, "MB/s", bar, "higher", note=note))
        viewed = decoded_mb_per_s(blocks, plain_bytes, views=True)
        measures.append(Measure(f"the same, key and value as views, {value_bytes} B records", viewed, "MB/s", views_bar, "higher"))
    for codec in (Compression.LZ4, Compression.ZSTD):
        for value_bytes in (100, 1_024):
            blocks, plain_bytes = batches(value_bytes, codec)
            limit = inflated_mb_per_s(blocks, codec, plain_bytes)
            name = f"the same, {codec.name.lower()}, {value_bytes} B records / decompressing alone"
            measures.append(Measure(name, decoded_mb_per_s(blocks, plain_bytes), "MB/s", 0.6, "higher", limit))
    return measures


if __name__ == "__main__":
    from benchmarks.__main__ import table_of

    Console().print(table_of(decode()))
