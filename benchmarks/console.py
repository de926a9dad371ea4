"""Measure how long web console pages take with 1,000 topics.

`python -m benchmarks console-topics` loads the topic list in Chromium; `console-faults` loads all
pages with 200 groups while one of two brokers hangs. `python -m benchmarks.console` requests pages
without a browser.
"""

import argparse
import os
import signal
import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from selenium.webdriver import Chrome

from benchmarks.harness import Measure, median_of
from penstock.deploy.clients.state_file import ProcessState
from penstock.deploy.local.contents import create_topics
from penstock.deploy.local.handle import LocalCluster
from tests.support.browser import browser
from tests.support.console import ConsoleProcess, Visitor
from tests.support.waiting import wait_until

TOPICS = 1_000
PARTITIONS = 10
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
GROUPS = 200
FAULT_PAGES = (
    *PAGES,
    "/groups",
    "/groups?page=2",
    f"/groups/one?id=g-{GROUPS - 1:03d}",
    "/transactions",
    "/configs",
    "/security",
)
_STATE = "return document.getElementById('state').innerText"
_CAUSES = "return document.getElementById('health').innerText"
_TICKS_S = os.sysconf("SC_CLK_TCK")
_NOTE_PAINT = """
addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  window.paintedMs = performance.now();
})));
"""
"""Records the time at which the page is painted: one frame after it has loaded completely."""
_PAINTED = """
const done = arguments[0];
const look = () => window.paintedMs ? done(window.paintedMs) : setTimeout(look, 1);
look();
"""


@contextmanager
def many_topics(topics: int, partitions: int) -> Generator[tuple[LocalCluster, ConsoleProcess]]:
    """Run a cluster with these topics and a console."""
    with LocalCluster(("--brokers", "2", "--log-level", "error")) as cluster:
        began = time.monotonic()
        names = [f"t-{number:04d}" for number in range(topics)]
        for at in range(0, len(names), 50):
            create_topics(cluster.bootstrap, dict.fromkeys(names[at : at + 50], partitions))
        print(f"{topics:,} topics created in {time.monotonic() - began:.1f} s")
        with ConsoleProcess(cluster.state_path) as console:
            visitor = Visitor(console.url)
            wait_until(lambda: f"{topics:,} topics" in visitor.get("/topics?q=t-").words)
            yield cluster, console


def topics_in_browser() -> list[Measure]:
    """Load each page of the topic list in Chromium, with an empty cache."""
    with many_topics(TOPICS, PARTITIONS) as (_, console), browser() as chrome:
        chrome.execute_cdp_cmd("Page.enable", {})
        chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _NOTE_PAINT})
        loads = [
            load_ms(chrome, f"{console.url}/topics?q=t-&page={number}") for number in range(1, 11)
        ]
    return [
        Measure(
            f"console, list of {TOPICS:,} topics with {PARTITIONS} partitions each, in Chromium",
            median_of(loads),
            "ms",
            1_000,
            "lower",
            note=f"navigation to paint, empty cache, slowest of {len(loads)}: {max(loads):.0f} ms",
        )
    ]


def pages_with_a_hung_broker() -> list[Measure]:
    """Load each page from the moment when one of two brokers hangs, and again after it is fenced.
    How soon an open page shows the fault is measured separately.
    """
    with many_topics(TOPICS, 1) as (cluster, console), browser() as chrome:
        commit_in_groups(cluster.bootstrap)
        chrome.execute_cdp_cmd("Page.enable", {})
        chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _NOTE_PAINT})
        for path in FAULT_PAGES:
            chrome.get(console.url + path)
        chrome.get(console.url)
        wait_until(lambda: chrome.execute_script(_STATE) == "live")
        hung = [process for process in cluster.brokers() if process.node_id == 1]
        stale_s, named_s = shown_s(chrome, cluster, hung)
        wait_until(lambda: not chrome.execute_script(_CAUSES))
        wait_until(lambda: chrome.execute_script(_STATE) == "live")
        cluster.kill(hung, signal.SIGSTOP)
        try:
            before = [page_ms(chrome, console, path) for path in FAULT_PAGES]
            chrome.get(console.url)
            wait_until(lambda: "is fenced" in chrome.execute_script(_CAUSES))
            after = [page_ms(chrome, console, path) for path in FAULT_PAGES]
        finally:
            cluster.kill(hung, signal.SIGCONT)
    what = f"console, {TOPICS:,} topics, {GROUPS} groups, a hung broker"
    server, browsed = zip(*before, *after, strict=True)
    return [
        Measure(f"{what}: values are marked stale", stale_s, "s", 3, "lower"),
        Measure(f"{what}: the cause is named", named_s, "s", 5, "lower"),
        Measure(f"{what}: slowest page, at the server", max(server), "ms", 300, "lower"),
        Measure(
            f"{what}: slowest page in Chromium",
            max(browsed),
            "ms",
            1_000,
            "lower",
            note=f"median of {len(browsed)} loads: {median_of(list(browsed)):.0f} ms",
        ),
    ]


def shown_s(
    chrome: Chrome, cluster: LocalCluster, hung: Sequence[ProcessState]
) -> tuple[float, float]:
    """Stop brokers; return the time until the open page marks values as stale, and until it shows
    the cause.
    """
    began = time.monotonic()
    cluster.kill(hung, signal.SIGSTOP)
    try:
        wait_until(lambda: "s old" in chrome.execute_script(_STATE))
        stale_s = time.monotonic() - began
        wait_until(lambda: "Broker 1" in chrome.execute_script(_CAUSES))
        return stale_s, time.monotonic() - began
    finally:
        cluster.kill(hung, signal.SIGCONT)


def page_ms(chrome: Chrome, console: ConsoleProcess, path: str) -> tuple[float, float]:
    """Return the time until the console responds, and until the complete page is painted."""
    visitor = Visitor(console.url)
    began = time.monotonic()
    visitor.first(path)
    server_ms = (time.monotonic() - began) * 1e3
    chrome.execute_cdp_cmd("Network.clearBrowserCache", {})
    began = time.monotonic()
    chrome.get(console.url + path)  # until the page has replaced its skeleton
    chrome.execute_async_script(_PAINTED)
    browser_ms = (time.monotonic() - began) * 1e3
    print(f"{path:40} {server_ms:6.0f} ms at the server, {browser_ms:6.0f} ms in Chromium")
    return server_ms, browser_ms


def commit_in_groups(bootstrap: str) -> None:
    for number in range(GROUPS):
        topic = f"t-{number:04d}"
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{number:03d}"})
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        consumer.close()


def load_ms(chrome: Chrome, url: str) -> float:
    """Return the time from navigation until the page is painted."""
    chrome.execute_cdp_cmd("Network.clearBrowserCache", {})
    chrome.get(url)
    rows = chrome.execute_script("return document.querySelectorAll('tbody tr').length")
    assert rows == 100, f"{url} shows {rows} topics"
    painted: float = chrome.execute_async_script(_PAINTED)
    return painted


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    given = parser.parse_args()
    with many_topics(given.topics, given.partitions) as (_, console):
        visitor = Visitor(console.url)
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
        response = visitor.get(path)
        walls.append(time.monotonic() - began)
        assert response.status == 200, response.words
    each = (cpu_s(console.pid) - before) / VISITS
    print(
        f"{path:28} {statistics.median(walls) * 1e3:7.0f} ms, {each * 1e3:5.0f} ms of CPU,"
        f" {len(response.text):9,} bytes"
    )


if __name__ == "__main__":
    main()
