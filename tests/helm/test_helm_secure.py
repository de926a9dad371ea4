"""Run a secure chart with processes in place of pods: TLS and SCRAM, client certificates, ACLs
defined in the chart, TLS between nodes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.deploy.local.certificates import Authority
from tests.support.chart import render
from tests.support.chart_cluster import ChartCluster
from tests.support.store_servers import s3_server
from tests.support.waiting import PATIENCE_S, wait_until

HOSTS = ("127.0.0.1", "localhost")
VALUES = {
    "brokers.replicas": 2,
    "controllers.replicas": 1,
    "config.broker": {
        "group.initial.rebalance.delay.ms": 0,
        "listener.name.out_side.ssl.client.auth": "required",
    },
    "listener.security": "SASL_SSL",
    "externalListeners": {
        "OUT_SIDE": {
            "type": "NodePort",
            "port": 9094,
            "firstNodePort": 31001,
            "security": "SSL",
            "tlsSecret": "outside",
        },
        "PLAIN": {
            "type": "ClusterIP",
            "host": "127.0.0.1",
            "port": 9095,
            "saslMechanisms": ["PLAIN"],
        },
    },
    "security.tls.secret": "listeners",
    "security.sasl.usersSecret": "users",
    "security.sasl.scramUsersSecret": "scram-users",
    "topics": [{"name": "invoices", "partitions": 2, "configs": {"cleanup.policy": "compact"}}],
    "security.acls": {
        "enabled": True,
        "first": [["--topic", "orders", "--principal", "User:shop", "--operation", "write"]],
    },
    "nodeTls": {"controllerSecret": "controller", "brokerSecret": "broker"},
}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Create the secrets as cert-manager and an operator do."""
    names = (
        "listeners",
        "outside",
        "users",
        "scram-users",
        "controller",
        "broker",
        "admin",
        "client",
    )
    found = {name: tmp_path_factory.mktemp(name) for name in names}
    inside, outside, nodes = map(Authority.make, ("CA inside", "CA outside", "nodes"))
    for name, authority in (("listeners", inside), ("outside", outside), ("client", outside)):
        issued = authority.issue(name, hosts=HOSTS)
        (found[name] / "tls-combined.pem").write_bytes(issued.keystore)
        (found[name] / "ca.crt").write_bytes(authority.pem)
    for role in ("controller", "broker", "admin"):
        issued = nodes.issue(f"penstock-{role}", hosts=HOSTS)
        (found[role] / "tls.crt").write_bytes(issued.certificate)
        (found[role] / "tls.key").write_bytes(issued.key)
        (found[role] / "ca.crt").write_bytes(nodes.pem)
    (found["users"] / "users").write_text("broker:of the brokers\nshop:of the shop\n")
    (found["scram-users"] / "clerk").write_text("of the clerk")
    return found


@pytest.fixture(scope="module")
def cluster(
    secrets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChartCluster]:
    with s3_server("moto", tmp_path_factory.mktemp("store")) as server:
        bucket = server.new_bucket()
        store = {
            "store.bucket": bucket.bucket,
            "store.endpoint": bucket.endpoint,
            "store.credentials.accessKeyId": bucket.access_key,
            "store.credentials.secretAccessKey": bucket.secret_key,
        }
        chart = render(VALUES | store)
        with ChartCluster(chart, tmp_path_factory.mktemp("chart"), secrets) as running:
            running.wait_ready()
            yield running


def as_user(cluster: ChartCluster, secrets: dict[str, Path], name: str, password: str) -> Any:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": name,
        "sasl.password": password,
        "ssl.ca.location": str(secrets["listeners"] / "ca.crt"),
        "log_level": 0,
    }


def failure(settings: dict[str, Any], topic: str) -> str:
    """Return why a record was not acknowledged; empty if it was."""
    reported: list[str] = []
    producer = Producer(settings | {"message.timeout.ms": PATIENCE_S * 1_000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: reported.append(str(error or "")))
    producer.flush(PATIENCE_S)
    return reported[0]


def test_clients_get_the_rights_and_topics_defined_in_the_chart(
    cluster: ChartCluster, secrets: dict[str, Path]
) -> None:
    assert "three records came back" in cluster.run_test()
    for _ in range(2):  # an upgrade runs the job again
        cluster.run_job("penstock-setup")
    shop = as_user(cluster, secrets, "shop", "of the shop")
    assert failure(as_user(cluster, secrets, "broker", "of the brokers"), "orders") == ""
    # The leader may learn of the ACL a moment later than the broker that responded to the job.
    wait_until(lambda: failure(shop, "orders") == "")
    assert "uthoriz" in failure(shop, "secrets")
    clerk = AdminClient(as_user(cluster, secrets, "clerk", "of the clerk"))
    assert "invoices" not in clerk.list_topics(timeout=PATIENCE_S).topics
    admin = AdminClient(as_user(cluster, secrets, "broker", "of the brokers"))
    assert len(admin.list_topics("invoices", timeout=PATIENCE_S).topics["invoices"].partitions) == 2
    wrong = as_user(cluster, secrets, "shop", "of someone else")
    with pytest.raises(KafkaException):
        AdminClient(wrong).list_topics(timeout=3)


def test_an_additional_listener_accepts_only_its_mechanism(
    cluster: ChartCluster, secrets: dict[str, Path]
) -> None:
    address = {"bootstrap.servers": f"127.0.0.1:{cluster.port('penstock-broker-0', 9095)}"}
    shop = as_user(cluster, secrets, "shop", "of the shop") | address
    assert AdminClient(shop | {"sasl.mechanism": "PLAIN"}).list_topics(timeout=PATIENCE_S).brokers
    with pytest.raises(KafkaException):
        AdminClient(shop).list_topics(timeout=3)


def test_an_additional_listener_requires_certificates_of_its_own_ca(
    cluster: ChartCluster, secrets: dict[str, Path]
) -> None:
    outside = {
        "bootstrap.servers": f"127.0.0.1:{cluster.port('penstock-broker-0', 9094)}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(secrets["client"] / "ca.crt"),
        "log_level": 0,
    }
    keystore = str(secrets["client"] / "tls-combined.pem")
    own = {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    assert len(AdminClient(outside | own).list_topics(timeout=PATIENCE_S).brokers) == 2
    with pytest.raises(KafkaException):
        AdminClient(outside).list_topics(timeout=3)


def test_controllers_accept_only_operators_with_certificates(
    cluster: ChartCluster, secrets: dict[str, Path]
) -> None:
    address = f"127.0.0.1:{cluster.port('penstock-controller-0', 9093)}"
    status = ("quorum", "describe", "--controller", address)
    with pytest.raises(AssertionError, match=r"controller\.ssl"):
        cluster.command(*status)
    admin = {
        f"PENSTOCK_CONTROLLER_SSL_{name}_LOCATION": str(secrets["admin"] / file)
        for name, file in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt"))
    }
    assert "LeaderId" in cluster.command(*status, variables=admin)
