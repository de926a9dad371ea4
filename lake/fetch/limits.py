"""Limits of reading from the store. One task holds about three parts of input and three batches of
output.
"""

from dataclasses import dataclass
from typing import Final

VIEWED_BYTES_MAX: Final = 1 << 30
"""Positions in a view have 31 bits, and a buffer of decompressed batches may exceed the size of the
largest batch by one MiB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    rows_max: int = 16_384
    """Rows in one Arrow batch."""

    batch_bytes_max: int = 2 << 20
    """Bytes in one Arrow batch, unless a single record has more. Larger batches save nothing, and
    do not stay in the CPU's caches.
    """

    uncompressed_batch_bytes_max: int = 64 << 20
    """A Kafka batch that decompresses to more is rejected. Raise this only if a producer is known
    to send such batches.
    """

    block_bytes_max: int = 256 << 20
    """Size of the largest block; blocks are read whole. A block of more than 1 MiB contains a
    single batch (or append), which brokers limit by `message.max.bytes`.
    """

    gap_bytes_max: int = 512 << 10
    """Blocks with at most this gap between them are read with one GET: another GET would take 20 to
    50 ms, longer than reading the gap.
    """

    part_bytes_max: int = 8 << 20
    """Bytes of one GET, unless a single block has more."""

    parts_ahead_max: int = 2
    """Number of parts that are fetched ahead while another one is decoded."""

    gets_in_flight_max: int = 16
    """Concurrent GETs. The limit matters for WAL tails, whose objects are so small that latency
    dominates.
    """

    views: bool = False
    """Return key and value as Arrow's `binary_view`: 16 bytes each, which point into fetched or
    decompressed bytes, or hold up to 12 bytes themselves. Nothing is copied, but a single row keeps
    all bytes of its GET. DuckDB, Polars, pandas, Parquet and IPC accept views; Spark and most of
    pyarrow's own functions do not.
    """

    index_cache_bytes_max: int = 32 << 20
    """Bytes of indexes that one process keeps: about 500,000 blocks."""

    def __post_init__(self) -> None:
        if min(self.rows_max, self.batch_bytes_max) < 1:
            raise ValueError(
                f"rows_max {self.rows_max}, batch_bytes_max {self.batch_bytes_max}: both must be at"
                " least 1"
            )
        if (
            self.views
            and max(self.block_bytes_max, self.uncompressed_batch_bytes_max) > VIEWED_BYTES_MAX
        ):
            raise ValueError(
                f"views support at most {VIEWED_BYTES_MAX} bytes: decrease block_bytes_max or "
                "uncompressed_batch_bytes_max"
            )
