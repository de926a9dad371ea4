"""Build the rows of dense slices without reading them, because the plan determines the topic,
partition and offset.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from penstock.lake.arrow.columns import Places, arrow_schema
from penstock.lake.arrow.pyarrow_untyped import Array, RecordBatch, pa
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice

ROWS_MAX: Final = ReadConfig().rows_max


def place_rows(slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[RecordBatch]:
    """Yield the rows of dense slices without markers. `columns` must be in
    `slices.PLACE_COLUMNS`.
    """
    schema, places = arrow_schema(columns), Places(ROWS_MAX)
    for part in slices:
        for low in range(part.start_offset, part.end_offset, ROWS_MAX):
            high = min(low + ROWS_MAX, part.end_offset)
            arrays: dict[str, Array] = {}
            places.begin(0, part.topic, part.partition)
            places.take(arrays, columns, high - low)
            if "offset" in columns:
                arrays["offset"] = pa.array(np.arange(low, high, dtype=np.int64))
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)
