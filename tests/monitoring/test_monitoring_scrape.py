"""Prometheus scrapes a real cluster: a healthy cluster has no alerts, every dashboard panel has
data, and a killed broker fires exactly its alerts.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.metered_cluster import MeteredCluster
from tests.support.prometheus import Prometheus
from tests.support.promql import CHART
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.long
RATE_INTERVAL = "1m"
DATA_S = 180.0
FIRING_S = 240.0
TOPIC = "orders"
PARTITIONS = 6
RECORDS = 100


@dataclass(frozen=True)
class Scraped:
    cluster: MeteredCluster
    prometheus: Prometheus
    clients: "Clients"


@dataclass
class Clients:
    """Clients that use every feature shown on the dashboards."""

    bootstrap: str
    rounds: int = 0
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._create(TOPIC, PARTITIONS)

    def work(self) -> None:
        """Create a topic, produce in a transaction, and read everything as a group member."""
        self.rounds += 1
        self._create(f"{TOPIC}-{self.rounds}", 1)
        servers = {"bootstrap.servers": self.bootstrap}
        producer = Producer({**servers, "transactional.id": "bookkeeper"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(TOPIC, bytes(1_000), partition=number % PARTITIONS)
        producer.commit_transaction(PATIENCE_S)
        group = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = Consumer({**servers, **group, "enable.auto.commit": False})
        consumer.subscribe([TOPIC])
        seen = 0
        while seen < RECORDS * self.rounds:
            messages = consumer.consume(RECORDS, PATIENCE_S)
            assert messages, f"{seen} of {RECORDS * self.rounds}"
            seen += len(messages)
        consumer.close()

    def _create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with (
        MeteredCluster(tmp_path_factory.mktemp("nodes"), brokers=3, controllers=3) as cluster,
        Prometheus(tmp_path_factory.mktemp("prometheus"), cluster.ports) as prometheus,
    ):
        clients = Clients(cluster.bootstrap)
        clients.work()
        yield Scraped(cluster, prometheus, clients)


def panels() -> list[tuple[str, str]]:
    """Return each dashboard expression with its place, with variables filled in as by Grafana."""
    found: list[tuple[str, str]] = []
    for path in sorted((CHART / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        values = {"__rate_interval": RATE_INTERVAL, "namespace": "streams"}
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "textbox":
                values[variable["name"]] = variable["query"]
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                text = target["expr"]
                for name, value in values.items():
                    text = text.replace(f"${name}", value)
                assert "$" not in text, text
                found.append((f"{path.name}: {panel['title']}", text))
    return found


def without_data(prometheus: Prometheus) -> list[str]:
    """Return the expressions without a value."""
    return [
        f"{where}: {text}"
        for where, text in panels()
        if all(math.isnan(float(it["value"][1])) for it in prometheus.query(text))
    ]


def test_healthy_cluster_has_no_alerts(scraped: Scraped) -> None:
    prometheus = scraped.prometheus
    wait_until(lambda: len(prometheus.query("up == 1")) == len(scraped.cluster.ports), DATA_S)
    wait_until(lambda: prometheus.query("penstock_network_bytes_per_second"), DATA_S)
    wait_until(lambda: not prometheus.alerts(), DATA_S)
    groups = prometheus.get("rules")["groups"]
    unhealthy = [
        (rule["name"], rule.get("lastError"))
        for group in groups
        for rule in group["rules"]
        if rule["health"] != "ok"
    ]
    assert sum(len(group["rules"]) for group in groups) >= 20
    assert not unhealthy


def test_killed_broker_fires_exactly_its_alerts(scraped: Scraped) -> None:
    expected = {"PenstockNodeDown", "PenstockBrokerFenced"}
    scraped.cluster.kill("broker 1")

    def has_fired() -> bool:
        firing = {name for name, state in scraped.prometheus.alerts().items() if state == "firing"}
        assert firing <= expected
        return firing == expected

    wait_until(has_fired, FIRING_S)


def test_every_dashboard_panel_has_data(scraped: Scraped) -> None:
    """Runs after the death of a broker, so others read its partitions from the store."""
    assert len(panels()) > 80
    deadline = time.monotonic() + DATA_S
    while missing := without_data(scraped.prometheus):
        assert time.monotonic() < deadline, "no data:\n" + "\n".join(missing)
        scraped.clients.work()
