"""Readers detect a permanent loss in the store when they read, before the final check of the
bucket.
"""

from tests.sim.committed import StoreReader
from tests.sim.world import World

SEED = 10


def test_the_reader_of_the_store_reports_a_missing_object() -> None:
    world = World(SEED, "transactions")
    stolen: list[str] = []
    real = StoreReader._read

    async def steal_first(self: StoreReader, item: object) -> object:
        if not stolen and world.loop.time() > 5:
            stolen.append(item.key)
            world.bucket.strike(stolen[0], None)
        return await real(self, item)

    StoreReader._read = steal_first
    try:
        outcome = world.run()
    finally:
        StoreReader._read = real
    assert stolen
    assert "a reader of the store, by the newest manifest" in (outcome.violation or "")
    assert stolen[0] in (outcome.violation or "")
