"""Compare the configs of groups and brokers with Apache Kafka 4.2: the same requests and tools go
to both.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from broker.wire import apis
from broker.wire.gen import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tests.interop.both import Both
from tests.support.cluster import Cluster
from tests.support.java import JavaHome

CONFIGS = "kafka.admin.ConfigCommand"
GROUP = 32
NODE_ID = 1
SET, DELETE, APPEND = 0, 1, 2
Change: TypeAlias = tuple[str, int, str | None]
SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, brokers=0) as cluster:
        await cluster.start_broker(NODE_ID)
        yield cluster


@pytest.fixture
def both(java: JavaHome, peer: str, cluster: Cluster) -> Both:
    return Both(java, peer, cluster)


async def describe(both: Both, kind: int, name: str, *keys: str) -> tuple[Any, Any]:
    """Return the configs by name, with what both sides say of each but its documentation."""
    asked = describe_configs.DescribeConfigsRequest(
        [describe_configs.DescribeConfigsResource(kind, name, list(keys) or None)], True, False
    )
    expected, found = await both.ask(apis.DESCRIBE_CONFIGS, asked)
    for answer in (expected, found):
        for result in answer["results"]:
            for config in result["configs"]:
                config.pop("documentation")
            result["configs"] = {config["name"]: config for config in result["configs"]}
    return expected["results"], found["results"]


async def alter(both: Both, kind: int, name: str, *changes: Change) -> tuple[Any, Any]:
    """Return the code and the message of both sides for IncrementalAlterConfigs."""
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    asked = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], False)
    expected, found = await both.ask(apis.INCREMENTAL_ALTER_CONFIGS, asked)
    return _outcome(expected), _outcome(found)


async def replace(
    both: Both, kind: int, name: str, *configs: tuple[str, str | None]
) -> tuple[Any, Any]:
    """Return the code and the message of both sides for AlterConfigs."""
    wanted = [alter_configs.AlterableConfig(*config) for config in configs]
    resource = alter_configs.AlterConfigsResource(kind, name, wanted)
    asked = alter_configs.AlterConfigsRequest([resource], False)
    expected, found = await both.ask(apis.ALTER_CONFIGS, asked)
    return _outcome(expected), _outcome(found)


def _outcome(answer: Any) -> tuple[int, str | None]:
    (result,) = answer["responses"]
    return result["error_code"], result["error_message"]


# --- groups ---------------------------------------------------------------------------------------

RESET, ISOLATION, LOCK = (
    "share.auto.offset.reset",
    "share.isolation.level",
    "share.record.lock.duration.ms",
)
REFUSED_OF_GROUPS: list[tuple[Change, ...]] = [
    *(((SESSION, SET, value),) for value in ("1", "70000000", "soon", "", None, "3000000000")),
    *(((HEARTBEAT, SET, value),) for value in ("16000", "4999", "0")),
    ((SESSION, APPEND, "1"),),
    ((SESSION, SET, "46000"), (SESSION, SET, "47000")),
    *(
        ((RESET, SET, value),)
        for value in ("none", "EARLIEST", "by_duration:-PT1H", "by_duration:x")
    ),
    *(((RESET, SET, f"by_duration:{value}"),) for value in ("P", "PT", "P1DT", "PT1", "1H", "")),
    *(((ISOLATION, SET, value),) for value in ("READ_COMMITTED", "")),
    *(((LOCK, SET, value),) for value in ("999", "1000", "14999", "70000")),
    *((("share.session.timeout.ms", SET, value),) for value in ("1000", "100000")),
    *((("share.heartbeat.interval.ms", SET, value),) for value in ("100", "100000")),
    *((("streams.session.timeout.ms", SET, value),) for value in ("1", "100000")),
    *((("streams.heartbeat.interval.ms", SET, value),) for value in ("1", "100000")),
    (("streams.num.standby.replicas", SET, "3"),),
    (("streams.initial.rebalance.delay.ms", SET, "-1"),),
    ((SESSION, SET, "46000"), ("share.partition.max.record.locks", SET, "1000")),
]
ACCEPTED_OF_GROUPS: list[tuple[Change, ...]] = [
    ((SESSION, SET, " 50000 "), (HEARTBEAT, SET, "5001")),
    *(
        ((RESET, SET, f"by_duration:{value}"),)
        for value in ("PT1H", "P2DT3H4M5.678S", "pt5.s", "P3D", "PT0S")
    ),
    ((RESET, SET, "earliest"), (ISOLATION, SET, "read_committed"), (LOCK, SET, "15000")),
    (("streams.num.standby.replicas", SET, "2"), ("streams.session.timeout.ms", SET, "50000")),
    ((HEARTBEAT, DELETE, None), ("no.such.config", DELETE, None)),
    (),
]


@pytest.mark.long
async def test_configs_of_groups_are_altered_as_by_kafka(both: Both) -> None:
    group = "altered"
    expected, found = await describe(both, GROUP, group)
    assert found == expected
    for changes in REFUSED_OF_GROUPS:
        expected, found = await alter(both, GROUP, group, *changes)
        assert found == expected, changes
        assert found[0] != 0, changes
    expected, found = await describe(both, GROUP, group)
    assert found == expected
    for changes in ACCEPTED_OF_GROUPS:
        expected, found = await alter(both, GROUP, group, *changes)
        assert found == expected == (0, None), changes
        expected, found = await describe(both, GROUP, group)
        assert found == expected, changes
    for configs in (
        [(SESSION, "46000")],
        [(SESSION, None)],
        [("no.such.config", "1")],
        [(SESSION, "46000"), (HEARTBEAT, "1")],
        [],
    ):
        expected, found = await replace(both, GROUP, group, *configs)
        assert found == expected, configs
        expected, found = await describe(both, GROUP, group)
        assert found == expected, configs


async def test_groups_have_no_configs_for_all(both: Both) -> None:
    for ask in (
        alter(both, GROUP, "", (SESSION, SET, "50000")),
        replace(both, GROUP, ""),
        describe(both, GROUP, ""),
    ):
        expected, found = await ask
        assert found == expected


@pytest.mark.long
async def test_kafka_configs_changes_and_lists_configs_of_groups(both: Both) -> None:
    named = ("--entity-type", "groups", "--entity-name", "by-tool")
    for command in (
        ("--describe", *named),
        ("--alter", *named, "--add-config", f"{SESSION}=50000,{HEARTBEAT}=6000"),
        ("--describe", *named),
        ("--describe", *named, "--all"),
        ("--alter", *named, "--add-config", f"{SESSION}=50"),
        ("--alter", *named, "--delete-config", HEARTBEAT),
    ):
        expected, shown = await both.tool(CONFIGS, *command)
        assert _lines(shown) == _lines(expected), command
    # Kafka also lists the groups of other tests.
    expected, shown = await both.tool(CONFIGS, "--describe", "--entity-type", "groups")
    assert set(_lines(shown)) <= set(_lines(expected))
    assert len(_lines(shown)) == 2, shown
    asked = list_config_resources.ListConfigResourcesRequest([GROUP])
    _, found = await both.ask(apis.LIST_CONFIG_RESOURCES, asked)
    assert found["config_resources"] == [{"resource_name": "by-tool", "resource_type": GROUP}]


def _lines(shown: str) -> list[str]:
    """Return what a tool shows, without the lines of its log and the stacks of its errors."""
    return sorted(
        line
        for line in shown.splitlines()
        if not line[:1].isdigit() and not line.startswith(("\t", "Error while executing"))
    )
