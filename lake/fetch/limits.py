"""Limits of reading straight from the store. One task holds about three parts of input and three
batches of output.
"""

from dataclasses import dataclass
from typing import Final

VIEWED_BYTES_MAX: Final = 1 << 30
"""A view counts positions in 31 bits; decompressed batches lie behind each other up to a MiB beyond
the largest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    rows_max: int = 16_384
    """Rows in one Arrow batch."""

    batch_bytes_max: int = 2 << 20
    """Bytes in one Arrow batch, unless a single record has more. Larger ones save nothing, and do
    not stay in the CPU's caches.
    """

    uncompressed_batch_bytes_max: int = 64 << 20
    """A Kafka batch that decompresses to more is refused. Raise it only if a producer is known to
    send such batches.
    """

    block_bytes_max: int = 256 << 20
    """A block is read whole. Beyond 1 MiB it holds a single batch (or append), which brokers limit
    by `message.max.bytes`.
    """

    gap_bytes_max: int = 512 << 10
    """Blocks this near to each other are one GET: a GET's 20 to 50 ms are worth more than reading
    this for nothing.
    """

    part_bytes_max: int = 8 << 20
    """Bytes of one GET, unless a single block has more."""

    parts_ahead_max: int = 2
    """So many parts' bytes are on their way while one is decoded."""

    gets_in_flight_max: int = 16
    """For WAL tails, where objects are small and the latency of GETs is all there is."""

    views: bool = False
    """Key and value as Arrow's `binary_view`: 16 bytes each, which point into what was fetched or
    decompressed; up to 12 bytes stand in them. Nothing is copied, but a single row keeps all bytes
    of its GET. DuckDB, Polars, pandas, Parquet and IPC take them, Spark does not, and few of
    pyarrow's own functions.
    """

    index_cache_bytes_max: int = 32 << 20
    """Indexes of objects kept by one process: about 500,000 blocks."""

    def __post_init__(self) -> None:
        if min(self.rows_max, self.batch_bytes_max) < 1:
            raise ValueError(
                f"rows_max {self.rows_max}, batch_bytes_max {self.batch_bytes_max}: at least 1"
            )
        if (
            self.views
            and max(self.block_bytes_max, self.uncompressed_batch_bytes_max) > VIEWED_BYTES_MAX
        ):
            raise ValueError(
                f"views reach {VIEWED_BYTES_MAX} bytes: block_bytes_max and"
                " uncompressed_batch_bytes_max may not be larger"
            )
