"""`penstock configs` against real brokers."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from penstock.base.errors import ExpectedError
from penstock.base.log_levels import LOG_LEVELS
from penstock.broker.handlers.configs.loggers import LOGGERS
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import UsageError
from penstock.deploy.local.contents import create_topics
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cli import Cli
from tests.support.cluster import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.cluster(brokers=2, connections_max=50)


@pytest.fixture
def cli(cluster: Cluster, tmp_path: Path) -> Cli:
    return Cli(cluster, tmp_path)


async def test_only_seeded_topics_retain_records_of_any_age(cluster: Cluster, cli: Cli) -> None:
    """`dev --topics` creates topics with the same defaults as `topics create`."""

    def retention(name: str, *, keeps_all: bool) -> str:
        create_topics(cluster.bootstrap, {name: 1}, keeps_all=keeps_all)
        return Kafka(cluster.bootstrap).topic_config(name)["retention.ms"]

    await cli.run("topics", "create", "orders")
    kafka = await asyncio.to_thread(Kafka, cluster.bootstrap)
    default = (await asyncio.to_thread(kafka.topic_config, "orders"))["retention.ms"]
    assert await asyncio.to_thread(retention, "a", keeps_all=False) == default != "-1"
    assert await asyncio.to_thread(retention, "b", keeps_all=True) == "-1"


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ("retention.ms=1h", "3600000"),
        ("retention.ms=-1", "-1"),
        ("retention.bytes=1.5GiB", "1610612736"),
        ("min.insync.replicas=1h", None),
        ("retention.ms=1hour", None),
        ("retention.bytes=1h", None),
    ],
)
async def test_time_and_size_configs_accept_units(
    cli: Cli, config: str, stored: str | None
) -> None:
    name, _, value = config.partition("=")
    await cli.run("topics", "create", "orders")
    topics = {"topics": [{"name": "applied", "configs": {name: value}}]}
    for topic, command in (
        ("orders", ("configs", "alter", "--topic", "orders", "--set", config)),
        ("created", ("topics", "create", "created", "--config", config)),
        ("applied", ("topics", "apply", cli.file("topics.json", topics))),
    ):
        if stored is None:
            with pytest.raises(ExpectedError, match=re.escape(value)):
                await cli.run(*command)
            continue
        await cli.run(*command)
        described = json.loads(await cli.run("configs", "describe", "--topic", topic, "--json"))
        assert {item["name"]: item["value"] for item in described}[name] == stored


async def test_broker_configs_are_altered_and_described(cluster: Cluster, cli: Cli) -> None:
    for target, value in (("--all-brokers", "60"), ("--broker=1", "70")):
        shown = await cli.run("configs", "alter", target, "--set", f"max.connections={value}")
        assert shown == "Changed max.connections\n"
    await until(lambda: [b.config.connections_max for b in cluster.brokers.values()] == [60, 70])
    (found,) = json.loads(await cli.run("configs", "describe", "--broker", "1", "--json"))
    assert "connections" in found.pop("doc")
    assert found == {
        "name": "max.connections",
        "kind": "long",
        "value": "70",
        "source": "broker",
        "live": True,
        "others": [["60", "all brokers"], ["50", "process"], ["10000", "default"]],
    }
    shown = await cli.run("configs", "describe", "--broker", "1")
    assert "60 (all brokers), 50 (process), 10000 (default)" in shown
    assert [cell.strip("┃ ") for cell in shown.splitlines()[2].split("┃")[1:-1]] == [
        *("name", "value", "source", "fallback"),
    ]
    every = json.loads(await cli.run("configs", "describe", "--broker", "0", "--all", "--json"))
    assert {"node.id", "max.connections"} <= {item["name"] for item in every}
    await cli.run("configs", "alter", "--broker", "1", "--delete", "max.connections")
    await until(lambda: cluster.brokers[1].config.connections_max == 60)


async def test_group_and_topic_configs_are_altered_and_described(cli: Cli) -> None:
    await cli.run("topics", "create", "t")
    for target, config in (
        ("--group=g", "consumer.session.timeout.ms=50000"),
        ("--topic=t", "retention.ms=5000"),
    ):
        name, value = config.split("=")
        would = await cli.run("configs", "alter", target, "--set", config, "--dry-run")
        assert would.startswith(f"would change {name} from ")
        assert would.endswith(f" to {value}\n")
        before = await cli.run("configs", "describe", target, "--json")
        assert config.split("=")[1] not in before
        await cli.run("configs", "alter", target, "--set", config)
        (found,) = json.loads(await cli.run("configs", "describe", target, "--json"))
        assert f"{found['name']}={found['value']}" == config


async def test_logger_levels_are_altered_and_described(cluster: Cluster, cli: Cli) -> None:
    logger, own = "penstock.broker.groups", ("--broker-logger", "1")
    described = ("configs", "describe", *own, "--json")
    before = {item["name"]: item for item in json.loads(await cli.run(*described))}
    assert before.keys() == set(LOGGERS)
    assert before[logger]["source"] == "logger"
    level = before[logger]["value"]
    assert level == LOG_LEVELS.of(logger) != "DEBUG"
    change = ("configs", "alter", *own, "--set", f"{logger}=DEBUG")
    would = await cli.run(*change, "--dry-run")
    assert would == f"would change {logger} from {level} to DEBUG\n"
    assert LOG_LEVELS.of(logger) == level
    try:
        await cli.run(*change)
        assert LOG_LEVELS.of(logger) == "DEBUG"
        after = {item["name"]: item["value"] for item in json.loads(await cli.run(*described))}
        assert after == {name: item["value"] for name, item in before.items()} | {logger: "DEBUG"}
        await cli.run("configs", "alter", *own, "--delete", logger)
        assert LOG_LEVELS.of(logger) == level
    finally:
        LOG_LEVELS.unset(logger)  # levels of this test process


async def test_client_metrics_subscriptions_are_altered_and_described(
    cluster: Cluster, cli: Cli
) -> None:
    named = ("--client-metrics", "slow")
    assert json.loads(await cli.run("configs", "list", "--json")) == []
    await cli.run("configs", "alter", *named, "--set", "interval.ms=60000", "--set", "metrics=a,b")
    await cli.run("configs", "alter", "--group=g", "--set", "consumer.session.timeout.ms=50000")
    found = json.loads(await cli.run("configs", "describe", *named, "--json"))
    assert [(item["name"], item["value"], item["source"]) for item in found] == [
        ("interval.ms", "60000", "client metrics"),
        ("metrics", "a,b", "client metrics"),
    ]
    every = json.loads(await cli.run("configs", "describe", *named, "--all", "--json"))
    assert [item["name"] for item in every] == ["interval.ms", "match", "metrics"]
    assert json.loads(await cli.run("configs", "list", "--json")) == [
        {"type": "client-metrics", "name": "slow"},
        {"type": "group", "name": "g"},
    ]
    deleted = ("--delete", "interval.ms", "--delete", "metrics")
    await cli.run("configs", "alter", *named, *deleted)
    assert json.loads(await cli.run("configs", "list", "-o", "json")) == [
        {"type": "group", "name": "g"}
    ]


def descriptor_set(path: Path) -> Path:
    file = FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="Order")
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    return path


async def test_config_values_can_be_read_from_a_file(cli: Cli) -> None:
    """A binary descriptor set is encoded as Base64."""
    path = descriptor_set(Path(cli.file("order.pb", "")))
    proto = ("--config", "penstock.value.schema.type=protobuf")
    await cli.run("topics", "create", "p", *proto, "-c", f"penstock.value.schema=@{path}")
    text = cli.file("order.json", '{"type": "object"}')
    await cli.run("topics", "create", "t", "--config", f"penstock.value.schema=@{text}")
    change = ("--topic=t", "--set", f"penstock.key.schema=@{text}")
    await cli.run("configs", "alter", *change)
    found = json.loads(await cli.run("topics", "describe", "t", "--json"))["configs"]
    assert found["penstock.value.schema"] == found["penstock.key.schema"] == '{"type": "object"}'
    await cli.run("produce", "t", "--value", "{}")
    with pytest.raises(ExpectedError, match=r"the value's schema in penstock\.value\.schema"):
        await cli.run("produce", "t", "--value", "[]")
    with pytest.raises(UsageError, match=r"retention\.ms='x' is not .* ms, s, min, h or d"):
        await cli.run("configs", "alter", "--topic=t", "--set", "retention.ms=x", "--dry-run")
    broken = cli.file("broken.json", '{"type":\n}')
    with pytest.raises(KafkaFailed, match="line 2 column 1"):
        await cli.run("configs", "alter", "--topic=t", "--set", f"penstock.key.schema=@{broken}")
    with pytest.raises(UsageError, match="No such file"):
        await cli.run("configs", "alter", "--topic=t", "--set", "penstock.key.schema=@none.json")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("alter", "--broker", "1", "--set", "node.id=3"), KafkaFailed, "node.id"),
        (("alter", "--broker", "1", "--delete", "max.connections"), UsageError, "is not set"),
        (("alter", "--group", "g", "--delete", "x", "--dry-run"), UsageError, "is not set"),
        (("alter", "--broker-logger", "1", "--set", "root=LOUD"), KafkaFailed, "Valid log levels"),
        (("alter", "--broker-logger", "1", "--set", "none=INFO"), KafkaFailed, "does not exist"),
        (("alter", "--broker-logger", "1", "--delete", "root"), KafkaFailed, "not allowed"),
        (("describe", "--broker-logger", "7"), KafkaFailed, "brokers: 0, 1"),
        (("alter", "--client-metrics", "m", "--set", "interval.ms=1"), KafkaFailed, "100 and 36"),
        (("alter", "--client-metrics", "m", "--set", "x=1"), KafkaFailed, "Unknown client metrics"),
        (("alter", "--broker", "1", "--set", "max.connections=0"), KafkaFailed, "1 to 1000000"),
        (("alter", "--broker", "7", "--set", "max.connections=5"), KafkaFailed, "brokers: 0, 1"),
        (("alter", "--group", "g", "--set", "x=5"), KafkaFailed, "Unknown group config name: x"),
        (("alter", "--broker", "1"), UsageError, "nothing to change"),
        (("alter", "--broker", "1", "--set", "max.connections"), UsageError, "KEY=VALUE"),
        (("describe",), UsageError, "specify one of"),
        (("describe", "--broker", "1", "--topic", "t"), UsageError, "specify one of"),
        (("describe", "--topic", "none"), KafkaFailed, "none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_arguments_are_refused_with_an_explanation(
    shared_cluster: Cluster,
    tmp_path: Path,
    arguments: tuple[str, ...],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        await Cli(shared_cluster, tmp_path).run("configs", *arguments)
