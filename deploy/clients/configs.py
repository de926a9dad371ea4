"""Describe, alter and list configs for the command line.

A broker describes only its own configs and loggers, so requests are sent to the broker itself.
Invariant: every failure is a KafkaFailed with the reason from the broker.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.controller.metadata.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed, check
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import describe_configs, list_config_resources
from penstock.protocol.gen.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_SET: Final = 0
_DELETE: Final = 1
_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "process",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
_KINDS: Final = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}
DEFAULT_SOURCES: Final = frozenset({"process", "default"})
"""Sources of values that were not set at runtime."""
_LISTED: Final = {CLIENT_METRICS_RESOURCE: "client-metrics", GROUP_RESOURCE: "group"}
"""Resource types whose resources exist only through their configs, with the options that select
them.
"""
_OWN_SOURCES: Final = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    BROKER_LOGGER_RESOURCE: "logger",
    CLIENT_METRICS_RESOURCE: "client metrics",
    GROUP_RESOURCE: "group",
}
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_OF_BROKERS: Final = frozenset({BROKER_RESOURCE, BROKER_LOGGER_RESOURCE})


@dataclass(frozen=True, slots=True)
class ConfigView:
    """source: the source of the value. live: whether it can change at runtime. kind: the type, as
    in Kafka. doc: empty unless requested.
    """

    name: str
    value: str
    source: str
    live: bool
    others: tuple[tuple[str, str], ...]
    """Values and sources that would apply without this value, by precedence."""
    kind: str = ""
    doc: str = ""

    @property
    def default(self) -> str:
        """Return the value that applies without dynamic configs."""
        return self.others[-1][0] if self.others else self.value


@dataclass(frozen=True, slots=True)
class ResourceView:
    """A group or client metrics subscription with configs."""

    type: str
    name: str


def resources(bootstrap: str) -> list[ResourceView]:
    """Return the groups and client metrics subscriptions that have configs."""
    with WireClient(bootstrap) as client:
        response = client.send_request(
            apis.LIST_CONFIG_RESOURCES,
            list_config_resources.ListConfigResourcesRequest(list(_LISTED)),
            list_config_resources.ListConfigResourcesResponse,
        )
    check(response.error_code, None, "configs cannot be listed")
    found = [
        ResourceView(_LISTED[item.resource_type], item.resource_name)
        for item in response.config_resources
    ]
    return sorted(found, key=lambda view: (view.type, view.name))


def describe(
    bootstrap: str,
    resource: tuple[int, str],
    *,
    with_docs: bool = False,
    security: ClientSecurity | None = None,
) -> list[ConfigView]:
    """Return the configs of one resource by name. resource: Kafka's type, and the name. security:
    see `Brokers`.
    """
    wanted = describe_configs.DescribeConfigsResource(*resource, None)
    request = describe_configs.DescribeConfigsRequest([wanted], True, with_docs)
    with Brokers(bootstrap, security=security) as brokers:
        response = brokers.send_request(
            apis.DESCRIBE_CONFIGS,
            request,
            describe_configs.DescribeConfigsResponse,
            node=_node_of(brokers, resource),
        )
        (result,) = response.results
        _check_exists(brokers, resource, result.error_code)
    check(result.error_code, result.error_message, "configs cannot be described")
    return sorted((_view(config) for config in result.configs), key=lambda view: view.name)


def set_names(views: Iterable[ConfigView], resource: tuple[int, str]) -> set[str]:
    """Return the names of the configs that were set for this resource itself."""
    own = "all brokers" if resource == (BROKER_RESOURCE, "") else _OWN_SOURCES[resource[0]]
    return {view.name for view in views if view.source == own}


def _view(config: describe_configs.DescribeConfigsResourceResult) -> ConfigView:
    return ConfigView(
        config.name,
        config.value or "",
        _SOURCES.get(config.config_source, str(config.config_source)),
        not config.read_only,
        tuple(
            (synonym.value or "", _SOURCES.get(synonym.source, str(synonym.source)))
            for synonym in config.synonyms[1:]
        ),
        _KINDS.get(config.config_type, ""),
        config.documentation or "",
    )


def alter(
    bootstrap: str,
    resource: tuple[int, str],
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set configs of one resource, or delete those with None, either all of them or none.
    validate_only: whether to only validate the changes.
    """
    request = alter_request(resource, changes, validate_only=validate_only)
    with Brokers(bootstrap) as brokers:
        node = _node_of(brokers, resource)
        response = brokers.send_request(
            apis.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse, node=node
        )
        (result,) = response.responses
        _check_exists(brokers, resource, result.error_code)
    check(result.error_code, result.error_message, "configs were not changed")


def alter_request(
    resource: tuple[int, str], changes: Mapping[str, str | None], *, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """Return the request of `alter`."""
    configs = [
        AlterableConfig(name, _DELETE if value is None else _SET, value)
        for name, value in changes.items()
    ]
    return IncrementalAlterConfigsRequest([AlterConfigsResource(*resource, configs)], validate_only)


def _check_exists(brokers: Brokers, resource: tuple[int, str], error_code: int) -> None:
    """Raise KafkaFailed with similar names for a topic that does not exist."""
    kind, name = resource
    if kind == TOPIC_RESOURCE and known_code(error_code) is _UNKNOWN_TOPIC:
        brokers.partitions([name])


def _node_of(brokers: Brokers, resource: tuple[int, str]) -> int | None:
    """Return the broker that is responsible for the resource; None for any. Raises KafkaFailed."""
    kind, name = resource
    if kind not in _OF_BROKERS or not name:
        return None
    nodes = {str(node): node for node in brokers.nodes()}
    if name not in nodes:
        raise KafkaFailed(
            f"broker {name} is not available; available brokers: {', '.join(sorted(nodes))}"
        )
    return nodes[name]
