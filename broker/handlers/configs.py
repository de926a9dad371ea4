"""DescribeConfigs: return the configs of topics, groups, of this broker and of its loggers, with
the source of each value.

Invariant: every config that has an effect (or that tools expect) is listed, whether it is set or
not. Settings that a broker cannot change while it runs are read-only. A broker describes only
itself and what is set for all brokers, as in Kafka.

Source: KIP-226 (sources and synonyms), KIP-569 (types and documentation); Kafka's ConfigHelper.
"""

from collections.abc import Mapping
from typing import Final

from base.acls import Operation
from broker.errors import ErrorCode
from broker.groups.configs import group_defaults
from broker.handlers.authorization import allows_cluster, allows_group, allows_topic
from broker.handlers.broker_configs import (
    broker_entries,
    common_entries,
    described_name_problem,
)
from broker.handlers.config_entry import (
    DEFAULT,
    DYNAMIC_GROUP,
    DYNAMIC_TOPIC,
    ConfigEntry,
    synonyms_of,
)
from broker.handlers.dispatch import encode_response
from broker.handlers.loggers import (
    LOGGER_RESOURCE,
    described_broker_problem,
    logger_entries,
)
from broker.handlers.metadata import is_valid_topic_name
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen.describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    decode_request,
)
from controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from controller.metadata.group_configs import GROUP_CONFIGS
from controller.metadata.topic_configs import TOPIC_CONFIGS

_CLIENT_METRICS: Final = 16
_CLUSTER_RESOURCES: Final = frozenset({BROKER_RESOURCE, LOGGER_RESOURCE, _CLIENT_METRICS})


def topic_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a topic with the given overrides; internal ones only if they are
    set.
    """
    return [
        ConfigEntry(
            config.name,
            synonyms_of(
                config.name, (overrides.get(config.name), DYNAMIC_TOPIC), (config.default, DEFAULT)
            ),
            config.type,
            config.doc,
        )
        for config in TOPIC_CONFIGS.values()
        if not config.is_internal or config.name in overrides
    ]


def group_entries(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a group. As in Kafka, one that is set has no default among its
    synonyms.
    """
    return [
        ConfigEntry(
            config.name,
            ((config.name, overrides[config.name], DYNAMIC_GROUP),)
            if config.name in overrides
            else ((config.name, defaults[config.name], DEFAULT),),
            config.type,
            config.doc,
        )
        for config in GROUP_CONFIGS.values()
    ]


def handle_describe_configs(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    results = [
        _describe(
            node,
            ctx,
            resource,
            with_synonyms=request.include_synonyms,
            with_docs=request.include_documentation,
        )
        for resource in request.resources
    ]
    return encode_response(ctx, DescribeConfigsResponse(results=results))


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
    """Return why the client may not do this with the configs of a resource; None if it may, or if
    such a resource has none.
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
        if not is_valid_topic_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION.message
        if node.image.topics.by_name(name) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
        return topic_entries(node.image.configs.topic(name))
    if resource_type == BROKER_RESOURCE:
        if problem := described_name_problem(node, name):
            return ErrorCode.INVALID_REQUEST, problem
        return broker_entries(node) if name else common_entries(node)
    if resource_type == GROUP_RESOURCE:
        if not name:
            return ErrorCode.INVALID_REQUEST, "Group name must not be empty"
        return group_entries(node.image.configs.group(name), group_defaults(node.config))
    if resource_type == LOGGER_RESOURCE:
        if problem := described_broker_problem(node.node_id, name):
            return ErrorCode.INVALID_REQUEST, problem
        return logger_entries()
    allowed = (
        f"{TOPIC_RESOURCE} (topic), {BROKER_RESOURCE} (broker), {LOGGER_RESOURCE} (loggers of a"
        f" broker) and {GROUP_RESOURCE} (group)"
    )
    return (
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type} has no configs; allowed are {allowed}",
    )


def _config_result(
    entry: ConfigEntry, *, with_synonyms: bool, with_docs: bool
) -> DescribeConfigsResourceResult:
    """Return the answer for one config. The values of secrets are left out."""
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
