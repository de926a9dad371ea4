"""Fuzz one target in this process: by
random mutations of the corpus, with a limit on the address space.
"""

import mmap
import random
import resource
import sys
import time
from pathlib import Path

import structlog

from tests.fuzz.examine import examine
from tests.fuzz.mutations import INPUT_BYTES_MAX, mutated
from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS

FINDINGS_MAX = 20


class Worker:
    """Run inputs and write down what is found."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        self.target = TARGETS[name]
        self.until = time.monotonic() + seconds
        self.runs = 0
        self._folder = folder
        self._seen: set[str] = set()
        (folder / "last").write_bytes(bytes(8 + INPUT_BYTES_MAX * 4))
        with (folder / "last").open("r+b") as file:
            self._last = mmap.mmap(file.fileno(), 0)

    def run(self, data: bytes) -> None:
        """Examine one input. The last one is in a file, which outlives this process."""
        size = min(len(data), INPUT_BYTES_MAX * 4)
        self._last[: 8 + size] = size.to_bytes(8, "big") + data[:size]
        self.runs += 1
        wrong = examine(self.target, data)
        if wrong is None or len(self._seen) >= FINDINGS_MAX:
            return
        kind = "".join(wrong.splitlines()[-2:])[:40]
        if kind not in self._seen:
            self._seen.add(kind)
            number = len(self._seen)
            (self._folder / f"{number}.txt").write_text(wrong)
            (self._folder / f"{number}.bin").write_bytes(data)

    def note(self) -> None:
        (self._folder / "runs").write_text(str(self.runs))


def main() -> None:
    name, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(60))
    worker = Worker(name, seconds, folder)
    seeds = list(seeds_of(worker.target).values())
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used_bytes + worker.target.memory_bytes_max + (512 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    draws = random.Random()
    while time.monotonic() < worker.until:
        for _ in range(50):
            worker.run(mutated(seeds, draws))
        worker.note()


if __name__ == "__main__":
    main()
