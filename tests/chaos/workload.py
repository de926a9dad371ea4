"""All clients of a run, and the work that each of them must have done.

Invariants: every client starts before the first fault and ends after the last one. A client that
did nothing is a violation, so an idle run cannot pass.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final

from confluent_kafka import Consumer

from tests.chaos.clients import IMPATIENT, Reader, SteadyProducer
from tests.chaos.epochs import EpochSender
from tests.chaos.groups import GROUP, GroupMembers, OffsetAsker, ask_offsets
from tests.chaos.leaders import LeaderAsker
from tests.chaos.patience import Patience
from tests.chaos.processes import Processes
from tests.chaos.record import Record
from tests.chaos.transactions import (
    TRANSFORM_GROUP,
    CommittedReader,
    TransactionalClient,
    TransactionSender,
    Transformer,
)
from tests.support.anomalies import Outcome
from tests.support.history import Part
from tests.support.waiting import PATIENCE_S

TOPIC: Final = "chaos"
PARTITIONS: Final = 6
OUTPUT: Final = "chaos-out"
"""The topic of the transactional clients."""
OUTPUT_PARTITIONS: Final = 4
_PAUSE_S: Final = 0.06
"""Time between two records of a producer to a partition. Two producers and six partitions make 200
records per second.
"""
_END_S: Final = float(PATIENCE_S)
_LINKS: Final = (
    ("broker", "broker"),
    ("broker", "controller"),
    ("controller", "controller"),
    ("clients", "broker"),
)
"""The links that faults affect. A fault on an unused link, or on one whose source is not
recognized, tests nothing.
"""


class Workload:
    def __init__(self, processes: Processes, record: Record, seed: int) -> None:
        self.parts: list[Part] = [(TOPIC, index) for index in range(PARTITIONS)]
        self.outputs: list[Part] = [(OUTPUT, index) for index in range(OUTPUT_PARTITIONS)]
        self._processes = processes
        self._record = record
        self._seed = seed

    def start(self) -> None:
        bootstrap, record, parts = self._processes.bootstrap, self._record, self.parts
        rng = {
            name: Random(f"{name}/{self._seed}")
            for name in ("sender", "epochs", "transformer-0", "transformer-1", "group")
        }
        self.producers = [
            SteadyProducer(bootstrap, parts, record, name, _PAUSE_S) for name in ("0", "-1")
        ]
        self.transactional: list[TransactionalClient | EpochSender] = [
            TransactionSender(bootstrap, self.outputs, record, "sender", rng["sender"]),
            EpochSender(bootstrap, self.outputs, record, "epochs", rng["epochs"]),
            *(
                Transformer(bootstrap, TOPIC, self.outputs, record, name, rng[name])
                for name in ("transformer-0", "transformer-1")
            ),
        ]
        racks = [node.name for node in self._processes.brokers()]
        self.reader = Reader(bootstrap, parts, record, "all the time", racks[0])
        self.group = GroupMembers(bootstrap, TOPIC, parts, record, rng["group"])
        self.committed = CommittedReader(bootstrap, self.outputs, record, "all the time", racks[1])
        self.offsets = OffsetAsker(bootstrap, parts, record, (GROUP, TRANSFORM_GROUP))
        self.leaders = [
            LeaderAsker(f"127.0.0.1:{node.plan.port}", parts, record, node.name)
            for node in self._processes.brokers()
        ]
        for client in (
            *self.producers,
            *self.transactional,
            *self._readers(),
            self.offsets,
            *self.leaders,
        ):
            client.start()

    def _readers(self) -> tuple[Reader, GroupMembers, CommittedReader]:
        return self.reader, self.group, self.committed

    def stuck_since_now(self) -> Callable[[], list[str]]:
        """Return a function that returns the clients without progress since this call."""
        records = [
            (part, producer, producer.sent[part])
            for producer in self.producers
            for part in self.parts
        ]
        since_s = self._record.now()
        commits, polled, offsets = (
            self.group.commit_count,
            self.committed.polled_count,
            self.offsets.response_count,
        )

        def stuck() -> list[str]:
            found = [
                f"{part[0]}-{part[1]} takes no record of {producer.name}"
                for part, producer, number in records
                if self._record.acked_number(part, producer.label) < number - 1
                or producer.sent[part] == number
            ]
            found += [
                f"{client.name} ends no transaction"
                for client in self.transactional
                if client.settled_s < since_s
            ]
            found += ["the group commits nothing"] * (self.group.commit_count == commits)
            found += ["no committed record of a transaction is read"] * (
                self.committed.polled_count == polled
            )
            found += ["no coordinator returns the offsets of groups"] * (
                self.offsets.response_count == offsets
            )
            return found

        return stuck

    def end_writers(self, patience: Patience) -> None:
        for client in (*self.producers, *self.transactional):
            client.ending.set()
        for producer in self.producers:
            if not producer.end(patience):
                self._record.violate(
                    f"{producer.name}: {producer.outstanding_count} records are neither"
                    " acknowledged nor refused"
                )
        for client in self.transactional:
            if not client.end(patience):
                self._record.violate(f"{client.name}: its last transaction does not end")

    def read_on(
        self, ends: dict[Part, tuple[int, int]], output_ends: dict[Part, int], patience: Patience
    ) -> None:
        """Wait until the continuous readers have read everything, then end them."""
        while behind := self._behind(ends, output_ends):
            if not patience.lasts(behind):
                self._record.violate(f"nothing more is read by {'; '.join(behind)}")
                break
            time.sleep(0.1)
        for client in (*self._readers(), self.offsets, *self.leaders):
            if not client.end(Patience(_END_S)):
                self._record.violate(f"{client.name} does not end")

    def _behind(self, ends: dict[Part, tuple[int, int]], output_ends: dict[Part, int]) -> list[str]:
        seen = {self.reader.name: self.reader.positions, "the group": self.group.frontiers}
        found = [
            f"{name} of {part[0]}-{part[1]} to {positions[part]} of {end}"
            for name, positions in seen.items()
            for part, (_, end) in ends.items()
            if positions[part] < end
        ]
        return found + _short(self.committed, output_ends)

    def read_outputs(self, ends: dict[Part, int], patience: Patience) -> None:
        """Read all committed records with a new reader. Only a transaction that never ends can keep
        it from reaching the end.
        """
        reader = CommittedReader(self._processes.bootstrap, list(ends), self._record, "at the end")
        reader.start()
        while (behind := _short(reader, ends)) and patience.lasts((behind, reader.polled_count)):
            time.sleep(0.1)
        if behind:
            self._record.violate(f"a transaction hangs: {'; '.join(behind)}")
        if not reader.end(Patience(_END_S)):
            self._record.violate(f"{reader.name} does not end")

    def ask_offsets(self, patience: Patience) -> None:
        """Fetch the group offsets again, from coordinators that had to load them."""
        for group in (GROUP, TRANSFORM_GROUP):
            consumer = Consumer(
                {**IMPATIENT, "bootstrap.servers": self._processes.bootstrap, "group.id": group}
            )
            while ask_offsets(consumer, group, self.parts, self._record) < len(self.parts):
                if not patience.lasts():
                    self._record.violate(f"no coordinator returns the offsets of group {group!r}")
                    break
            consumer.close()

    def check_that_all_worked(self) -> None:
        """Report clients that did nothing, because they prove nothing."""
        links = self._processes.network.connection_counts if sys.platform == "linux" else None
        idle = idle_work(
            {client.name: client.finished for client in self.transactional}, self._counts(), links
        )
        if idle:
            self._record.violate(f"nothing is proved by a run without {', '.join(idle)}")

    def _counts(self) -> list[tuple[str, int]]:
        transformers = [client for client in self.transactional if isinstance(client, Transformer)]
        return [
            ("polls of committed records: values", self.committed.polled_count),
            (
                "checks of readers that read in their rack",
                self.reader.watch.near_count + self.committed.watch.near_count,
            ),
            ("rebalances: assignments in the plain group", self.group.rebalance_count),
            (
                "rebalances: assignments in the transactional group",
                sum(client.rebalance_count for client in transformers),
            ),
            ("commits of the plain group", self.group.commit_count),
            ("offsets of groups that coordinators returned", self.offsets.response_count),
            *(
                (
                    f"ends of logs returned by {asker.name.removeprefix('ends by ')}",
                    asker.response_count,
                )
                for asker in self.leaders
            ),
        ]

    def summary(self) -> list[tuple[str, str]]:
        outcomes: Counter[Outcome] = sum(
            (client.finished for client in self.transactional), Counter()
        )
        lost_count = sum(client.producer_count - 1 for client in self.transactional)
        reported = (
            f"{outcomes[Outcome.OK]:,} committed, {outcomes[Outcome.FAIL]:,} aborted,"
            f" {outcomes[Outcome.INFO]:,} unknown"
        )
        producers = f"{len(self.transactional)}, which lost their producer {lost_count} times"
        return [
            ("transactional ids", producers),
            ("transactions", reported),
            *((name, f"{count:,}") for name, count in self._counts()),
            ("operations checked for anomalies", f"{len(self._record.operations):,}"),
        ]


def idle_work(
    finished: Mapping[str, Mapping[Outcome, int]],
    counts: Iterable[tuple[str, int]],
    links: Mapping[tuple[str, str], int] | None,
) -> list[str]:
    """Return the kinds of work that never happened in a run. links: connections by source and
    target, or None if this machine cannot identify them.
    """
    idle = [
        f"{outcome} {name}"
        for name, found in finished.items()
        for outcome in (Outcome.OK, Outcome.FAIL)
        if not found.get(outcome)
    ]
    idle += [name for name, count in counts if not count]
    if links is not None:
        idle += [
            f"connections from {source} to {target}"
            for source, target in _LINKS
            if not links.get((source, target))
        ]
    return idle


def _short(reader: CommittedReader, ends: dict[Part, int]) -> list[str]:
    """Return the partitions whose end a read_committed reader has not reached."""
    found = [(part, reader.ends.get(part, 0), end) for part, end in ends.items()]
    return [
        f"{reader.name} of {part[0]}-{part[1]} to {reached} of {end}"
        for part, reached, end in found
        if reached < end
    ]
