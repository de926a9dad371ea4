"""Spark's types of micro-batch limits, which are available to Python sources since Spark 4.2.

Spark 4.0 and 4.1 merely request the latest offset and read up to it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.options import ReadOptions

_HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or _HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    @dataclass(frozen=True)
    class ReadLimit:
        limit: int = 0

    class SupportsTriggerAvailableNow: ...

    class ReadAllAvailable(ReadLimit): ...

    class ReadMaxBytes(ReadLimit): ...

    class ReadMaxRows(ReadLimit): ...

    class ReadMinRows(ReadLimit): ...


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "check_supported",
]


def check_supported(options: ReadOptions) -> None:
    """Raise InvalidOption for limits that this version of Spark does not apply."""
    given = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
    }
    names = [name for name, value in given.items() if value is not None]
    if names and not _HAS_LIMITS:
        raise InvalidOption(
            f"{', '.join(names)}: needs Spark 4.2 or newer, because older versions do not limit the"
            " micro-batches of Python sources"
        )
