"""One cluster, one console with change permissions, and one browser for all console tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from selenium.webdriver import Chrome

from penstock.base.scram import ScramMechanism
from penstock.deploy.clients.acls import AclView, add_acls, selection_of
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.clients.security import ClientSecurity, read_file
from penstock.deploy.clients.users import create_user
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.local.handle import LocalCluster
from tests.support.browser import browser, console_errors
from tests.support.console import ConsoleProcess, Response, Visitor, produce
from tests.support.dev_cluster import DevCluster
from tests.support.npm import package
from tests.support.waiting import PATIENCE_S

AXE_VERSION = "4.14.1"
HOSTILE = '<img src=x onerror="document.title=1">&`'
"""A client id that would run as a script if the console did not escape it."""
RECORDS = 40
PASSWORD = "open-sesame"
"""The password of alice and bob."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers with records, groups and an open transaction."""
    store = tmp_path_factory.mktemp("store")
    arguments = (
        *("--brokers", "2", "--store", f"file:{store}", "--log-level", "error"),
        *("--topics", "orders:4,clicks:2", "--set", "transaction.max.timeout.ms=1d"),
    )
    with DevCluster(arguments) as cluster:
        values: list[object] = [{"order": number, "note": HOSTILE} for number in range(RECORDS)]
        produce(cluster.bootstrap, "orders", values, key=HOSTILE)
        produce(cluster.bootstrap, "clicks", [bytes([0, 0, 0, 0, 7, 255, 1])], key="binary")
        commit(cluster.bootstrap, HOSTILE)
        _begin_transaction(cluster.bootstrap)
        yield cluster


def commit(bootstrap: str, group: str) -> None:
    """Let a group of one member commit its offsets in `orders` and become empty."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    try:
        assert consumer.consume(5, timeout=PATIENCE_S)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _begin_transaction(bootstrap: str) -> None:
    """Leave a transaction open for longer than the tests take."""
    settings = {"transactional.id": HOSTILE, "transaction.timeout.ms": 86_400_000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("clicks", b"open")
    producer.flush(PATIENCE_S)


@pytest.fixture(scope="session")
def console(cluster: LocalCluster) -> Iterator[ConsoleProcess]:
    """A console that may change the cluster."""
    with ConsoleProcess(cluster.state_path, "--allow-changes") as console:
        yield console


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    with browser() as found:
        yield found


@pytest.fixture(autouse=True)
def leave(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the last page after each test. Otherwise it would keep requesting a console that may
    have ended.
    """
    yield
    if "chrome" in request.fixturenames:
        chrome: Chrome = request.getfixturevalue("chrome")
        chrome.get("about:blank")
        console_errors(chrome)


@pytest.fixture(scope="session")
def axe() -> Path:
    """The source of axe-core, which finds accessibility problems."""
    return package("axe-core", AXE_VERSION) / "axe.min.js"


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture(scope="session")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with topics `words` and `secrets`. alice may describe and read `words`; bob may
    describe it.
    """
    store = f"file:{tmp_path_factory.mktemp('secure')}/store"
    arguments = ("--brokers", "1", "--secure", "--topics", "words:1,secrets:1", "--store", store)
    with DevCluster((*arguments, "--log-level", "error")) as cluster:
        admin = admin_of(cluster)
        with WireClient(cluster.bootstrap, admin) as client:
            for user, operation in (("alice", "read"), ("bob", "describe")):
                create_user(client, user, PASSWORD, ScramMechanism.SCRAM_SHA_256, 4_096)
                acl = AclView("topic", "words", "literal", f"User:{user}", "*", operation, "allow")
                add_acls(client, [selection_of(acl)])
        producer = Kafka(cluster.bootstrap, admin).producer()
        producer.produce("words", b"hello")
        assert producer.flush(PATIENCE_S) == 0
        yield cluster


def admin_of(cluster: LocalCluster) -> ClientSecurity:
    return read_file(Path(cluster.state().command_config))


def login(url: str, user: str, password: str) -> tuple[Visitor, Response]:
    visitor = Visitor(url)
    fields = {"csrf": visitor.get("/login").csrf, "user": user, "password": password}
    return visitor, visitor.post("/login?next=%2Ftopics", fields)
