"""Write the steps of consumer, share and streams groups to the log, and manage their timers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from penstock.broker.coordination.log import Done, KeyValue
from penstock.broker.groups.classic.model import Member
from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import HeartbeatResult
from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerValue,
    decode_consumer_key,
    encode_consumer_key,
)
from penstock.broker.groups.coordinator.records import decode_consumer_value, encode_consumer_value
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import GroupKey, encode_group_key
from penstock.protocol.error_codes import ErrorCode

RETRY_S: Final = 1.0
"""Pause before a timeout is handled again if its records could not be written."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


_T = TypeVar("_T")


class GroupHome(Protocol):
    """The coordinator that owns the groups."""

    def find(self, group_id: str, *, create: bool, is_read: bool = False) -> Group | ErrorCode: ...

    def admit(
        self, api_key: int, group: Group, member_id: str, connection_id: int | None
    ) -> None: ...

    def admit_leave(
        self, api_key: int, group_id: str, member_id: str, connection_id: int | None
    ) -> None: ...

    def begin_append(self, group: Group, records: Sequence[KeyValue], done: Done) -> None: ...

    def reload(self, group: Group) -> None: ...

    def retire_classic(self, group: Group) -> None: ...

    def take_over(self, group: Group, generation: int, members: Sequence[Member]) -> None: ...

    def forget_unused(self, group: Group) -> None: ...


class GroupJournal:
    def __init__(self, home: GroupHome, now_ms: Callable[[], int]) -> None:
        self._home = home
        self._now_ms = now_ms

    def write(
        self, group: Group, changes: GroupChanges, *, is_new: bool = False
    ) -> "asyncio.Future[ErrorCode]":
        """Append the records of a step. Return a future with the outcome of this step and all
        earlier ones.

        is_new: whether the group replaces a classic group.
        """
        if not changes.records:
            return _following(group.consumer_append)
        records = encoded(changes)
        replaces_classic = is_new and (group.record is not None or group.appends_count > 0)
        classic: list[KeyValue] = []
        if replaces_classic:
            classic.append((encode_group_key(GroupKey(group.classic.group_id)), None))

        def durable() -> None:
            _keep(group, records)
            if replaces_classic:
                group.record = None

        return append_step(self._home, group, changes, [*classic, *records], durable)

    def set_timer(
        self,
        group: Group,
        deadline_ms: int | None,
        tick: Callable[[Group], None],
        *,
        delay_s: float = 0.0,
    ) -> None:
        """Set the timer to the next deadline, but at least `delay_s` from now. A timer that is due
        earlier is kept and set again when it fires, because every heartbeat moves a deadline.
        """
        if deadline_ms is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(delay_s, (deadline_ms - self._now_ms()) / 1000)
        if group.consumer_timer is not None:
            if group.consumer_timer.when() <= due:
                return
            group.consumer_timer.cancel()
        group.consumer_timer = loop.call_at(due, tick, group)


def append_step(
    home: GroupHome,
    group: Group,
    changes: GroupChanges | None,
    records: Sequence[KeyValue],
    durable: Callable[[], None],
) -> "asyncio.Future[ErrorCode]":
    """Append the records of a step, and return a future with the outcome. If the append is rejected
    immediately, the step is undone; if it fails later, the partition is reloaded from its log.

    changes: the step, or None if nothing changes before the records are durable. durable: called
    directly when the append completes.
    """
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    is_accepted = False

    def done(code: ErrorCode) -> None:
        outcome.set_result(code)
        if code is ErrorCode.NONE:
            durable()
        elif is_accepted:
            home.reload(group)

    before, group.consumer_append = group.consumer_append, outcome
    home.begin_append(group, records, done)
    if is_refused(outcome):
        if changes is not None:
            changes.undo()
        group.consumer_append = before
    is_accepted = True
    return asyncio.shield(outcome)


def encoded(changes: GroupChanges) -> list[KeyValue]:
    return [
        (
            encode_consumer_key(key),
            None if value is None else encode_consumer_value(key.kind, value),
        )
        for key, value in changes.records
    ]


def is_refused(outcome: "asyncio.Future[ErrorCode]") -> bool:
    """Return whether an append was rejected immediately, so that its step was undone."""
    return outcome.done() and outcome.result() is not ErrorCode.NONE


def durable_records(group: Group) -> list[tuple[ConsumerRecordKey, ConsumerValue]]:
    """Return the durable records of a consumer, share or streams group."""
    return [
        (decoded, decode_consumer_value(decoded.kind, value))
        for key, value in group.consumer_records.items()
        if (decoded := decode_consumer_key(key)) is not None
    ]


async def when_durable(group: Group, described: _T) -> _T | ErrorCode:
    """Return the description once the last step of the group is durable."""
    if group.consumer_append is None:
        return described
    code = await asyncio.shield(group.consumer_append)
    return described if code is ErrorCode.NONE else code


def failed_heartbeat(code: ErrorCode) -> HeartbeatResult:
    known = ErrorCode.UNKNOWN_SERVER_ERROR if code in _TOO_LARGE else code
    return HeartbeatResult(known, known.message)


def _following(before: "asyncio.Future[ErrorCode] | None") -> "asyncio.Future[ErrorCode]":
    if before is not None:
        return asyncio.shield(before)
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    outcome.set_result(ErrorCode.NONE)
    return outcome


def _keep(group: Group, records: Sequence[KeyValue]) -> None:
    """Apply records that have become durable to `consumer_records`."""
    for key, value in records:
        if value is None:
            group.consumer_records.pop(key, None)
        else:
            group.consumer_records[key] = value
