"""Configs of groups, client metrics and brokers compared with Apache Kafka 4.2: both get the same
requests and tools.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from penstock.broker.dynamic_settings import is_dynamic
from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tests.interop.both import Both
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.waiting import PATIENCE_S, until

CONFIGS = "kafka.admin.ConfigCommand"
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Change: TypeAlias = tuple[str, int, str | None]
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


async def describe(both: Both, kind: int, name: str, *keys: str) -> tuple[Any, Any]:
    """Return the configs by name, with all fields except the documentation."""
    requested = describe_configs.DescribeConfigsRequest(
        [describe_configs.DescribeConfigsResource(kind, name, list(keys) or None)], True, False
    )
    expected, found = await both.send_request(apis.DESCRIBE_CONFIGS, requested)
    for response in (expected, found):
        for result in response["results"]:
            for config in result["configs"]:
                config.pop("documentation")
            result["configs"] = {config["name"]: config for config in result["configs"]}
    return expected["results"], found["results"]


def _comparable(results: Any) -> Any:
    """Return the results without known differences: Kafka always lists num.io.threads, and includes
    static and default values in its synonyms.
    """
    for result in results:
        configs = result["configs"]
        threads = configs.get("num.io.threads")
        if threads is not None:
            threads["synonyms"] = [item for item in threads["synonyms"] if item["source"] < 4]
            if not threads["synonyms"]:
                del configs["num.io.threads"]
    return results


async def same_configs(
    both: Both, kind: int, name: str, *keys: str, without: Sequence[str] = ()
) -> None:
    """Check that both sides describe the same configs, except those in `without`. Kafka may show a
    change with a delay.
    """

    async def are_same() -> bool:
        expected, found = await describe(both, kind, name, *keys)
        pairs[:] = [_comparable(found), _comparable(expected)]
        for results in pairs:
            for config in without:
                results[0]["configs"].pop(config)
        return pairs[0] == pairs[1]

    pairs: list[Any] = []
    try:
        await until(are_same, timeout_s=PATIENCE_S)
    except TimeoutError:
        assert pairs[0] == pairs[1]


async def alter(both: Both, kind: int, name: str, *changes: Change) -> tuple[Any, Any]:
    """Return the code and message of both sides for IncrementalAlterConfigs."""
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    requested = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], False)
    expected, found = await both.send_request(apis.INCREMENTAL_ALTER_CONFIGS, requested)
    return _outcome(expected), _outcome(found)


async def replace(
    both: Both, kind: int, name: str, *configs: tuple[str, str | None]
) -> tuple[Any, Any]:
    """Return the code and message of both sides for AlterConfigs."""
    wanted = [alter_configs.AlterableConfig(*config) for config in configs]
    resource = alter_configs.AlterConfigsResource(kind, name, wanted)
    requested = alter_configs.AlterConfigsRequest([resource], False)
    expected, found = await both.send_request(apis.ALTER_CONFIGS, requested)
    return _outcome(expected), _outcome(found)


def _outcome(response: Any) -> tuple[int, str | None]:
    (result,) = response["responses"]
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
async def test_group_configs_are_altered_as_by_kafka(both: Both) -> None:
    group = "altered"
    await same_configs(both, GROUP, group)
    for changes in REFUSED_OF_GROUPS:
        expected, found = await alter(both, GROUP, group, *changes)
        assert found == expected, changes
        assert found[0] != 0, changes
    await same_configs(both, GROUP, group)
    for changes in ACCEPTED_OF_GROUPS:
        expected, found = await alter(both, GROUP, group, *changes)
        assert found == expected == (0, None), changes
        await same_configs(both, GROUP, group)
    for configs in (
        [(SESSION, "46000")],
        [(SESSION, None)],
        [("no.such.config", "1")],
        [(SESSION, "46000"), (HEARTBEAT, "1")],
        [],
    ):
        expected, found = await replace(both, GROUP, group, *configs)
        assert found == expected, configs
        await same_configs(both, GROUP, group)


async def test_default_group_configs_are_refused_as_by_kafka(both: Both) -> None:
    for send_request in (
        alter(both, GROUP, "", (SESSION, SET, "50000")),
        replace(both, GROUP, ""),
        describe(both, GROUP, ""),
    ):
        expected, found = await send_request
        assert found == expected


@pytest.mark.long
async def test_kafka_configs_alters_and_lists_group_configs(both: Both) -> None:
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
    # Kafka also lists groups of other tests.
    expected, shown = await both.tool(CONFIGS, "--describe", "--entity-type", "groups")
    assert set(_lines(shown)) <= set(_lines(expected))
    assert len(_lines(shown)) == 2, shown
    requested = list_config_resources.ListConfigResourcesRequest([GROUP])
    _, found = await both.send_request(apis.LIST_CONFIG_RESOURCES, requested)
    assert found["config_resources"] == [{"resource_name": "by-tool", "resource_type": GROUP}]


def _lines(shown: str) -> list[str]:
    """Return the output of a tool without log lines and stack traces."""
    return sorted(
        line
        for line in shown.splitlines()
        if not line[:1].isdigit() and not line.startswith(("\t", "Error while executing"))
    )


# --- client metrics -------------------------------------------------------------------------------

INTERVAL, METRICS, MATCH = "interval.ms", "metrics", "match"
ALTERED_OF_CLIENT_METRICS: list[tuple[Change, ...]] = [
    *(((INTERVAL, SET, value),) for value in ("99", "100", "3600001", "3600000", "x", "", None)),
    *(((INTERVAL, SET, value),) for value in (" 2000 ", "+500", "1e3", "-1", "9999999999")),
    *(((METRICS, SET, value),) for value in ("", "*", "a", " a , b,a ", ",", "a,,b", " ", None)),
    *(
        ((MATCH, SET, value),)
        for value in ("client_id", "client_id=", "=x", "nope=1", "client_id=[")
    ),
    *(((MATCH, SET, value),) for value in ("client_id=a=b", "client_id==", "client_id=x,,", "")),
    *(((MATCH, SET, value),) for value in ("CLIENT_ID=a", "client_id=a=", "client_id=\\p{L}+")),
    ((MATCH, SET, " client_id = x ,client_id=y,client_source_port=9.*"),),
    *(((name, APPEND, "z"),) for name in (INTERVAL, METRICS, MATCH, "nope")),
    ((METRICS, SUBTRACT, "a"),),
    ((METRICS, APPEND, None),),
    (("nope", SET, "1"),),
    (("nope", DELETE, None),),
    ((INTERVAL, SET, "1000"), (INTERVAL, SET, "2000")),
    ((INTERVAL, SET, "5000"), ("nope", SET, "1")),
    ((INTERVAL, SET, "7000"), (METRICS, DELETE, None)),
    (),
]


@pytest.mark.long
async def test_client_metrics_configs_are_altered_as_by_kafka(both: Both) -> None:
    name = "altered"
    await same_configs(both, CLIENT_METRICS, name)
    for changes in ALTERED_OF_CLIENT_METRICS:
        expected, found = await alter(both, CLIENT_METRICS, name, *changes)
        assert found == expected, changes
        await same_configs(both, CLIENT_METRICS, name)
    assert name in await listed(both)
    for configs in (
        [(INTERVAL, "1000"), (METRICS, "a")],
        [(METRICS, "b")],
        [(INTERVAL, None)],
        [("nope", "1")],
        [(INTERVAL, "1")],
        [],
    ):
        expected, found = await replace(both, CLIENT_METRICS, name, *configs)
        assert found == expected, configs
        await same_configs(both, CLIENT_METRICS, name)
    assert name not in await listed(both)


async def listed(both: Both) -> set[str]:
    """Return the subscriptions in Penstock; check that Kafka has them, too."""
    requested = list_config_resources.ListConfigResourcesRequest([CLIENT_METRICS])
    expected, found = [
        {item["resource_name"] for item in response["config_resources"]}
        for response in await both.send_request(apis.LIST_CONFIG_RESOURCES, requested)
    ]
    assert found <= expected
    return found


async def test_client_metrics_subscription_requires_a_valid_name(both: Both) -> None:
    for send_request in (
        alter(both, CLIENT_METRICS, "", (INTERVAL, SET, "1000")),
        alter(both, CLIENT_METRICS, ""),
        replace(both, CLIENT_METRICS, "", (INTERVAL, "1000")),
        describe(both, CLIENT_METRICS, ""),
    ):
        expected, found = await send_request
        assert found == expected
    for name in ("n" * 32_767, "a b/\u00fc\n"):
        for operation in (SET, DELETE):
            expected, found = await alter(both, CLIENT_METRICS, name, (INTERVAL, operation, "1000"))
            assert found == expected == (0, None)


# --- brokers --------------------------------------------------------------------------------------

BACKOFF, LEADER, FOLLOWER, MOVE = (
    "log.cleaner.backoff.ms",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
SHOWN = (BACKOFF, LEADER, FOLLOWER, MOVE, "num.io.threads")
ALTERED_OF_BROKERS: list[tuple[str, tuple[Change, ...]]] = [
    ("1", ((LEADER, SET, "1000"),)),
    ("1", ((FOLLOWER, SET, "1000"), (MOVE, SET, "77"))),
    ("", ((LEADER, SET, "2000"), (BACKOFF, SET, "13000"), ("num.io.threads", SET, "9"))),
    ("1", ((BACKOFF, SET, "12000"),)),
    ("1", ((LEADER, SET, "soon"),)),
    ("1", ((LEADER, SET, "-5"),)),
    ("1", ((BACKOFF, SET, None),)),
    ("1", (("node.id", SET, "3"),)),
    ("", (("advertised.listeners", SET, "x"), (BACKOFF, SET, "1"))),
    ("1", ((BACKOFF, SET, "1000"), (BACKOFF, SET, "2000"))),
    ("1", (("node.id", DELETE, None), ("no.such.config", DELETE, None))),
    *((name, ((BACKOFF, SET, "1000"),)) for name in ("2", "99", "x", "-1")),
    ("1", ()),
    ("1", ((BACKOFF, DELETE, None), (MOVE, DELETE, None))),
    ("", ((BACKOFF, DELETE, None), ("num.io.threads", DELETE, None), (LEADER, DELETE, None))),
]


@pytest.mark.long
async def test_broker_configs_are_altered_as_by_kafka(both: Both) -> None:
    for broker, changes in ALTERED_OF_BROKERS:
        expected, found = await alter(both, BROKER, broker, *changes)
        assert found == expected, (broker, changes)
        for described in ("1", ""):
            await same_configs(both, BROKER, described, *SHOWN)
    for broker, configs in [
        ("1", [(BACKOFF, "9000"), (LEADER, "5")]),
        ("1", [(BACKOFF, None)]),
        ("1", [("node.id", "9000")]),
        ("2", [(BACKOFF, "9000")]),
        ("77", []),
        ("1", []),
    ]:
        expected, found = await replace(both, BROKER, broker, *configs)
        assert found == expected, (broker, configs)
        for described in ("1", "", "2", "x"):
            await same_configs(both, BROKER, described, *SHOWN)


async def test_invalid_broker_config_value_gets_the_error_code_of_kafka(both: Both) -> None:
    for value in ("soon", "-1", ""):
        expected, found = await alter(both, BROKER, "1", (BACKOFF, SET, value))
        assert found[0] == expected[0]
        assert BACKOFF in found[1]
    expected, found = await alter(both, BROKER, "1", (BACKOFF, APPEND, "1"))
    assert found[0] == expected[0]


@pytest.mark.long
async def test_kafka_configs_alters_and_describes_broker_configs(both: Both) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    every = ("--entity-type", "brokers", "--entity-default")
    for command in (
        ("--alter", *one, "--add-config", f"{BACKOFF}=11000,{LEADER}=1000"),
        ("--describe", *one),
        ("--alter", *every, "--add-config", f"{FOLLOWER}=2000,num.io.threads=9"),
        ("--describe", *every),
        ("--alter", *one, "--add-config", "node.id=7"),
        ("--alter", *one, "--delete-config", f"{BACKOFF},{LEADER}"),
        ("--describe", *one),
        ("--alter", *every, "--delete-config", f"{FOLLOWER},num.io.threads"),
        ("--describe", *every),
    ):
        expected, shown = await both.tool(CONFIGS, *command)
        assert _shown(shown) == _shown(expected), command


def _shown(text: str) -> list[str]:
    """Return the lines without Kafka's values of configs that Penstock does not use, and without
    the config that Kafka stores for the whole cluster.
    """
    return [
        re.sub(r", DEFAULT_CONFIG:num.io.threads=8", "", line)
        for line in _lines(text)
        if not line.lstrip().startswith("min.insync.replicas=")
    ]


# --- kafka-reassign-partitions --------------------------------------------------------------------

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@pytest.mark.long
async def test_throttled_reassignment_is_executed_and_verified(both: Both, tmp_path: Path) -> None:
    topic = "throttled"
    await both.create(topic, 2)
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generate = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
    expected, shown = await both.tool(REASSIGN, *generate)
    assert _without_directories(shown) == _without_directories(expected)
    proposed = json.loads(shown.splitlines()[-1])
    plan.write_text(json.dumps(proposed))
    named = ("--reassignment-json-file", str(plan))
    for step in (
        ("--execute", *named, "--throttle", "5000000"),
        ("--execute", *named, "--throttle", "6000000", "--additional"),
        ("--list",),
        ("--verify", *named, "--preserve-throttles"),
    ):
        expected, shown = await both.tool(REASSIGN, *step)
        assert _without_directories(shown) == _without_directories(expected), step
    await same_configs(both, BROKER, "1", *SHOWN)
    expected, found = await describe(both, TOPIC, topic, *THROTTLED)
    assert _values(found) == _values(expected)
    _, found = await describe(both, BROKER, "1", LEADER, FOLLOWER)
    assert {config["value"] for config in found[0]["configs"].values()} == {"6000000"}
    expected, shown = await both.tool(REASSIGN, "--verify", *named)
    assert "Clearing broker-level throttles on broker 1" in shown
    assert _lines(shown) == _lines(expected)
    await same_configs(both, BROKER, "1", *SHOWN)
    expected, found = await describe(both, TOPIC, topic, *THROTTLED)
    assert _values(found) == _values(expected)


def _values(results: Any) -> dict[str, tuple[str, int]]:
    configs = results[0]["configs"].values()
    return {config["name"]: (config["value"], config["config_source"]) for config in configs}


def _without_directories(shown: str) -> list[str]:
    """Return the output of the tool with "any" in place of each side's log directory."""
    lines = shown.splitlines()
    return [re.sub(r'"log_dirs":\["[^"]*"\]', '"log_dirs":["any"]', line) for line in lines]


@pytest.mark.long
async def test_throttled_move_of_a_partition_completes(
    java: JavaHome, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_broker(2)
    await asyncio.to_thread(create_topic, cluster.bootstrap, "moved", 1)
    plan = tmp_path / "plan.json"
    target = 3 - cluster.leader_of("moved", 0)
    part = {"topic": "moved", "partition": 0, "replicas": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [part]}))

    async def tool(*arguments: str) -> str:
        named = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
        done = await asyncio.to_thread(java.tool, REASSIGN, *named, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = await tool("--execute", "--throttle", "1000")
    assert "The inter-broker throttle limit was set to 1000 B/s" in shown
    await until(lambda: cluster.leader_of("moved", 0) == target)
    assert "is completed" in await tool("--verify")
    assert not cluster.broker.image.configs.broker("1")
    assert not cluster.broker.image.configs.topic("moved")


async def test_resource_listed_twice_in_a_request_is_refused_as_by_kafka(both: Both) -> None:
    change = incremental_alter_configs.AlterableConfig("retention.ms", SET, "1000")
    for kind, name in ((TOPIC, "twice"), (GROUP, "twice")):
        resource = incremental_alter_configs.AlterConfigsResource(kind, name, [change])
        requested = incremental_alter_configs.IncrementalAlterConfigsRequest([resource, resource])
        expected, found = await both.send_request(apis.INCREMENTAL_ALTER_CONFIGS, requested)
        assert found == expected


EXPLAINED = {
    **dict.fromkeys(
        (
            *("log.cleaner.delete.retention.ms", "log.cleaner.max.compaction.lag.ms"),
            *("log.cleaner.min.cleanable.ratio", "log.cleaner.min.compaction.lag.ms"),
            *("log.cleanup.policy", "log.message.timestamp.after.max.ms", "message.max.bytes"),
            *("log.message.timestamp.before.max.ms", "log.message.timestamp.type"),
            *("log.retention.bytes", "log.retention.ms"),
        ),
        "there are no defaults for all topics",
    ),
    "config.providers": "brokers have none",
    "log.cleaner.io.max.bytes.per.second": "has a limit",
    "max.connections": "has a limit",
    "transaction.partition.verification.enable": "is read when a broker starts",
}
"""Configs that Kafka can change at runtime and Penstock refuses, with the reason."""


async def test_brokers_alter_the_same_configs_at_runtime_as_kafka(both: Both) -> None:
    """Sets each config of Kafka to its current value. Penstock can change some configs at runtime
    that Kafka cannot.
    """
    (described,), _ = await describe(both, BROKER, "1")
    refused: set[str] = set()
    for name, config in described["configs"].items():
        change = incremental_alter_configs.AlterableConfig(name, SET, config["value"] or "")
        resource = incremental_alter_configs.AlterConfigsResource(BROKER, "", [change])
        requested = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], True)
        expected, found = await both.send_request(apis.INCREMENTAL_ALTER_CONFIGS, requested)
        codes = [response["responses"][0]["error_code"] for response in (expected, found)]
        if codes[0] == 0 and codes[1] != 0:
            refused.add(name)
        elif codes[0] != 0 and codes[1] == 0:
            assert is_dynamic(name)
    assert refused <= EXPLAINED.keys()


async def test_topic_configs_have_the_sources_and_synonyms_of_kafka(both: Both) -> None:
    """Kafka stores `min.insync.replicas` for all brokers of a new cluster."""
    topic = "sourced"
    await both.create(topic, **{"retention.ms": "1000", "cleanup.policy": "compact"})
    await same_configs(both, TOPIC, topic, without=("min.insync.replicas",))
