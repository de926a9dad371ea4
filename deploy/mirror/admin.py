"""Describe, create and change the topics of a cluster."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.topic_configs import MIRROR_SOURCE
from penstock.deploy.clients.configs import alter_request
from penstock.deploy.mirror.cluster import Cluster
from penstock.protocol import apis
from penstock.protocol.client.errors import Refused
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import create_partitions, create_topics, describe_configs
from penstock.protocol.gen.incremental_alter_configs import IncrementalAlterConfigsResponse

_TOPIC_CONFIG: Final = 1
"""Kafka's config source for values that were set on the topic itself."""
_TIMEOUT_MS: Final = 30_000
_AT_ONCE: Final = 500
"""Maximum number of topics in one request."""


def topic_configs(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the configs that were explicitly set for each topic, without topics that do not
    exist.
    """
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(names), _AT_ONCE):
        response = cluster.send_request(
            apis.DESCRIBE_CONFIGS,
            describe_configs.DescribeConfigsRequest(
                [
                    describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, name, None)
                    for name in names[start : start + _AT_ONCE]
                ]
            ),
            describe_configs.DescribeConfigsResponse,
        )
        for result in response.results:
            if known_code(result.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            what = f"the configs of topic {result.resource_name!r} cannot be read"
            cluster.check(result.error_code, result.error_message, what)
            found[result.resource_name] = {
                item.name: item.value or ""
                for item in result.configs
                if item.config_source == _TOPIC_CONFIG
            }
    return found


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    *,
    validates: bool = False,
) -> None:
    """Create a topic with the cluster's default replication factor, unless it exists. Raises
    Refused.
    """
    topic = create_topics.CreatableTopic(
        name,
        partitions,
        -1,
        configs=[create_topics.CreatableTopicConfig(*item) for item in configs.items()],
    )
    response = cluster.send_request(
        apis.CREATE_TOPICS,
        create_topics.CreateTopicsRequest([topic], _TIMEOUT_MS, validates),
        create_topics.CreateTopicsResponse,
    )
    for result in response.topics:
        if known_code(result.error_code) is not ErrorCode.TOPIC_ALREADY_EXISTS:
            what = f"topic {name!r} was not created"
            cluster.check(result.error_code, result.error_message, what)


def has_mirror_topics(cluster: Cluster) -> bool:
    """Return whether the brokers can append at specified offsets, as Penstock brokers can."""
    return not unknown_configs(cluster, {MIRROR_SOURCE: "probe"})


def unknown_configs(cluster: Cluster, configs: Mapping[str, str]) -> set[str]:
    """Return the topic configs that the cluster does not support. Sends one request per config."""
    probe = f"penstock-mirror-probe-{uuid4()}"
    found: set[str] = set()
    for name, value in configs.items():
        try:
            create_topic(cluster, probe, 1, {name: value}, validates=True)
        except Refused as refused:
            if known_code(refused.code) is not ErrorCode.INVALID_CONFIG:
                raise
            found.add(name)
    return found


def add_partitions(cluster: Cluster, name: str, total: int) -> None:
    topic = create_partitions.CreatePartitionsTopic(name, total, None)
    response = cluster.send_request(
        apis.CREATE_PARTITIONS,
        create_partitions.CreatePartitionsRequest([topic], _TIMEOUT_MS),
        create_partitions.CreatePartitionsResponse,
    )
    for result in response.results:
        what = f"topic {name!r} got no partitions"
        cluster.check(result.error_code, result.error_message, what)


def alter_topic(cluster: Cluster, name: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic; None deletes a config. Either all changes are made or none."""
    response = cluster.send_request(
        apis.INCREMENTAL_ALTER_CONFIGS,
        alter_request((TOPIC_RESOURCE, name), changes),
        IncrementalAlterConfigsResponse,
    )
    for result in response.responses:
        what = f"the configs of topic {name!r} were not changed"
        cluster.check(result.error_code, result.error_message, what)
