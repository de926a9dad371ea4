"""CPU usage of other processes during `make bench-kafka`."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.beside_kafka.load import OtherLoad, others_cpu_s

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def write(proc: Path, number: int, parent: int, ticks: int, ended_ticks: int = 0) -> None:
    """Write the stat file of a process whose name contains spaces and parentheses."""
    directory = proc / str(number)
    directory.mkdir(exist_ok=True)
    times = f"{ticks} 0 {ended_ticks} 0"
    (directory / "stat").write_text(f"{number} (a) R 1 b) S {parent} {'0 ' * 9}{times} 20 0")


def machine(proc: Path, *, busy: int, soft_interrupts: int = 0, stolen: int = 0) -> None:
    fields = (busy, 0, 0, 99_999, 5_000, 0, soft_interrupts, stolen, 0, 0)
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, fields))}\ncpu0 1 2 3\n")


def test_descendants_and_kernel_threads_do_not_count_as_other_processes(
    tmp_path: Path,
) -> None:
    machine(tmp_path, busy=1_000, soft_interrupts=100, stolen=10)
    write(tmp_path, 1, 0, 300)
    write(tmp_path, 2, 0, 5)
    write(tmp_path, 20, 2, 15)
    write(tmp_path, 50, 1, 200, ended_ticks=100)
    write(tmp_path, 51, 50, 40)
    write(tmp_path, 52, 51, 30)
    assert others_cpu_s(tmp_path, 50) * TICKS_PER_S == 1_110 - 20 - 200 - 100 - 40 - 30


def test_the_share_is_relative_to_the_time_since_the_start(tmp_path: Path) -> None:
    machine(tmp_path, busy=1_000)
    write(tmp_path, 50, 1, 200)
    times = iter((100.0, 102.0, 104.0))
    load = OtherLoad(tmp_path, 50, lambda: next(times))
    assert load.share() == 0
    machine(tmp_path, busy=1_300)
    write(tmp_path, 50, 1, 400)
    assert load.share() == 100 / TICKS_PER_S / 4 / (os.cpu_count() or 1)


def test_cpu_time_of_a_child_counts_as_own_time_while_it_runs_and_afterwards() -> None:
    proc = Path("/proc")

    def own_s() -> float:
        fields = [int(field) for field in (proc / "stat").read_text().split()[1:9]]
        total = sum(fields) - fields[3] - fields[4]
        return total / TICKS_PER_S - others_cpu_s(proc, os.getpid())

    before_s = own_s()
    child = subprocess.Popen(
        (sys.executable, "-c", f"{BURN}\nprint(flush=True)\nimport sys; sys.stdin.read()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert own_s() - before_s > 0.4
    child.communicate()
    assert own_s() - before_s > 0.4
