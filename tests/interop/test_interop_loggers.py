"""Broker logger levels compared with Apache Kafka 4.2: both get the same requests and tools. Both
have a logger `root`; the other logger differs.
"""

import asyncio
from collections.abc import AsyncIterator
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from penstock.base.log_levels import LOG_LEVELS, ROOT
from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tests.interop.both import Both
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.java import JavaHome

CONFIGS = "kafka.admin.ConfigCommand"
LOGGER_RESOURCE, NODE_ID = 8, 1
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
LOGGERS = ("kafka.server.KafkaApis", "penstock.broker.groups")
"""A logger of each side, in the order of Both.addresses. X stands for it in the requests."""
Change: TypeAlias = tuple[str, int, str | None]
CHANGES: tuple[tuple[str, tuple[Change, ...]], ...] = (
    *(
        ("1", (("X", SET, level),))
        for level in ("DEBUG", "debug", "WARN", "WARNING", "FATAL", "OFF", "", " INFO ", None)
    ),
    ("1", (("X", DELETE, None),)),
    ("1", ((ROOT, SET, "ERROR"),)),
    ("1", (("X", SET, "TRACE"),)),
    ("1", ((ROOT, SET, "WARN"),)),
    ("1", (("X", DELETE, "INFO"),)),
    ("1", ((ROOT, DELETE, None),)),
    ("1", (("no.such.logger", SET, "INFO"),)),
    ("1", (("no.such.logger", DELETE, None),)),
    ("1", (("", SET, "INFO"),)),
    *(("1", ((name, operation, "INFO"),)) for name in "XY" for operation in (APPEND, SUBTRACT)),
    ("1", (("X", APPEND, None),)),
    ("1", (("X", SET, "INFO"), ("X", SET, "WARN"))),
    ("1", (("X", SET, "INFO"), ("no.such.logger", SET, "WARN"))),
    ("1", ()),
    *((name, (("X", SET, "INFO"),)) for name in ("9", "", "x", "1.0", "-1", "01", "+1")),
    ("1", (("X", DELETE, None),)),
)


@pytest.fixture
async def both(java: JavaHome, peer: str, tmp_path: Path) -> AsyncIterator[Both]:
    """Run both sides with equal root levels. Penstock's levels are those of this test process."""
    LOG_LEVELS.set(ROOT, "WARN")
    async with Cluster(tmp_path, brokers=0) as cluster:
        await cluster.start_broker(NODE_ID)
        yield Both(java, peer, cluster)
    LOG_LEVELS.set(ROOT, "INFO")
    LOG_LEVELS.unset(LOGGERS[1])


def _outcomes(both: Both, name: str, changes: tuple[Change, ...], *, validate: bool) -> list[Any]:
    """Return each side's response to IncrementalAlterConfigs."""
    outcomes: list[Any] = []
    for address, logger in zip(both.addresses, LOGGERS, strict=True):
        configs = [
            incremental_alter_configs.AlterableConfig(config.replace("X", logger), operation, value)
            for config, operation, value in changes
        ]
        resource = incremental_alter_configs.AlterConfigsResource(LOGGER_RESOURCE, name, configs)
        requested = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], validate)
        (result,) = send_request(address, apis.INCREMENTAL_ALTER_CONFIGS, requested)["responses"]
        message = result["error_message"]
        outcomes.append((result["error_code"], message and message.replace(logger, "X")))
    return outcomes


def _described(both: Both, name: str) -> list[Any]:
    """Return each side's description of two loggers and a nonexistent one."""
    responses: list[Any] = []
    for address, logger in zip(both.addresses, LOGGERS, strict=True):
        named = describe_configs.DescribeConfigsResource(
            LOGGER_RESOURCE, name, [logger, ROOT, "no.such.logger"]
        )
        requested = describe_configs.DescribeConfigsRequest([named], True, False)
        (result,) = send_request(address, apis.DESCRIBE_CONFIGS, requested)["results"]
        for config in result["configs"]:
            config.pop("documentation")
            config["name"] = config["name"].replace(logger, "X")
        result["configs"].sort(key=itemgetter("name"))
        responses.append(result)
    return responses


async def test_logger_levels_are_altered_as_by_kafka(both: Both) -> None:
    for name, changes in CHANGES:
        for validate in (True, False):
            expected, found = await asyncio.to_thread(
                _outcomes, both, name, changes, validate=validate
            )
            assert found == expected, (name, changes)
            expected, found = await asyncio.to_thread(_described, both, "1")
            assert len(found["configs"]) == 2
            assert found == expected, (name, changes)


async def test_brokers_describe_only_their_own_loggers_as_kafka(both: Both) -> None:
    for name in ("1", "01", "9", "", "x", " 1"):
        expected, found = await asyncio.to_thread(_described, both, name)
        assert found == expected, name
    expected, found = await both.send_request(
        apis.LIST_CONFIG_RESOURCES,
        list_config_resources.ListConfigResourcesRequest([LOGGER_RESOURCE]),
    )
    assert found == expected


async def test_alter_configs_refuses_loggers_as_kafka(both: Both) -> None:
    for name in ("1", "9", "x"):
        config = alter_configs.AlterableConfig(ROOT, "INFO")
        resource = alter_configs.AlterConfigsResource(LOGGER_RESOURCE, name, [config])
        requested = alter_configs.AlterConfigsRequest([resource], False)
        expected, found = await both.send_request(apis.ALTER_CONFIGS, requested)
        assert found["responses"][0]["error_code"] == expected["responses"][0]["error_code"]
    expected, found = await asyncio.to_thread(_described, both, "1")
    assert found == expected


@pytest.mark.long
async def test_kafka_configs_alters_logger_levels(both: Both) -> None:
    named = ("--entity-type", "broker-loggers", "--entity-name", "1")
    for command in (
        ("--alter", *named, "--add-config", f"{ROOT}=ERROR"),
        ("--alter", *named, "--add-config", f"{ROOT}=LOUD"),
        ("--alter", *named, "--delete-config", ROOT),
        ("--alter", *named, "--add-config", "no.such.logger=INFO"),
        ("--describe", *named),
        ("--alter", *named, "--add-config", f"{ROOT}=WARN"),
    ):
        expected, shown = await both.tool(CONFIGS, *command)
        assert _lines(shown) == _lines(expected), command


def _lines(shown: str) -> list[str]:
    """Return the output of a tool, with only the root logger and without stack traces."""
    return [
        line
        for line in shown.splitlines()
        if not line.startswith(("\t", "Error while executing"))
        and (ROOT in line or "sensitive=" not in line)
    ]
