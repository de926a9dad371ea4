"""`penstock topics offsets` and `penstock configs` report the same as Kafka's tools, for Apache
Kafka 4.2 and for Penstock.
"""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from penstock.base.log_levels import LOG_LEVELS, ROOT
from penstock.deploy.cli.app import app
from tests.interop.commands import TOOLS
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.java_tools import ToolRunner

TOPIC = "cli-admin"
START_MS = 1_700_000_000_000
LOGGERS = ("kafka.server.KafkaApis", "penstock.broker.groups")
"""A logger of Kafka, and one of Penstock."""
_LINE = re.compile(r" *(\S+?)=(.*) sensitive=")


@pytest.fixture
async def addresses(peer: str, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """Yield the addresses of Kafka and of Penstock."""
    async with Cluster(tmp_path, brokers=0) as cluster:
        await cluster.start_broker(1)
        yield peer, cluster.bootstrap
    LOG_LEVELS.unset(LOGGERS[1])  # levels of this test process


def _ours(address: str, *arguments: str) -> list[dict[str, str]]:
    """Return the CSV rows that a `penstock` command prints."""
    result = CliRunner().invoke(app, [*arguments, "-b", address])
    if result.exception is not None:
        raise result.exception
    return list(csv.DictReader(io.StringIO(result.stdout)))


def _kafkas(tools: ToolRunner, address: str, tool: str, *arguments: str) -> list[str]:
    done = tools.run(TOOLS[tool], ("--bootstrap-server", address, *arguments))
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def _fill(address: str) -> None:
    """Write records: the newest timestamp is not the last one, and the third partition is empty."""
    create_topic(address, TOPIC, 3, retention_ms="-1")
    producer = Producer({"bootstrap.servers": address})
    for partition, later_ms in ((0, 1_000), (0, 5_000), (0, 3_000), (0, 4_000), (1, 0)):
        at_ms = START_MS + later_ms
        producer.produce(TOPIC, b"v", partition=partition, timestamp=at_ms)
        assert producer.flush(TIMEOUT_S) == 0


def _offsets(address: str, time: str) -> list[str]:
    """Return the lines that Kafka's tool would print: those with an offset."""
    rows = _ours(address, "topics", "offsets", TOPIC, "--time", time, "-o", "csv")
    assert [row["partition"] for row in rows] == ["0", "1", "2"]
    return [":".join(row.values()) for row in rows if row["offset"]]


async def test_offsets_equal_those_of_kafka_tools(
    addresses: tuple[str, str], tools: ToolRunner
) -> None:
    for address in addresses:
        await asyncio.to_thread(_fill, address)
    found: dict[str, list[str]] = {}
    for time in (
        *("latest", "earliest", "max-timestamp", "earliest-local", "latest-tiered"),
        *("earliest-pending-upload", "-1", "-2", "-3"),
        *(str(START_MS + later_ms) for later_ms in (0, 1_001, 5_000, 5_001)),
    ):
        arguments = ("--topic", TOPIC, "--time", time)
        for address in addresses:
            expected = await asyncio.to_thread(
                _kafkas, tools, address, "kafka-get-offsets", *arguments
            )
            found[time] = await asyncio.to_thread(_offsets, address, time)
            assert found[time] == expected, (time, address)
    assert found["latest"] == [f"{TOPIC}:0:4", f"{TOPIC}:1:1", f"{TOPIC}:2:0"]
    assert found["max-timestamp"] == [f"{TOPIC}:0:1", f"{TOPIC}:1:0"]
    assert found[str(START_MS + 5_001)] == []
    assert await asyncio.to_thread(_offsets, addresses[1], "2023-11-14T23:13:21+01:00") == (
        await asyncio.to_thread(_offsets, addresses[1], str(START_MS + 1_000))
    )


def _set_configs(tools: ToolRunner, address: str, *named: str) -> dict[str, str]:
    """Set configs and return what kafka-configs describes."""
    lines = _kafkas(tools, address, "kafka-configs", "--describe", *named)
    return dict(found.group(1, 2) for line in lines if (found := _LINE.match(line)))


def _our_configs(address: str, *named: str) -> dict[str, str]:
    rows = _ours(address, "configs", "describe", *named, "-o", "csv")
    return {row["name"]: row["value"] for row in rows}


async def test_logger_levels_equal_those_of_kafka_tools(
    addresses: tuple[str, str], tools: ToolRunner
) -> None:
    named = ("--broker-logger", "1")

    def levels(address: str, logger: str) -> dict[str, str]:
        """Return the levels of two loggers. Kafka lists a logger only after its first use."""
        ours, kafkas = _our_configs(address, *named), _set_configs(tools, address, *named)
        assert {name: ours[name] for name in (ROOT, logger)} == {
            name: kafkas[name] for name in (ROOT, logger)
        }
        return {name: ours[name] for name in (ROOT, logger)}

    def compare(address: str, logger: str) -> None:
        before = levels(address, logger)
        assert before[logger] != "DEBUG"
        _ours(address, "configs", "alter", *named, "--set", f"{logger}=DEBUG")
        assert levels(address, logger) == before | {logger: "DEBUG"}
        _kafkas(
            tools, address, "kafka-configs", "--alter", *named, "--add-config", f"{logger}=ERROR"
        )
        assert levels(address, logger) == before | {logger: "ERROR"}
        _ours(address, "configs", "alter", *named, "--delete", logger)
        assert levels(address, logger) == before

    for address, logger in zip(addresses, LOGGERS, strict=True):
        await asyncio.to_thread(compare, address, logger)


async def test_client_metrics_subscriptions_equal_those_of_kafka_tools(
    addresses: tuple[str, str], tools: ToolRunner
) -> None:
    named = ("--client-metrics", "cli-slow")

    def compare(address: str) -> None:
        _ours(address, "configs", "alter", *named, "--set", "metrics=a,b", "--set", "match=")
        set_here = _our_configs(address, *named)
        assert set_here == _set_configs(tools, address, *named) == {"metrics": "a,b", "match": ""}
        added = ("--add-config", "interval.ms=60000")
        _kafkas(tools, address, "kafka-configs", "--alter", *named, *added)
        assert _our_configs(address, *named) == set_here | {"interval.ms": "60000"}
        assert {"type": "client-metrics", "name": "cli-slow"} in _ours(
            address, "configs", "list", "-o", "csv"
        )
        deleted = ("--delete", "metrics", "--delete", "match", "--delete", "interval.ms")
        _ours(address, "configs", "alter", *named, *deleted)
        assert _our_configs(address, *named) == _set_configs(tools, address, *named) == {}

    for address in addresses:
        await asyncio.to_thread(compare, address)
