"""Settings of the stream layer of one broker, validated at construction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from penstock.base.settings import Kind, Setting, check
from penstock.protocol.batch.compression import DECOMPRESSED_BYTES_MAX

MIB = 1 << 20
DECOMPRESSED_BATCH_BYTES_MAX: Final = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """The settings of `Storage`. Memory usage is at most wal_unacknowledged + overshoot + log cache
    + one block under construction.
    """

    bulk_bytes_max: Annotated[
        int, Setting("wal.bulk.max.bytes", Kind.BYTES, 1, 64 * MIB, is_dynamic=True)
    ] = 8 * MIB
    """Size at which a bulk is written. A larger value results in fewer PUTs, longer reads during
    recovery, and higher latency per PUT. A single group may exceed this size.
    """

    batching_bytes_per_s: Annotated[
        int, Setting("wal.batching.bytes.per.second", Kind.BYTES, 1, is_dynamic=True)
    ] = 8 * MIB
    """Write rate above which brokers trade latency for fewer PUTs. At 5 USD per million PUTs, 25
    PUT/s cost 324 USD per month.
    """

    wal_linger_ms: Annotated[
        int, Setting("wal.linger.ms", Kind.DURATION, 0, 60_000, is_dynamic=True)
    ] = 250
    """Maximum wait of a bulk above `batching_bytes_per_s`: 4 PUT/s per broker at full load. This
    also limits the other waits.
    """

    wal_linger_idle_ms: Annotated[
        int, Setting("wal.linger.idle.ms", Kind.DURATION, 0, 60_000, is_dynamic=True)
    ] = 40
    """Maximum wait of a bulk below `batching_bytes_per_s` while another PUT is in flight. The bulk
    does not wait if no PUT is in flight, or if all its producers, and the producers acknowledged
    within this time, are waiting for a response.
    """

    wal_put_interval_ms: Annotated[
        int, Setting("wal.put.interval.ms", Kind.DURATION, 0, 60_000, is_dynamic=True)
    ] = 20
    """Minimum time between the starts of two PUTs, unless a bulk is full or flushed, or no PUT is
    in flight and all producers of the bulk are waiting for its response. The first PUT after a
    pause starts immediately. Without this limit, a steady stream of small records would cause 250
    PUTs/s to a store with a latency of 4 ms: 3,240 USD per month, and one GET for each when the WAL
    is recovered.
    """

    wal_pause_ms: int = 5
    """Above `batching_bytes_per_s` and with no PUT in flight, a bulk is written after this time
    without appends (or after 4 mean gaps), because clients are then waiting for it.
    """

    wal_in_flight_max: Annotated[int, Setting("wal.max.puts.in.flight", Kind.INT, 1, 1_000)] = 8
    """Maximum number of PUTs in flight: at 200 ms per PUT, 320 MB/s. Acknowledgments are sent in
    order, so one slow PUT delays everything written after it.
    """

    wal_unacknowledged_bytes_max: Annotated[
        int, Setting("wal.unacknowledged.max.bytes", Kind.BYTES, 1)
    ] = 256 * MIB
    """Number of non-durable bytes at which Produce requests wait: 8 PUTs of 8 MiB in flight, and
    three times as much in the queue.
    """

    append_overshoot_bytes_max: int = 64 * MIB
    """Number of bytes that may still be appended beyond `is_full`, for requests that were already
    read. More appends raise WalFull.
    """

    wal_put_deadline_ms: Annotated[
        int, Setting("wal.put.deadline.ms", Kind.DURATION, 1, 3_600_000, is_dynamic=True)
    ] = 120_000
    """How long a PUT to one slot is retried before the WAL fails and this broker incarnation ends.
    Slots are never skipped.
    """

    wal_put_attempt_ms: Annotated[
        int, Setting("wal.put.attempt.timeout.ms", Kind.DURATION, 1, 3_600_000, is_dynamic=True)
    ] = 20_000
    """Timeout of one attempt of a PUT or a comparison. After a timeout, the outcome is unknown, and
    the same slot is tried again.
    """

    wal_fallback_after_ms: Annotated[
        int, Setting("wal.fallback.after.ms", Kind.DURATION, 0, 3_600_000, is_dynamic=True)
    ] = 10_000
    """If no PUT to the WAL store succeeds, or its identity cannot be read, for this long, the
    broker moves its WAL to `store` until the WAL store is back. Nothing is acknowledged before the
    move, so the value should be below the request timeout of producers (30 s). 0 disables this:
    brokers then wait for the WAL store, and cannot start without it. At most half of
    `wal.put.deadline.ms` is used, because the WAL fails at that deadline. Has no effect without a
    WAL store.
    """

    wal_hedge_factor: Annotated[
        int, Setting("wal.hedge.factor", Kind.INT, 0, 100, is_dynamic=True)
    ] = 3
    """A PUT that takes this many times the usual duration is hedged with a second one. At 5 MB/s
    and PUTs of p50 100 ms and p99 400 ms, this lowers the p99 of acknowledgments from 580 to 450 ms
    for 2 % more PUTs (factor 2: 390 ms for 7 %). If the entire store is slow, the number of hedges
    does not increase, because the usual duration grows as well. 0 disables hedging.
    """

    wal_hedge_percent: Annotated[
        int, Setting("wal.hedge.max.percent", Kind.INT, 0, 100, is_dynamic=True)
    ] = 5
    """Maximum share of PUTs that are hedged, in percent. Only a few percent of PUTs are slow; more
    hedges would add load to an overloaded store.
    """

    wal_hedge_min_ms: int = 100

    retry_backoff_ms: Annotated[int, Setting("retry.backoff.ms", Kind.DURATION, 1, 60_000)] = 50
    """Initial pause after a failed call to the store or the controller. The pause doubles, with
    jitter, up to `retry_backoff_max_ms`.
    """

    retry_backoff_max_ms: Annotated[
        int, Setting("retry.backoff.max.ms", Kind.DURATION, 1, 600_000)
    ] = 2_000
    """Maximum pause between attempts of a failed call to the store or the controller."""

    log_cache_bytes_max: Annotated[int, Setting("log.cache.max.bytes", Kind.BYTES, 1)] = 256 * MIB
    """Memory for recent data, which serves tail reads and includes data that waits for its upload.
    When uncommitted bytes alone reach this limit, Produce requests wait.
    """

    decompressed_batch_bytes_max: Annotated[
        int,
        Setting("decompressed.batch.max.bytes", Kind.BYTES, MIB, DECOMPRESSED_BYTES_MAX),
    ] = DECOMPRESSED_BATCH_BYTES_MAX
    """Maximum decompressed size of one batch in a broker. Larger batches are rejected
    (MESSAGE_TOO_LARGE). If a topic contains a larger batch that was not checked
    (`record.validation`), a timestamp lookup returns its first offset, and log compaction fails
    until this value is raised. Consumers and readers of the bucket have their own limits.
    """

    block_bytes_max: Annotated[int, Setting("upload.block.max.bytes", Kind.BYTES, 1)] = 64 * MIB
    """Size at which the active block of the log cache is uploaded. A larger value results in fewer,
    larger objects and longer recoveries.
    """

    block_age_max_ms: Annotated[
        int, Setting("upload.block.max.age.ms", Kind.DURATION, 1, 3_600_000)
    ] = 30_000
    """The active block is also uploaded at this age, which limits the part of a WAL that a recovery
    must read.
    """

    block_slots_max: Annotated[int, Setting("upload.block.max.slots", Kind.INT, 1, 10_000_000)] = 64
    """The active block is also uploaded at this many WAL slots, once it is 1 s old and contains at
    most 4 streams per slot: recovery needs one GET per slot, as does each new leader. 64 slots
    correspond to 1.3 s of small PUTs; the upload that replaces them adds one PUT.
    """

    block_slots_age_ms: int = 1_000

    block_streams_per_slot: int = 4
    """A commit lists every stream of the block in the metadata, so a block with many streams may
    wait for more slots.
    """

    block_streams_max: int = 8_000
    """The active block is also uploaded at this many streams: one commit contains at most 20,000
    ranges.
    """

    stream_object_bytes_min: Annotated[
        int, Setting("upload.stream.object.min.bytes", Kind.BYTES, 1)
    ] = 8 * MIB
    """A stream with at least this much data in a block gets its own objects; smaller streams share
    objects. A lower value results in fewer rewrites later but more objects now.
    """

    upload_object_bytes_max: Annotated[int, Setting("upload.object.max.bytes", Kind.BYTES, 1)] = (
        16 * MIB
    )
    """Maximum size of a PUT of an upload. Building and sending a larger object blocks the event
    loop longer (1 ms per MiB).
    """

    upload_blocks_in_flight_max: Annotated[
        int, Setting("upload.max.blocks.in.flight", Kind.INT, 1, 100)
    ] = 3
    """Maximum number of blocks between preparation and commit. Commits are strictly sequential."""

    upload_puts_in_flight_max: Annotated[
        int, Setting("upload.max.puts.in.flight", Kind.INT, 1, 100)
    ] = 4
    """Maximum number of PUTs in flight, across all uploads."""

    upload_attempt_ms: Annotated[
        int, Setting("upload.attempt.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 60_000
    """Timeout of the first attempt of an upload step: preparing ids, or a PUT of up to
    `upload_object_bytes_max`. The timeout of later attempts grows up to one minute.
    """

    prepared_reuse_ms: int = 30 * 60_000
    """Prepared objects older than this are uploaded again instead of being committed, because the
    controller deletes them after 60 minutes.
    """

    wal_delete_grace_ms: Annotated[
        int, Setting("wal.delete.grace.ms", Kind.DURATION, 0, 86_400_000)
    ] = 60_000
    """How long committed slots are kept after the manifest lists the commit, for readers that walk
    the WAL with an older manifest. A walk that takes longer starts over. Storing 60 s of writes
    costs next to nothing.
    """

    recovery_read_ahead_count: Annotated[
        int, Setting("recovery.max.reads.in.flight", Kind.INT, 1, 1_000)
    ] = 8
    """Number of WAL slot tails read concurrently during recovery, with one GET each."""

    recovery_tail_bytes: int = 128 << 10
    """Number of bytes read from the end of each slot during recovery. Smaller slots are read
    completely and need no second GET when their partitions open here. For larger slots, only the
    index is used. With 64 slots, this reads 8 MiB.
    """

    recovery_commit_objects_max: int = 200
    """Maximum number of WAL objects in one `commit_recovered`. A request may have at most 4 MiB."""

    recovery_commit_ranges_max: int = 10_000

    block_cache_bytes_max: Annotated[int, Setting("block.cache.max.bytes", Kind.BYTES, 1)] = (
        128 * MIB
    )
    """Memory for cached object blocks, which serve reads of older data and read-ahead."""

    read_plan_objects_max: int = 16
    """Maximum number of object ranges that one read of older data looks up."""

    close_in_place_ranges_max: int = 2_000
    """With more uncommitted (slot, stream) pairs than this, closing streams first waits for an
    upload (about a second), which replaces thousands of ranges in the metadata.
    """

    close_in_place_bytes_max: Annotated[int, Setting("wal.in.place.max.bytes", Kind.BYTES, 0)] = (
        1 << 30
    )
    """While the WAL store contains more bytes than this that were committed in place and not
    rewritten into `store`, planned partition moves upload their data first.
    """

    close_upload_wait_ms: int = 5_000
    """How long closing waits for that upload before it commits the slots in place anyway."""

    commit_ranges_max: int = 16_000
    """Maximum number of ranges in one commit. The controller rejects more than 20,000."""

    commit_objects_max: int = 1_000

    commit_closes_max: int = 2_000

    defaults: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Defaults, by field, that differ from those above because of the store that contains the WALs
    (`stream.wal.wal_defaults`). They are only for information and are not applied here.
    """

    def __post_init__(self) -> None:
        check(self)
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "defaults":
                continue
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

    @property
    def wal_leave_after_ms(self) -> int:
        """How long PUTs must fail before the WAL leaves its WAL store; 0 if it never does."""
        return min(self.wal_fallback_after_ms, self.wal_put_deadline_ms // 2)


_MAY_BE_ZERO = frozenset(
    {
        "wal_linger_ms",
        "wal_linger_idle_ms",
        "wal_put_interval_ms",
        "wal_pause_ms",
        "wal_fallback_after_ms",
        "wal_hedge_factor",
        "close_in_place_bytes_max",
        "wal_hedge_percent",
        "append_overshoot_bytes_max",
        "wal_delete_grace_ms",
    }
)
