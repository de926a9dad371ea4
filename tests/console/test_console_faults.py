"""The console during faults shows old values with their age, the cause, and never a false number.

`python -m benchmarks console-faults` measures how soon.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from penstock.base.extras import install_hint
from penstock.deploy.console.formats import UNKNOWN
from penstock.deploy.local.handle import LocalCluster
from tests.console.conftest import PASSWORD, commit
from tests.console.test_console_pages import text_of, wait_for_text
from tests.support.browser import DESK, fill, resize
from tests.support.console import ConsoleProcess, Visitor, produce, without_packages
from tests.support.waiting import PATIENCE_S, wait_until

GROUP = "readers"
RECORDS = 40
DELETED = 1_154
DEFINITIONS = """
window.current = () => {
  const value = (cell) => cell.childNodes[0].textContent.trim();
  const rows = [...document.querySelectorAll("[aria-label='Busiest topics'] tbody tr")];
  const tiles = [...document.querySelectorAll(".tile")];
  const tile = tiles.find((each) => each.innerText.startsWith("Records"));
  return [
    ...rows.map((row) => [...row.cells].slice(0, 4).map(value).join(" ")),
    `rate ${tile.querySelector("dd").firstChild.textContent}`,
  ];
};
"""
"""Returns the rows of the topic table and the record rate in the tile."""
WATCH = """
window.seen = new Set();
setInterval(() => current().forEach((text) => seen.add(text)), 20);
"""
"""Collects every state of them."""


@pytest.fixture(scope="module")
def faulty() -> Iterator[LocalCluster]:
    """Two brokers and a store, which the tests stop one after another."""
    arguments = ("--brokers", "2", "--topics", "orders:4,deleted:2", "--log-level", "error")
    session = ("--set", "broker.session.timeout.ms=10s")  # a stalled process keeps its session
    with LocalCluster((*arguments, *session)) as cluster:
        produce(cluster.bootstrap, "orders", list(range(RECORDS)))
        produce(cluster.bootstrap, "deleted", list(range(DELETED)))
        commit(cluster.bootstrap, GROUP)
        yield cluster


@pytest.fixture(scope="module")
def watching(faulty: LocalCluster) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(faulty.state_path, "--allow-changes") as console:
        yield console


def open_overview(chrome: Chrome, console: ConsoleProcess) -> None:
    """Open the overview, and collect its contents from the first measurement on."""
    resize(chrome, DESK)
    chrome.get(console.url)
    wait_for_text(chrome, "live")
    wait_until(lambda: f"orders 4 0 {RECORDS}" in " ".join(text_of(chrome).split()))
    chrome.execute_script(DEFINITIONS)
    wait_until(lambda: "rate 0" in chrome.execute_script("return current()"))
    chrome.execute_script(WATCH)


def state(chrome: Chrome) -> str:
    return str(chrome.execute_script("return document.getElementById('state').innerText"))


def assert_only_true_numbers(chrome: Chrome) -> None:
    """Check the collected numbers: no record was written while the page was watched, and none was
    lost.
    """
    seen: list[str] = chrome.execute_script("return [...seen]")
    shown = {text for text in seen if text.startswith(("orders", "rate"))}
    unknown = {f"orders 4 {UNKNOWN} {RECORDS}", f"rate {UNKNOWN}"}
    assert shown - unknown == {f"orders 4 0 {RECORDS}", "rate 0"}


def stale_and_cause(chrome: Chrome, cause: str) -> None:
    """Wait until values are marked with their age and the cause is shown."""
    wait_until(lambda: "s old" in state(chrome))
    wait_for_text(chrome, cause)


def test_deleted_records_are_not_counted(
    chrome: Chrome, watching: ConsoleProcess, faulty: LocalCluster
) -> None:
    chrome.get(f"{watching.url}/topics")
    wait_for_text(chrome, f"{DELETED:,}")
    admin = AdminClient({"bootstrap.servers": faulty.bootstrap})
    ends = [TopicPartition("deleted", index, -1) for index in range(2)]
    for future in admin.delete_records(ends).values():
        future.result(PATIENCE_S)
    wait_until(lambda: "deleted 2 0 0 0" in " ".join(text_of(chrome).split()))
    open_overview(chrome, watching)
    assert "deleted 2 0 0" in " ".join(text_of(chrome).split())
    table = chrome.find_element(By.CSS_SELECTOR, "[aria-label='Busiest topics']")
    assert f"{DELETED:,}" not in table.text


def test_stopped_store_is_shown_as_the_cause(
    chrome: Chrome, watching: ConsoleProcess, faulty: LocalCluster
) -> None:
    messages = f"{watching.url}/topics/orders/messages"
    chrome.get(messages)
    wait_for_text(chrome, "without brokers")
    open_overview(chrome, watching)
    store = faulty.state().of_role("store")
    faulty.kill(store, signal.SIGSTOP)
    try:
        first = Visitor(watching.url).first("/topics/orders/messages?value=early")
        assert (first.status, "data-pending" in first.text) == (200, True)
        stale_and_cause(chrome, "The object store does not respond")
        assert_only_true_numbers(chrome)
        chrome.get(messages)
        wait_for_text(chrome, "This page is")  # the previous value, with its age
        wait_for_text(chrome, "without brokers")
        chrome.get(f"{messages}?value=other")
        wait_for_text(chrome, "the object store has not responded for")
    finally:
        faulty.kill(store, signal.SIGCONT)
    wait_for_text(chrome, "No record matches")  # without a reload
    wait_until(lambda: state(chrome) == "live")


def test_pages_work_while_a_broker_hangs_and_after_it_is_fenced(
    chrome: Chrome, watching: ConsoleProcess, faulty: LocalCluster
) -> None:
    open_overview(chrome, watching)
    hung = [process for process in faulty.brokers() if process.node_id == 1]
    faulty.kill(hung, signal.SIGSTOP)
    try:
        stale_and_cause(chrome, "Broker 1 ")
        chrome.switch_to.new_window("tab")
        for path, text in (
            ("/topics/orders", "orders-3"),
            ("/groups", GROUP),
            (f"/groups/one?id={GROUP}", "Coordinator"),
            ("/configs", "auto.create.topics.enable"),
        ):
            chrome.get(watching.url + path)
            wait_for_text(chrome, text)
        wait_for_text(chrome, "Broker 1 is fenced")
        chrome.close()
        chrome.switch_to.window(chrome.window_handles[0])
        wait_until(lambda: state(chrome) == "live")
        row = f"1 fenced 0 {UNKNOWN} {UNKNOWN} {UNKNOWN}"
        wait_until(lambda: row in " ".join(text_of(chrome).split()))
        visitor = Visitor(watching.url)
        fields = {"csrf": visitor.get("/topics").csrf, "target": "1"}
        refused = visitor.post("/topics/orders/0/move", fields)
        assert (refused.status, "none of these brokers is alive" in refused.words) == (400, True)
    finally:
        faulty.kill(hung, signal.SIGCONT)
    wait_until(lambda: "fenced" not in text_of(chrome))
    assert_only_true_numbers(chrome)


def test_console_without_extras_hides_features_that_need_them(
    watching: ConsoleProcess, faulty: LocalCluster, tmp_path: Path
) -> None:
    """Also covers a page of a silent broker: first a skeleton, then an error."""
    known = faulty.state()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        arguments = (
            *("--bootstrap", f"127.0.0.1:{silent.getsockname()[1]}"),
            *("--controller", known.controller, "--store", known.store_url),
        )
        with (
            without_packages(tmp_path),
            ConsoleProcess(faulty.state_path, *arguments) as console,
        ):
            visitor = Visitor(console.url)
            for path in ("/topics", "/topics/orders", "/topics/orders/0"):
                page = visitor.get(path)
                assert "orders" in page.words
                assert "essages" not in page.words
                assert ">SQL<" not in page.text
            response = visitor.get("/topics/orders/messages")
            assert (response.status, install_hint("reader") in response.words) == (400, True)
            first = visitor.first("/security/users")
            assert (first.status, "data-pending" in first.text) == (200, True)
            response = visitor.get("/security/users")
            assert (response.status, "do not respond" in response.words) == (502, True)
            assert "retries automatically" in response.words
            assert GROUP in visitor.get("/groups").words
    assert "Browse messages" in Visitor(watching.url).get("/topics/orders").words


def test_user_without_rights_sees_reasons_instead_of_numbers(
    chrome: Chrome, secure_cluster: LocalCluster
) -> None:
    url = secure_cluster.state().console
    chrome.get(f"{url}/topics")
    fill(chrome, user="bob", password=PASSWORD)
    wait_for_text(chrome, "words")
    chrome.get(url)
    wait_for_text(chrome, "requires DESCRIBE on the cluster")
    assert "Try again" not in text_of(chrome)
    chrome.get(f"{url}/groups")
    wait_for_text(chrome, "There are no groups that you may describe")
    chrome.get(f"{url}/topics/secrets")
    wait_for_text(chrome, "does not exist, or you may not describe it")
    wait_until(lambda: state(chrome) == "live")
    assert "Broker" not in text_of(chrome)
    chrome.delete_all_cookies()


def test_values_remain_with_their_age_when_the_cluster_is_unreachable(
    chrome: Chrome, watching: ConsoleProcess, faulty: LocalCluster
) -> None:
    """This must be the last test of this module, because it ends all nodes."""
    Visitor(watching.url).get(f"/groups/one?id={GROUP}")
    chrome.get(f"{watching.url}/groups")
    wait_for_text(chrome, GROUP)
    open_overview(chrome, watching)
    nodes = [*faulty.state().of_role("broker"), *faulty.state().of_role("controller")]
    os.kill(faulty.pid, signal.SIGSTOP)  # otherwise it would restart the nodes
    try:
        faulty.kill(nodes)
        stale_and_cause(chrome, "The cluster does not respond")
        wait_until(lambda: "alive" not in text_of(chrome))
        assert_only_true_numbers(chrome)
        for path, text in (
            ("/topics", f"orders 4 0 0 {RECORDS}"),
            ("/topics/orders", "orders-3"),
            ("/groups", GROUP),
            (f"/groups/one?id={GROUP}", "Coordinator"),
        ):
            chrome.get(watching.url + path)
            wait_until(lambda text=text: text in " ".join(text_of(chrome).split()))
            wait_for_text(chrome, "The cluster does not respond")
            wait_until(lambda: "s old" in state(chrome))
    finally:
        with suppress(ProcessLookupError):
            os.kill(faulty.pid, signal.SIGCONT)
