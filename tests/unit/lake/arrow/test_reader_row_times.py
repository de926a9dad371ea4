"""Dates and timestamps beyond the range of Python are limited, also in lists, maps and structs."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.lake.arrow.pyarrow_untyped import Array, pa
from penstock.lake.arrow.row_times import for_python

MOMENTS = pa.timestamp("us", tz="UTC")
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC, microsecond=999000)
KNOWN = datetime(2024, 2, 29, tzinfo=UTC)
DAYS = [None, date.max, date.min, date(2024, 2, 29), date.max]


def test_times_beyond_pythons_range_become_its_first_or_last_ones() -> None:
    known_us = (KNOWN - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    moments = _times([None, 1 << 60, -(1 << 62), known_us, (1 << 63) - 1], pa.int64(), MOMENTS)
    days = _times([None, (1 << 31) - 1, -(1 << 31), 19_782, 2_932_896], pa.int32(), pa.date32())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, None, 3, 5, 5]), moments)
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, None, 3, 5, 5], pa.int32()), pa.array(list("abcde")), moments
    )
    pairs = pa.FixedSizeListArray.from_arrays(
        pa.concat_arrays([moments, moments]), 2, mask=pa.array([False, True, False, False, False])
    )
    structs = pa.StructArray.from_arrays(
        [moments, days], names=["at", "day"], mask=pa.array([False, False, True, False, False])
    )
    numbers = pa.array(range(5))
    columns = {"at": moments, "day": days, "list": lists, "map": maps, "pair": pairs}
    columns |= {"struct": structs, "number": numbers}
    batch = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    at = [None, LAST, FIRST, KNOWN, LAST]
    expected: dict[str, list[Any]] = {
        "at": at,
        "day": DAYS,
        "list": [[None], [LAST, FIRST], None, [KNOWN, LAST], []],
        "map": [[("a", None)], [("b", LAST), ("c", FIRST)], None, [("d", KNOWN), ("e", LAST)], []],
        "pair": [[None, LAST], None, [LAST, None], [LAST, FIRST], [KNOWN, LAST]],
        "struct": [
            {"at": moment, "day": day} if row != 2 else None
            for row, (moment, day) in enumerate(zip(at, DAYS, strict=True))
        ],
        "number": [0, 1, 2, 3, 4],
    }
    found = for_python(batch)
    assert found.schema == batch.schema
    assert found.to_pydict() == expected
    for start in range(1, 6):
        later = {name: values[start:] for name, values in expected.items()}
        assert for_python(batch.slice(start)).to_pydict() == later
    far = [("s", LAST.replace(microsecond=0)), ("ms", LAST), ("us", LAST)]
    for unit, last in far:
        kind = pa.timestamp(unit, tz="UTC")
        table = pa.table({"at": _times([(1 << 63) - 1, -(1 << 63)], pa.int64(), kind)})
        assert for_python(table).to_pydict() == {"at": [last, FIRST]}
    twice = pa.Table.from_batches([batch, batch])
    assert for_python(twice).to_pydict() == {name: 2 * values for name, values in expected.items()}


def _times(numbers: list[int | None], number: Any, kind: Any) -> Array:
    return pa.array(numbers, number).cast(kind)
