"""Leases: what they hold back, for how long, and whatever is written into them."""

from uuid import UUID, uuid4

import msgspec
import pytest

from objectstore.memory import MemoryStore
from stream.ids import Millis
from stream.keys import lease_key, lease_prefix, parse_lease_key
from stream.manifest import leases
from stream.manifest.errors import TooManyLeases
from stream.manifest.leases import CLOCK_SKEW_MS_MAX, LEASE_MS_MAX, HeldLease, Lease, LeaseBook
from stream.manifest.model import ManifestRoot

DAY_MS = 24 * 3_600_000
START_MS = 1_700_000_000_000


class World:
    def __init__(self) -> None:
        self.now_ms = START_MS
        self.store = MemoryStore(lambda: self.now_ms)
        self.book = LeaseBook(self.store, "c")

    def lease(self) -> HeldLease:
        return HeldLease(self.store, "c", uuid4(), "a job", lambda: Millis(self.now_ms))

    def root(self) -> ManifestRoot:
        return ManifestRoot("c", 1, 7, 99, Millis(self.now_ms), (), ())

    async def kept_from(self) -> int | None:
        kept = await self.book.keep_from(self.now_ms)
        return None if kept is None else kept + CLOCK_SKEW_MS_MAX

    async def count(self) -> int:
        return len([info async for info in self.store.list(lease_prefix("c"))])


@pytest.fixture
def world() -> World:
    return World()


async def test_the_oldest_live_lease_holds_until_it_is_released(world: World) -> None:
    assert await world.kept_from() is None
    first, second = world.lease(), world.lease()
    await first.create(world.root(), DAY_MS)
    world.now_ms += 1_000
    await second.create(world.root(), DAY_MS)
    assert await world.kept_from() == START_MS
    await first.release()
    assert await world.kept_from() == START_MS + 1_000
    world.now_ms += 1_000
    await second.renew(world.root(), DAY_MS)
    assert await world.kept_from() == START_MS + 2_000


async def test_an_expired_lease_is_removed(world: World) -> None:
    lease = world.lease()
    await lease.create(world.root(), 5_000)
    world.now_ms += 4_999
    assert await world.kept_from() == START_MS
    world.now_ms += 1
    assert await world.kept_from() is None
    assert await world.count() == 0


async def test_no_lease_binds_for_more_than_seven_days(world: World) -> None:
    with pytest.raises(ValueError, match="604800000"):
        await world.lease().create(world.root(), LEASE_MS_MAX + 1)
    bold = Lease("x", START_MS + 100 * DAY_MS, 1, 1, START_MS)
    await world.store.put(lease_key("c", uuid4()), msgspec.json.encode(bold))
    old = world.root()
    renewed = world.lease()
    await renewed.create(old, DAY_MS)
    world.now_ms += LEASE_MS_MAX - 1
    await renewed.renew(old, DAY_MS)
    assert await world.kept_from() == START_MS
    world.now_ms += 1
    assert await world.kept_from() is None
    assert await world.count() == 0


@pytest.mark.parametrize("data", [b"", b"{", b'{"owner": 1}', b"\xff" * 10_000])
async def test_a_damaged_lease_binds_from_when_it_was_written(world: World, data: bytes) -> None:
    await world.store.put(lease_key("c", UUID(int=5)), data)
    assert await world.kept_from() == START_MS
    world.now_ms += LEASE_MS_MAX
    assert await world.kept_from() is None


async def test_there_is_a_limit_to_their_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASES_MAX", 2)
    for _ in range(2):
        await world.lease().create(world.root(), DAY_MS)
    with pytest.raises(TooManyLeases):
        await world.lease().create(world.root(), DAY_MS)


async def test_other_keys_are_left_alone(world: World) -> None:
    await world.store.put("leases/c/mine", b"x")
    assert await world.kept_from() is None
    assert await world.count() == 1
    assert parse_lease_key("c", "leases/c/mine") is None
    key = lease_key("c", UUID(int=5))
    assert parse_lease_key("c", key) == UUID(int=5)
    assert parse_lease_key("c", key.upper()) is None
