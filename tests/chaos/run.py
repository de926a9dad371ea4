"""One run: a cluster, its clients, waves of faults with quiet between them, and the verdict.

Invariants: between two waves every partition takes records again within `RECOVERY_DEADLINE_S`, or the run ends there; in any case
everything is checked at the end, by a reader that never saw the cluster before, from brokers that were all killed: nothing comes from a
cache.
"""

import asyncio
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.clients import GroupMembers, Reader, SteadyProducer, end_offsets, read_all
from tests.chaos.injector import Injector
from tests.chaos.moves import Mover
from tests.chaos.patience import Patience, Stalls
from tests.chaos.processes import Processes
from tests.chaos.record import Record
from tests.chaos.schedule import Fault, Wave, waves
from tests.chaos.verdict import check_end, trouble_in_logs
from tests.support.history import Part

RECOVERY_DEADLINE_S: Final = 120.0
READ_DEADLINE_S: Final = 60.0
TOPIC: Final = "chaos"
PARTITIONS: Final = 6
_PAUSE_S: Final = 0.06
"""Between two records of one producer for one partition: two producers and six partitions are 200 records a second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    directory: Path
    violations: list[str]
    summary: list[tuple[str, str]]


async def run(seconds: float, seed: int, say: Callable[[str], None], planted: str = "") -> Outcome:
    """seconds: how long new waves begin. planted: a bug of `tests.sim.mutants` for all nodes."""
    directory = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))
    record = Record(directory / "history.txt")
    try:
        async with Processes(directory, seed, record.violate, planted) as processes:
            chaos = _Chaos(processes, record, seed, say)
            await chaos.run(seconds)
            summary = chaos.summary()
    except TimeoutError as error:
        record.violate(str(error))
        summary = []
    for line in trouble_in_logs(directory)[:10]:
        record.violate(f"in the log {line}")
    record.close()
    return Outcome(seed, directory, record.violations, summary)


class _Chaos:
    def __init__(self, processes: Processes, record: Record, seed: int, say: Callable[[str], None]) -> None:
        self._processes = processes
        self._record = record
        self._seed = seed
        self._say = say
        self._parts: list[Part] = [(TOPIC, index) for index in range(PARTITIONS)]
        self._injector = Injector(processes, record, say)
        self._mover = Mover(processes.bootstrap, self._parts, Random(f"moves/{seed}"))
        self._stalls = Stalls()
        self._wave_count = 0

    async def run(self, seconds: float) -> None:
        await asyncio.to_thread(self._create_topic)
        bootstrap, parts, record = self._processes.bootstrap, self._parts, self._record
        self._producers = [SteadyProducer(bootstrap, parts, record, name, _PAUSE_S) for name in ("0", "-1")]
        self._reader = Reader(bootstrap, parts, record, "all the time")
        self._group = GroupMembers(bootstrap, TOPIC, parts, record, Random(f"group/{self._seed}"))
        for client in (*self._producers, self._reader, self._group):
            client.start()
        stalls = asyncio.ensure_future(self._stalls.measure())
        mover = asyncio.ensure_future(self._mover.run())
        try:
            await self._make_waves(seconds)
            mover.cancel()
            await asyncio.wait((mover,))
            if not mover.cancelled():
                mover.result()
            await self._settle()
        finally:
            stalls.cancel()
            mover.cancel()

    def _create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._processes.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)

    async def _make_waves(self, seconds: float) -> None:
        await self._recovered("at the start")
        until = self._record.now() + seconds
        for wave in waves(self._seed):
            if self._record.now() >= until or self._record.violations:
                return
            await self._make(wave)
            await self._recovered(f"wave {wave.number}")
            await asyncio.sleep(wave.quiet_s)

    async def _make(self, wave: Wave) -> None:
        self._wave_count += 1

        async def later(fault: Fault) -> None:
            await asyncio.sleep(fault.after_s)
            await self._injector.inject(fault)

        await asyncio.gather(*(later(fault) for fault in wave.faults))

    async def _recovered(self, behind: str) -> None:
        """Every process serves, and every producer gets something that it sends from now on acknowledged by every partition."""
        began, patience = self._record.now(), Patience(RECOVERY_DEADLINE_S)
        try:
            await self._processes.until_serving()
        except TimeoutError as error:
            self._record.violate(f"behind {behind}: {error}")
            return
        wanted = [(part, producer, producer.sent[part]) for producer in self._producers for part in self._parts]
        while stuck := [
            f"{part[0]}-{part[1]} of {producer.name}"
            for part, producer, number in wanted
            if self._record.acked_number(part, producer.label) < number - 1 or producer.sent[part] == number
        ]:
            if not patience.lasts():
                self._record.violate(f"behind {behind}: no record is taken within {RECOVERY_DEADLINE_S:.0f} s by {', '.join(stuck)}")
                return
            await asyncio.sleep(0.1)
        self._record.tell(f"recovered behind {behind} in {self._record.now() - began:.2f} s")

    async def _settle(self) -> None:
        """The clients end, then everything is checked."""
        self._say(f"{self._record.now():7.1f} s  no more faults; checking")
        for producer in self._producers:
            if not await asyncio.to_thread(producer.end, Patience(RECOVERY_DEADLINE_S)):
                self._record.violate(f"{producer.name}: {producer.outstanding_count} records are neither acknowledged nor refused")
        try:
            ends = await asyncio.to_thread(end_offsets, self._processes.bootstrap, self._parts, 30.0)
        except KafkaException as error:
            self._record.violate(f"end offsets can not be asked for: {error}")
            return
        await self._until_read(ends)
        await self._kill_all_brokers()
        await asyncio.to_thread(read_all, self._processes.bootstrap, ends, self._record, Patience(READ_DEADLINE_S))
        for part in self._parts:
            self._record.history.check_order(part, b"0")
        await check_end(self._processes, self._record, self._parts)

    async def _until_read(self, ends: dict[Part, tuple[int, int]]) -> None:
        """By those who read all the time."""
        seen = {self._reader.name: self._reader.positions, "the group": self._group.frontiers}
        patience = Patience(READ_DEADLINE_S)
        while behind := [
            f"{name} of {part[0]}-{part[1]} to {positions[part]} of {end}"
            for name, positions in seen.items()
            for part, (_, end) in ends.items()
            if positions[part] < end
        ]:
            if not patience.lasts(behind):
                self._record.violate(f"for {READ_DEADLINE_S:.0f} s nothing more is read by {'; '.join(behind)}")
                break
            await asyncio.sleep(0.1)
        for client in (self._reader, self._group):
            if not await asyncio.to_thread(client.end, Patience(30)):
                self._record.violate(f"{client.name} does not end")

    async def _kill_all_brokers(self) -> None:
        starts = {node.name: node.starts for node in self._processes.brokers()}
        for node in self._processes.brokers():
            self._processes.signal(node, signal.SIGKILL)
        while any(node.starts == starts[node.name] for node in self._processes.brokers()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._processes.until_serving()

    def summary(self) -> list[tuple[str, str]]:
        record, history = self._record, self._record.history
        gap_s, at_s, part = record.longest_gap()
        rows = [(str(kind), f"{count}") for kind, count in sorted(record.faults.items())]
        rows += [(what, f"{count}") for what, count in sorted(self._mover.done.items())]
        exits = [text for node in self._processes.nodes.values() for text in node.ended_by_itself]
        return [
            *rows,
            ("waves", f"{self._wave_count}"),
            ("requests to the store that met a fault", f"{self._processes.store.hit_count:,}"),
            ("starts of processes", f"{sum(node.starts for node in self._processes.nodes.values())}, {len(exits)} after an end of its own"),
            ("records acknowledged", f"{history.acked_count:,}"),
            ("records read", f"{history.read_count:,}"),
            ("longest time in which this machine did not run us", f"{self._stalls.longest_s:.1f} s"),
            ("longest time without an acknowledgement", f"{gap_s:.1f} s from {at_s:.1f} s on" + (f", {part[0]}-{part[1]}" if part else "")),
        ]
