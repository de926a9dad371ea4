"""DescribeConfigs: the configs of topics and of this broker, with where each value comes from.

Invariant: every config that has an effect (or that tools expect) is listed, set or not. Broker settings are read-only: they come from the
process's own configuration. A broker answers for itself only, as Kafka's do.

Source: KIP-226 (sources and synonyms), KIP-569 (types and documentation); Kafka's ConfigHelper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from broker.config import BrokerConfig
from broker.dispatch import encode_response
from broker.errors import ErrorCode
from broker.handlers.metadata import is_valid_topic_name
from broker.ports import Node, RequestContext, Response
from broker.wire import framing
from broker.wire.gen.describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    decode_request,
)
from controller.metadata.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType

DYNAMIC_TOPIC: Final = 1
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
"""Kafka's DescribeConfigsResponse.ConfigSource."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config as DescribeConfigs and CreateTopics tell it."""

    name: str
    value: str
    default: str
    source: int
    type: ConfigType
    doc: str
    is_read_only: bool = False
    is_sensitive: bool = False


def topic_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """All configs of a topic on which `overrides` are set."""
    return [
        ConfigEntry(
            name=config.name,
            value=overrides.get(config.name, config.default),
            default=config.default,
            source=DYNAMIC_TOPIC if config.name in overrides else DEFAULT,
            type=config.type,
            doc=config.doc,
        )
        for config in TOPIC_CONFIGS.values()
    ]


_BROKER_NAMES: Final = {
    "node_id": "node.id",
    "rack": "broker.rack",
    "request_bytes_max": "socket.request.max.bytes",
    "connections_max": "max.connections",
    "connections_idle_ms": "connections.max.idle.ms",
    "buffered_request_bytes_max": "queued.max.request.bytes",
    "auto_create_topics_enable": "auto.create.topics.enable",
    "num_partitions": "num.partitions",
    "default_replication_factor": "default.replication.factor",
    "offsets_topic_num_partitions": "offsets.topic.num.partitions",
    "group_initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
    "group_min_session_timeout_ms": "group.min.session.timeout.ms",
    "group_max_session_timeout_ms": "group.max.session.timeout.ms",
    "group_max_size": "group.max.size",
}
"""Fields of BrokerConfig by the Kafka property that tools look for."""


def broker_entries(config: BrokerConfig, node_id: int) -> list[ConfigEntry]:
    entries: list[ConfigEntry] = []
    for field in fields(config):
        name = _BROKER_NAMES.get(field.name)
        if name is None:
            continue
        value, default = _text(getattr(config, field.name)), _text(field.default)
        if field.name == "node_id":
            value = str(node_id)
        source = DEFAULT if value == default else STATIC_BROKER
        entries.append(ConfigEntry(name, value, default, source, _type_of(field.default), "", is_read_only=True))
    return entries


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_of(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    return ConfigType.LONG if isinstance(value, int) else ConfigType.STRING


def handle_describe_configs(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    results = [
        _describe(node, resource, with_synonyms=request.include_synonyms, with_docs=request.include_documentation)
        for resource in request.resources
    ]
    return encode_response(ctx, DescribeConfigsResponse(results=results))


def _describe(node: Node, resource: DescribeConfigsResource, *, with_synonyms: bool, with_docs: bool) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None)
    found = _entries(node, resource.resource_type, resource.resource_name)
    if isinstance(found, list):
        wanted = set(resource.configuration_keys or ())
        entries = [entry for entry in found if not wanted or entry.name in wanted]
        result.configs = [_tell(entry, with_synonyms=with_synonyms, with_docs=with_docs) for entry in entries]
    else:
        result.error_code, result.error_message = found
    return result


def _entries(node: Node, resource_type: int, name: str) -> list[ConfigEntry] | tuple[ErrorCode, str]:
    if resource_type == TOPIC_RESOURCE:
        if not is_valid_topic_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION.message
        if node.image.topics.by_name(name) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
        return topic_entries(node.image.configs.topic(name))
    if resource_type == BROKER_RESOURCE:
        if name not in {"", str(node.node_id)}:
            return ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}: ask broker {name} itself, or give an empty name"
        return broker_entries(node.config, node.node_id)
    allowed = f"{TOPIC_RESOURCE} (topic) and {BROKER_RESOURCE} (broker)"
    return ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no configs here; there are {allowed}"


def _tell(entry: ConfigEntry, *, with_synonyms: bool, with_docs: bool) -> DescribeConfigsResourceResult:
    synonyms: list[DescribeConfigsSynonym] = []
    if with_synonyms:
        if entry.source != DEFAULT:
            synonyms.append(DescribeConfigsSynonym(entry.name, entry.value, entry.source))
        synonyms.append(DescribeConfigsSynonym(entry.name, entry.default, DEFAULT))
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.doc or None if with_docs else None,
    )
