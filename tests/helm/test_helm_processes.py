"""Run the chart's commands, variables and probes with processes in place of pods."""

import shutil
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.chart import render
from tests.support.chart_cluster import ChartCluster
from tests.support.node_ports import NodePorts
from tests.support.ports import free_port
from tests.support.store_servers import s3_server
from tests.support.waiting import PATIENCE_S

VALUES = {
    "store.bucket": "records",
    "security.allowInsecure": True,
    "moto.enabled": True,
    "brokers.replicas": 2,
    "brokers.redirectSeconds": 1,
    "config.broker": {"group.initial.rebalance.delay.ms": 0},
    "externalListeners": {"NODES": {"type": "NodePort", "port": 9094, "firstNodePort": 31001}},
}

SILENT_S = 100
"""Much longer than a redirected client waits, on any machine."""


class Load:
    """Produce numbers until `stop`, at the latest until the `with` block ends.

    `failed` contains the errors of all delivery reports; `longest_wait_s` is the longest time from
    sending a record to its acknowledgement.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partition: int = -1,
        interval_s: float = 0.03,
        response_s: int = 10,
    ) -> None:
        """response_s: how long a new connection waits for its first response."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": PATIENCE_S * 1_000,
                "api.version.request.timeout.ms": response_s * 1_000,
            }
        )
        self._topic = topic
        self._partition = partition
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: set[int] = set()
        self.failed: list[KafkaError] = []
        self.longest_wait_s = 0.0
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(
                self._topic, b"%d" % number, partition=self._partition, on_delivery=self._delivered
            )
            number += 1
            due = time.monotonic() + self._interval_s
            while (left_s := due - time.monotonic()) > 0:
                self._producer.poll(left_s)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.add(int(message.value() or b""))
            self.longest_wait_s = max(self.longest_wait_s, message.latency() or 0.0)

    def wait(self, more: int) -> None:
        """Wait until this many more records are acknowledged."""
        aim, deadline = len(self.acknowledged) + more, time.monotonic() + PATIENCE_S
        while len(self.acknowledged) < aim:
            assert time.monotonic() < deadline, (len(self.acknowledged), aim, self.failed)
            time.sleep(0.01)

    def stop(self) -> list[int]:
        self._stopping.set()
        self._thread.join()
        return sorted(self.acknowledged)


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [
            int(message.value() or b"")
            for message in consumer.consume(1_000, 0.2)
            if message.error() is None
        ]
    consumer.close()
    return sorted(found)


def test_a_controller_can_be_replaced_after_losing_its_volume(tmp_path: Path) -> None:
    """Follow docs/how-to/kubernetes.md: restart the other controllers so that they no longer found
    a cluster, remove the lost one, start it with an empty volume and add it again.
    """
    one_broker = {**VALUES, "brokers.replicas": 1}
    with ChartCluster(render(one_broker), tmp_path) as cluster:
        cluster.wait_ready()
        cluster.stop("penstock-controller-2")
        shutil.rmtree(tmp_path / "penstock-controller-2")
        cluster.upgrade(render({**one_broker, "controllers.founding": False}))
        cluster.roll("controller")
        others = ",".join(
            f"127.0.0.1:{cluster.port(f'penstock-controller-{number}', 9093)}" for number in (0, 1)
        )
        cluster.command("quorum", "remove", "2", "--controller", others)
        cluster.start("penstock-controller", 2)
        cluster.command("quorum", "add", "2", "--controller", others, retry=True)
        cluster.wait_ready()
        assert (
            "[0,1,2]"
            in cluster.command("quorum", "describe", "--controller", others).partition(
                "CurrentObservers"
            )[0]
        )
        assert "three records came back" in cluster.run_test()


def test_the_recovery_job_restores_a_cluster_without_volumes(tmp_path: Path) -> None:
    """Follow the section "Restore lost controllers" of docs/how-to/kubernetes.md."""
    with s3_server("moto", tmp_path) as server:
        store = server.new_bucket()
        values = {
            "store.bucket": store.bucket,
            "store.endpoint": store.endpoint,
            "store.credentials.accessKeyId": store.access_key,
            "store.credentials.secretAccessKey": store.secret_key,
            "security.allowInsecure": True,
            "brokers.replicas": 1,
            "config.broker": {"group.initial.rebalance.delay.ms": 0},
        }
        with ChartCluster(render(values), tmp_path) as cluster:
            cluster.wait_ready()
            with Load(cluster.bootstrap, "numbers") as load:
                load.wait(100)
            sent = load.stop()
            for pod in list(cluster.running):
                running = cluster.running.pop(pod)
                running.process.kill()
                running.process.wait()
            for controller in tmp_path.glob("penstock-controller-?"):
                shutil.rmtree(controller)

            job = "penstock-recover-1"
            cluster.upgrade(render({**values, "recover.enabled": True}))
            with pytest.raises(AssertionError, match="something was written"):
                cluster.run_job(job)
            cluster.upgrade(render({**values, "recover.enabled": True, "recover.force": True}))
            assert "recovered: the new history begins" in cluster.run_job(job)

            cluster.upgrade(render(values))
            cluster.start_all()
            cluster.wait_ready()
            assert consume(cluster.bootstrap, "numbers", len(sent)) == sent
            assert "three records came back" in cluster.run_test()


def test_helm_test_rolling_upgrade_and_scaling_under_load(tmp_path: Path) -> None:
    """Run the chart's `helm test`. Then replace every broker and controller, and change the number
    of brokers, all under load. No record may fail or get lost.
    """
    with ChartCluster(render(VALUES), tmp_path) as cluster:
        cluster.wait_ready()
        assert "three records came back" in cluster.run_test()
        brokers = (
            AdminClient({"bootstrap.servers": cluster.bootstrap})
            .list_topics(timeout=PATIENCE_S)
            .brokers
        )
        assert {(it.id, it.host, it.port) for it in brokers.values()} == {
            (ordinal, "127.0.0.1", cluster.port(f"penstock-broker-{ordinal}", 9092))
            for ordinal in range(2)
        }
        with Load(cluster.bootstrap, "numbers") as load:
            load.wait(30)
            cluster.roll("broker")
            load.wait(30)
            cluster.roll("controller")
            cluster.scale("broker", 3)
            load.wait(30)
            cluster.scale("broker", 1)
            load.wait(30)
        sent = load.stop()
        assert load.failed == []
        assert consume(cluster.bootstrap, "numbers", len(sent)) == sent
        outside = f"127.0.0.1:{cluster.port('penstock-broker-0', 9094)}"
        reported = (
            AdminClient({"bootstrap.servers": outside}).list_topics(timeout=PATIENCE_S).brokers
        )
        assert {(it.id, it.host, it.port) for it in reported.values()} == {(0, "127.0.0.1", 31001)}


def test_clients_are_redirected_from_the_address_of_a_deleted_pod(tmp_path: Path) -> None:
    """Each producer sends so rarely that it learns the new leader only from the redirection.
    Without it, the producer would connect to the old address again: librdkafka gives up after
    `SILENT_S` here, because the connection is accepted, and after 30 s in a pod network.
    """
    first = 20_100 + 10 * (free_port() % 500)  # two consecutive ports above those of free_port
    values = VALUES | {
        "brokers.redirectSeconds": 10,
        "controllers.replicas": 1,
        "externalListeners.NODES.firstNodePort": first,
    }
    with ChartCluster(render(values), tmp_path) as cluster:
        pods = {first + id_: cluster.port(f"penstock-broker-{id_}", 9094) for id_ in range(2)}
        with NodePorts(pods) as network, ExitStack() as running:
            cluster.wait_ready()
            topic = NewTopic("numbers", 2, replica_assignment=[[0, 1], [1, 0]])
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            admin.create_topics([topic])["numbers"].result()
            bootstrap = ",".join(f"127.0.0.1:{port}" for port in pods)
            loads = [
                running.enter_context(
                    Load(
                        bootstrap,
                        "numbers",
                        partition=partition,
                        interval_s=1.0,
                        response_s=SILENT_S,
                    )
                )
                for partition in range(2)
            ]
            for ordinal in (1, 0):
                for load in loads:
                    load.wait(2)
                assert cluster.stop(f"penstock-broker-{ordinal}") == 0
                for load in loads:
                    load.wait(2)
                cluster.start("penstock-broker", ordinal)
                cluster.wait_ready(f"penstock-broker-{ordinal}")
    assert network.refused == {}
    assert [load.failed for load in loads] == [[], []]
    assert max(load.longest_wait_s for load in loads) < SILENT_S


def test_a_broker_without_its_store_is_live_but_not_ready(tmp_path: Path) -> None:
    """The readiness response contains the store as the reason."""
    values = {**VALUES, "brokers.replicas": 1, "controllers.replicas": 1}
    with ChartCluster(render(values), tmp_path) as cluster:
        cluster.wait_ready()
        cluster.running["penstock-moto-0"].process.kill()
        cluster.running["penstock-moto-0"].process.wait()
        deadline = time.monotonic() + PATIENCE_S
        while (said := cluster.probe("penstock-broker-0", "readiness"))[0] == 200:
            assert time.monotonic() < deadline, (
                "the broker stays ready although its store is unreachable"
            )
            time.sleep(0.2)
        assert said[0] == 503
        assert "the store" in said[1]
        assert cluster.probe("penstock-broker-0", "liveness")[0] == 200, (
            "a restart of the broker would not repair the store"
        )


def test_a_broker_without_controllers_is_live_but_not_started(tmp_path: Path) -> None:
    values = {**VALUES, "brokers.replicas": 1, "controllers.replicas": 1}
    objects = [it for it in render(values) if it["metadata"]["name"] != "penstock-controller"]
    with ChartCluster(objects, tmp_path) as cluster:
        deadline = time.monotonic() + PATIENCE_S
        while (said := cluster.probe("penstock-broker-0", "startup"))[0] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert said == (
            503,
            "the broker is looking for a controller or catching up with its metadata\n",
        )
        assert cluster.probe("penstock-broker-0", "readiness")[0] == 503
        assert cluster.probe("penstock-broker-0", "liveness")[0] == 200
