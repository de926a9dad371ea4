"""Coordinators load long logs from a slow store while transactions end and markers arrive.

Partitions with records move while transactions are open, so a later leader ends them. Applications
commit and abort in turn, and check the group offset after an abort: a coordinator that missed the
commit has dropped its offset.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.stream.config import StreamConfig
from tests.sim.chaos import Chaos
from tests.sim.checkers import Part
from tests.sim.committed import CommittedReader
from tests.sim.late import LongLivedApplication
from tests.sim.ledger import Entry
from tests.sim.limits import Limits
from tests.sim.nodes import COORDINATOR_PARTITIONS
from tests.sim.transactional import Instance

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker

LOADING_APPLICATIONS: Final = 8
LOAD_READ_BYTES: Final = 1
"""Replaces `broker.coordination.log.READ_BYTES`: one batch at a time."""

SLOW_PUT_FACTOR: Final = 10.0
"""Reads stay fast, so one may end between two PUTs that started together."""
SLOW_PUTS_S: Final = 4.0


def loading_limits(drawn: Limits) -> Limits:
    """Allow many slow PUTs at once, with caches too small to avoid repeated reads."""
    stream = StreamConfig(
        wal_linger_ms=0,
        wal_linger_idle_ms=0,
        wal_pause_ms=0,
        wal_delete_grace_ms=drawn.stream.wal_delete_grace_ms,
        block_age_max_ms=drawn.stream.block_age_max_ms,
        block_cache_bytes_max=1,
        prepared_reuse_ms=drawn.stream.prepared_reuse_ms,
    )
    p50_ms = max(20, min(drawn.store_p50_ms, 50))
    return replace(
        drawn,
        stream=stream,
        compacting=False,
        controllers=1,
        brokers=3,
        store_p50_ms=p50_ms,
        store_p99_ms=5 * p50_ms,
        network_ms=5,
    )


class LoadingInstance(Instance):
    pauses_s = (0.0, 0.3, 1.0)
    renewed_share = 0.0
    is_mortal = False

    def _commits(self, entry: Entry) -> bool:
        return entry.serial % 2 == 1

    async def transact(self, *, is_last: bool = False) -> None:
        await super().transact(is_last=is_last)
        if self._ledger.count % 2 == 0:
            at_least = self._ledger.committed_offset
            self._ledger.saw_offset(await self.committed_offset(), at_least, 0)


class LoadingApplication(LongLivedApplication):
    def _instance(self) -> Instance:
        self._instances_count += 1
        return LoadingInstance(self, self._instances_count)


class EagerReader(CommittedReader):
    """Polls often enough to see records that are visible only briefly."""

    pauses_s = (0.005, 0.05)


class LoadChaos(Chaos):
    """Leaves time for a few transactions between two faults."""

    paces_s = (1.0, 2.0)

    def move_groups(self) -> None:
        self._move_groups()

    def move_groups_at_end(self) -> None:
        """Change group coordinators while a transaction ends."""
        delay_s = self._rng.choice((0.0, 0.05, 0.3))

        def on_end_txn(_coordinator: "SimBroker", _end_client: object) -> None:
            self._later(delay_s, self._move_groups)

        self._world.on_end_txn = on_end_txn

    def move_records(self) -> None:
        self._move_away(self._rng.choice(self._world.txn_parts))

    def move_records_at_end(self) -> None:
        """Let the next leader write the marker slowly, while producers that waited for it also
        write.
        """
        delay_s = self._rng.choice((0.0, 0.05))

        def on_end_txn(_coordinator: "SimBroker", _end_client: object) -> None:
            self._later(delay_s, self._move_records)

        self._world.on_end_txn = on_end_txn

    def _move_records(self) -> None:
        for part in self._world.txn_parts:
            broker = self._world.brokers.get(self._move_away(part))
            if broker is not None:
                broker.raw_store.put_factor = SLOW_PUT_FACTOR
                self._world.later(SLOW_PUTS_S, setattr, broker.raw_store, "put_factor", 1.0)

    def _move_groups(self) -> None:
        for index in range(COORDINATOR_PARTITIONS):
            self._move_away((OFFSETS_TOPIC, index))

    def _move_away(self, part: Part) -> int:
        """Return the next leader."""
        topic = self._world.metadata.image.topics.by_name(part[0])
        leader = -1 if topic is None else topic.partitions[part[1]].leader
        others = [
            node_id for node_id in range(1, self._world.limits.brokers + 1) if node_id != leader
        ]
        target = self._rng.choice(others)
        self._world.admin.move(part, NodeId(target))
        return target
