"""Run `make bench-kafka`: compare Penstock with Apache Kafka, print a table, and store
the results.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec
from rich.console import Console

from benchmarks import harness
from benchmarks.beside_kafka import java, many, report, results, rows, several, single, systems
from benchmarks.beside_kafka.load import OtherLoad
from benchmarks.beside_kafka.results import Result
from benchmarks.beside_kafka.single import Measurement, Size
from benchmarks.beside_kafka.systems import KAFKA, MOTO, SYSTEMS, SystemMissing

QUICK: Final = Size(seconds=1.5, warm_s=3, rounds=1, java_mb=100, cold_mb=200, kills=1)
QUICK_SYSTEMS: Final = (KAFKA, systems.MEMORY)
QUICK_NAMES: Final = ("footprint", "clients", "java", "small", "latency", "fan-out", "group")
MANY: Final = "many"
_LIMIT_S: Final = 300
"""Time limit of one measurement of one system, excluding its start."""
_START_LIMIT_S: Final = 180
_SHARED: Final[Mapping[str, Measurement]] = {
    **single.SHARED,
    "cold-read": single.cold_read,
}
_ALONE: Final[Mapping[str, Measurement]] = {"java": java.produce_and_consume}
"""Each of these measurements runs in a new instance with an empty store. A store in memory uses new
pages for all data, and a virtual machine may clear pages beyond 10 GB at only 0.5 GB/s.
"""
_SEVERAL: Final[Mapping[str, tuple[int, Measurement]]] = {
    "move": (2, several.move),
    "kill": (3, several.kill),
    "kill-all": (3, several.kill_all),
    "planned": (3, several.planned),
}
"""Broker count of each measurement, which runs in a new instance of the system."""
Outcomes = dict[str, dict[str, list[Mapping[str, float]]]]
"""Values of each round, by measurement and system."""


class TooLong(Exception):
    """Raised within a measurement that takes too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooLong in the block after this number of seconds."""

    def ring(*_: object) -> None:
        raise TooLong(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Run:
    """Runs the requested measurements, alternating between the systems."""

    def __init__(
        self, names: Sequence[str], chosen: Sequence[str], size: Size, console: Console
    ) -> None:
        self.outcomes: Outcomes = {name: {} for name in names}
        self.failures: dict[str, dict[str, str]] = {name: {} for name in names}
        self._systems = list(chosen)
        self._size = size
        self._console = console

    def measure(self) -> None:
        names = list(self.outcomes)
        shared = [name for name in _SHARED if name in names]
        for at in range(self._size.rounds):
            # Every other round is reversed, so that changes of the machine's load affect all
            # systems alike.
            order = self._systems if at % 2 == 0 else self._systems[::-1]
            for system in order:
                if shared:
                    self._measure(system, shared, 1, _SHARED.__getitem__, at)
                for name in (name for name in _ALONE if name in names):
                    self._measure(system, [name], 1, _ALONE.__getitem__, at)
                if "start" in names:
                    self._measure(
                        system, ["start"], 1, lambda _: single.start, at, is_started=False
                    )
                for name in (name for name in _SEVERAL if name in names and system in self._able()):
                    brokers, measurement = _SEVERAL[name]
                    self._measure(system, [name], brokers, lambda _, m=measurement: m, at)
        if "store-writes" in names:
            self._store_writes()

    def _able(self) -> list[str]:
        """Return the systems that support several broker processes."""
        return [name for name in self._systems if name != systems.MEMORY]

    def _measure(
        self,
        system: str,
        names: Sequence[str],
        brokers: int,
        of: Callable[[str], Measurement],
        at: int,
        *,
        is_started: bool = True,
    ) -> None:
        """Start the system once and run these measurements one after another, continuing after
        failures.
        """
        requested = [name for name in names if system not in self.failures[name]]
        if not requested or system not in self._systems:
            return
        name = requested[0]
        try:
            with ExitStack() as stack:
                with limited(_START_LIMIT_S):
                    run = systems.running(system, brokers, is_started=is_started)
                    running = stack.enter_context(run)
                for name in requested:
                    self._say(f"round {at + 1}: {name}, {system}")
                    with limited(_LIMIT_S):
                        values = of(name)(running, self._size)
                    self.outcomes[name].setdefault(system, []).append(values)
        except SystemMissing as error:
            self._systems = [other for other in self._systems if other != system]
            self._say(f"without {system}: {error}")
        except Exception as error:  # noqa: BLE001 - the other measurements go on
            self.failures[name][system] = f"{type(error).__name__}: {error}"[:200]
            self._say(f"failed: {name}, {system}: {error}"[:600])
            rest = requested[requested.index(name) + 1 :]
            if rest:
                self._measure(system, rest, brokers, of, at, is_started=is_started)

    def _store_writes(self) -> None:
        from benchmarks.bars import store_writes

        if MOTO in self._systems:
            self._say("store-writes, moto")
            with limited(_LIMIT_S):
                measure = store_writes()[0]
            self.outcomes["store-writes"][MOTO] = [{"store-writes": measure.figure}]

    def _say(self, text: str) -> None:
        self._console.print(f"{datetime.now(UTC):%H:%M:%S} {text}", highlight=False, markup=False)

    def results(self, date: str, load: float) -> list[Result]:
        """Return the medians of successful runs."""
        found: list[Result] = []
        commit = results.commit()
        for name, of_systems in self.outcomes.items():
            values: dict[str, dict[str, float]] = {}
            for system, rounds in of_systems.items():
                for key, value in rows.medians(rounds).items():
                    values.setdefault(key, {})[system] = value
            if values or self.failures[name]:
                found.append(
                    Result(
                        measurement=name,
                        values=values,
                        failures=self.failures[name],
                        date=date,
                        commit=commit,
                        machine=harness.machine(),
                        load=load,
                        rounds=self._size.rounds,
                    )
                )
        return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beside_kafka",
        description=__doc__,
        epilog=f"Measurements: {', '.join(rows.MEASUREMENTS)}; and {MANY}, which runs by name.",
    )
    parser.add_argument("names", nargs="*", help="measurements (default: all)")
    parser.add_argument("--systems", help=f"systems to measure: {','.join(SYSTEMS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="short: the rows of one broker, Kafka and memory"
    )
    parser.add_argument(
        "--rounds", type=int, help="number of rounds; the median is reported (default: 3)"
    )
    parser.add_argument("--kills", type=int, help="number of kills, one at a time (default: 3)")
    parser.add_argument("--cold-mb", type=int, help="MB to read in the cold read (default: 2000)")
    parser.add_argument("--sizes", default="1000,2000,5000,10000", help="partitions of `many`")
    parser.add_argument("--json", action="store_true", help="print the results as JSON at the end")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="rewrite docs/performance-kafka.md from all stored results; without names,"
        " measure nothing",
    )
    return parser


def _options() -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args()
    known = (*rows.MEASUREMENTS, MANY)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    names = options.systems.split(",") if options.systems else []
    if wrong := [name for name in names if name not in SYSTEMS]:
        parser.error(f"--systems: unknown {', '.join(wrong)}; there are {', '.join(SYSTEMS)}")
    return options


def main() -> int:
    options, console = _options(), Console(stderr=True)
    # SIGTERM ends the run like Ctrl-C, so that all started processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    stored, failed = results.load(), False
    names = [name for name in options.names if name != MANY]
    if not options.names and not options.write_docs:
        names = list(QUICK_NAMES if options.quick else rows.MEASUREMENTS)
    if names:
        size = QUICK if options.quick else Size()
        size = replace(size, rounds=options.rounds or size.rounds)
        size = replace(size, cold_mb=options.cold_mb or size.cold_mb)
        size = replace(size, kills=options.kills or size.kills)
        chosen = (options.systems or ",".join(QUICK_SYSTEMS if options.quick else SYSTEMS)).split(
            ","
        )
        others = OtherLoad()
        run = Run(names, chosen, size, console)
        began = time.perf_counter()
        try:
            run.measure()
        finally:
            date = datetime.now(UTC).isoformat(timespec="seconds")
            measured = run.results(date, others.share())
            stored |= {
                new.measurement: results.merged(stored.get(new.measurement), new)
                for new in measured
            }
            results.save(stored)
        new = {result.measurement: stored[result.measurement] for result in measured}
        title = f"{harness.machine()}, {date}, {time.perf_counter() - began:.0f} s"
        console.print(report.terminal_table(new, title))
        failed = any(result.failures for result in measured)
        if options.json:
            print(msgspec.json.format(msgspec.json.encode(list(new.values()))).decode())
    if MANY in options.names:
        sizes = [int(text) for text in options.sizes.split(",")]
        many.main(console, (options.systems or systems.FILE).split(","), sizes)
    if options.write_docs:
        report.write_docs(stored)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
