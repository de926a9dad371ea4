"""Measure how long pages of the web console take with many topics: `python -m benchmarks.console`.

Starts a cluster, creates 1,000 topics of 10 partitions, and asks a console for pages. The figures
are the median of `VISITS` visits, with the CPU time of the console's process for each.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from deploy.local.contents import create_topics
from deploy.local.handle import LocalCluster
from tests.support.console import ConsoleProcess, Visitor
from tests.support.waiting import wait_until

VISITS = 7
PAGES = (
    "/",
    "/topics",
    "/topics?sort=rate&page=10",
    "/topics?q=t-07",
    "/topics/t-0500",
    "/topics/t-0500/3",
    "/nodes",
    "/moves",
    "/snapshots",
)
_TICKS_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    given = parser.parse_args()
    with LocalCluster(("--brokers", "2", "--log-level", "error")) as cluster:
        began = time.monotonic()
        names = [f"t-{number:04d}" for number in range(given.topics)]
        for at in range(0, len(names), 50):
            create_topics(cluster.bootstrap, dict.fromkeys(names[at : at + 50], given.partitions))
        print(f"{given.topics:,} topics created in {time.monotonic() - began:.1f} s")
        with ConsoleProcess(cluster.state_path) as console:
            visitor = Visitor(console.url)
            wait_until(lambda: f"{given.topics:,} topics" in visitor.get("/topics?q=t-").words)
            for path in PAGES:
                measure(console, visitor, path)
            before, waited_at = cpu_s(console.pid), time.monotonic()
            time.sleep(20)
            share = (cpu_s(console.pid) - before) / (time.monotonic() - waited_at)
            print(f"measuring in the background: {share:.0%} of a core")


def measure(console: ConsoleProcess, visitor: Visitor, path: str) -> None:
    visitor.get(path)
    walls, before = [], cpu_s(console.pid)
    for _ in range(VISITS):
        began = time.monotonic()
        answer = visitor.get(path)
        walls.append(time.monotonic() - began)
        assert answer.status == 200, answer.words
    each = (cpu_s(console.pid) - before) / VISITS
    print(
        f"{path:28} {statistics.median(walls) * 1e3:7.0f} ms, {each * 1e3:5.0f} ms of CPU,"
        f" {len(answer.text):9,} bytes"
    )


if __name__ == "__main__":
    main()
