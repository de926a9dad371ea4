"""Measure decoding to Arrow on one core in CPU time. The best of several passes counts, because
other load on the machine only slows passes down.

Blocks are distinct, and together larger than the CPU's inner caches. "MB/s" are uncompressed record
bytes. Run alone: `python -m benchmarks.decode`.
"""

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from rich.console import Console

from benchmarks.harness import Measure
from penstock.lake.arrow.columns import DEFAULT
from penstock.lake.arrow.decode import Decoder, Place
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol.batch.compression import Compression, Inflater, decompress
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch

ROUNDS: Final = int(os.environ.get("BENCH_DECODE_ROUNDS", "5"))
REPEATS: Final = 8
"""Consecutive passes of one kind."""
BLOCKS: Final = 12
BATCH_BYTES: Final = 1 << 20
_WORDS: Final = [
    b"carrier",
    b"delay",
    b"minutes",
    b"JFK",
    b"LAX",
    b"2013",
    b"departure",
    b"arrival",
    b"flight",
    b"tailnum",
]


def batches(
    value_bytes: int, codec: Compression, *, batch_bytes: int = BATCH_BYTES
) -> tuple[list[bytes], int]:
    """Return blocks of one batch each, and their uncompressed size."""
    rng, found, plain_bytes, offset = Random(value_bytes), list[bytes](), 0, 0
    for _ in range(BLOCKS):
        count = max(1, batch_bytes // (value_bytes + 25))
        records = [
            Record(
                offset + i,
                1_700_000_000_000 + i,
                b"key-%011d" % (offset + i),
                _value(rng, value_bytes, codec),
            )
            for i in range(count)
        ]
        found.append(bytes(encode_batch(records, base_offset=offset, compression=codec)))
        plain_bytes += len(decompress(codec, found[-1][HEADER_BYTES:]))
        offset += count
    return found, plain_bytes


def _value(rng: Random, size: int, codec: Compression) -> bytes:
    """Return JSON-like text, which compresses to about half."""
    if codec == Compression.NONE:
        return rng.randbytes(size)
    parts: list[bytes] = []
    filled = 0
    while filled < size:
        parts.append(b'"%s":%d,' % (rng.choice(_WORDS), rng.randrange(1_000_000)))
        filled += len(parts[-1])
    return b"".join(parts)[:size]


class Work:
    """Repeated work that records its fastest pass."""

    def __init__(self, plain_bytes: int, once: Callable[[], None]) -> None:
        self._plain_bytes = plain_bytes
        self._once = once
        self._best_s = float("inf")

    def repeat(self) -> None:
        for _ in range(REPEATS):
            began = time.process_time()
            self._once()
            self._best_s = min(self._best_s, time.process_time() - began)

    @property
    def mb_per_s(self) -> float:
        return self._plain_bytes / self._best_s / 1e6


def _decode_all(decoder: Decoder, blocks: Sequence[bytes]) -> None:
    place = Place("data", "flights", 0)
    for block in blocks:
        for _ in decoder.decode(block, place):
            pass
    for _ in decoder.flush():
        pass


def _decoding(blocks: Sequence[bytes], plain_bytes: int, *, views: bool = False) -> Work:
    decoder = Decoder(DEFAULT, ReadConfig(views=views), compiled=True)
    return Work(plain_bytes, lambda: _decode_all(decoder, blocks))


def _inflating(blocks: Sequence[bytes], plain_bytes: int, codec: Compression) -> Work:
    inflater = Inflater()

    def inflate_all() -> None:
        for block in blocks:
            inflater.append(codec, memoryview(block)[HEADER_BYTES:], 0)

    return Work(plain_bytes, inflate_all)


def _copying(blocks: Sequence[bytes]) -> Work:
    """Measure memory copies, for comparison with the other figures."""
    target = memoryview(bytearray(4 * BATCH_BYTES))

    def copy_all() -> None:
        for number, block in enumerate(blocks):
            at = number % 3 * BATCH_BYTES
            target[at : at + len(block)] = block

    return Work(sum(map(len, blocks)), copy_all)


class Decoding:
    """The targets: GB/s per core without compression; lz4 and zstd relative to decompression. There
    are no external targets for views.
    """

    def __init__(self) -> None:
        self._plain: list[tuple[int, int, Work, Work]] = []
        self._viewed: list[tuple[int, int, Work]] = []
        self._packed: list[tuple[str, Work, Work]] = []
        self._works: list[Work] = []
        for value_bytes, bar, views_bar in ((100, 3_000, 3_000), (1_024, 5_000, 7_000)):
            blocks, plain_bytes = batches(value_bytes, Compression.NONE)
            copied, viewed, copying = (
                _decoding(blocks, plain_bytes),
                _decoding(blocks, plain_bytes, views=True),
                _copying(blocks),
            )
            self._plain.append((value_bytes, bar, copied, copying))
            self._viewed.append((value_bytes, views_bar, viewed))
            self._works += copied, viewed, copying
        for codec in (Compression.LZ4, Compression.ZSTD):
            for value_bytes in (100, 1_024):
                blocks, plain_bytes = batches(value_bytes, codec)
                name = (
                    f"the same, {codec.name.lower()}, {value_bytes} B records / decompressing alone"
                )
                decoded, inflated = (
                    _decoding(blocks, plain_bytes),
                    _inflating(blocks, plain_bytes, codec),
                )
                self._packed.append((name, decoded, inflated))
                self._works += decoded, inflated

    def take(self) -> None:
        """Run all passes in turn. May be called again later, because the machine is twice as fast
        in some minutes as in others.
        """
        for _ in range(ROUNDS):
            for work in self._works:
                work.repeat()

    def measures(self) -> list[Measure]:
        found: list[Measure] = []
        for value_bytes, bar, work, copying in self._plain:
            note = f"a plain copy {copying.mb_per_s:,.0f}"
            found.append(
                Measure(
                    f"decode to Arrow per core, {value_bytes} B records",
                    work.mb_per_s,
                    "MB/s",
                    bar,
                    "higher",
                    note=note,
                )
            )
        for value_bytes, bar, work in self._viewed:
            name = f"the same, key and value as views, {value_bytes} B records"
            found.append(Measure(name, work.mb_per_s, "MB/s", bar, "higher"))
        for name, work, limit in self._packed:
            found.append(Measure(name, work.mb_per_s, "MB/s", 0.6, "higher", limit.mb_per_s))
        return found


if __name__ == "__main__":
    from benchmarks.__main__ import table_of

    decoding = Decoding()
    decoding.take()
    Console().print(table_of(decoding.measures()))
