"""Planted bugs in durations, grace periods and leases, for `tests.sim.mutants`; and one harmless
mutant, with the reason.

Two bugs that 25 seeds rarely find have unit tests instead: renewals that share a key, and open
transactions that are timed by another coordinator's clock.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tests.sim.nodes as nodes
from penstock.base.ids import Millis
from penstock.controller.active.leases import LeaseBook
from penstock.controller.active.manifest.publisher import ManifestPublisher
from penstock.controller.active.periodic import Ticks
from penstock.controller.active.record_ages import Timeline
from penstock.controller.active.sessions import SessionEnded, Sessions
from penstock.controller.api.follower import SILENCE_S, MetadataFollower, _decoder
from penstock.controller.api.lease import Lease
from penstock.controller.api.transport import END_OF_STREAM
from penstock.controller.managers.nodes import fence_brokers
from penstock.controller.managers.reassign import MoveUnderWay, moves_under_way, sources_of
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset
from penstock.objectstore.ports import ObjectInfo
from penstock.stream.format.manifest.lease import LEASE_MS_MAX
from penstock.stream.storage import Storage

Patch = tuple[Any, str, Any]


def _prepared_objects_expire_by_the_wall_clock() -> list[Patch]:
    def age_s(self: Any, offset: MetadataOffset) -> float:
        now_ms = self._runtime._now_ms()
        return (
            float(now_ms - self.__dict__.setdefault("seen", {}).setdefault(offset, now_ms)) / 1_000
        )

    return [(Ticks, "_age_s", age_s)]


def _moves_end_by_the_wall_clock() -> list[Patch]:
    """Moves end by the deadline in the record, whichever machine's clock is used."""

    async def fence_overdue(self: Any) -> None:
        ended: list[SessionEnded] = []

        def is_late(image: MetadataImage, move: MoveUnderWay, now_ms: Millis) -> bool:
            partition = image.topics.partition(move.key)
            return (
                partition is not None
                and partition.move is not None
                and partition.move.deadline_ms <= now_ms
            )

        def look(image: MetadataImage, now_ms: Millis) -> Result[None]:
            late = sources_of(
                image, [move for move in moves_under_way(image) if is_late(image, move, now_ms)]
            )
            for node, key in late.items():
                reason = (
                    f"it did not close partition {key.partition} of topic {key.topic_id} in time"
                )
                ended.append(SessionEnded(node.node_id, node.node_epoch, reason))
            return Result(fence_brokers(image, late))

        await self._runtime.submit("FenceOverdue", look)
        self._end_sessions(ended)

    return [(Ticks, "_fence_overdue", fence_overdue)]


def _graces_begin_with_the_log() -> list[Patch]:
    """A new leader treats everything that it finds as old."""
    real = Timeline.age_s

    def age_s(self: Timeline, offset: MetadataOffset, now_s: float) -> float:
        return now_s if self._ends and offset < self._ends[0] else real(self, offset, now_s)

    return [(Timeline, "age_s", age_s)]


def _transactions_time_out_by_the_wall_clock() -> list[Patch]:
    return [(nodes, "steady", lambda now_ms, _: now_ms)]


def _manifests_hold_is_ignored() -> list[Patch]:
    async def protected_from(_: ManifestPublisher) -> None:
        return None

    return [(ManifestPublisher, "protected_from", protected_from)]


def _leases_are_ignored() -> list[Patch]:
    async def protected_from(_: LeaseBook) -> None:
        return None

    return [(LeaseBook, "protected_from", protected_from)]


def _leases_expire_by_wall_clocks() -> list[Patch]:
    """Leases expire by wall clocks: that of the store, which timestamps objects, and that of the
    controller.
    """

    real = LeaseBook._read

    async def read(self: LeaseBook, info: ObjectInfo, before: Any) -> Any:
        known = await real(self, info, before)
        if known is None or not known.is_readable:
            return known
        ttl_ms = int((known.until - self._now()) * 1_000)
        until = self._now() + LEASE_MS_MAX / 1_000
        return replace(known, until=until, until_ms=info.modified_ms + ttl_ms)

    return [(LeaseBook, "_read", read)]


def _slots_not_forgotten_at_close() -> list[Patch]:
    """Ranges committed in place are repeated in the next close of the stream. This is harmless: the
    controller skips ranges below a stream's end (`LogChanges.holds`) and has owned the slot since
    the first close, so only the request is larger.
    """

    def forget(self: Any, handles: Any) -> None:
        kept, self._slots.forget = self._slots.forget, lambda _: None
        try:
            real(self, handles)
        finally:
            self._slots.forget = kept

    real = Storage._forget
    return [(Storage, "_forget", forget)]


def _silence_ends_the_session() -> list[Patch]:
    """A broker stops acknowledging when its stream is silent, although the controller fences it
    only after the session timeout.
    """

    def stream_fell_silent(self: Lease, now: float) -> None:
        self._unsure_from = min(self._unsure_from, now)
        self._broken_until = min(self._broken_until, now)

    return [(Lease, "stream_fell_silent", stream_fell_silent)]


def _failed_attempts_end_the_session() -> list[Patch]:
    """Same as above when it cannot reconnect, although the silent stream is still open."""
    return [(MetadataFollower, "_is_session_open", lambda _: False)]


def _records_of_silent_streams_are_applied() -> list[Patch]:
    async def receive_all(self: MetadataFollower, stream: Any) -> None:
        while (data := await stream.call.read()) is not END_OF_STREAM:
            stream.message_count, stream.heard_at = stream.message_count + 1, self._now()
            if stream.message_count == 1:
                self._abandon_silent()
            self._receive(_decoder.decode(data), stream.address)

    return [(MetadataFollower, "_receive_all", receive_all)]


def _ends_of_silent_streams_are_lost() -> list[Patch]:
    return [(MetadataFollower, "_on_silent_end", lambda *_: None)]


def _abandoned_streams_take_over() -> list[Patch]:
    return [(Sessions, "is_overtaken", lambda *_: False)]


def _first_messages_are_not_awaited_longer() -> list[Patch]:
    return [(MetadataFollower, "_first_silence_s", lambda _: SILENCE_S)]


CLOCK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "prepared_objects_expire_by_the_wall_clock": _prepared_objects_expire_by_the_wall_clock,
    "moves_end_by_the_wall_clock": _moves_end_by_the_wall_clock,
    "graces_begin_with_the_log": _graces_begin_with_the_log,
    "transactions_time_out_by_the_wall_clock": _transactions_time_out_by_the_wall_clock,
    "manifests_hold_is_ignored": _manifests_hold_is_ignored,
    "leases_are_ignored": _leases_are_ignored,
    "leases_expire_by_wall_clocks": _leases_expire_by_wall_clocks,
    "silence_ends_the_session": _silence_ends_the_session,
    "failed_attempts_end_the_session": _failed_attempts_end_the_session,
    "records_of_silent_streams_are_applied": _records_of_silent_streams_are_applied,
    "ends_of_silent_streams_are_lost": _ends_of_silent_streams_are_lost,
    "abandoned_streams_take_over": _abandoned_streams_take_over,
    "first_messages_are_not_awaited_longer": _first_messages_are_not_awaited_longer,
}

HARMLESS: dict[str, tuple[Callable[[], list[Patch]], str]] = {
    "slots_not_forgotten_at_close": (_slots_not_forgotten_at_close, "move"),
}
