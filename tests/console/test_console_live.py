"""Live pages: the overview and the node list."""

import re
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from penstock.deploy.console.formats import UNKNOWN
from penstock.deploy.local.handle import LocalCluster
from tests.console.test_console_pages import WAIT_S, wait_for_text
from tests.support.browser import console_errors
from tests.support.console import ConsoleProcess
from tests.support.waiting import PATIENCE_S, wait_until

_PAUSE_S = 0.05
POINTS = "return charts.samples.map((sample) => [sample.at_ms, sample.bytes_in, sample.records])"
DRAWN = "return [...charts.plots].map(([name, plot]) => [name, plot.data[0].length])"
PIXELS = "return document.querySelector('[data-chart=throughput] canvas').toDataURL()"


@contextmanager
def traffic(bootstrap: str, topic: str) -> Generator[None, None, None]:
    """Produce records until the end of the block."""
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap})

    def send() -> None:
        while not ended.wait(_PAUSE_S):
            producer.produce(topic, bytes(2_000))
            producer.poll(0)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        yield
    finally:
        ended.set()
        sending.join()
        assert producer.flush(PATIENCE_S) == 0


def test_overview_charts_follow_the_traffic(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster
) -> None:
    """Server-sent events bring each point; the page is loaded only once."""
    chrome.get(console.url)
    wait_for_text(chrome, "live")
    WebDriverWait(chrome, WAIT_S).until(
        lambda found: len(found.find_elements(By.CSS_SELECTOR, ".chart canvas")) == 4
    )
    chrome.execute_script("window.loadedOnce = true")
    begin_ms = chrome.execute_script(POINTS)[-1][0]
    pixels = chrome.execute_script(PIXELS)

    def busy_points() -> list[Any]:
        points = chrome.execute_script(POINTS)
        return [point for point in points if point[0] > begin_ms and point[1] and point[2]]

    with traffic(cluster.bootstrap, "traffic"):
        wait_until(lambda: len(busy_points()) >= 3, WAIT_S)
        wait_until(lambda: not tiles(chrome)["Written"].startswith(("0 B/s", UNKNOWN)), WAIT_S)
    times = [point[0] for point in chrome.execute_script(POINTS)]
    assert times == sorted(set(times))
    drawn = dict(chrome.execute_script(DRAWN))
    assert set(drawn) == {"throughput", "latency", "records", "store"}
    assert min(drawn.values()) >= len(times)
    assert chrome.execute_script(PIXELS) != pixels
    assert chrome.execute_script("return window.loadedOnce"), "the page was loaded again"


def test_axis_labels_are_exact(chrome: Chrome, console: ConsoleProcess) -> None:
    """uPlot spaces them by 1, 2, 2.5 or 5 times a power of ten."""
    chrome.get(console.url)
    for call, shown in (
        ("labels([0, 0.25, 0.5], 0.25)", ["0", "0.25", "0.5"]),
        ("labels([0, 0.0005, 0.001], 0.0005)", ["0", "0.0005", "0.001"]),
        ("labels([0, 20, 40], 20)", ["0", "20", "40"]),
        ("byteLabels([0, 2500, 5000], 2500)", ["0 kB", "2.5 kB", "5 kB"]),
    ):
        assert chrome.execute_script(f"return {call}") == shown


def test_overview_shows_the_cost_of_requests_now_and_per_month(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster
) -> None:
    with traffic(cluster.bootstrap, "traffic"):
        chrome.get(console.url)

        def with_requests() -> dict[str, str] | None:
            found = tiles(chrome)
            return None if found["Store requests"].startswith(("0 ", UNKNOWN)) else found

        found = wait_until(with_requests, WAIT_S)
    assert found["Store requests"].endswith("an hour")
    now, month = found["Cost of requests"], found["Cost at this rate"]
    assert (now.endswith("an hour"), month.endswith("a month")) == (True, True)
    assert 0 < dollars(now) < dollars(month)
    sources = chrome.execute_script(
        "return [...document.querySelectorAll('.tile .source')].map((part) => part.innerText)"
    )
    assert sources == ["S3 Standard in us-east-1"] * 3


def tiles(chrome: Chrome) -> dict[str, str]:
    """Return all tiles of the page at one moment, because events replace them."""
    found: dict[str, str] = chrome.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.tile')].map("
        "(tile) => [...tile.children].map((part) => part.innerText)))"
    )
    return found


def dollars(text: str) -> float:
    (found,) = re.findall(r"\$([\d.,]+)", text)
    return float(found.replace(",", ""))


def test_node_page_shows_broker_sessions(chrome: Chrome, tmp_path: Path) -> None:
    """A paused broker is fenced, and returns with the next epoch and a session."""
    arguments = ("--brokers", "2", "--store", f"file:{tmp_path}", "--log-level", "error")
    arguments += ("--set", "broker.session.timeout.ms=10s")  # a stalled process keeps its session
    with (
        LocalCluster(arguments) as cluster,
        ConsoleProcess(cluster.state_path) as console,
    ):
        console_errors(chrome)
        chrome.get(f"{console.url}/nodes")
        wait_until(lambda: brokers(chrome)["1"]["Session"] == "open", WAIT_S)
        before = brokers(chrome)["1"]
        assert before["State"] == "alive"
        assert re.fullmatch(r"[\d,.]+ m?s ago", before["Last heartbeat"])
        assert re.fullmatch(r"[\d,.]+ m?s", before["Session ends in"])
        stopped = [process for process in cluster.brokers() if process.node_id == 1]
        cluster.kill(stopped, signal.SIGSTOP)
        try:
            wait_until(lambda: brokers(chrome)["1"]["State"] == "fenced", WAIT_S)
            fenced = brokers(chrome)
        finally:
            cluster.kill(stopped, signal.SIGCONT)
        assert (fenced["1"]["Session"], fenced["1"]["Last heartbeat"]) == (UNKNOWN, UNKNOWN)
        assert fenced["0"]["Session"] == "open"
        wait_until(lambda: brokers(chrome)["1"]["Session"] == "open", WAIT_S)
        assert int(brokers(chrome)["1"]["Epoch"]) > int(before["Epoch"])
        assert console_errors(chrome) == []


def brokers(chrome: Chrome) -> dict[str, dict[str, str]]:
    """Return the rows of the brokers by id and column, as the page currently shows them."""
    head, *rows = chrome.execute_script(
        "return [...document.querySelectorAll('[aria-label=Brokers] tr')].map("
        "(row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}
