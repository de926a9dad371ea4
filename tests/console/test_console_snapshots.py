"""Topics are forked and restored in a browser, after a preview of the changes."""

from contextlib import suppress
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.local.handle import LocalCluster
from penstock.protocol.client.errors import KafkaFailed
from tests.console.test_console_pages import text_of, wait_for_text
from tests.support.browser import axe_problems, fill, send_form
from tests.support.console import ConsoleProcess, Visitor, produce
from tests.support.dev_cluster import requested
from tests.support.waiting import wait_until

RECORDS = 5


@pytest.fixture(scope="module")
def ledger(cluster: LocalCluster, console: ConsoleProcess) -> str:
    """A topic with RECORDS records that the console lists."""
    Kafka(cluster.bootstrap).create_topic("ledger", 1, -1, {})
    produce(cluster.bootstrap, "ledger", list(range(RECORDS)))
    visitor = Visitor(console.url)
    wait_until(lambda: visitor.get("/topics/ledger").status == 200)
    return "ledger"


def end_of(cluster: LocalCluster, topic: str) -> int:
    """Return the end offset of the topic; -1 if the broker that responds does not have it yet."""
    with suppress(KafkaFailed):
        return Kafka(cluster.bootstrap).offsets(topic, [0])[0][1]
    return -1


def test_topic_is_forked_after_a_preview_of_its_offsets(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster, ledger: str, axe: Path
) -> None:
    chrome.get(f"{console.url}/topics/{ledger}")
    send_form(chrome, "Fork the topic", name="ledger-test")
    wait_for_text(chrome, "would start with the current records of ledger")
    assert f"Offsets\n{RECORDS}\n" in text_of(chrome)
    assert axe_problems(chrome, axe) == []
    assert "ledger-test" not in [topic["name"] for topic in requested(cluster, "topics", "list")]
    fill(chrome)
    wait_for_text(chrome, "Forked ledger to ledger-test.")
    assert "Forked from ledger." in text_of(chrome)
    wait_until(lambda: end_of(cluster, "ledger-test") == RECORDS)


def test_fork_at_a_time_contains_the_older_records(
    console: ConsoleProcess, cluster: LocalCluster, ledger: str
) -> None:
    visitor = Visitor(console.url)
    path = f"/topics/{ledger}/fork"
    page = visitor.get(f"{path}?name=ledger-empty&since=2000-01-01T00:00")
    assert "before 2000-01-01 00:00:00.000 UTC" in page.words
    assert "Offsets 0 " in page.words
    fields = {"csrf": page.csrf, "name": "ledger-empty", "since": "2000-01-01T00:00"}
    assert visitor.post(path, fields).status == 303
    wait_until(lambda: end_of(cluster, "ledger-empty") == 0)
    for query, reason in (
        ("name=ledger", "topic 'ledger' exists"),
        ("name=x&since=noon", "'noon' is not a time"),
        ("name=x&snapshot=none", "snapshot 'none' does not exist"),
        ("name=x&snapshot=none&since=2000-01-01T00:00", "either a time or a snapshot"),
        ("", "the fork needs a name"),
    ):
        assert reason in visitor.get(f"{path}?{query}").words


def test_snapshot_is_restored_after_a_preview_of_the_deletions(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster, ledger: str, axe: Path
) -> None:
    chrome.get(f"{console.url}/snapshots")
    send_form(chrome, "Create a snapshot", name="before", topics=ledger)
    wait_for_text(chrome, "Created snapshot before of 1 topic.")
    produce(cluster.bootstrap, ledger, ["later"])
    one = f"{console.url}/snapshots/one?name=before"
    chrome.get(one)
    assert f"Records\n{RECORDS}\n" in text_of(chrome)
    assert axe_problems(chrome, axe) == []

    send_form(chrome, "Restore topics")
    wait_for_text(chrome, "exists already")
    assert "Delete and restore" not in text_of(chrome)
    chrome.get(one)
    send_form(chrome, "Restore topics", **{"as": "ledger-old"})
    wait_for_text(chrome, "is created")
    assert axe_problems(chrome, axe) == []
    fill(chrome)
    wait_for_text(chrome, "Restored 1 topic of before")
    wait_until(lambda: end_of(cluster, "ledger-old") == RECORDS)
    assert end_of(cluster, ledger) == RECORDS + 1

    chrome.get(one)
    send_form(chrome, "Restore topics", replace="on", groups="on")
    wait_for_text(chrome, "the topic of this name is deleted first")
    fill(chrome, confirm="ledger")
    wait_for_text(chrome, "type 'before' into the field")
    assert end_of(cluster, ledger) == RECORDS + 1
    chrome.get(one)
    send_form(chrome, "Restore topics", replace="on", groups="on")
    wait_for_text(chrome, "is deleted first")
    fill(chrome, confirm="before")
    wait_for_text(chrome, "Restored 1 topic of before, and the offsets of 0 groups.")
    wait_until(lambda: end_of(cluster, ledger) == RECORDS)

    chrome.get(one)
    send_form(chrome, "Delete the snapshot", confirm="before")
    wait_for_text(chrome, "Deleted snapshot before.")
    wait_until(lambda: requested(cluster, "snapshots", "list") == [])
