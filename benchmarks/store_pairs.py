"""Compare the costs of this tree and another commit with an S3 server (moto): `python -m
benchmarks.store_pairs COMMIT`.

Prints median ratios of interleaved pairs with their 95 % intervals: instructions per PUT and GET
(Valgrind), a broker's CPU time per Produce request, and its resident memory after the start.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from benchmarks import clients
from benchmarks.start_pairs import PAIRS, ROOT, Tree, broker_pid, compare, other_tree

OBJECTS: Final = 25
"""Objects per Valgrind window. Under Valgrind they take about fifty times as long."""
REQUESTS: Final = 100
_FLUSH_S: Final = 60
_WORKER: Final = Path(__file__).with_name("store_worker.py")
_VALGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet")


class Instructions:
    """A process under Valgrind that writes and reads objects."""

    def __init__(self, process: "subprocess.Popen[str]", directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._dumps = 0
        self._run()  # imports, connects and fills caches

    def window(self) -> list[float]:
        """Return thousands of instructions per PUT and per GET."""
        self._control("--instr=on")
        self._run()
        self._control("--instr=off")
        self._control("--dump")
        self._dumps += 1
        (dump,) = self._directory.glob(f"*.{self._dumps}")
        total = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        assert total, dump
        return [int(total[1]) / OBJECTS / 1e3]

    def _run(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{OBJECTS}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{OBJECTS}\n"

    def _control(self, argument: str) -> None:
        command = ("callgrind_control", argument, str(self._process.pid))
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


class ProduceRequests:
    """A client of a broker."""

    def __init__(self, bootstrap: str, pid: int) -> None:
        self._pid = pid
        clients.create_topic(bootstrap)
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 2}
        self._producer = Producer(settings)
        self.window()

    def window(self) -> list[float]:
        """Return the broker's CPU milliseconds per request with one record, one at a time."""
        before_ns = _cpu_ns(self._pid)
        for _ in range(REQUESTS):
            self._producer.produce(clients.TOPIC, bytes(100))
            assert not self._producer.flush(_FLUSH_S)
        return [(_cpu_ns(self._pid) - before_ns) / REQUESTS / 1e6]


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads. `stat` would contain only ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks)


@contextmanager
def _worker(tree: Tree, store_url: str) -> Generator[Instructions]:
    with tempfile.TemporaryDirectory() as name:
        out = f"--callgrind-out-file={name}/out"
        process = subprocess.Popen(
            (*_VALGRIND, out, sys.executable, "-P", str(_WORKER), store_url),
            env=tree.environment | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Instructions(process, Path(name))
        finally:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_pairs", allow_abbrev=False)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    with other_tree(given.commit) as other, ExitStack() as stack:
        trees = other, Tree(ROOT)
        states = [stack.enter_context(tree.running("moto"))[1] for tree in trees]
        brokers = {
            tree: ProduceRequests(state["bootstrap"], broker_pid(state))
            for tree, state in zip(trees, states, strict=True)
        }
        what = "CPU of a broker per Produce request, ms"
        compare(lambda tree: brokers[tree].window(), [what], trees, given.pairs)
        workers = {
            tree: stack.enter_context(_worker(tree, state["store_url"]))
            for tree, state in zip(trees, states, strict=True)
        }
        what = "instructions of a PUT and a GET of 1 KB, thousands"
        compare(lambda tree: workers[tree].window(), [what], trees, given.pairs)
        stack.close()
        names = ["penstock dev until ready, CPU s", "broker after start, resident MB"]
        compare(lambda tree: tree.dev("moto"), names, trees, given.pairs)


if __name__ == "__main__":
    main()
