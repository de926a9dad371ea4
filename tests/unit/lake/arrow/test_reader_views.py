"""Keys and values as `binary_view`: the same rows without copying; the memory is kept as long as
the views exist.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.lake.arrow.columns import DEFAULT, arrow_schema
from penstock.lake.arrow.decode import Decoder, Place
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.records import Record, encode_batch
from tests.support.reader_objects import ALL, decode, rows_of

BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["numba", "numpy"])
CODECS = list(Compression)


def value_of(offset: int) -> bytes | None:
    return None if offset % 13 == 0 else b"%d," % offset * (offset % 90)


def block_of(number: int, codec: Compression = Compression.NONE, count: int = 50) -> bytes:
    first = number * count
    records = [
        Record(first + i, 1_000 + i, b"key-%d" % i if i % 3 else None, value_of(first + i))
        for i in range(count)
    ]
    return bytes(encode_batch(records, base_offset=first, compression=codec))


@BOTH
def test_only_key_and_value_are_views(compiled: bool) -> None:
    table = decode(block_of(0), compiled=compiled, views=True)
    plain = arrow_schema(ALL)
    assert table.schema.equals(arrow_schema(ALL, views=True))
    assert {
        field.name: field.type
        for field in table.schema
        if field.type != plain.field(field.name).type
    } == {
        "key": pa.binary_view(),
        "value": pa.binary_view(),
    }
    assert decode(
        block_of(0), compiled=compiled, views=True, columns=("value", "offset")
    ).schema.names == ["value", "offset"]


@BOTH
@pytest.mark.parametrize("codec", CODECS)
def test_rows_with_and_without_views_are_equal(codec: Compression, compiled: bool) -> None:
    data = b"".join(block_of(number, codec) for number in range(20))
    assert rows_of(decode(data, compiled=compiled, views=True, rows_max=130)) == rows_of(
        decode(data, compiled=compiled)
    )


@BOTH
def test_lengths_around_the_inline_limit_of_views_up_to_the_end_of_a_block(
    compiled: bool,
) -> None:
    for length in range(20):
        for count in (1, 2, 7):
            records = [
                Record(i, 0, bytes(range(length)), bytes(range(100, 100 + length)))
                for i in range(count)
            ]
            table = decode(bytes(encode_batch(records)), compiled=compiled, views=True)
            assert rows_of(table) == [
                (i, 0, bytes(range(length)), bytes(range(100, 100 + length)), ())
                for i in range(count)
            ]


def test_a_huge_record_may_exceed_the_size_of_a_batch() -> None:
    records = [
        Record(0, 0, None, b"small"),
        Record(1, 0, b"k" * 70_000, b"x" * (5 << 20), (("h", b"v" * 300_000),)),
        Record(2, 0, None, b"y"),
    ]
    decoder = Decoder(ALL, ReadConfig(views=True, batch_bytes_max=100_000), compiled=True)
    batches = [*decoder.decode(bytes(encode_batch(records)), Place("x", "t", 0)), *decoder.flush()]
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert rows_of(pa.Table.from_batches(batches)) == [
        (r.offset, 0, r.key, r.value, r.headers) for r in records
    ]


def test_blocks_of_one_get_are_one_buffer_without_copying() -> None:
    whole = b"".join(block_of(number) for number in range(6))
    block_bytes = [len(block_of(number)) for number in range(6)]
    decoder = Decoder(DEFAULT, ReadConfig(views=True), compiled=True)
    at, batches = 0, list[Any]()
    for size_bytes in block_bytes:
        batches += decoder.decode(memoryview(whole)[at : at + size_bytes], Place("x", "t", 0))
        at += size_bytes
    batches += decoder.decode(block_of(6), Place("x", "t", 0))
    batches += decoder.flush()
    assert len(batches) == 1
    for name in ("key", "value"):
        _valid, _views, first, second = batches[0][name].buffers()
        assert first.address == pa.py_buffer(whole).address
        assert (first.size, second.size) == (len(whole), len(block_of(6)))


@pytest.mark.parametrize("codec", CODECS)
def test_views_that_are_referenced_do_not_change(codec: Compression) -> None:
    """Decompressing more data and dropping other references to the fetched bytes does not change
    them.
    """
    rng, held = Random(codec), list[Any]()

    def decoded() -> Iterator[Any]:
        decoder = Decoder(DEFAULT, ReadConfig(views=True, rows_max=70), compiled=True)
        for number in range(60):
            yield from decoder.decode(bytearray(block_of(number, codec)), Place("x", "t", 0))
        yield from decoder.flush()

    for batch in decoded():
        held.append(batch)
        if rng.random() < 0.7:
            held.pop(rng.randrange(len(held)))
    assert len(held) > 3
    for batch in held:
        batch.validate(full=True)
        assert batch["value"].to_pylist() == [
            value_of(offset) for offset in batch["offset"].to_pylist()
        ]


def test_batch_limits_above_the_range_of_views_are_rejected() -> None:
    ReadConfig(block_bytes_max=3 << 30)
    with pytest.raises(ValueError, match="block_bytes_max"):
        ReadConfig(views=True, block_bytes_max=3 << 30)
    with pytest.raises(ValueError, match="rows_max"):
        ReadConfig(rows_max=0)
