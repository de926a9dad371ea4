"""Limits for reading from the store. One task keeps about three parts of input and three batches of
output in memory.
"""

from dataclasses import dataclass
from typing import Final

VIEWED_BYTES_MAX: Final = 1 << 30
"""Maximum size of a buffer that views refer to: positions in a view have 31 bits, and a buffer of
decompressed batches may exceed the size of the largest batch by one MiB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    rows_max: int = 16_384
    """Maximum number of rows in one Arrow batch."""

    batch_bytes_max: int = 2 << 20
    """Maximum size of one Arrow batch in bytes, unless a single record is larger. Larger batches
    have no advantage and do not stay in the CPU caches.
    """

    uncompressed_batch_bytes_max: int = 64 << 20
    """Maximum decompressed size of a Kafka batch; a larger batch is rejected. Raise this only if a
    producer is known to send such batches.
    """

    block_bytes_max: int = 256 << 20
    """Maximum size of a block; blocks are read as a whole. A block of more than 1 MiB contains a
    single batch (or append), which brokers limit by `message.max.bytes`.
    """

    gap_bytes_max: int = 512 << 10
    """Blocks with at most this gap between them are read with one GET, because another GET would
    take 20 to 50 ms, longer than reading the gap.
    """

    part_bytes_max: int = 8 << 20
    """Maximum size of one GET in bytes, unless a single block is larger."""

    parts_ahead_max: int = 2
    """Number of parts that are fetched ahead while another one is decoded."""

    gets_in_flight_max: int = 16
    """Maximum number of concurrent GETs. The limit matters for WAL tails, whose objects are so
    small that latency dominates.
    """

    views: bool = False
    """Return key and value as Arrow's `binary_view`: 16 bytes each, which refer to fetched or
    decompressed bytes, or contain up to 12 bytes themselves. Nothing is copied, but a single row
    keeps all bytes of its GET in memory. DuckDB, Polars, pandas, Parquet and IPC accept views;
    Spark and most of pyarrow's own functions do not.
    """

    index_cache_bytes_max: int = 32 << 20
    """Size of the index cache of one process, in bytes: enough for about 500,000 blocks."""

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
