"""Limits of reading straight from the store. One task holds about three parts of input and three batches of output."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    rows_max: int = 16_384
    """Rows in one Arrow batch."""

    batch_bytes_max: int = 2 << 20
    """Bytes in one Arrow batch, unless a single record has more. Larger ones save nothing, and do not stay in the CPU's caches."""

    uncompressed_batch_bytes_max: int = 64 << 20
    """A Kafka batch that decompresses to more is refused. Raise it only if a producer is known to send such batches."""

    block_bytes_max: int = 256 << 20
    """A block is read whole. Beyond 1 MiB it holds a single batch (or append), which brokers limit by `message.max.bytes`."""

    gap_bytes_max: int = 512 << 10
    """Blocks this near to each other are one GET: a GET's 20 to 50 ms are worth more than reading this for nothing."""

    part_bytes_max: int = 8 << 20
    """Bytes of one GET, unless a single block has more."""

    parts_ahead_max: int = 2
    """So many parts' bytes are on their way while one is decoded."""

    gets_in_flight_max: int = 16
    """For WAL tails, where objects are small and the latency of GETs is all there is."""

    index_cache_bytes_max: int = 32 << 20
    """Indexes of objects kept by one process: about 500,000 blocks."""
