"""DescribeConfigs: return the configs of topics, groups and of this broker, with the source of each
value.

Invariant: every config that has an effect (or that tools expect) is listed, whether it is set or
not. Broker settings are read-only, because they come from the process configuration. A broker
describes only itself, as in Kafka.

Source: KIP-226 (sources and synonyms), KIP-569 (types and documentation); Kafka's ConfigHelper.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from base.settings import (
    Field,
    Kind,
    fields_of,
    text_of,
)
from broker.errors import ErrorCode
from broker.groups.configs import group_defaults
from broker.handlers.dispatch import encode_response
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
from controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType

DYNAMIC_TOPIC: Final = 1
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
DYNAMIC_GROUP: Final = 8
"""Values of Kafka's DescribeConfigsResponse.ConfigSource."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config in the responses of DescribeConfigs and CreateTopics. synonyms: all values that it
    has, as (name, value, source), the one that is used first.
    """

    name: str
    synonyms: tuple[tuple[str, str, int], ...]
    type: ConfigType
    doc: str
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def value(self) -> str:
        return self.synonyms[0][1]

    @property
    def source(self) -> int:
        return self.synonyms[0][2]


def topic_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a topic with the given overrides; internal ones only if they are
    set.
    """
    return [
        ConfigEntry(
            config.name,
            _synonyms(
                config.name, (overrides.get(config.name), DYNAMIC_TOPIC), (config.default, DEFAULT)
            ),
            config.type,
            config.doc,
        )
        for config in TOPIC_CONFIGS.values()
        if not config.is_internal or config.name in overrides
    ]


def _synonyms(name: str, *values: tuple[str | None, int]) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, value, source) for value, source in values if value is not None)


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


_TYPES: Final = {
    Kind.BOOL: ConfigType.BOOLEAN,
    Kind.INT: ConfigType.LONG,
    Kind.DURATION: ConfigType.LONG,
    Kind.BYTES: ConfigType.LONG,
    Kind.LIST: ConfigType.LIST,
    Kind.LISTENERS: ConfigType.LIST,
}


def broker_entries(parts: Iterable[object], node_id: int) -> list[ConfigEntry]:
    """Return the settings of a broker's config objects."""
    return [
        _broker_entry(field, getattr(part, field.field), node_id)
        for part in parts
        for field in fields_of(type(part))
    ]


def _broker_entry(field: Field, value: object, node_id: int) -> ConfigEntry:
    text, default = text_of(field.setting, value), text_of(field.setting, field.default)
    shown = str(node_id) if field.name == "node.id" else text
    static = None if text == default else shown
    kind = _TYPES.get(field.setting.kind, ConfigType.STRING)
    synonyms = _synonyms(field.name, (static, STATIC_BROKER), (default, DEFAULT))
    return ConfigEntry(field.name, synonyms, kind, field.doc, is_read_only=True)


def handle_describe_configs(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    results = [
        _describe(
            node,
            resource,
            with_synonyms=request.include_synonyms,
            with_docs=request.include_documentation,
        )
        for resource in request.resources
    ]
    return encode_response(ctx, DescribeConfigsResponse(results=results))


def _describe(
    node: Node, resource: DescribeConfigsResource, *, with_synonyms: bool, with_docs: bool
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message="",
    )
    found = _entries(node, resource.resource_type, resource.resource_name)
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
        if name not in {"", str(node.node_id)}:
            return (
                ErrorCode.INVALID_REQUEST,
                f"this is broker {node.node_id}: ask broker {name}, or use an empty name",
            )
        return broker_entries(
            (node.config, node.stream_config, node.compaction_config), node.node_id
        )
    if resource_type == GROUP_RESOURCE:
        if not name:
            return ErrorCode.INVALID_REQUEST, "Group name must not be empty"
        return group_entries(node.image.configs.group(name), group_defaults(node.config))
    allowed = f"{TOPIC_RESOURCE} (topic), {BROKER_RESOURCE} (broker) and {GROUP_RESOURCE} (group)"
    return (
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type} has no configs; allowed are {allowed}",
    )


def _config_result(
    entry: ConfigEntry, *, with_synonyms: bool, with_docs: bool
) -> DescribeConfigsResourceResult:
    synonyms = [DescribeConfigsSynonym(*synonym) for synonym in entry.synonyms]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms if with_synonyms else [],
        config_type=entry.type,
        documentation=entry.doc or None if with_docs else None,
    )
