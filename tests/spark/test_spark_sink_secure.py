"""Write to a secure cluster with the properties of Java clients, without a JVM."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.deploy.clients.security import read_file
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.spark.sink.errors import ProducerFailed, TransactionFailed, WriteFailed
from penstock.lake.spark.sink.options import parse_write
from penstock.lake.spark.sink.transaction import Transaction, WriteId
from penstock.lake.spark.sink.writers import BatchWriter
from tests.support.dev_cluster import PENSTOCK, DevCluster
from tests.support.waiting import PATIENCE_S, wait_until

TABLE = pa.table({"value": ["one", "two"]})


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    arguments = ["--secure", "--store", "memory", "--log-level", "error"]
    with DevCluster([*arguments, "--topics", "plain,once,limited"]) as running:
        yield running


def options_of(cluster: LocalCluster) -> dict[str, str]:
    """Return the options of `format("kafka")` for the cluster's client.properties."""
    lines = Path(cluster.state().command_config).read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines)
    assert given.keys() >= {"sasl.jaas.config", "ssl.truststore.location", "ssl.truststore.type"}
    named = {f"kafka.{name}": value for name, value in given.items()}
    return {"kafka.bootstrap.servers": cluster.bootstrap, **named}


def values_of(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    security = read_file(Path(cluster.state().command_config)).properties()
    more = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **more, **security})
    consumer.subscribe([topic])
    found = consumer.consume(count, PATIENCE_S)
    consumer.close()
    return [message.value() or b"" for message in found]


def test_task_writes_with_java_client_properties(cluster: LocalCluster) -> None:
    options = options_of(cluster) | {"topic": "plain"}
    writer = BatchWriter(options, from_arrow_schema(TABLE.schema), overwrite=False)
    assert writer.write(iter(TABLE.to_batches())).row_count == 2
    assert values_of(cluster, "plain", 2) == [b"one", b"two"]


def test_transaction_writes_with_java_client_properties(cluster: LocalCluster) -> None:
    """Its consumer, which looks for an earlier commit, connects with the same settings."""
    once = {"topic": "once", "exactlyOnce": "true", "store": "s3://unused"}
    options = parse_write(options_of(cluster) | once, streaming=True, overwrite=False)
    transaction = Transaction(options, WriteId("job", 1, "me"))
    assert transaction.commit(lambda: iter(TABLE.to_batches()))
    assert not Transaction(options, WriteId("job", 1, "me")).commit(
        lambda: iter(TABLE.to_batches())
    )
    assert values_of(cluster, "once", 2) == [b"one", b"two"]
    unverified = {"kafka.enable.ssl.certificate.verification": "false"}
    given = {name: value for name, value in options_of(cluster).items() if "truststore" not in name}
    options = parse_write(given | once | unverified, streaming=True, overwrite=False)
    assert not Transaction(options, WriteId("job", 1, "me")).commit(list)


def penstock(cluster: LocalCluster, *arguments: str) -> None:
    config = ("--command-config", cluster.state().command_config)
    subprocess.run(
        (*PENSTOCK, *config, *arguments, "--bootstrap", cluster.bootstrap),
        env=os.environ | {"PENSTOCK_USER_PASSWORD": "secret of spark"},
        check=True,
        timeout=PATIENCE_S,
    )


def test_documented_rights_are_sufficient_and_necessary_for_a_transaction(
    cluster: LocalCluster,
) -> None:
    """Grants the rights one after the other; every write before the last one fails."""
    penstock(cluster, "users", "create", "spark")
    options = options_of(cluster) | {"topic": "limited", "exactlyOnce": "true"}
    options |= {"store": "s3://unused", "kafka.delivery.timeout.ms": "10000"}
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    options["kafka.sasl.jaas.config"] = f'{login} username="spark" password="secret of spark";'
    parsed = parse_write(options, streaming=True, overwrite=False)

    def commit(version: int) -> bool:
        transaction = Transaction(parsed, WriteId("limited", version, "me"))
        return transaction.commit(lambda: iter(TABLE.to_batches()))

    rights = (
        ("--topic", "limited", "--operation", "write"),
        ("--transactional-id", "penstock-spark-", "--prefix", "--operation", "write"),
        ("--group", "penstock-spark-", "--prefix", "--operation", "read"),
        ("--topic", "__consumer_offsets", "--operation", "read"),
    )
    for right in rights:
        with pytest.raises((TransactionFailed, WriteFailed, ProducerFailed)):
            commit(1)
        penstock(cluster, "acls", "add", "--principal", "User:spark", *right)

    def is_committed() -> bool:
        """Return whether the transaction is committed, which takes longer on a slow machine."""
        try:
            return commit(1)
        except (TransactionFailed, WriteFailed, ProducerFailed):
            return False

    wait_until(is_committed)
    assert not commit(1)


def test_wrong_password_fails_the_task(cluster: LocalCluster) -> None:
    options = options_of(cluster) | {"topic": "plain"}
    right = "kafka.sasl.jaas.config"
    options[right] = options[right].replace('password="', 'password="wrong')
    for limit_ms in (5_000, 30_000, 120_000):  # on a slow machine, the login takes longer
        options["kafka.delivery.timeout.ms"] = str(limit_ms)
        writer = BatchWriter(options, from_arrow_schema(TABLE.schema), overwrite=False)
        with pytest.raises(WriteFailed) as failed:
            writer.write(iter(TABLE.to_batches()))
        if "uthentication" in str(failed.value):
            break
    assert "uthentication" in str(failed.value)
