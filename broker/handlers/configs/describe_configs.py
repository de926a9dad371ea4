"""DescribeConfigs: return configs of topics, groups, client metrics subscriptions, this broker and
its loggers, with the source of each value (KIP-226).

The response contains all configs that have an effect or that tools expect. Settings that need a
restart are read-only.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.coordinator.configs import group_defaults
from penstock.broker.handlers.configs.broker_configs import (
    broker_entries,
    broker_layers,
    common_entries,
    described_name_problem,
)
from penstock.broker.handlers.configs.config_entry import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_CLIENT_METRICS,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_GROUP,
    DYNAMIC_TOPIC,
    ConfigEntry,
    synonyms_of,
)
from penstock.broker.handlers.configs.loggers import (
    described_broker_problem,
    logger_entries,
)
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows_cluster, allows_group, allows_topic
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.controller.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from penstock.controller.metadata.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.kafka_config import KafkaConfig
from penstock.controller.metadata.topic_configs import (
    BROKER_SYNONYMS,
    BROKER_SYNONYMS_WITHOUT_DEFAULT,
    TOPIC_CONFIGS,
    TopicConfig,
)
from penstock.controller.metadata.topic_names import is_topic_name
from penstock.protocol.gen.describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    decode_request,
)

CONFIGS_MAX: Final = 50_000
"""Maximum number of configs in one response, not counting topic configs: about 30 MB with their
documentation. Limiting the number of existing groups would not suffice, because groups in the
request need not exist.
"""
_CLUSTER_RESOURCES: Final = frozenset(
    {BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE}
)
_UNNAMED: Final = {
    CLIENT_METRICS_RESOURCE: "Client metrics subscription name must not be empty",
    GROUP_RESOURCE: "Group name must not be empty",
}
"""Error messages for resources whose name is empty."""


def topic_entries(node: Node, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a topic with the given overrides; internal configs only if they are
    set. As in Kafka, broker configs are defaults of topic configs; here, they can be set only for
    topic configs that have no effect. A Kafka 4.2 cluster starts with a broker config for
    `min.insync.replicas`, because of its eligible leader replicas.
    """
    layers = broker_layers(node)
    return [
        _topic_entry(config, overrides, layers)
        for config in TOPIC_CONFIGS.values()
        if not config.is_internal or config.name in overrides
    ]


def _topic_entry(
    config: TopicConfig, overrides: Mapping[str, str], layers: tuple[Mapping[str, str], ...]
) -> ConfigEntry:
    own, common = layers
    in_broker = BROKER_SYNONYMS.get(config.name, config.name)
    synonyms = (
        *synonyms_of(config.name, (overrides.get(config.name), DYNAMIC_TOPIC)),
        *synonyms_of(
            in_broker,
            (own.get(in_broker), DYNAMIC_BROKER),
            (common.get(in_broker), DYNAMIC_DEFAULT_BROKER),
        ),
    )
    lists_default = config.is_internal or (
        config.name in BROKER_SYNONYMS and config.name not in BROKER_SYNONYMS_WITHOUT_DEFAULT
    )
    if lists_default or not synonyms:
        synonyms = (*synonyms, (in_broker, config.default, DEFAULT))
    has_synonyms = lists_default or synonyms[0][2] != DEFAULT
    return ConfigEntry(config.name, synonyms, config.type, config.doc, has_synonyms=has_synonyms)


def group_entries(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a group. As in Kafka, the synonyms of an explicit value do not include
    the default.
    """
    return [
        _set_or_default(config, overrides, DYNAMIC_GROUP, defaults[config.name])
        for config in GROUP_CONFIGS.values()
    ]


def _client_metrics_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a client metrics subscription, which need not exist. Defaults have no
    synonyms.
    """
    return [
        _set_or_default(
            config,
            overrides,
            DYNAMIC_CLIENT_METRICS,
            config.default,
            has_synonyms=config.name in overrides,
        )
        for config in CLIENT_METRICS_CONFIGS.values()
    ]


def _set_or_default(
    config: KafkaConfig,
    overrides: Mapping[str, str],
    source: int,
    default: str,
    *,
    has_synonyms: bool = True,
) -> ConfigEntry:
    value = overrides.get(config.name)
    found = (config.name, default, DEFAULT) if value is None else (config.name, value, source)
    return ConfigEntry(config.name, (found,), config.type, config.doc, has_synonyms=has_synonyms)


async def handle_describe_configs(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    results: list[DescribeConfigsResult] = []
    count = 0
    async for resource in sliced(_named_once(request.resources)):
        is_bounded = resource.resource_type == TOPIC_RESOURCE
        if count >= CONFIGS_MAX and not is_bounded:
            result = _too_many(resource)
        else:
            result = _describe(
                node,
                ctx,
                resource,
                with_synonyms=request.include_synonyms,
                with_docs=request.include_documentation,
            )
            count += 0 if is_bounded else len(result.configs)
        results.append(result)
    return encode_response(ctx, DescribeConfigsResponse(results=results))


def _named_once(resources: Iterable[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    """Merge repeated resources. Return each resource once, with all configs requested for it; a
    request without a list of names requests all configs.
    """
    wanted: dict[tuple[int, str], dict[str, None] | None] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        keys = resource.configuration_keys
        known = wanted.setdefault(key, {} if keys else None)
        if not keys:
            wanted[key] = None
        elif known is not None:
            known.update(dict.fromkeys(keys))
    return [
        DescribeConfigsResource(kind, name, None if keys is None else list(keys))
        for (kind, name), keys in wanted.items()
    ]


def _too_many(resource: DescribeConfigsResource) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        ErrorCode.INVALID_REQUEST,
        f"a response has at most {CONFIGS_MAX} configs: request fewer resources or configs",
        resource.resource_type,
        resource.resource_name,
    )


def _describe(
    node: Node,
    ctx: RequestContext,
    resource: DescribeConfigsResource,
    *,
    with_synonyms: bool,
    with_docs: bool,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message="",
    )
    found = configs_denial(
        node, ctx, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
    ) or _entries(node, resource.resource_type, resource.resource_name)
    if isinstance(found, list):
        wanted = set(resource.configuration_keys or ())
        entries = [entry for entry in found if not wanted or entry.name in wanted]
        result.configs = [
            _config_result(entry, with_synonyms=with_synonyms, with_docs=with_docs)
            for entry in entries
        ]
    else:
        result.error_code, result.error_message = found
    return result


def configs_denial(
    node: Node, ctx: RequestContext, operation: Operation, resource_type: int, name: str
) -> tuple[ErrorCode, str] | None:
    """Return the reason why the client may not access the configs of a resource in this way. Return
    None if it may, or if resources of this type have no configs.
    """
    if node.authorizer is None:
        return None
    allowed, code = True, ErrorCode.NONE
    if resource_type == TOPIC_RESOURCE:
        allowed = allows_topic(node, ctx, operation, name)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif resource_type == GROUP_RESOURCE:
        allowed = allows_group(node, ctx, operation, name)
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif resource_type in _CLUSTER_RESOURCES:
        allowed = allows_cluster(node, ctx, operation)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None if allowed else (code, code.message)


def _entries(
    node: Node, resource_type: int, name: str
) -> list[ConfigEntry] | tuple[ErrorCode, str]:
    if resource_type == TOPIC_RESOURCE:
        return _entries_of_topic(node, name)
    if resource_type in _UNNAMED and not name:
        return ErrorCode.INVALID_REQUEST, _UNNAMED[resource_type]
    if resource_type == BROKER_RESOURCE:
        if problem := described_name_problem(node, name):
            return ErrorCode.INVALID_REQUEST, problem
        return broker_entries(node) if name else common_entries(node)
    if resource_type == GROUP_RESOURCE:
        return group_entries(node.image.configs.group(name), group_defaults(node.config))
    if resource_type == CLIENT_METRICS_RESOURCE:
        return _client_metrics_entries(node.image.configs.client_metrics(name))
    if resource_type == BROKER_LOGGER_RESOURCE:
        if problem := described_broker_problem(node.node_id, name):
            return ErrorCode.INVALID_REQUEST, problem
        return logger_entries()
    allowed = (
        f"{TOPIC_RESOURCE} (topic), {BROKER_RESOURCE} (broker), {BROKER_LOGGER_RESOURCE} (loggers"
        f" of a broker), {CLIENT_METRICS_RESOURCE} (client metrics) and {GROUP_RESOURCE} (group)"
    )
    return (
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type} has no configs; allowed are {allowed}",
    )


def _entries_of_topic(node: Node, name: str) -> list[ConfigEntry] | tuple[ErrorCode, str]:
    if not is_topic_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION.message
    if node.image.topics.by_name(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
    return topic_entries(node, node.image.configs.topic(name))


def _config_result(
    entry: ConfigEntry, *, with_synonyms: bool, with_docs: bool
) -> DescribeConfigsResourceResult:
    """Return the response entry of one config. The values of secrets are omitted."""
    synonyms = [
        DescribeConfigsSynonym(name, None if entry.is_sensitive else value, source)
        for name, value, source in entry.synonyms
    ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms if with_synonyms and entry.has_synonyms else [],
        config_type=entry.type,
        documentation=entry.doc or None if with_docs else None,
    )
