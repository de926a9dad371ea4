"""Compare the start of this tree with that of another commit: `python -m benchmarks.start_pairs
COMMIT`.

Prints the median ratio of interleaved pairs with its 95 % interval. CPU seconds include children.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from benchmarks.start import tree_cpu_s

ROOT: Final = Path(__file__).resolve().parents[1]
PAIRS: Final = 20
_RESAMPLES_COUNT: Final = 5_000
_TIMEOUT_S: Final = 120
_MB: Final = 1e6


class Tree:
    """A checkout whose command runs with the packages installed here."""

    def __init__(self, path: Path) -> None:
        project = tomllib.loads((path / "pyproject.toml").read_text())
        module, _, function = project["project"]["scripts"]["penstock"].partition(":")
        run = f"import sys; from {module} import {function}; sys.exit({function}())"
        self.command = (sys.executable, "-P", "-c", run)
        self.environment = os.environ | {"PYTHONPATH": str(path), "COLUMNS": "100"}

    def help_cpu_s(self) -> list[float]:
        """Return the CPU seconds of `penstock --help`."""
        before = _children_cpu_s()
        subprocess.run(
            (*self.command, "--help"), env=self.environment, stdout=subprocess.DEVNULL, check=True
        )
        return [_children_cpu_s() - before]

    def dev(self, store: str = "file:data") -> list[float]:
        """Return the CPU seconds of `penstock dev` until it is ready, and the resident megabytes of
        its broker then.
        """
        with self.running(store) as (process, state):
            return [tree_cpu_s(process.pid), _resident_mb(broker_pid(state))]

    @contextmanager
    def running(self, store: str) -> Generator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
        """Run `penstock dev` with one broker; return its process and state file."""
        with tempfile.TemporaryDirectory() as name:
            yield from self._dev(Path(name), store)

    def _dev(
        self, directory: Path, store: str
    ) -> Generator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
        state = directory / "state.json"
        options = ("--port", "0", "--brokers", "1", "--store", store, "--state-file", state)
        process = subprocess.Popen(
            (*self.command, "dev", *options),
            env=self.environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            assert process.stdout is not None
            if not process.stdout.readline().startswith(b"ready:"):
                raise RuntimeError("penstock dev did not start; run it by hand to see why")
            yield process, json.loads(state.read_text())
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_TIMEOUT_S)


MEASURES: Final[dict[Callable[[Tree], list[float]], tuple[str, ...]]] = {
    Tree.help_cpu_s: ("penstock --help, CPU s",),
    Tree.dev: ("penstock dev until ready, CPU s", "broker after start, resident MB"),
}


@contextmanager
def other_tree(commit: str) -> Generator[Tree]:
    """Check out a commit next to this tree."""
    with tempfile.TemporaryDirectory(prefix="penstock-start-") as name:
        path = Path(name) / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run((*git, "add", "--quiet", "--detach", path, commit), check=True)
        try:
            yield Tree(path)
        finally:
            subprocess.run((*git, "remove", "--force", path), check=True)


def broker_pid(state: dict[str, Any]) -> int:
    return int(next(node["pid"] for node in state["processes"] if node["role"] == "broker"))


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval (bootstrap)."""
    rng = Random(0)
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES_COUNT))
    return (
        median(ratios),
        medians[int(0.025 * _RESAMPLES_COUNT)],
        medians[int(0.975 * _RESAMPLES_COUNT)],
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MB


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_pairs", allow_abbrev=False)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    with other_tree(given.commit) as other:
        for measure, names in MEASURES.items():
            compare(measure, names, (other, Tree(ROOT)), given.pairs)


def compare(
    measure: Callable[[Tree], list[float]],
    names: Sequence[str],
    trees: tuple[Tree, Tree],
    pairs: int,
) -> None:
    """Print the ratios of interleaved pairs. trees: before and after."""
    for tree in trees:
        measure(tree)  # writes the bytecode
    found: list[list[list[float]]] = []
    for number in range(pairs):
        order = (1, 0) if number % 2 else (0, 1)
        by_side = {side: measure(trees[side]) for side in order}
        found.append([by_side[0], by_side[1]])
    for at, what in enumerate(names):
        middle, low, high = interval([second[at] / first[at] for first, second in found])
        old, new = (median(pair[side][at] for pair in found) for side in (0, 1))
        print(f"{what}: {old:.2f} -> {new:.2f}, ratio {middle:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
