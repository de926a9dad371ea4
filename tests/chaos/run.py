"""Run a cluster and its clients, inject waves of faults, and check the history at the end.

After each wave, every partition, transactional client and group must make progress within
`RECOVERY_DEADLINE_S`; otherwise the run stops. At the end all brokers are killed, and new readers
check the records. A run in which a client made no progress fails.
"""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.clients import end_offsets, read_all
from tests.chaos.injector import Injector
from tests.chaos.moves import Mover
from tests.chaos.patience import Patience, Stalls
from tests.chaos.processes import Processes
from tests.chaos.record import Record
from tests.chaos.schedule import Fault, Wave, waves
from tests.chaos.transactions import begin_transform_group
from tests.chaos.verdict import check_end, check_operations, trouble_in_logs
from tests.chaos.workload import OUTPUT, OUTPUT_PARTITIONS, PARTITIONS, TOPIC, Workload
from tests.support.waiting import PATIENCE_S

RECOVERY_DEADLINE_S: Final = float(PATIENCE_S)
READ_DEADLINE_S: Final = float(PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    directory: Path
    violations: list[str]
    summary: list[tuple[str, str]]


async def run(
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    planted: str = "",
    *,
    client_holds: bool = False,
) -> Outcome:
    """Run the chaos test.

    seconds: period in which new waves start. planted: a bug in `tests.sim.mutants` that all nodes
    get. client_holds: see `waves`.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))
    record = Record(directory / "history.txt")
    try:
        async with Processes(directory, seed, record.violate, planted) as processes:
            chaos = _Chaos(processes, record, seed, say)
            await chaos.run(seconds, waves(seed, client_holds=client_holds))
            summary = chaos.summary()
    except TimeoutError as error:
        record.violate(str(error))
        summary = []
    for line in trouble_in_logs(directory)[:10]:
        record.violate(f"in the log {line}")
    record.close()
    return Outcome(seed, directory, record.violations, summary)


class _Chaos:
    def __init__(
        self, processes: Processes, record: Record, seed: int, say: Callable[[str], None]
    ) -> None:
        self._processes = processes
        self._record = record
        self._say = say
        self._work = Workload(processes, record, seed)
        self._injector = Injector(processes, record, say)
        self._mover = Mover(
            processes.bootstrap, [*self._work.parts, *self._work.outputs], Random(f"moves/{seed}")
        )
        self._stalls = Stalls()
        self._wave_count = 0

    async def run(self, seconds: float, planned: Iterator[Wave]) -> None:
        await asyncio.to_thread(self._create_topics)
        self._work.start()
        stalls = asyncio.ensure_future(self._stalls.measure())
        mover = asyncio.ensure_future(self._mover.run())
        try:
            await self._make_waves(seconds, planned)
            mover.cancel()
            await asyncio.wait((mover,))
            if not mover.cancelled():
                mover.result()
            await self._settle()
        finally:
            stalls.cancel()
            mover.cancel()

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._processes.bootstrap, "log_level": 0})
        requested = [NewTopic(TOPIC, PARTITIONS, 3), NewTopic(OUTPUT, OUTPUT_PARTITIONS, 3)]
        for created in admin.create_topics(requested).values():
            created.result(PATIENCE_S)
        parts = [(TOPIC, number) for number in range(PARTITIONS)]
        begin_transform_group(self._processes.bootstrap, parts)

    async def _make_waves(self, seconds: float, planned: Iterator[Wave]) -> None:
        await self._recovered("at the start")
        until = self._record.now() + seconds
        for wave in planned:
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
        """Wait until every broker serves and every client has completed an operation started after
        this call. Missing the deadline is a violation.
        """
        began, patience = self._record.now(), Patience(RECOVERY_DEADLINE_S)
        try:
            await self._processes.until_serving()
        except TimeoutError as error:
            self._record.violate(f"after {behind}: {error}")
            return
        stuck_since = self._work.stuck_since_now()
        while stuck := stuck_since():
            if not patience.lasts():
                self._record.violate(
                    f"after {behind}, within {RECOVERY_DEADLINE_S:.0f} s: {', '.join(stuck)}"
                )
                return
            await asyncio.sleep(0.1)
        self._record.tell(f"recovered behind {behind} in {self._record.now() - began:.2f} s")

    async def _settle(self) -> None:
        """End the clients, then check everything."""
        self._say(f"{self._record.now():7.1f} s  no more faults; checking")
        work, bootstrap, record = self._work, self._processes.bootstrap, self._record
        await asyncio.to_thread(work.end_writers, Patience(RECOVERY_DEADLINE_S))
        try:
            ends = await asyncio.to_thread(
                end_offsets, bootstrap, [*work.parts, *work.outputs], PATIENCE_S
            )
        except KafkaException as error:
            record.violate(f"the request for end offsets failed: {error}")
            return
        plain = {part: ends[part] for part in work.parts}
        output_ends = {part: ends[part][1] for part in work.outputs}
        await asyncio.to_thread(work.read_on, plain, output_ends, Patience(READ_DEADLINE_S))
        await self._kill_all_brokers()
        await asyncio.to_thread(read_all, bootstrap, plain, record, Patience(READ_DEADLINE_S))
        await asyncio.to_thread(work.read_outputs, output_ends, Patience(READ_DEADLINE_S))
        await asyncio.to_thread(work.ask_offsets, Patience(READ_DEADLINE_S))
        for part in work.parts:
            record.history.check_order(part, b"0")
        check_operations(record, output_ends)
        work.check_that_all_worked()
        await check_end(self._processes, record, [*work.parts, *work.outputs])

    async def _kill_all_brokers(self) -> None:
        starts = {node.name: node.starts for node in self._processes.brokers()}
        for node in self._processes.brokers():
            self._processes.signal(node, signal.SIGKILL)
        while any(node.starts == starts[node.name] for node in self._processes.brokers()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._processes.until_serving()

    def summary(self) -> list[tuple[str, str]]:
        record, history, network = self._record, self._record.history, self._processes.network
        gap_s, at_s, part = record.longest_gap()
        rows = [(str(kind), f"{count}") for kind, count in sorted(record.faults.items())]
        rows += [(what, f"{count}") for what, count in sorted(self._mover.done.items())]
        exits = [text for node in self._processes.nodes.values() for text in node.ended_by_itself]
        return [
            *rows,
            ("waves", f"{self._wave_count}"),
            ("requests to the store that met a fault", f"{self._processes.store.hit_count:,}"),
            *(
                (f"connections, {source} to {target}", f"{count:,}")
                for (source, target), count in sorted(network.connection_counts.items())
            ),
            ("pieces that arrived after a newer connection", f"{network.late_count:,}"),
            ("the same from clients", f"{network.late_client_count:,}"),
            (
                "starts of processes",
                (
                    f"{sum(node.starts for node in self._processes.nodes.values())}, {len(exits)}"
                    " after an end of its own"
                ),
            ),
            ("records acknowledged", f"{history.acked_count:,}"),
            ("records read", f"{history.read_count:,}"),
            *self._work.summary(),
            (
                "longest time in which this machine did not run us",
                f"{self._stalls.longest_s:.1f} s",
            ),
            (
                "longest time without an acknowledgement",
                f"{gap_s:.1f} s from {at_s:.1f} s on" + (f", {part[0]}-{part[1]}" if part else ""),
            ),
        ]
