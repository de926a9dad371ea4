"""Draw configurations from the seed, mostly extreme ones, because bugs show when a limit is reached
at every second step.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.consumer.model import ConsumerLimits
from penstock.broker.groups.share.model import ShareLimits
from penstock.broker.groups.streams.model import StreamsLimits
from penstock.controller.config import ControllerConfig
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

_MIB = 1 << 20
PREPARED_TTL_MS = 8_000
LATE_PUT_GRACE_MS = 30_000
"""Both together are longer than two of the longest pauses plus the deadline of the
following PUT.
"""
FENCE_KEPT_MS = 20_000
"""Longer than the longest pause of a broker and than wall clock differences. For the scenarios of
`tests.sim.leaks`, whose store backdates objects; in others, no fence is deleted.
"""
QUIET_LIMIT_S = 120.0
"""Time limit of each wait after the faults, in virtual time."""
CLEANER_INTERVAL_S = 0.4
"""How often brokers look for logs to clean."""


@dataclass(frozen=True, slots=True)
class Limits:
    stream: StreamConfig
    controller: ControllerConfig
    compaction: CompactionConfig
    compacting: bool
    checkpoint_bytes: int
    metadata_timeout_s: float
    retrying_store: bool
    brokers: int
    controllers: int
    skew_ms: int
    partitions: int
    producers: int
    store_p50_ms: float
    store_p99_ms: float
    store_faults: float
    network_ms: float
    network_lossy: float
    disk_sync_ms: float
    racks: int = 1
    wal_store: bool = False
    """Whether WALs are in a separate store."""
    wal_return_after_s: float = 30.0
    """How long the WAL store must work before brokers return to it."""


def draw(rng: Random) -> Limits:
    pick = rng.choice
    p50_ms = pick((2, 20, 100))
    limits = Limits(
        stream=_stream(rng),
        controller=_controller(rng),
        compaction=CompactionConfig(
            interval_ms=pick((300, 3_000)),
            small_bytes_max=pick((200, 4_000, 4 * _MIB)),
            small_count_min=pick((2, 4, 8)),
            round_bytes_max=pick((1_000, 64 * _MIB)),
            round_ranges_max=pick((2, 10, 4_000)),
            object_bytes_max=pick((800, 32 * _MIB)),
            stream_object_bytes_min=pick((300, 8 * _MIB)),
            page_ranges=pick((2, 5, 256)),
        ),
        compacting=rng.random() < 0.7,
        checkpoint_bytes=pick((200, 3_000, 64 * _MIB)),
        metadata_timeout_s=pick((3.0, 30.0)),
        retrying_store=rng.random() < 0.3,
        brokers=pick((2, 3, 3, 4)),
        controllers=pick((1, 3, 3, 3, 3)),
        skew_ms=pick((0, 0, 200, 3_000)),
        partitions=pick((1, 2, 4, 7)),
        producers=pick((1, 2, 4)),
        store_p50_ms=p50_ms,
        store_p99_ms=p50_ms * pick((1.5, 5, 20)),
        store_faults=pick((0.0, 0.01, 0.05)),
        network_ms=pick((1, 10, 50)),
        network_lossy=pick((0.0, 0.01, 0.04)),
        disk_sync_ms=pick((1, 5, 50)),
    )
    limits = replace(
        limits,
        stream=replace(
            limits.stream, upload_object_bytes_max=_object_bytes_max(limits.stream, p50_ms)
        ),
        # Recovery reads all slots in one attempt: without retries of single requests, that of a
        # long WAL would fail for minutes.
        store_faults=limits.store_faults if limits.retrying_store else limits.store_faults * 0.4,
    )
    interval_ms = (50, 1_000, 4_000)[(limits.partitions + limits.brokers) % 3]
    return replace(
        limits,
        controller=msgspec.structs.replace(
            limits.controller, backup_interval_ms=interval_ms, backup_bytes_max=2_000
        ),
    )


def quick_limits(
    brokers: int = 2,
    controllers: int = 1,
    racks: int = 1,
    wal_stores: int = 0,
    compacting: int = 0,
    **settings: int,
) -> Limits:
    """Return the limits of the product, with a fast store and network that never fail. wal_stores,
    compacting: 0 or 1. settings: those of the controllers.
    """
    return replace(
        draw(Random(0)),
        stream=StreamConfig(),
        controller=msgspec.structs.replace(
            ControllerConfig(
                data_dir=Path("/nowhere"),
                cluster_id="sim",
                read_grace_ms=1_000,
                late_put_grace_ms=LATE_PUT_GRACE_MS,
                delete_grace_ms=0,
                backup_interval_ms=50,
            ),
            **settings,
        ),
        compaction=CompactionConfig(),
        compacting=bool(compacting),
        checkpoint_bytes=64 << 20,
        metadata_timeout_s=30.0,
        retrying_store=False,
        brokers=brokers,
        controllers=controllers,
        skew_ms=0,
        store_p50_ms=2,
        store_p99_ms=3,
        store_faults=0.0,
        network_ms=1,
        network_lossy=0.0,
        disk_sync_ms=1,
        racks=racks,
        wal_store=bool(wal_stores),
    )


@dataclass(frozen=True, slots=True)
class Coordination:
    """Limits of coordinators. session_ms: that of group members. compaction: None for the product's
    default.
    """

    groups: GroupLimits
    session_ms: int
    consumers: ConsumerLimits
    rebalance_ms: int
    """Time limit for a KIP-848 member to revoke partitions."""
    compaction: CompactionLimits | None
    updates_max: int = 500
    """Number of updates of a share partition between two snapshots."""
    shares: ShareLimits = field(default_factory=ShareLimits)
    streams: StreamsLimits = field(default_factory=StreamsLimits)


def draw_coordination(
    rng: Random, skew_ms: int, *, has_groups: bool, compacts: bool, has_states: bool
) -> Coordination:
    """Draw the limits. Wrong clocks alone never make offsets expire."""
    compaction = _compaction(rng) if compacts else None
    if has_states and not has_groups:
        return Coordination(
            GroupLimits(),
            6_000,
            ConsumerLimits(),
            6_000,
            compaction,
            rng.choice((0, 2, 7, 50)),
            ShareLimits(session_timeout_ms=rng.choice((1_500, 5_000))),
        )
    if not has_groups:
        return Coordination(GroupLimits(), 6_000, ConsumerLimits(), 6_000, compaction)
    retention_ms = 2 * skew_ms + rng.choice((1_500, 4_000))
    groups = GroupLimits(
        session_timeout_min_ms=500,
        initial_rebalance_delay_ms=rng.choice((0, 300)),
        offsets_retention_ms=retention_ms,
    )
    session_ms = rng.choice((1_000, 4_000))
    consumers = ConsumerLimits(session_timeout_ms=rng.choice((1_500, 5_000)))
    streams = StreamsLimits(
        session_timeout_ms=consumers.session_timeout_ms,
        initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
    )
    rebalance_ms = rng.choice((1_500, 6_000))
    found = Coordination(groups, session_ms, consumers, rebalance_ms, compaction, streams=streams)
    if has_states:
        shares = ShareLimits(session_timeout_ms=consumers.session_timeout_ms)
        return replace(found, updates_max=rng.choice((0, 2, 7, 50)), shares=shares)
    return found


def _compaction(rng: Random) -> CompactionLimits:
    return CompactionLimits(
        log_bytes_min=rng.choice((500, 3_000)),
        factor=rng.choice((1, 2, 4)),
        slice_count=rng.choice((1, 3, 200)),
        slice_bytes=rng.choice((1, 10_000)),
        slices_in_flight_max=rng.choice((1, 3)),
        wait_s=rng.choice((0.5, 10.0)),
        retry_interval_s=0.1,
    )


def _object_bytes_max(stream: StreamConfig, p50_ms: float) -> int:
    """Return the drawn value, but at least so much that the consecutive PUTs of one block's objects
    do not outlast their ids. Ids expire after 2 s here, and after half an hour outside the
    simulator, where a block is written again after an outage, but not endlessly.
    """
    quick, slow = (0, 3_000) if stream.upload_puts_in_flight_max > 1 else (3_000, 16 * _MIB)
    return max(stream.upload_object_bytes_max, slow if p50_ms > 20 else quick)


def _stream(rng: Random) -> StreamConfig:
    pick = rng.choice
    block_bytes = pick((500, 4_000, 64 * _MIB))
    # A request for 7 partitions has at most 2,000 bytes for each; one that could never fit would be
    # refused forever.
    unacknowledged_bytes = pick((14_000, 50_000, 256 * _MIB))
    return StreamConfig(
        bulk_bytes_max=pick((200, 1_000, 8 * _MIB)),
        batching_bytes_per_s=pick((1, 2_000, 8 * _MIB)),
        wal_linger_ms=pick((0, 5, 250)),
        wal_linger_idle_ms=pick((0, 40)),
        wal_pause_ms=pick((0, 5)),
        wal_in_flight_max=pick((1, 2, 4, 16)),
        wal_unacknowledged_bytes_max=unacknowledged_bytes,
        append_overshoot_bytes_max=pick((0, 2_000, 64 * _MIB)),
        wal_put_deadline_ms=pick((8_000, 60_000)),
        wal_put_attempt_ms=pick((400, 3_000, 20_000)),
        wal_hedge_factor=pick((0, 1, 3)),
        wal_hedge_min_ms=pick((1, 100)),
        retry_backoff_ms=pick((5, 50)),
        retry_backoff_max_ms=pick((50, 2_000)),
        log_cache_bytes_max=max(2 * block_bytes, pick((2_000, 20_000, 256 * _MIB))),
        block_bytes_max=block_bytes,
        block_age_max_ms=pick((300, 2_000, 8_000)),
        # Controllers that commit one request at a time take minutes for a backlog of blocks with
        # one or two streams each, and clients wait for that.
        block_streams_max=pick((3, 8, 8_000)),
        stream_object_bytes_min=pick((200, 2_000, 8 * _MIB)),
        upload_object_bytes_max=pick((300, 3_000, 16 * _MIB)),
        upload_blocks_in_flight_max=pick((1, 2, 3)),
        upload_puts_in_flight_max=pick((1, 8)),
        upload_attempt_ms=pick((1_000, 60_000)),
        prepared_reuse_ms=PREPARED_TTL_MS // 4,
        wal_delete_grace_ms=pick((0, 500, 4_000)),
        recovery_read_ahead_count=pick((1, 2, 8)),
        recovery_commit_objects_max=pick((1, 3, 200)),
        recovery_commit_ranges_max=pick((1, 5, 10_000)),
        block_cache_bytes_max=pick((1, 5_000, 128 * _MIB)),
        read_plan_objects_max=pick((1, 2, 16)),
        close_in_place_ranges_max=pick((1, 10, 2_000)),
        close_upload_wait_ms=pick((50, 5_000)),
        commit_ranges_max=pick((1, 4, 16_000)),
        commit_objects_max=pick((1, 3, 1_000)),
        commit_closes_max=pick((1, 3, 2_000)),
    )


def _controller(rng: Random) -> ControllerConfig:
    pick = rng.choice
    raft_heartbeat_ms = pick((150, 300))
    return ControllerConfig(
        data_dir=Path("/nowhere"),
        cluster_id="sim",
        raft_heartbeat_ms=raft_heartbeat_ms,
        election_timeout_ms=raft_heartbeat_ms * pick((4, 8)),
        tick_interval_ms=pick((100, 300)),
        snapshot_records=pick((20, 100, 50_000)),
        snapshots_kept=pick((2, 3)),
        session_timeout_ms=pick((1_500, 3_000, 6_000)),
        session_grace_ms=pick((300, 1_000)),
        read_grace_ms=pick((1, 500, 3_000)),
        late_put_grace_ms=LATE_PUT_GRACE_MS,
        delete_grace_ms=0,
        janitor_interval_ms=pick((300, 2_000)),
        batch_count_max=pick((1, 4, 512)),
        batch_bytes_max=pick((100, 1 << 20)),
        reply_cache_count_max=pick((1, 20, 4_096)),
    )
