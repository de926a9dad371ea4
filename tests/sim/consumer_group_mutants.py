"""Planted bugs in consumer groups (KIP-848), for `tests.sim.mutants`."""

import asyncio
from collections.abc import Callable
from typing import Any

import penstock.broker.groups.consumer.classic_members as classic_members
import penstock.broker.groups.consumer.group as group_module
from penstock.broker.groups.common.model import NOTHING
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.consumer.reconciliation import reconcile
from penstock.broker.groups.coordinator.consumer import ConsumerCoordinator
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _reconciling(**replaced: Any) -> list[Patch]:
    def planted(*args: Any, **options: Any) -> Any:
        return reconcile(*args, **options | replaced)

    return [(group_module, "reconcile", planted)]


def _owned_partitions_given_away() -> list[Patch]:
    return _reconciling(is_owned=lambda _topic, _index: False)


def _revocations_not_awaited() -> list[Patch]:
    return _reconciling(owned=NOTHING)


def _member_epochs_unchecked() -> list[Patch]:
    return [(ConsumerGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)]


def acknowledged_before_durable(coordinator: Any) -> list[Patch]:
    real = coordinator._write

    def write(self: Any, *args: Any, **options: Any) -> Any:
        outcome = real(self, *args, **options)
        if outcome.done():
            return outcome
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        done.set_result(ErrorCode.NONE)
        return done

    return [(coordinator, "_write", write)]


def _heartbeats_acknowledged_before_durable() -> list[Patch]:
    return acknowledged_before_durable(ConsumerCoordinator)


def _assignments_not_restored() -> list[Patch]:
    real = ConsumerGroup.restore

    def restore(self: ConsumerGroup, records: Any, now_ms: int) -> None:
        kept = [item for item in records if item[0].kind is not ConsumerRecordKind.CURRENT]
        real(self, kept, now_ms)

    return [(ConsumerGroup, "restore", restore)]


def _silent_members_stay() -> list[Patch]:
    return [(ConsumerGroup, "next_deadline_ms", lambda _: None)]


def _upgrades_forget_what_members_own() -> list[Patch]:
    """Members of the consumer protocol get partitions before the classic ones revoke them."""
    return [(classic_members, "decode_assignment", lambda _data: {})]


CONSUMER_GROUP_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "owned_partitions_given_away": _owned_partitions_given_away,
    "revocations_not_awaited": _revocations_not_awaited,
    "member_epochs_unchecked": _member_epochs_unchecked,
    "heartbeats_acknowledged_before_durable": _heartbeats_acknowledged_before_durable,
    "assignments_not_restored": _assignments_not_restored,
    "silent_members_stay": _silent_members_stay,
    "upgrades_forget_what_members_own": _upgrades_forget_what_members_own,
}
