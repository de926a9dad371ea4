"""Measure the CPU usage of other processes while a benchmark runs."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.base.clock import MonotonicClock

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_KTHREADD_PID: Final = 2
_PROC: Final = Path("/proc")
_SNAPSHOTS_MAX: Final = 5


class OtherLoad:
    """Measures the CPU usage of processes other than this one and its descendants, from its
    creation.
    """

    def __init__(
        self, proc: Path = _PROC, pid: int | None = None, now: MonotonicClock = time.monotonic
    ) -> None:
        """proc, pid: where to read, and the process that is excluded with its descendants, by
        default this process.
        """
        self._proc = proc
        self._now = now
        self._pid = os.getpid() if pid is None else pid
        self._began_s = now()
        self._before_s = others_cpu_s(self._proc, self._pid)

    def share(self) -> float:
        """Return the share of all cores, 0 to 1, that these processes used, including time stolen
        by the hypervisor.

        The kernel samples the CPU time of the machine, but measures that of processes, so the
        result for an idle machine may be 0.01, or slightly negative, which becomes 0.
        """
        elapsed_s = self._now() - self._began_s
        used_s = others_cpu_s(self._proc, self._pid) - self._before_s
        return max(0.0, used_s / elapsed_s / (os.cpu_count() or 1))


def others_cpu_s(proc: Path, pid: int) -> float:
    """Return the CPU time of the machine without that of `pid`, its descendants and kernel threads,
    which work for all processes: they write back pages and deliver packets.
    """
    line = (proc / "stat").read_text().partition("\n")[0]
    user, nice, system, _, _, irq, softirq, steal, *_ = (int(field) for field in line.split()[1:])
    # The CPU time of a process includes the interrupts during its run, so the total includes them,
    # too.
    total = user + nice + system + irq + softirq + steal
    return (total - _own_ticks(proc, pid)) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    ticks: int
    ended_children_ticks: int


def _own_ticks(proc: Path, pid: int) -> int:
    processes = _processes(proc)

    def is_under(number: int, ancestor: int) -> bool:
        while number != ancestor:
            if number not in processes:
                return False
            number = processes[number].parent
        return True

    own = [found for number, found in processes.items() if is_under(number, pid)]
    threads = [found for number, found in processes.items() if is_under(number, _KTHREADD_PID)]
    return sum(found.ticks + found.ended_children_ticks for found in own) + sum(
        found.ticks for found in threads
    )


def _processes(proc: Path) -> dict[int, _Process]:
    """Return all processes. Retries if a process ends in between, because its time might not be
    added to its parent yet.
    """
    found: dict[int, _Process] = {}
    for _ in range(_SNAPSHOTS_MAX):
        numbers = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
        read = {number: _process(proc, number) for number in numbers}
        found = {number: process for number, process in read.items() if process is not None}
        if len(found) == len(numbers):
            break
    return found


def _process(proc: Path, number: int) -> _Process | None:
    try:
        fields = (proc / str(number) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    times = [int(field) for field in fields[11:15]]
    return _Process(int(fields[1]), sum(times[:2]), sum(times[2:]))
