"""Fuzz one target in this process, by random mutations of the corpus or by coverage, with a limited
address space.
"""

import logging
import mmap
import os
import random
import resource
import sys
import time
from pathlib import Path

import structlog

try:
    import atheris
except ImportError:
    from tests.fuzz.seeds import seeds_of
else:
    with atheris.instrument_imports(include=["penstock"]):
        from tests.fuzz.seeds import seeds_of
from tests.fuzz.examine import examine
from tests.fuzz.mutations import INPUT_BYTES_MAX, mutated
from tests.fuzz.targets import TARGETS

FINDINGS_MAX = 20
LATE_S = 10
"""Fallback: libFuzzer stops this much later if the target itself does not."""


class Worker:
    """Run inputs and record the findings."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        self.target = TARGETS[name]
        self.until = time.monotonic() + seconds
        self.runs = 0
        self.folder = folder
        self._seen: set[str] = set()
        (folder / "last").write_bytes(bytes(8 + INPUT_BYTES_MAX * 4))
        with (folder / "last").open("r+b") as file:
            self._last = mmap.mmap(file.fileno(), 0)

    def run(self, data: bytes) -> None:
        """Run one input. A file contains the last one, for the case that the process dies."""
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
            (self.folder / f"{number}.txt").write_text(wrong)
            (self.folder / f"{number}.bin").write_bytes(data)

    def note(self) -> None:
        """Write the number of runs, which is read even if this process dies."""
        (self.folder / "new").write_text(str(self.runs))
        (self.folder / "new").replace(self.folder / "runs")


def main() -> None:
    name, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    logging.disable()  # uvicorn logs each malformed request
    worker = Worker(name, seconds, folder)
    seeds = list(seeds_of(worker.target).values())
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used_bytes + worker.target.memory_bytes_max + (96 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if "atheris" in sys.modules:
        _by_coverage(worker, seeds)
    else:
        _by_mutations(worker, seeds)


def _by_mutations(worker: Worker, seeds: list[bytes]) -> None:
    draws = random.Random()
    while time.monotonic() < worker.until:
        for _ in range(50):
            worker.run(mutated(seeds, draws))
        worker.note()


def _by_coverage(worker: Worker, seeds: list[bytes]) -> None:
    """Run atheris, which exits the process."""
    corpus = worker.folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    seconds = max(1, int(worker.until - time.monotonic())) + LATE_S

    def one(data: bytes) -> None:
        worker.run(data)
        if worker.runs % 50 == 0:
            worker.note()
            if time.monotonic() >= worker.until:
                # When libFuzzer ended the run by exit(), one of thirty workers hung.
                os._exit(0)

    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-verbosity=0"]
    options += ["-rss_limit_mb=0", f"-artifact_prefix={worker.folder}/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
