"""Changes that the console makes or refuses, and data that it never shows."""

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from penstock.deploy.console.console import STATEMENTS_MAX
from penstock.deploy.console.formats import UNKNOWN
from penstock.deploy.console.guard import BODY_BYTES_MAX
from penstock.deploy.local.handle import LocalCluster
from penstock.protocol.gen.streams_group_heartbeat import Subtopology, Topology
from tests.console.conftest import HOSTILE, RECORDS, commit
from tests.support.console import ConsoleProcess, Visitor
from tests.support.dev_cluster import requested
from tests.support.streams_groups import talk_to_coordinator
from tests.support.waiting import wait_until


@pytest.fixture
def visitor(console: ConsoleProcess) -> Visitor:
    return Visitor(console.url)


def sent(visitor: Visitor, page: str, path: str, **fields: str) -> str:
    """Submit a form of a page; return the text of the response."""
    response = visitor.post(path, {"csrf": visitor.get(page).csrf, **fields})
    if response.status != 303:
        return response.words
    return visitor.get(response.headers["location"]).words


def test_topic_is_created_altered_deleted_and_restored(
    visitor: Visitor, cluster: LocalCluster
) -> None:
    """The topic list shows each change immediately, before the cluster is measured again."""
    said = sent(
        visitor, "/topics", "/topics", name="bills", partitions="3", configs="retention.ms=1h"
    )
    assert "Created bills." in said
    assert "bills 3 0" in said
    assert "retention.ms" in visitor.get("/topics/bills").words
    wait_until(lambda: retention_of(cluster, "bills") == "3600000")
    sent(visitor, "/topics/bills", "/topics/bills/configs", key="retention.ms", value="7d")
    wait_until(lambda: retention_of(cluster, "bills") == "604800000")
    said = sent(visitor, "/topics/bills", "/topics/bills/delete", confirm="bill")
    assert "type 'bills' into the field" in said
    said = sent(visitor, "/topics/bills", "/topics/bills/delete", confirm="bills")
    assert "Deleted bills. It can come back" in said
    wait_until(lambda: "bills" not in visitor.get("/topics").words)
    (deleted,) = wait_until(lambda: requested(cluster, "topics", "list", "--deleted"))
    full = f"bills@{deleted['topic_id']}"
    assert "bills is back." in sent(visitor, "/snapshots", "/undelete", topic=full)
    wait_until(lambda: "bills" in topics_of(cluster))
    assert len(requested(cluster, "topics", "describe", "bills")["partitions"]) == 3


def retention_of(cluster: LocalCluster, topic: str) -> str:
    """Return the config as the commands see it, which may ask another broker than the console."""
    if topic not in topics_of(cluster):
        return ""
    return requested(cluster, "topics", "describe", topic)["configs"]["retention.ms"]


def topics_of(cluster: LocalCluster) -> list[str]:
    return [topic["name"] for topic in requested(cluster, "topics", "list")]


def snapshots_of(cluster: LocalCluster) -> list[str]:
    return [item["name"] for item in requested(cluster, "snapshots", "list")]


def test_partition_is_moved_from_the_page_of_its_topic(visitor: Visitor) -> None:
    assert 'href="/topics/orders/0/move"' in visitor.get("/topics/orders").text


def test_refused_change_shows_the_reason(visitor: Visitor) -> None:
    said = sent(visitor, "/topics", "/topics", name="a b", partitions="1", configs="")
    assert "topic 'a b' was not created" in said
    said = sent(visitor, "/topics", "/topics", name="c", partitions="1", configs="retention")
    assert "'retention' is not KEY=VALUE" in said
    wrong = {"key": "segment.bytes", "value": "7 GB/s"}
    said = sent(visitor, "/topics/orders", "/topics/orders/configs", **wrong)
    assert "segment.bytes='7 GB/s' is not allowed: bytes, or a number with KiB, MiB or GiB" in said
    wrong = {"key": "log.retention.ms", "value": "7m", "broker": ""}
    said = sent(visitor, "/configs", "/configs", **wrong)
    assert "log.retention.ms='7m' is not allowed: milliseconds, or a number with ms, s, min" in said


def test_snapshot_is_created_and_deleted(visitor: Visitor, cluster: LocalCluster) -> None:
    said = sent(visitor, "/snapshots", "/snapshots", name="nightly", topics="orders")
    assert "Created snapshot nightly of 1 topic." in said
    wait_until(lambda: snapshots_of(cluster) == ["nightly"])
    said = sent(visitor, "/snapshots", "/snapshots/delete", name="nightly", confirm="nightly")
    assert "Deleted snapshot nightly." in said
    wait_until(lambda: snapshots_of(cluster) == [])


def test_offsets_are_reset_and_the_group_is_deleted(
    visitor: Visitor, cluster: LocalCluster, admin: AdminClient
) -> None:
    group_id = f"auditors {HOSTILE}"
    commit(cluster.bootstrap, group_id)
    fields = {"id": group_id, "topic": "orders", "confirm": group_id}
    csrf = visitor.get("/topics").csrf
    response = visitor.post("/groups/reset", {"csrf": csrf, "to": "latest", **fields})
    assert visitor.get(response.headers["location"]).words.count("Offsets of") == 1
    wait_until(lambda: "Lag 0 records" in visitor.get(response.headers["location"]).words)
    visitor.post("/groups/delete", {"csrf": csrf, "id": group_id, "confirm": group_id})
    assert f"Deleted group {group_id}." in visitor.get("/groups").words
    groups = admin.list_consumer_groups().result().valid
    assert group_id not in [group.group_id for group in groups]


def test_members_of_a_streams_group_are_shown_with_their_tasks(
    visitor: Visitor, cluster: LocalCluster
) -> None:
    group = "counter"
    with closing(talk_to_coordinator(cluster.bootstrap, group)) as talk:
        talk.join(group, HOSTILE, Topology(0, [Subtopology("orders of all", ["orders"])]))
        talk.settle(group, HOSTILE)
        said = visitor.get(f"/groups/one?id={group}").words
        assert "Topology epoch 0" in said
        assert f"{HOSTILE} host-client /127.0.0.1" in said
        assert "orders of all:0,1,2,3" in said
        fields = {"csrf": visitor.get("/topics").csrf, "id": group, "confirm": group}
        refused = visitor.post("/groups/reset", {**fields, "topic": "orders", "to": "earliest"})
        assert (refused.status, "stop its members" in refused.words) == (400, True), refused.words
        talk.beat(group, HOSTILE, -1)
    empty = f"counter Streams Empty {UNKNOWN} streams"
    wait_until(lambda: empty in visitor.get("/groups").words)
    wait_until(lambda: "No member is connected" in visitor.get(f"/groups/one?id={group}").words)


def test_doctor_page_examines_the_cluster(visitor: Visitor) -> None:
    assert "Examined" in sent(visitor, "/doctor", "/doctor", objects="on")


def test_sql_page_reads_topics_but_no_files(visitor: Visitor) -> None:
    query = "SELECT count(*) AS orders, any_value(note) AS note FROM orders"
    response = visitor.post("/sql", {"csrf": visitor.get("/sql").csrf, "query": query})
    assert f"orders note {RECORDS} {HOSTILE} 1 row." in response.words
    said = sent(visitor, "/sql", "/sql", query="SELECT * FROM nowhere")
    assert "no topic or view is named 'nowhere'" in said
    said = sent(visitor, "/sql", "/sql", query="COPY (SELECT 1) TO 'x.csv'")
    assert "statements neither read nor write files" in said


def test_statement_is_canceled_when_its_browser_disconnects(
    visitor: Visitor, console: ConsoleProcess
) -> None:
    query = "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000))"
    fields = {"csrf": visitor.get("/sql").csrf, "query": query}
    wait_until(lambda: not children(console.pid))
    leaving = [visitor.begin_post("/sql", fields) for _ in range(STATEMENTS_MAX)]
    wait_until(lambda: len(children(console.pid)) == STATEMENTS_MAX)
    refused = visitor.post("/sql", fields)
    assert (refused.status, "statements are running" in refused.words) == (503, True)
    for connection in leaving:
        connection.close()
    wait_until(lambda: not children(console.pid))
    # The console may still be busy while it handles the end of a process.
    wait_until(lambda: visitor.post("/sql", fields | {"query": "SELECT 1"}).status == 200)


def children(pid: int) -> list[str]:
    """Return the running child processes of a process."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [child for line in found for child in line]


@pytest.mark.parametrize(
    ("headers", "csrf"),
    [
        ({"Origin": "http://evil.example"}, ""),
        ({"Origin": ""}, ""),
        ({"Sec-Fetch-Site": "cross-site"}, ""),
        ({}, "guessed"),
    ],
)
def test_forms_of_other_sites_are_refused(
    visitor: Visitor, cluster: LocalCluster, headers: dict[str, str], csrf: str
) -> None:
    token = csrf or visitor.get("/topics").csrf
    response = visitor.post("/topics", {"csrf": token, "name": "evil"}, **headers)
    assert response.status == 403
    assert "evil" not in topics_of(cluster)


def test_request_with_a_foreign_host_header_is_refused(visitor: Visitor) -> None:
    for path in ("/", "/static/console.js", "/live/overview"):
        response = visitor.get(path, Host="evil.example")
        assert (response.status, "Penstock" in response.text) == (421, False)
    assert visitor.get("/topics", Host="localhost").status == 200


def test_every_response_forbids_inline_scripts(visitor: Visitor) -> None:
    for path in ("/topics", "/static/console.css", "/nothing", "/topics/missing"):
        response = visitor.get(path)
        policy = response.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "<script>" not in response.text
        assert " style=" not in response.text
        assert " onclick=" not in response.text


def test_oversized_forms_are_refused(visitor: Visitor) -> None:
    response = visitor.post("/topics", {"csrf": "", "name": "x" * BODY_BYTES_MAX})
    assert response.status == 400


def test_console_of_dev_is_read_only(cluster: LocalCluster) -> None:
    """The ready line contains its address, and its process starts with the first visit."""
    url = cluster.state().console
    assert f" console={url} " in cluster.ready_line
    visitor = Visitor(url)
    page = visitor.get("/snapshots")
    assert "read-only" in page.words
    assert 'method="post"' not in page.text
    topic = visitor.get("/topics/orders")
    assert ("Candidates" in topic.words, '/move"' in topic.text) == (True, False)
    csrf = visitor.get("/doctor").csrf
    response = visitor.post("/topics", {"csrf": csrf, "name": "nothing"})
    assert (response.status, "--allow-changes" in response.words) == (403, True)


def test_many_topics_are_paginated(visitor: Visitor, cluster: LocalCluster) -> None:
    """A page has at most 100 rows and 100 kB, whatever the size of the cluster."""
    from penstock.deploy.local.contents import create_topics

    names = {f"many-{number:03d}": 1 for number in range(120)}
    create_topics(cluster.bootstrap, names)
    wait_until(lambda: "120 topics" in visitor.get("/topics?q=many").words)
    response = visitor.get("/topics?q=many")
    assert "1–100 of 120 topics" in response.words  # noqa: RUF001 - a range has this dash
    assert response.text.count("<tr>") == 101
    assert len(response.text) < 100_000
    assert visitor.get("/topics?q=many&page=2").text.count("<tr>") == 21


def test_numbers_out_of_range_are_rejected(visitor: Visitor) -> None:
    for page, path, fields in (
        ("/topics", "/topics", {"name": "many", "partitions": "99999999999"}),
        ("/topics", "/topics", {"name": "nul\0", "partitions": "1"}),
        ("/security/quotas", "/security/quotas", {"user": "u" * 40_000, "value": "1"}),
        ("/topics", "/groups/reset", {"id": "g", "topic": "orders", "to": "9" * 5_000}),
    ):
        extra = {"key": "producer_byte_rate", "confirm": "g", "csrf": visitor.get(page).csrf}
        response = visitor.post(path, fields | extra)
        assert response.status == 400, (path, response.words[:200])
        assert "This cannot be done" in response.words
    assert visitor.get("/topics?page=--5").status == 200
