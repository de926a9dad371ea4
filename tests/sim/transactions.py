"""Transactions from end to end: applications, the real coordinators, and read_committed readers.

At the end every transaction was ended by its producer, the next instance or its timeout. Readers
through the leaders and readers of the bucket get what the ledgers of the applications contain.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.lake.manifest.errors import ManifestNotFound
from tests.sim.checkers import Part
from tests.sim.committed import CommittedReader, Judge, StoreReader
from tests.sim.late import LongLivedApplication
from tests.sim.loads import LOADING_APPLICATIONS, EagerReader, LoadingApplication
from tests.sim.scenarios import LATE, LOADING
from tests.sim.transactional import Application

if TYPE_CHECKING:
    from tests.sim.world import World


class Transactions:
    def __init__(self, world: "World") -> None:
        self._world = world
        is_loading = world.scenario in LOADING
        count = LOADING_APPLICATIONS if is_loading else 3
        kind = (
            LoadingApplication
            if is_loading
            else LongLivedApplication
            if world.scenario in LATE
            else Application
        )
        self._applications = [
            kind(world, number) for number in range(count if world.txn_parts else 0)
        ]
        world.ledgers += [application.ledger for application in self._applications]
        self._judge = Judge(world.ledgers)
        self._store_reader = StoreReader(world, self._judge)
        self._reader = (EagerReader if is_loading else CommittedReader)(world, "early", self._judge)

    def run(self, stop: asyncio.Event) -> list[Any]:
        if not self._applications:
            return []
        return [part.run(stop) for part in (*self._applications, self._store_reader, self._reader)]

    async def check(self) -> None:
        if not self._applications:
            return
        await self._reader.to_the_end()
        for application in self._applications:
            await application.finish()
        late = CommittedReader(self._world, "late", self._judge)
        await self._reader.to_the_end()
        await late.to_the_end()
        if self._reader.values != late.values:
            self._world.fail(
                f"readers of committed records are given {self._reader.values} and {late.values}"
            )
        stored: dict[Part, list[bytes]] = {}
        while stored != late.values:
            with suppress(ManifestNotFound):
                stored = await self._store_reader.look()
            await asyncio.sleep(0.5)
        for application in self._applications:
            seen = {
                part: list(_own(application.name, values)) for part, values in late.values.items()
            }
            application.ledger.check(seen, await application.committed_offset())
            self._world.trace(
                "transactions",
                application.name,
                application.ledger.count,
                application.ledger.committed_count,
            )


def _own(name: str, values: Iterable[bytes]) -> Iterable[tuple[int, int]]:
    for value in values:
        owner, serial, _, number = value.decode().split("/")
        if owner == name:
            yield int(serial), int(number)
