"""Records that the kernel reads in a single step, mixed with others: the rows are the same, and no
byte beyond the block is read.
"""

import ctypes
import mmap
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.lake.arrow.decode import Decoder, Place
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from tests.support.reader_objects import ALL, decode, records_of, row_of, rows_of, sealed

BORDERS = (0, 1, 62, 63, 64, 65, 8_190, 8_191, 8_192, 8_193)
"""Lengths around the limits of varints of one, two and three bytes."""

VIEWS = pytest.mark.parametrize("views", [False, True], ids=["copies", "views"])


@VIEWS
def test_varints_of_any_length(views: bool) -> None:
    records: list[Record] = []
    offset, base_ms = 0, 1_700_000_000_000
    for key in (None, *BORDERS):
        for value in (None, *BORDERS):
            for timestamp_delta_ms in (0, 63, 64, -64, -65, 8_191, 8_192, -8_192, -8_193, 1 << 40):
                key_bytes, value_bytes = (
                    None if key is None else b"k" * key,
                    None if value is None else b"v" * value,
                )
                records.append(Record(offset, base_ms + timestamp_delta_ms, key_bytes, value_bytes))
                offset += 1
    data = bytes(encode_batch(records, base_offset=0))
    assert rows_of(decode(data, compiled=True, views=views)) == [
        row_of(record) for record in records
    ]


def test_offsets_with_gaps() -> None:
    offsets = [
        0,
        1,
        63,
        64,
        65,
        127,
        128,
        8_191,
        8_192,
        8_193,
        16_383,
        16_384,
        1 << 20,
        (1 << 31) - 1,
    ]
    data = bytes(encode_batch([Record(offset, 0, b"k", b"v") for offset in offsets], base_offset=0))
    assert [row[0] for row in rows_of(decode(data, compiled=True))] == offsets


_PROT_NONE = 0


class Guarded:
    """Memory before a protected page: reading beyond its last byte crashes the process."""

    def __init__(self, pages: int) -> None:
        self._size = pages * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mprotect(ctypes.c_void_p(address + self._size), mmap.PAGESIZE, _PROT_NONE)
        assert done == 0, ctypes.get_errno()

    def put(self, data: bytes) -> memoryview:
        self._memory[self._size - len(data) : self._size] = data
        return memoryview(self._memory)[self._size - len(data) : self._size]


def damaged_blocks() -> Iterator[bytes]:
    """Yield blocks of one to three short records: valid, truncated, and with numbers that point
    elsewhere.
    """
    rng = Random(5)
    for _ in range(4_000):
        records = [
            Record(
                i,
                rng.choice((0, 5, 9_000, 1 << 40)),
                rng.choice((None, b"", b"k", b"k" * 12)),
                rng.choice((None, b"", b"v" * 13, b"v" * 90)),
            )
            for i in range(rng.randrange(1, 4))
        ]
        data = bytearray(encode_batch(records, base_offset=0))
        if rng.random() < 0.3:
            del data[HEADER_BYTES + rng.randrange(len(data) - HEADER_BYTES) :]
        elif rng.random() < 0.9:
            for _change in range(rng.randrange(1, 3)):
                data[rng.randrange(HEADER_BYTES, len(data))] = rng.choice(
                    (0, 1, 2, 3, 20, 0x7E, 0x80, 0xFE, 0xFF, rng.randrange(256))
                )
        yield sealed(data)


@VIEWS
def test_no_byte_after_a_block_is_read(views: bool) -> None:
    """With views, short fields are also read in steps. The result is rows or an error, as with the
    numpy decoder, which checks all accesses.
    """
    memory = Guarded(1)
    rows = refused = 0
    for data in damaged_blocks():
        block = memory.put(data)
        decoder = Decoder(ALL, ReadConfig(views=views), compiled=True)
        try:
            found: list[Any] = [*decoder.decode(block, Place("x", "t", 0)), *decoder.flush()]
        except ReadError:
            refused += 1
            with pytest.raises(ReadError):
                decode(data, compiled=False)
            continue
        table = pa.Table.from_batches(found, decoder.schema)
        rows += table.num_rows
        assert rows_of(table) == [row_of(record) for record in records_of(data)]
    assert rows > 1_000
    assert refused > 1_000
