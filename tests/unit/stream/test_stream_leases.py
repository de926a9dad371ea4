"""Leases: protected objects and durations, for any content, and while leases are deleted or
renewed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest

from penstock.base.ids import Millis
from penstock.controller.active import leases
from penstock.controller.active.janitor import Janitor
from penstock.controller.active.leases import LeaseBook
from penstock.controller.active.record_ages import Timeline
from penstock.controller.config import ControllerConfig
from penstock.lake.manifest import leases as held_leases
from penstock.lake.manifest.errors import TooManyLeases
from penstock.lake.manifest.leases import HeldLease
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectInfo
from penstock.stream.format.keys import lease_key, lease_prefix, parse_lease_key
from penstock.stream.format.manifest.lease import LEASE_MS_MAX, Lease
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.wal.wal_store import WalStores
from tests.support.managers_cluster import CommittedAtOnce, ManagersCluster
from tests.support.waiting import until

DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000

Act = Callable[[], Awaitable[object]]


class InterleavedStore(MemoryStore):
    """Run something between two requests of another client, once."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.after_list: Act | None = None
        self.before_delete: Act | None = None
        self.deletes_fail = False
        self.cut_reads_count = 0
        """The number of reads that return only half of the bytes."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = await super().get_range(key, start, length)
        if not self.cut_reads_count:
            return data
        self.cut_reads_count -= 1
        return data[: len(data) // 2]

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        for info in [
            info async for info in super().list(prefix, start_after=start_after, limit=limit)
        ]:
            yield info
        act, self.after_list = self.after_list, None
        if act is not None:
            await act()

    async def delete(self, keys: Sequence[str]) -> None:
        act, self.before_delete = self.before_delete, None
        if act is not None:
            await act()
        if self.deletes_fail:
            raise Unavailable("delete", keys[0], "injected")
        await super().delete(keys)


class LeaseHarness:
    """wall_ms: the clock of the controller and the store; now_s: the controller's monotonic
    clock.
    """

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.now_s = 77.0
        self.offset = 100
        self.store = InterleavedStore(lambda: self.wall_ms)
        self.book = self.new_leader()

    def new_leader(self) -> LeaseBook:
        return LeaseBook(
            self.store, "c", now=lambda: self.now_s, now_ms=lambda: Millis(self.wall_ms)
        )

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.now_s += ms / 1_000

    def lease(self) -> HeldLease:
        return HeldLease(self.store, "c", uuid4(), "a job")

    def root(self) -> ManifestRoot:
        return ManifestRoot("c", 1, 7, self.offset, Millis(self.wall_ms), (), ())

    async def kept_from(self) -> int | None:
        return await self.book.protected_from()

    async def count(self) -> int:
        return len([info async for info in self.store.list(lease_prefix("c"))])


@pytest.fixture
def harness() -> LeaseHarness:
    return LeaseHarness()


async def test_the_oldest_live_lease_applies_until_it_is_released(harness: LeaseHarness) -> None:
    assert await harness.kept_from() is None
    first, second = harness.lease(), harness.lease()
    await first.create(harness.root(), DAY_MS)
    harness.offset = 110
    await second.create(harness.root(), DAY_MS)
    assert await harness.kept_from() == 100
    await first.release()
    assert await harness.kept_from() == 110
    harness.offset = 120
    await second.renew(harness.root(), DAY_MS)
    assert await harness.kept_from() == 120
    assert await harness.count() == 1


async def test_an_expired_lease_is_removed(harness: LeaseHarness) -> None:
    lease = harness.lease()
    await lease.create(harness.root(), 5_000)
    assert await harness.kept_from() == 100
    harness.pass_time(4_999)
    assert await harness.kept_from() == 100
    harness.pass_time(1)
    assert await harness.kept_from() is None
    assert await harness.count() == 0


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_wall_clock_changes_neither_end_nor_extend_a_lease(
    harness: LeaseHarness, step_ms: int
) -> None:
    await harness.lease().create(harness.root(), 60_000)
    assert await harness.kept_from() == 100
    harness.wall_ms += step_ms
    harness.pass_time(59_999)
    assert await harness.kept_from() == 100
    harness.pass_time(1)
    assert await harness.kept_from() is None


async def test_leases_start_again_at_a_new_leader(harness: LeaseHarness) -> None:
    await harness.lease().create(harness.root(), 60_000)
    assert await harness.kept_from() == 100
    harness.pass_time(50_000)
    harness.book = harness.new_leader()
    assert await harness.kept_from() == 100
    harness.pass_time(59_999)
    assert await harness.kept_from() == 100
    harness.pass_time(1)
    assert await harness.kept_from() is None


async def test_a_lease_that_is_renewed_before_an_expired_one_is_deleted_stays(
    harness: LeaseHarness,
) -> None:
    """The janitor's LIST contains only the old renewal; its DELETE arrives after the
    next renewal.
    """
    lease = harness.lease()
    await lease.create(harness.root(), 5_000)
    assert await harness.kept_from() == 100
    harness.pass_time(5_000)
    harness.store.before_delete = lambda: lease.renew(harness.root(), 5_000)
    await harness.kept_from()
    assert await harness.kept_from() == 100
    assert await harness.count() == 1


async def test_a_lease_that_is_renewed_between_list_and_get_applies(harness: LeaseHarness) -> None:
    """The listed object is deleted before it is read, and the next one is newer than the LIST."""
    lease = harness.lease()
    await lease.create(harness.root(), 5_000)
    harness.store.after_list = lambda: lease.renew(harness.root(), 5_000)
    kept = await harness.kept_from()
    assert kept is not None
    assert kept <= 100
    assert await harness.kept_from() == 100


async def test_renewals_that_could_not_be_deleted_are_deleted_with_the_next(
    harness: LeaseHarness,
) -> None:
    lease = harness.lease()
    await lease.create(harness.root(), DAY_MS)
    harness.store.deletes_fail = True
    await lease.renew(harness.root(), DAY_MS)
    assert await harness.count() == 2
    with pytest.raises(Unavailable):
        await lease.release()
    harness.store.deletes_fail = False
    harness.offset = 200
    await lease.renew(harness.root(), DAY_MS)
    assert await harness.count() == 1
    assert await harness.kept_from() == 200
    await lease.release()
    assert await harness.count() == 0


async def test_expired_leases_are_deleted_while_no_objects_are_due(
    harness: LeaseHarness, tmp_path: Path
) -> None:
    for _ in range(3):  # batch queries do not release their leases
        await harness.lease().create(harness.root(), HOUR_MS)
    runtime = CommittedAtOnce(ManagersCluster())
    janitor = Janitor(
        ControllerConfig(data_dir=tmp_path, janitor_interval_ms=1),
        cast("Any", runtime),
        cast("Any", runtime),
        WalStores(harness.store, None),
        timeline=Timeline(),
        now=lambda: harness.now_s,
        now_ms=lambda: Millis(harness.wall_ms),
        holds=[harness.book.protected_from],
    )
    running = asyncio.create_task(janitor.run())

    async def are_expired() -> bool:
        harness.pass_time(HOUR_MS)
        return await harness.count() == 0

    await until(are_expired)
    running.cancel()
    await asyncio.wait([running])


async def test_leases_apply_for_at_most_seven_days(harness: LeaseHarness) -> None:
    with pytest.raises(ValueError, match="604800000"):
        await harness.lease().create(harness.root(), LEASE_MS_MAX + 1)
    bold = Lease("x", 100 * DAY_MS, 1, 100, START_MS + 50 * DAY_MS)
    await harness.store.put(lease_key("c", uuid4(), 0), msgspec.json.encode(bold))
    old = harness.root()
    renewed = harness.lease()
    await renewed.create(old, DAY_MS)
    assert await harness.kept_from() == 100
    harness.pass_time(LEASE_MS_MAX - 1)
    await renewed.renew(old, DAY_MS)
    assert await harness.kept_from() == 100
    harness.pass_time(1)
    assert await harness.kept_from() is None
    assert await harness.count() == 0


@pytest.mark.parametrize("data", [b"", b"{", b'{"owner": 1}', b"\xff" * 10_000])
async def test_a_damaged_lease_protects_all_objects(harness: LeaseHarness, data: bytes) -> None:
    await harness.store.put(lease_key("c", UUID(int=5), 0), data)
    assert await harness.kept_from() == 0
    harness.pass_time(LEASE_MS_MAX)
    assert await harness.kept_from() is None


async def test_the_number_of_leases_is_limited(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (leases, held_leases):
        monkeypatch.setattr(module, "LEASES_MAX", 2)
    for _ in range(2):
        held = harness.lease()
        await held.create(harness.root(), DAY_MS)
    with pytest.raises(TooManyLeases):
        await harness.lease().create(harness.root(), DAY_MS)
    harness.store.deletes_fail = True
    await held.renew(harness.root(), DAY_MS)  # three objects, two leases
    assert await harness.kept_from() == 100


async def test_other_keys_are_ignored(harness: LeaseHarness) -> None:
    await harness.store.put("leases/c/mine", b"x")
    assert await harness.kept_from() is None
    assert await harness.count() == 1
    assert parse_lease_key("c", "leases/c/mine") is None
    key = lease_key("c", UUID(int=5), 12)
    assert parse_lease_key("c", key) == (UUID(int=5), 12)
    assert parse_lease_key("c", key.upper()) is None


async def test_a_lease_damaged_in_transit_protects_everything_until_it_is_read_again(
    harness: LeaseHarness,
) -> None:
    await harness.lease().renew(harness.root(), HOUR_MS)
    harness.store.cut_reads_count = 2
    assert [await harness.kept_from() for _ in range(2)] == [leases._HOLDS_EVERYTHING] * 2
    assert await harness.kept_from() == harness.offset
    harness.pass_time(HOUR_MS + 1)
    assert await harness.kept_from() is None
    assert await harness.count() == 0


async def test_an_unreadable_lease_protects_all_objects_for_seven_days(
    harness: LeaseHarness,
) -> None:
    await harness.store.put(lease_key("c", uuid4(), 0), b"{")
    for _ in range(7):
        assert await harness.kept_from() == leases._HOLDS_EVERYTHING
        harness.pass_time(DAY_MS - 1)
    assert await harness.kept_from() == leases._HOLDS_EVERYTHING
    harness.pass_time(7)
    assert await harness.kept_from() is None
