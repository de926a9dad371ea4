"""Move partitions continuously over the Kafka protocol: reassignments, preferred elections and
cancellations.

Invariant: the seed determines the requests. A request may fail during a fault. An accepted move
that is unfinished at the end of the run is a violation.
"""

import asyncio
from collections import Counter
from random import Random

from penstock.deploy.admin.reassign.admin import elect_preferred, ongoing, reassign
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.wire import WireClient
from penstock.protocol.client.errors import KafkaFailed
from tests.support.history import Part


class Mover:
    def __init__(self, bootstrap: str, parts: list[Part], rng: Random) -> None:
        self._addresses = bootstrap.split(",")
        self._keys = [Key(*part) for part in parts]
        self._rng = rng
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Run until it is canceled."""
        while True:
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))
            what = self._rng.choices(("reassign", "elect", "cancel"), (7, 2, 1))[0]
            requested = {
                key: self._replicas()
                for key in self._rng.sample(self._keys, self._rng.randint(1, 3))
            }
            self._rng.shuffle(self._addresses)
            await asyncio.to_thread(self._send_request, what, requested)

    def _replicas(self) -> tuple[int, ...]:
        return tuple(self._rng.sample(range(3), self._rng.randint(1, 3)))

    def _send_request(self, what: str, requested: dict[Key, tuple[int, ...]]) -> None:
        try:
            with WireClient(",".join(self._addresses)) as client:
                if what == "reassign":
                    self.done["moves requested"] += len(requested) - len(
                        reassign(client, requested)
                    )
                elif what == "elect":
                    self.done["leaders elected"] += len(elect_preferred(client, None)[0])
                else:
                    under_way = dict.fromkeys(ongoing(client))
                    self.done["moves cancelled"] += (
                        len(under_way) - len(reassign(client, under_way)) if under_way else 0
                    )
        except KafkaFailed:
            self.done["requests that failed"] += 1


async def still_moving(bootstrap: str) -> list[str]:
    """Return the partitions with a move in progress. Raises KafkaFailed."""

    def send_request() -> list[str]:
        with WireClient(bootstrap) as client:
            return [str(key) for key in ongoing(client)]

    return await asyncio.to_thread(send_request)
