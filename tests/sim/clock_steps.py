"""Step the wall clocks of processes and of the store by up to an hour, and check durations.

Monotonic clocks never step. `Graces` checks by virtual time that prepared objects, destroyed
objects, moves and leases last as long as promised.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.ids import ObjectId
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.records import (
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    PartitionRecord,
    Record,
)
from penstock.stream.format.keys import parse_manifest_key
from penstock.stream.format.manifest import codec
from tests.sim.limits import LATE_PUT_GRACE_MS, PREPARED_TTL_MS, Limits
from tests.sim.store import BucketListener

if TYPE_CHECKING:
    from tests.sim.world import World

HOUR_MS = 3_600_000
ANY_TIMESTAMP = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""Config of topics, because brokers refuse records that are more than an hour ahead of their
clocks.
"""
_STEPS_MS = (HOUR_MS, HOUR_MS, -HOUR_MS, 600_000, -600_000, 5_000)


def stepping(limits: Limits) -> Limits:
    """Return limits with constant compaction, early deletions, and move sources that are late."""
    controller = msgspec.structs.replace(
        limits.controller,
        move_timeout_ms=2_000,
        manifest_interval_ms=(500, 2_000, 5_000)[(limits.partitions + limits.brokers) % 3],
        read_grace_ms=min(limits.controller.read_grace_ms, 500),
        janitor_interval_ms=300,
        maintenance_interval_ms=300,
    )
    compaction = replace(limits.compaction, interval_ms=300, small_count_min=2)
    return replace(limits, controller=controller, compaction=compaction, compacting=True)


class WallClock:
    """The wall clock of one machine, off by `skew_ms`."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms


def step_a_clock(world: "World", rng: Random) -> None:
    """Step one clock now, and back after a while, even if the chaos has ended by then."""
    clocks: list[tuple[str, Any]] = [
        (broker.process.name, broker) for _, broker in sorted(world.brokers.items())
    ]
    controllers: list[tuple[str, Any]] = [
        (item.process.name, item) for _, item in sorted(world.controllers.items())
    ]
    active = world.active_controller()
    chosen = (
        rng.choice([*clocks, *controllers, *world.graces.clocks])
        if world.graces is not None
        else rng.choice(clocks)
    )
    if active is not None and rng.random() < 0.4:
        chosen = active.process.name, active
    name, clock = chosen
    step_ms = rng.choice(_STEPS_MS)
    world.trace("clock_steps", name, step_ms)
    clock.skew_ms += step_ms

    def back() -> None:
        world.trace("clock_steps", name, -step_ms)
        clock.skew_ms -= step_ms

    world.later(rng.choice((0.5, 3.0, 20.0)), back)


@dataclass(eq=False, slots=True)
class Held:
    """Objects that a reader's lease protects. until_s: end of the lease for the reader, in virtual
    time.
    """

    who: str
    keys: frozenset[str]
    until_s: float = 0.0


@dataclass(slots=True)
class _Destroyed:
    at_s: float
    grace_s: float


@dataclass(slots=True)
class _Seen:
    prepared: dict[ObjectId, float] = field(default_factory=dict[ObjectId, float])
    destroyed: dict[str, _Destroyed] = field(default_factory=dict[str, _Destroyed])
    named: dict[str, int] = field(default_factory=dict[str, int])
    """By object: metadata offset of the first manifest that contains it. Later ones contain it too,
    up to those in `released`.
    """
    named_now: set[ObjectId] = field(default_factory=set[ObjectId])
    released: dict[str, int] = field(default_factory=dict[str, int])
    moving: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])


class Graces:
    """A listener between the bucket and the checker, and downstream of the metadata log."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._checker: BucketListener = world.checker
        world.bucket.listener = self
        world.metadata.on_commit = self.committed
        self._records_seen = 0
        self._newest = (-1, -1)
        """Version and metadata offset of the newest manifest."""
        self._seen = _Seen()
        self.held: list[Held] = []
        store_clock = WallClock()
        self.clocks: list[tuple[str, Any]] = [("the store", store_clock)]
        """Clocks of neither a broker nor a controller."""
        world.bucket._now_ms = lambda: world.now_ms(store_clock.skew_ms)

    # --- the metadata -----------------------------------------------------------------------------

    def committed(self) -> None:
        self._world.note_leaders()
        records, image, seen = self._world.metadata.records, self._world.metadata.image, self._seen
        for data in records[self._records_seen :]:
            self._check(decode_record(data))
        self._records_seen = len(records)
        naming = [stream for stream in image.streams if stream.kind != "meta"]
        named = {entry.object_id for stream in naming for entry in stream.entries}
        for object_id in named ^ seen.named_now:
            state = image.objects.get(object_id)
            if state is not None:
                (seen.named if object_id in named else seen.released)[state.key] = image.end_offset
        seen.named_now = named

    def _check(self, record: Record) -> None:
        now_s, seen = self._world.loop.time(), self._seen
        match record:
            case ObjectPrepared():
                seen.prepared[record.object_id] = now_s
            case ObjectCommitted():
                seen.prepared.pop(record.object_id, None)
            case ObjectDestroyed():
                self._destroyed(record, now_s)
            case PartitionRecord():
                key = (str(record.topic_id), record.partition)
                if (
                    record.target_replicas is not None
                    and record.move is not None
                    and record.leader < 0
                ):
                    seen.moving.setdefault(key, now_s)
                else:
                    seen.moving.pop(key, None)
            case _:
                pass

    def _destroyed(self, record: ObjectDestroyed, now_s: float) -> None:
        world = self._world
        prepared_s = self._seen.prepared.pop(record.object_id, None)
        if prepared_s is not None and (now_s - prepared_s) * 1_000 < PREPARED_TTL_MS - 1:
            world.fail(
                f"object {record.object_id} expires {now_s - prepared_s:.1f} s after it was"
                f" prepared, {PREPARED_TTL_MS} ms are its time"
            )
        state = world.metadata.image.objects.get(record.object_id)
        if state is not None:
            grace_ms = world.limits.controller.read_grace_ms
            self._seen.destroyed[state.key] = _Destroyed(
                now_s, (grace_ms if state.was_committed else LATE_PUT_GRACE_MS) / 1_000
            )

    def logged(self, name: str, event: dict[str, Any]) -> None:
        reason = str(event.get("reason", ""))
        if name != "broker_fenced" or "did not close" not in reason:
            return
        words = reason.split()
        since_s = self._seen.moving.get(
            (words[words.index("topic") + 1], int(words[words.index("partition") + 1]))
        )
        age_s = 0.0 if since_s is None else self._world.loop.time() - since_s
        if age_s * 1_000 < self._world.limits.controller.move_timeout_ms - 1:
            self._world.fail(
                f"node {event.get('node_id')} is fenced {age_s:.1f} s after the move began:"
                f" {reason}"
            )

    # --- the bucket -------------------------------------------------------------------------------

    def written(self, key: str, data: bytes) -> None:
        self._checker.written(key, data)
        parsed = parse_manifest_key(key)
        if parsed is not None and parsed[1] > self._newest[0]:
            footer = codec.parse_footer(data, len(data), key)
            stored = data[footer.root.position :][: footer.root.stored_bytes]
            root = codec.decode_root(codec.unpack_section(stored, footer.root, key), footer, key)
            self._newest = root.version, root.metadata_offset

    def deleting(self, key: str) -> None:
        self._checker.deleting(key)
        now_s = self._world.loop.time()
        destroyed = self._seen.destroyed.get(key)
        if destroyed is not None and now_s - destroyed.at_s < destroyed.grace_s - 0.001:
            self._world.fail(
                f"{key} is deleted {now_s - destroyed.at_s:.3f} s after it was destroyed, its grace"
                f" is {destroyed.grace_s} s"
            )
        named, released = self._seen.named.get(key), self._seen.released.get(key)
        version, offset = self._newest
        if named is not None and released is not None and named <= offset < released:
            self._world.fail(
                f"{key} is deleted, manifest {version} of offset {offset} names it and is the"
                " newest"
            )
        for held in self.held:
            if key in held.keys and now_s < held.until_s:
                self._world.fail(
                    f"{key} is deleted, {held.who} holds it for {held.until_s - now_s:.1f} s more"
                )
