"""`penstock.Cluster`: `topics` and `scan` read records that a Kafka client has written, and nothing
remains after close.
"""

import os
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Cluster, ClusterFailed, ManifestNotFound, scan, topics
from penstock.deploy.clients.state_file import is_running
from tests.support.waiting import PATIENCE_S, wait_until

COUNT = 100


def names_in(store: str) -> list[str]:
    try:
        return [topic.name for topic in topics(store)]
    except ManifestNotFound:
        return []


def test_producer_and_scan_use_an_in_memory_cluster() -> None:
    with Cluster(brokers=1, store="memory") as cluster:
        store, servers = cluster.store, cluster.bootstrap_servers
        with pytest.raises(ClusterFailed, match="already running"):
            cluster.start()
        admin = AdminClient({"bootstrap.servers": servers})
        topic = NewTopic("orders", 3, config={"retention.ms": "-1"})
        admin.create_topics([topic])["orders"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": servers})
        for number in range(COUNT):
            producer.produce("orders", str(number), partition=number % 3)
        assert producer.flush(PATIENCE_S) == 0
        deadline = time.monotonic() + PATIENCE_S
        while "orders" not in names_in(store):
            assert time.monotonic() < deadline
        (orders,) = [topic for topic in topics(store) if topic.name == "orders"]
        assert orders.partition_count == 3
        assert not orders.is_internal
        assert orders.configs["retention.ms"] == "-1"
        assert orders.configs["cleanup.policy"] == "delete"
        assert orders.configs["message.timestamp.type"] == "CreateTime"
        values = scan(store, "orders").to_table()["value"].to_pylist()
        assert sorted(int(value) for value in values) == list(range(COUNT))
        directory = Path(store.removeprefix("file:"))
        assert directory.is_dir()
        state = cluster._running().state()
        pids = [process.pid for process in state.processes if process.pid is not None] + [state.pid]
        assert os.getpid() not in pids
    assert not directory.exists()
    assert not any(is_running(pid) for pid in pids)
    with pytest.raises(ClusterFailed, match="not running"):
        _ = cluster.store


@pytest.mark.costly("three processes start")
def test_cluster_outlives_the_thread_that_started_it() -> None:
    cluster = Cluster()
    ids: list[int] = []

    def start() -> None:
        ids.append(threading.get_native_id())
        cluster.start()

    try:
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join()
        wait_until(lambda: not Path(f"/proc/self/task/{ids[0]}").exists())
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("orders", "paid")
        assert producer.flush(PATIENCE_S) == 0
        assert is_running(cluster._running().state().pid)
    finally:
        cluster.close()
