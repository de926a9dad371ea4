"""Pages that change by themselves: the overview, and the page of nodes."""

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from deploy.console.formats import UNKNOWN
from deploy.local.handle import LocalCluster
from tests.console.test_console_pages import WAIT_S, wait_for_text
from tests.support.console import ConsoleProcess
from tests.support.waiting import wait_until

_PAUSE_S = 0.05
POINTS = "return charts.samples.map((sample) => [sample.at_ms, sample.bytes_in, sample.records])"
DRAWN = "return [...charts.plots].map(([name, plot]) => [name, plot.data[0].length])"
PIXELS = "return document.querySelector('[data-chart=throughput] canvas').toDataURL()"


@contextmanager
def traffic(bootstrap: str, topic: str) -> Generator[None, None, None]:
    """Send records until the end of the block."""
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap})

    def send() -> None:
        while not ended.wait(_PAUSE_S):
            producer.produce(topic, bytes(2_000))
            producer.poll(0)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        ended.set()
        sending.join()
        assert producer.flush(30) == 0


def test_charts_of_the_overview_follow_the_traffic(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster
) -> None:
    """Events of the server bring each point; the page is loaded once."""
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
        written = tiles(chrome)["Written"]
    times = [point[0] for point in chrome.execute_script(POINTS)]
    assert times == sorted(set(times))
    drawn = dict(chrome.execute_script(DRAWN))
    assert set(drawn) == {"throughput", "latency", "records", "store"}
    assert min(drawn.values()) >= len(times)
    assert chrome.execute_script(PIXELS) != pixels
    assert not written.startswith(("0 B/s", UNKNOWN)), "the tiles stand still"
    assert chrome.execute_script("return window.loadedOnce"), "the page was loaded again"


def test_the_overview_says_what_requests_cost_now_and_in_a_month(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster
) -> None:
    with traffic(cluster.bootstrap, "traffic"):
        chrome.get(console.url)
        wait_until(lambda: tiles(chrome)["Store requests"].partition(" ")[0] != "0", WAIT_S)
        found = tiles(chrome)
    assert found["Store requests"].endswith("an hour")
    now, month = found["Cost of requests"], found["Cost at this rate"]
    assert (now.endswith("an hour"), month.endswith("a month")) == (True, True)
    assert 0 < dollars(now) < dollars(month)


def tiles(chrome: Chrome) -> dict[str, str]:
    """Return the tiles of the page, all at one moment, because events replace them."""
    found: dict[str, str] = chrome.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.tile')].map("
        "(tile) => [...tile.children].map((part) => part.innerText)))"
    )
    return found


def dollars(text: str) -> float:
    (found,) = re.findall(r"\$([\d.,]+)", text)
    return float(found.replace(",", ""))
