"""Settings of the stream layer of one broker: every limit with its unit, its default, and what
turning it costs.

Invariant: a `StreamConfig` that exists is consistent (checked once, here).
Must not read files or the environment: `deploy.node.config` does.
Source: defaults of AutoMQ's `ObjectWALConfig` and `Config`, adapted to conditional PUTs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

from base.settings import Kind, Setting, check

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Frozen; pass one to `Storage`. The worst case of memory is wal_unacknowledged + overshoot +
    log cache + one block being built.
    """

    bulk_bytes_max: Annotated[int, Setting("wal.bulk.max.bytes", Kind.BYTES, 1, 64 * MIB)] = 8 * MIB
    """A bulk closes at this size. Larger: fewer PUTs, longer recovery reads and more latency per
    PUT. One group may exceed it.
    """

    batching_bytes_per_s: Annotated[
        int, Setting("wal.batching.bytes.per.second", Kind.BYTES, 1)
    ] = 8 * MIB
    """Intake above which latency is traded for fewer PUTs. At 5 USD per million, 25 PUT/s all month
    are 324 USD.
    """

    wal_linger_ms: Annotated[int, Setting("wal.linger.ms", Kind.DURATION, 0, 60_000)] = 250
    """Longest wait of a bulk above that rate: 4 PUT/s and broker at full load. 0 for stores whose
    PUTs cost nothing (memory, files).
    """

    wal_linger_idle_ms: Annotated[int, Setting("wal.linger.idle.ms", Kind.DURATION, 0, 60_000)] = 40
    """Longest wait below that rate while another PUT is in flight. With nothing in flight there is
    no wait at all.
    """

    wal_put_interval_ms: Annotated[
        int, Setting("wal.put.interval.ms", Kind.DURATION, 0, 60_000)
    ] = 20
    """Shortest time between the beginnings of two PUTs, unless a bulk is full or flushed; the first
    after a rest is at once. A store that answers in 4 ms would else take 250 small PUTs/s: 3,240
    USD a month, and every one of them a GET when the WAL is recovered.
    """

    wal_pause_ms: int = 5
    """Above the rate, with nothing in flight: no append for this long (or 4 mean gaps) means that
    the clients wait for us.
    """

    wal_in_flight_max: Annotated[int, Setting("wal.max.puts.in.flight", Kind.INT, 1, 1_000)] = 8
    """PUTs at once: at 200 ms a PUT, 320 MB/s. Acks are in order, so one slow PUT holds back
    whatever is written meanwhile.
    """

    wal_unacknowledged_bytes_max: Annotated[
        int, Setting("wal.unacknowledged.max.bytes", Kind.BYTES, 1)
    ] = 256 * MIB
    """Bytes not yet durable before `is_full`: 8 PUTs of 8 MiB in flight and three times as much
    waiting.
    """

    append_overshoot_bytes_max: int = 64 * MIB
    """What may still be appended beyond `is_full` (requests that were read already) before appends
    are refused with WalFull.
    """

    wal_put_deadline_ms: Annotated[
        int, Setting("wal.put.deadline.ms", Kind.DURATION, 1, 3_600_000)
    ] = 120_000
    """How long one slot is retried before the WAL gives up and this broker start ends. Never skips
    the slot.
    """

    wal_put_attempt_ms: Annotated[
        int, Setting("wal.put.attempt.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 20_000
    """One try of a PUT or of a comparison; after it the outcome counts as unknown and the same slot
    is tried again.
    """

    wal_hedge_factor: Annotated[int, Setting("wal.hedge.factor", Kind.INT, 0, 100)] = 3
    """A PUT that takes this many times the usual is sent a second time beside the first. At 5 MB/s
    over PUTs of p50 100 and p99 400 ms this brings the acks' p99 from 580 to 450 ms for 2 % more
    PUTs (factor 2: 390 ms for 7 %). A store that is slow as a whole is not asked more often,
    because the usual grows with it. 0: never.
    """

    wal_hedge_percent: Annotated[int, Setting("wal.hedge.max.percent", Kind.INT, 0, 100)] = 5
    """Second PUTs at most, of all PUTs: the tail is a few in a hundred; more would be load on a
    store that is slow under load.
    """

    wal_hedge_min_ms: int = 100

    retry_backoff_ms: Annotated[int, Setting("retry.backoff.ms", Kind.DURATION, 1, 60_000)] = 50
    """First pause after a failed call of the store or the controller; doubles with jitter up to
    `retry_backoff_max_ms`.
    """

    retry_backoff_max_ms: Annotated[
        int, Setting("retry.backoff.max.ms", Kind.DURATION, 1, 600_000)
    ] = 2_000
    """Longest pause between tries of a failed call of the store or the controller."""

    log_cache_bytes_max: Annotated[int, Setting("log.cache.max.bytes", Kind.BYTES, 1)] = 256 * MIB
    """Recent data kept for tail reads, incl. what waits for its upload. Uncommitted bytes alone
    reaching it: `is_full`.
    """

    block_bytes_max: Annotated[int, Setting("upload.block.max.bytes", Kind.BYTES, 1)] = 64 * MIB
    """The cache's active block is uploaded at this size. Larger: fewer, larger objects and longer
    recovery.
    """

    block_age_max_ms: Annotated[
        int, Setting("upload.block.max.age.ms", Kind.DURATION, 1, 3_600_000)
    ] = 30_000
    """... or at this age, so that recovery never reads more than this much of a WAL."""

    block_slots_max: Annotated[int, Setting("upload.block.max.slots", Kind.INT, 1, 10_000_000)] = 64
    """... or at this many WAL slots, once it is 1 s old and holds at most 4 streams for each: every
    slot is a GET for whoever recovers the WAL, and one more for each new leader. 64 slots are 1.3 s
    of small PUTs; the upload that ends them is one PUT more.
    """

    block_slots_age_ms: int = 1_000

    block_streams_per_slot: int = 4
    """A cut names every stream of the block in the metadata: with many streams it may wait for more
    slots.
    """

    block_streams_max: int = 8_000
    """... or at this many streams: one commit names at most 20,000 ranges."""

    stream_object_bytes_min: Annotated[
        int, Setting("upload.stream.object.min.bytes", Kind.BYTES, 1)
    ] = 8 * MIB
    """A stream with this much in a block gets objects of its own; smaller ones share. Smaller:
    fewer rewrites later, more objects now.
    """

    upload_object_bytes_max: Annotated[int, Setting("upload.object.max.bytes", Kind.BYTES, 1)] = (
        16 * MIB
    )
    """One PUT of an upload. Larger objects hold the event loop longer while they are built and
    handed to the client (1 ms per MiB).
    """

    upload_blocks_in_flight_max: Annotated[
        int, Setting("upload.max.blocks.in.flight", Kind.INT, 1, 100)
    ] = 3
    """Blocks that are prepared and PUT at once; commits are strictly one after the other."""

    upload_puts_in_flight_max: Annotated[
        int, Setting("upload.max.puts.in.flight", Kind.INT, 1, 100)
    ] = 4
    """PUTs of one block at once."""

    upload_attempt_ms: Annotated[
        int, Setting("upload.attempt.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 60_000
    """The first try of a step of an upload: preparing ids, or a PUT of up to
    `upload_object_bytes_max`. Later ones get up to a minute.
    """

    prepared_reuse_ms: int = 30 * 60_000
    """Prepared objects older than this are not committed but written anew: the controller deletes
    them after 60 minutes.
    """

    wal_delete_grace_ms: Annotated[
        int, Setting("wal.delete.grace.ms", Kind.DURATION, 0, 86_400_000)
    ] = 60_000
    """Committed slots stay this long after the manifest shows the commit, for readers of the store
    that walk the WAL by an older one. A walk that takes longer begins again. Storage of 60 s of
    intake costs next to nothing.
    """

    recovery_read_ahead_count: Annotated[
        int, Setting("recovery.max.reads.in.flight", Kind.INT, 1, 1_000)
    ] = 8
    """Tails of WAL slots read at once by a recoverer. Each is one GET."""

    recovery_tail_bytes: int = 128 << 10
    """Read of each slot. Slots up to this size come whole and need no second GET when their
    partitions open here; of larger ones this much is read for their index alone: 64 of them are 8
    MiB.
    """

    recovery_commit_objects_max: int = 200
    """WAL objects in one `commit_recovered`; a request is at most 4 MiB."""

    recovery_commit_ranges_max: int = 10_000

    block_cache_bytes_max: Annotated[int, Setting("block.cache.max.bytes", Kind.BYTES, 1)] = (
        128 * MIB
    )
    """Blocks of objects kept for cold reads and what was read ahead of them."""

    read_plan_objects_max: int = 16
    """Object ranges looked up for one cold read."""

    close_in_place_ranges_max: int = 2_000
    """With more uncommitted (slot, stream) pairs than this, closing streams first waits for an
    upload (about a second), which replaces thousands of ranges in the metadata.
    """

    close_upload_wait_ms: int = 5_000
    """How long closing waits for that upload before it names the slots all the same."""

    commit_ranges_max: int = 16_000
    """Ranges in one commit; the controller refuses more than 20,000."""

    commit_objects_max: int = 1_000

    commit_closes_max: int = 2_000

    def __post_init__(self) -> None:
        check(self)
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least = 0 if name in _MAY_BE_ZERO else 1
            if value < least:
                raise ValueError(f"{name} is {value}: it must be at least {least}")
        if self.block_bytes_max * 2 > self.log_cache_bytes_max:
            raise ValueError(
                f"log_cache_bytes_max ({self.log_cache_bytes_max}) must hold two blocks of"
                f" block_bytes_max ({self.block_bytes_max}): one fills while the other is uploaded"
            )
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            raise ValueError(
                f"retry_backoff_ms ({self.retry_backoff_ms}) is above retry_backoff_max_ms"
                f" ({self.retry_backoff_max_ms})"
            )


_MAY_BE_ZERO = frozenset(
    {
        "wal_linger_ms",
        "wal_linger_idle_ms",
        "wal_put_interval_ms",
        "wal_pause_ms",
        "wal_hedge_factor",
        "wal_hedge_percent",
        "append_overshoot_bytes_max",
        "wal_delete_grace_ms",
    }
)

LOCAL_STORE_DEFAULTS: Final[Mapping[str, int]] = MappingProxyType(
    {"wal_linger_ms": 0, "wal_hedge_factor": 0}
)
"""Other defaults over memory and files: bulks wait for company, and slow PUTs are sent twice, only
where a PUT has a price and a tail.
"""
