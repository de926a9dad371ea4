"""The consoles of nodes whose clients need TLS and a login, with TLS between nodes."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from selenium.webdriver import Chrome

from penstock.deploy.clients.kafka import Kafka
from tests.console.conftest import login
from tests.console.test_console_pages import text_of, wait_for_text
from tests.support.browser import console_errors, fill
from tests.support.console import Visitor
from tests.support.metered_cluster import MeteredCluster
from tests.support.waiting import PATIENCE_S, wait_until

RECORD = b'{"word": "hello"}'
PAGES = {
    "/": "1 alive",
    "/nodes": "Controllers Leader 0, epoch 1",
    "/topics": "words 1 0",
    "/topics/words": "words-0",
    "/topics/words/0": "txn stream",
    "/topics/words/messages": "hello",
    "/topics/words/0/move": "elected",
    "/moves": "words-0",
    "/groups": "readers",
    "/groups/one?id=readers": "Committed",
    "/transactions": "No producer uses transactions",
    "/snapshots": "There are no snapshots",
    "/configs": "auto.create.topics.enable",
    "/security": "There are no ACLs",
    "/security/users": "No users yet",
    "/security/quotas": "There are no quotas",
}
"""Text on each page, by path. The pages read from brokers, controllers and the store."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredCluster]:
    """Two brokers and a controller. Their consoles connect as `admin` with its certificate."""
    directory = tmp_path_factory.mktemp("nodes")
    cluster = MeteredCluster(directory, brokers=2, controllers=1, secure=True)
    tls = cluster.security.node_settings("admin")
    cluster.arguments = (
        *("--console-access", "change", "--console-bootstrap-servers", cluster.bootstrap),
        *("--console-command-config", str(cluster.security.client_properties)),
        *("--console-ssl-certificate-location", tls["controller.ssl.certificate.location"]),
        *("--console-ssl-key-location", tls["controller.ssl.key.location"]),
    )
    with cluster:
        yield cluster


def admin_at(cluster: MeteredCluster, node: str) -> Visitor:
    url = f"http://127.0.0.1:{cluster.ports[node]}/console"
    assert login(url, "admin", "guess")[1].status == 401
    visitor, response = login(url, "admin", cluster.admin.password)
    assert response.status == 303
    return visitor


def test_every_page_works_on_brokers_and_controllers(cluster: MeteredCluster) -> None:
    """A change made on one console appears on the others."""
    at_broker, at_controller = admin_at(cluster, "broker 0"), admin_at(cluster, "controller 0")
    fields = {"csrf": at_broker.get("/topics").csrf, "name": "words", "configs": ""}
    assert at_broker.post("/topics", {**fields, "partitions": "1"}).status == 303
    wait_until(lambda: "words-0" in at_controller.get("/topics/words").words)
    kafka = Kafka(cluster.bootstrap, cluster.admin)
    write_and_read(kafka)
    configs = kafka.topic_config("words")
    assert configs["cleanup.policy"] == "delete"
    assert "None" not in configs.values()
    ((partition,),) = [topic.partitions for topic in kafka.topics() if topic.name == "words"]
    path, target = "/topics/words/0/move", 1 - partition.leader
    form = {"csrf": at_controller.get(path).csrf, "target": str(target)}
    assert at_controller.post(path, form).status == 303
    wait_until(lambda: "elected" in at_broker.get(path).words)
    for visitor in (at_broker, at_controller):
        for path, text in PAGES.items():
            # Each console reads the metadata on its own, later than the other.
            wait_until(partial(contains, visitor, path, text))


def contains(visitor: Visitor, path: str, text: str) -> bool:
    page = visitor.get(path)
    return page.status == 200 and text in page.words


def write_and_read(kafka: Kafka) -> None:
    """Produce to the topic, and let a group commit its offsets."""
    producer = kafka.producer()
    producer.produce("words", RECORD)
    assert producer.flush(PATIENCE_S) == 0
    consumer = kafka.consumer(**{"group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["words"])
    assert [message.value() for message in consumer.consume(1, PATIENCE_S)] == [RECORD]
    consumer.commit(asynchronous=False)
    consumer.close()


def test_charts_are_live_in_a_browser(cluster: MeteredCluster, chrome: Chrome) -> None:
    chrome.delete_all_cookies()
    console_errors(chrome)
    chrome.get(f"http://127.0.0.1:{cluster.ports['broker 1']}/console")
    fill(chrome, user="admin", password=cluster.admin.password)
    wait_for_text(chrome, "live")
    assert "alive" in text_of(chrome)
    assert console_errors(chrome) == []


def test_command_without_the_certificate_is_refused(cluster: MeteredCluster) -> None:
    """Controllers require a certificate, so the console must present its own."""
    command = (sys.executable, "-P", "-m", "penstock.deploy.cli", "quorum", "describe")
    done = subprocess.run(
        (*command, "--controller", cluster.controller), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "TLS" in done.stderr
