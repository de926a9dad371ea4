"""Planted bugs in streams groups (KIP-1071), for `tests.sim.mutants`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import penstock.broker.groups.streams.group as group_module
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.coordinator.streams import StreamsGroups
from penstock.broker.groups.streams.group import StreamsGroup
from penstock.broker.groups.streams.reconciliation import reconcile
from penstock.broker.groups.streams.values import NO_TASKS
from penstock.protocol.error_codes import ErrorCode
from tests.sim.consumer_group_mutants import acknowledged_before_durable

Patch = tuple[Any, str, Any]


def _active_tasks_given_away() -> list[Patch]:
    return [(StreamsGroup, "active_process", lambda *_: None)]


def _given_up_tasks_not_awaited() -> list[Patch]:
    def planted(*args: Any, **options: Any) -> Any:
        return reconcile(*args, **options | {"owned": NO_TASKS})

    return [(group_module, "reconcile", planted)]


def _streams_epochs_unchecked() -> list[Patch]:
    return [(StreamsGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)]


def _streams_acknowledged_before_durable() -> list[Patch]:
    return acknowledged_before_durable(StreamsGroups)


def _tasks_not_restored() -> list[Patch]:
    real = StreamsGroup.restore

    def restore(self: StreamsGroup, records: Any, now_ms: int) -> None:
        kept = [item for item in records if item[0].kind is not ConsumerRecordKind.STREAMS_CURRENT]
        real(self, kept, now_ms)

    return [(StreamsGroup, "restore", restore)]


def _silent_streams_members_stay() -> list[Patch]:
    return [(StreamsGroup, "next_deadline_ms", lambda _: None)]


def _tasks_sent_once() -> list[Patch]:
    """The coordinator ignores the connection, so tasks are lost with a response."""
    real = StreamsGroup.heartbeat

    def heartbeat(self: StreamsGroup, request: Any, topics: Any, now_ms: int) -> Any:
        return real(self, replace(request, connection_id=None), topics, now_ms)

    return [(StreamsGroup, "heartbeat", heartbeat)]


STREAMS_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "active_tasks_given_away": _active_tasks_given_away,
    "given_up_tasks_not_awaited": _given_up_tasks_not_awaited,
    "streams_epochs_unchecked": _streams_epochs_unchecked,
    "streams_acknowledged_before_durable": _streams_acknowledged_before_durable,
    "tasks_not_restored": _tasks_not_restored,
    "tasks_sent_once": _tasks_sent_once,
    "silent_streams_members_stay": _silent_streams_members_stay,
}
