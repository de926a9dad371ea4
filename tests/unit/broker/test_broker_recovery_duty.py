"""The recovery duty follows the metadata image: one recovery per WAL at a time, a retry after a
failure, and none for WALs assigned to other brokers.
"""

import asyncio
from random import Random
from uuid import UUID

import pytest

from penstock.base.ids import NodeEpoch, NodeId, WalSequence
from penstock.broker.background import recovery as recovery_duty
from penstock.broker.background.recovery import RecoveryDuty
from penstock.controller.managers.kv import VALUE_BYTES_MAX
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    KeyValueRecord,
    NodeRecord,
    Record,
    WalEnded,
    WalRecord,
)
from penstock.controller.metadata.wal_losses import acceptance_key, accepted_losses, encode_slots
from penstock.stream.errors import WalDamaged
from penstock.stream.ports import BrokerIncarnation
from tests.support.waiting import PATIENCE_S, until

ME = BrokerIncarnation(NodeId(1), NodeEpoch(5))
DEAD = BrokerIncarnation(NodeId(2), NodeEpoch(4))


class DutyHarness:
    def __init__(self, *, failures: int = 0) -> None:
        self.image = MetadataImage()
        self.image.apply_all(
            [NodeRecord(NodeId(2), NodeEpoch(4), UUID(int=1), "", 1, "m", None, True)]
        )
        self.calls: list[tuple[BrokerIncarnation, int]] = []
        self.failures = failures
        self.release = asyncio.Event()
        self.done = asyncio.Event()
        self.duty = RecoveryDuty(ME, lambda: self.image, self.recover, Random(1))

    def apply(self, *records: Record) -> None:
        self.image.apply_all(records)
        self.duty.on_batch(MetadataDelta.of(records), self.image)

    async def recover(self, failed: BrokerIncarnation, start: WalSequence) -> None:
        self.calls.append((failed, start))
        if len(self.calls) <= self.failures:
            raise ConnectionError("the store is away")
        await self.release.wait()
        self.apply(WalEnded(failed.node_id, failed.node_epoch, WalSequence(9)))
        self.done.set()


def send_request(recoverer: BrokerIncarnation, committed: int) -> WalRecord:
    return WalRecord(
        DEAD.node_id,
        DEAD.node_epoch,
        WalSequence(committed),
        recoverer.node_id,
        recoverer.node_epoch,
    )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_duty, "RETRY_FIRST_MS", 1)


async def test_a_wal_is_recovered_once_even_if_reported_repeatedly() -> None:
    harness = DutyHarness()
    for _ in range(3):
        harness.apply(send_request(ME, 3))
        await asyncio.sleep(0)
    harness.release.set()
    await harness.done.wait()
    assert harness.calls == [(DEAD, 3)]
    await harness.duty.close()


async def test_a_failed_recovery_is_retried_from_the_slot_committed_meanwhile() -> None:
    harness = DutyHarness(failures=2)
    harness.release.set()
    harness.apply(send_request(ME, 3))
    harness.apply(send_request(ME, 4))
    await harness.done.wait()
    assert harness.calls == [(DEAD, 4)] * 3
    await harness.duty.close()


async def test_recoveries_assigned_to_other_brokers_are_ignored() -> None:
    harness = DutyHarness()
    harness.apply(send_request(BrokerIncarnation(NodeId(1), NodeEpoch(4)), 3))
    harness.apply(send_request(BrokerIncarnation(NodeId(3), NodeEpoch(5)), 3))
    await asyncio.sleep(0)
    assert harness.calls == []
    await harness.duty.close()


async def test_a_reassigned_recovery_is_dropped_after_a_failure() -> None:
    harness = DutyHarness(failures=1_000)
    harness.apply(send_request(ME, 3))
    await asyncio.sleep(0)
    harness.apply(send_request(BrokerIncarnation(NodeId(3), NodeEpoch(6)), 3))
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(tasks, timeout=PATIENCE_S)
    assert all(task.done() for task in tasks)
    assert len(harness.calls) <= 2
    await harness.duty.close()


async def test_recovery_of_a_damaged_wal_is_retried_when_an_operator_accepts_the_loss() -> None:
    harness = DutyHarness()
    looks: list[frozenset[WalSequence]] = []

    async def recover(failed: BrokerIncarnation, _: WalSequence) -> None:
        looks.append(accepted_losses(harness.image, failed))
        if WalSequence(3) not in looks[-1]:
            raise WalDamaged(("wal/2/4/00000000000000000003",), 1)
        harness.apply(WalEnded(failed.node_id, failed.node_epoch, WalSequence(9)))
        harness.done.set()

    harness.duty = RecoveryDuty(ME, lambda: harness.image, recover, Random(1))
    harness.apply(send_request(ME, 3))
    await until(lambda: harness.duty.damaged)
    assert [error.keys for error in harness.duty.damaged.values()] == [
        ("wal/2/4/00000000000000000003",)
    ]
    assert looks == [frozenset()] * recovery_duty.DAMAGED_ATTEMPTS_COUNT
    harness.apply(
        KeyValueRecord(acceptance_key(DEAD), encode_slots([WalSequence(4), WalSequence(3)]))
    )
    await harness.done.wait()
    assert looks[recovery_duty.DAMAGED_ATTEMPTS_COUNT :] == [{3, 4}]
    await harness.duty.close()
    assert not harness.duty.damaged


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param([], id="none"),
        pytest.param([0, 7, 8], id="few"),
        pytest.param(range(3_001), id="one long run"),
        pytest.param([*range(10**19, 10**19 + 98_000), *range(0, 2_998, 2)], id="most"),
    ],
)
def test_the_loss_of_many_slots_can_be_accepted(slots: list[int]) -> None:
    image = MetadataImage()
    encoded = encode_slots([WalSequence(slot) for slot in slots])
    assert len(encoded) <= VALUE_BYTES_MAX
    image.apply_all([KeyValueRecord(acceptance_key(DEAD), encoded)])
    assert accepted_losses(image, DEAD) == set(slots)


@pytest.mark.parametrize("slots", [range(100_001), range(0, 6_002, 2)])
def test_a_loss_that_does_not_fit_is_refused(slots: range) -> None:
    with pytest.raises(ValueError, match="cannot be accepted"):
        encode_slots([WalSequence(slot) for slot in slots])
