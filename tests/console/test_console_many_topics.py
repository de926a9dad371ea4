"""A cluster with 1,000 topics of 10 partitions: pages stay small and counts are right.

`python -m benchmarks console-topics` measures the time that pages take.
"""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from penstock.deploy.console.paging import ROWS_MAX
from penstock.deploy.local.contents import create_topics
from tests.console.test_console_pages import WAIT_S, wait_for_text
from tests.support.browser import DESK, resize
from tests.support.console import ConsoleProcess, produce
from tests.support.dev_cluster import DevCluster
from tests.support.waiting import wait_until

TOPICS, PARTITIONS = 1_000, 10
NAMES = [f"t-{number:04d}" for number in range(TOPICS)]
BUSY = NAMES[640]
BUSY_RECORDS = 30
PAGE_BYTES_MAX = 64 << 10
ELEMENTS_MAX = 2_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console of a cluster in which one topic has records."""
    store = tmp_path_factory.mktemp("store")
    arguments = ("--brokers", "1", "--store", f"file:{store}", "--log-level", "error")
    with DevCluster(arguments) as cluster:
        for at in range(0, TOPICS, 50):
            create_topics(cluster.bootstrap, dict.fromkeys(NAMES[at : at + 50], PARTITIONS))
        produce(cluster.bootstrap, BUSY, list(range(BUSY_RECORDS)))
        with ConsoleProcess(cluster.state_path) as console:
            yield console


def rows(chrome: Chrome) -> list[list[str]]:
    """Return the cells of the topic table."""
    found: list[list[str]] = chrome.execute_script(
        "return [...document.querySelectorAll('[aria-label=Topics] tbody tr')].map("
        "(row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return found


def assert_small(chrome: Chrome) -> None:
    """Check the size of the page that the browser has loaded."""
    size_bytes, elements = chrome.execute_script(
        "return [performance.getEntriesByType('navigation')[0].decodedBodySize,"
        " document.querySelectorAll('*').length]"
    )
    assert 0 < size_bytes <= PAGE_BYTES_MAX
    assert elements <= ELEMENTS_MAX


def test_topic_pages_are_small_and_list_each_topic_once(
    chrome: Chrome, many: ConsoleProcess
) -> None:
    resize(chrome, DESK)
    chrome.get(f"{many.url}/topics")
    seen: list[str] = []
    for page in range(1, TOPICS // ROWS_MAX + 1):
        first = (page - 1) * ROWS_MAX + 1
        wait_for_text(chrome, f"{first:,}–{first + ROWS_MAX - 1:,} of {TOPICS:,} topics")  # noqa: RUF001
        wait_for_text(chrome, f"page {page} of {TOPICS // ROWS_MAX}")
        found = rows(chrome)
        assert len(found) == ROWS_MAX
        assert {row[1] for row in found} == {str(PARTITIONS)}
        assert {row[2] for row in found} == {"0"}, "partitions without a leader"
        seen += [row[0] for row in found]
        assert_small(chrome)
        if following := chrome.find_elements(By.LINK_TEXT, "Next →"):
            following[0].click()
    assert not following
    assert seen == NAMES


def test_topics_are_searched_and_sorted_among_many(chrome: Chrome, many: ConsoleProcess) -> None:
    def first_row() -> list[str]:
        chrome.get(f"{many.url}/topics?sort=records")
        return rows(chrome)[0]

    wait_until(lambda: first_row()[4] == str(BUSY_RECORDS), WAIT_S)
    assert first_row()[0] == BUSY
    chrome.get(f"{many.url}/topics?q=T-07")
    wait_for_text(chrome, "100 topics")
    assert [row[0] for row in rows(chrome)] == NAMES[700:800]


@pytest.mark.parametrize("path", ["/", "/nodes", f"/topics/{BUSY}", f"/topics/{BUSY}/3"])
def test_other_pages_stay_small_with_many_topics(
    chrome: Chrome, many: ConsoleProcess, path: str
) -> None:
    chrome.get(many.url + path)
    wait_for_text(chrome, {"/": f"{TOPICS:,} topics", "/nodes": "Controllers"}.get(path, BUSY))
    assert_small(chrome)
