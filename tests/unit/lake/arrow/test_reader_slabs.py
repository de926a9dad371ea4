"""The memory of Arrow batches is reused, but never while there is a reference to it."""

import gc
from collections.abc import Iterator
from random import Random
from threading import Thread
from typing import Any

import polars
import pyarrow as pa
import pytest

from penstock.lake.arrow.columns import DEFAULT
from penstock.lake.arrow.decode import Decoder, Place
from penstock.lake.arrow.slabs import Slab, home_of
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol.batch.records import Record, encode_batch
from tests.support.waiting import PATIENCE_S

BATCHES, RECORDS = 60, 40
CONFIG = ReadConfig(rows_max=RECORDS, batch_bytes_max=40_000)


def value_of(offset: int) -> bytes:
    return b"%d-" % offset * (offset % 90)


def record_of(offset: int) -> Record:
    return Record(
        offset,
        1_700_000_000_000 + offset,
        None if offset % 7 == 0 else b"k%d" % offset,
        value_of(offset),
    )


def decoded(first: int = 0) -> Iterator[Any]:
    """Yield Arrow batches of RECORDS rows each."""
    decoder = Decoder(DEFAULT, CONFIG, compiled=True)
    for number in range(first, first + BATCHES):
        base = number * RECORDS
        yield from decoder.decode(
            encode_batch([record_of(base + i) for i in range(RECORDS)], base_offset=base),
            Place("x", "t", 0),
        )
    yield from decoder.flush()


def is_true(batch: Any) -> bool:
    """Return whether the rows match their offsets."""
    expected = [record_of(offset) for offset in batch["offset"].to_pylist()]
    columns = (
        batch["key"].to_pylist(),
        batch["value"].to_pylist(),
        batch["timestamp"].cast(pa.int64()).to_pylist(),
    )
    return list(zip(*columns, strict=True)) == [
        (record.key, record.value, record.timestamp_ms * 1_000) for record in expected
    ]


def address(batch: Any) -> int:
    return int(batch["value"].buffers()[2].address)


def test_memory_of_dropped_batches_is_reused() -> None:
    addresses = {address(batch) for batch in decoded()}
    assert len(addresses) <= 6, "of 60 batches"


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_are_referenced_do_not_change(seed: int) -> None:
    rng, held = Random(seed), list[Any]()
    for batch in decoded():
        held.append(batch)
        while rng.random() < 0.45 and held:
            held.pop(rng.randrange(len(held)))
        if rng.random() < 0.2:
            gc.collect()
    assert len(held) > 3
    assert all(is_true(batch) for batch in held)
    assert len({address(batch) for batch in held}) == len(held)


def test_columns_slices_and_views_of_other_libraries_keep_the_memory() -> None:
    columns: list[Any] = []
    parts: list[Any] = []
    frames: list[polars.DataFrame] = []
    tables: list[Any] = []
    for number, batch in enumerate(decoded()):
        columns.append(batch["value"]) if number % 4 == 0 else None
        parts.append(batch["value"].slice(5, 10)) if number % 4 == 1 else None
        frames.append(polars.DataFrame(batch)) if number % 4 == 2 else None
        if number % 4 == 3:
            reader = pa.RecordBatchReader.from_stream(
                pa.RecordBatchReader.from_batches(batch.schema, [batch])
            )
            tables.append(reader.read_all())
    del batch
    gc.collect()
    firsts = [number * RECORDS for number in range(BATCHES)]
    for first, column in zip(firsts[0::4], columns, strict=True):
        assert column.to_pylist() == [value_of(first + i) for i in range(RECORDS)]
    for first, part in zip(firsts[1::4], parts, strict=True):
        assert part.to_pylist() == [value_of(first + 5 + i) for i in range(10)]
    for first, frame in zip(firsts[2::4], frames, strict=True):
        assert frame["value"].to_list() == [value_of(first + i) for i in range(RECORDS)]
    assert all(is_true(table) for table in tables)


def test_threads_share_idle_slabs() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        rng, held = Random(number), list[Any]()
        for batch in decoded(number * BATCHES):
            held.append(batch)
            if len(held) > 8:
                wrong.extend(number for batch in held if not is_true(batch))
                held = held[rng.randrange(len(held)) :]

    threads = [Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_buffer_lies_within_its_slab() -> None:
    slab = Slab(home_of("key", 100))
    with pytest.raises(AssertionError, match="within its slab"):
        slab.buffer(90, 11)
    with pytest.raises(AssertionError, match="within its slab"):
        slab.buffer(-1, 2)


def test_idle_memory_is_kept_up_to_a_limit_and_huge_blocks_never() -> None:
    many = [Slab(home_of("key", 12_345)) for _ in range(50)]
    addresses = {slab.address for slab in many}
    del many
    before = pa.total_allocated_bytes()
    again = [Slab(home_of("key", 12_345)) for _ in range(50)]
    assert len({slab.address for slab in again}) == 50
    assert {slab.address for slab in again} & addresses
    assert pa.total_allocated_bytes() - before <= 50 * 12_352
    huge = Slab(home_of("key", 17 << 20))
    before = pa.total_allocated_bytes()
    del huge
    assert before - pa.total_allocated_bytes() >= 17 << 20
