"""Measure how much of the machine other processes take while a benchmark runs."""

import os
import time
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Watch what processes other than this one and its children use, from now on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._before_s = _others_cpu_s()

    def share(self) -> float:
        """Return their share of all cores, 0 to 1, with what the hypervisor took.

        Children count as others until they have been waited for. It reads low, down to 0: the time
        of this process and its children may include interrupts, which the total leaves out.
        """
        elapsed_s = time.monotonic() - self._began_s
        used_s = _others_cpu_s() - self._before_s
        return max(0.0, used_s / elapsed_s / (os.cpu_count() or 1))


def _others_cpu_s() -> float:
    # Interrupts are left out: the kernel counts the loopback traffic of the benchmark there.
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, _, _, steal, *_ = (int(field) for field in line.split()[1:])
    own = os.times()
    return (user + nice + system + steal) / _TICKS_PER_S - sum(own[:4])
