"""Client metrics reach Prometheus with the configuration of docs/how-to/monitor.md."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from penstock.controller.metadata.configs import CLIENT_METRICS_RESOURCE
from tests.support.clients import confluent_consumer, create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.prometheus import Prometheus
from tests.support.waiting import PATIENCE_S, until
from tests.tidy.repository import ROOT

pytestmark = pytest.mark.long
NAMED = {
    "org_apache_kafka_producer_request_latency_avg": "orders-writer",
    "org_apache_kafka_producer_record_queue_time_avg": "orders-writer",
    "org_apache_kafka_consumer_fetch_manager_fetch_latency_avg": "orders-reader",
    "org_apache_kafka_consumer_coordinator_rebalance_latency_total": "orders-reader",
}
"""Metrics in the guide, with the client that pushes each of them."""


def documented() -> dict[str, Any]:
    """Return the Prometheus configuration in the guide."""
    guide = (ROOT / "docs/how-to/monitor.md").read_text()
    (block,) = re.findall(r"```yaml\n( +otlp:\n.*?)```", guide, re.DOTALL)
    return dict(yaml.safe_load(block))


async def test_prometheus_has_the_documented_metrics_of_each_client(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    with Prometheus(tmp_path / "prometheus", {}, documented()) as prometheus:
        async with Cluster(
            tmp_path, brokers=2, client_metrics_otlp_endpoint=prometheus.otlp_url
        ) as cluster:
            await asyncio.to_thread(create_topic, cluster.bootstrap, "t", 2)
            subscription = (CLIENT_METRICS_RESOURCE, "s")
            configs = {"metrics": "*", "interval.ms": "500", "match": "client_id=orders-.*"}
            await asyncio.to_thread(alter_configs, cluster.bootstrap, subscription, configs)
            servers = {"bootstrap.servers": cluster.bootstrap}
            producer = Producer(servers | {"client.id": "orders-writer"})
            consumer = confluent_consumer(cluster.bootstrap, "g", client_id="orders-reader")
            consumer.subscribe(["t"])

            async def have_come() -> bool:
                producer.produce("t", b"x")
                await asyncio.to_thread(lambda: (producer.poll(0), consumer.poll(0.1)))
                return all(prometheus.query(name) for name in NAMED)

            await until(have_come)
            for name, client in NAMED.items():
                assert {series["metric"]["client_id"] for series in prometheus.query(name)} == {
                    client
                }, name
            await asyncio.to_thread(consumer.close)
            await asyncio.to_thread(producer.flush, PATIENCE_S)
            dropped = [
                broker.client_metrics.sender.counts.dropped
                for broker in cluster.brokers.values()
                if broker.client_metrics is not None
            ]
            assert dropped == [0, 0]
