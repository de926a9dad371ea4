"""IncrementalAlterConfigs and AlterConfigs: change configs of topics, brokers, groups and client
metrics subscriptions at the controller, and log levels on this broker.

The changes of one resource are atomic. Appending to a list sets its new value, which the controller
rejects if the list has changed since this broker read it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec import UNSET

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode, code_of, code_of_status
from penstock.broker.groups.coordinator.configs import group_problem
from penstock.broker.handlers.configs.broker_configs import (
    BrokerConfigRefused,
    check_altered_name,
    checked_values,
    list_default,
)
from penstock.broker.handlers.configs.describe_configs import configs_denial
from penstock.broker.handlers.configs.loggers import LoggerRefused, alter_loggers
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.broker.schemas.rules import is_schema_config
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ConfiguredResource,
    ItemResult,
    Status,
)
from penstock.controller.metadata.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    RESOURCE_NOUNS,
    TOPIC_RESOURCE,
)
from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType
from penstock.protocol.gen import alter_configs as replacing
from penstock.protocol.gen import incremental_alter_configs as wire

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_OF_LISTS: Final = frozenset({_APPEND, _SUBTRACT})
_ATTEMPTS_MAX: Final = 10
"""Maximum number of attempts to change a list that other clients change concurrently."""
_TIMEOUT_S: Final = 30.0
_Outcome: TypeAlias = tuple[ErrorCode, str | None]
_Resource: TypeAlias = tuple[int, str]
_DONE: Final = ErrorCode.NONE, None
_REPEATED: Final = (
    ErrorCode.INVALID_REQUEST,
    "Each resource must appear at most once.",
)
_ALTERED: Final = RESOURCE_NOUNS.keys()
"""Resource types that the controller alters."""
_NOUNS: Final = RESOURCE_NOUNS | {BROKER_LOGGER_RESOURCE: "loggers of broker"}
_NO_DEFAULTS: Final = {
    TOPIC_RESOURCE: "topics have no common configs: specify a topic",
    CLIENT_METRICS_RESOURCE: "Subscription name can't be empty",
    GROUP_RESOURCE: "Default group resources are not allowed.",
}


class _Refused(Exception):
    """Raised with the error of a resource that is rejected."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.outcome = code, message


async def handle_incremental_alter_configs(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, wire.decode_request)
    responses: list[wire.AlterConfigsResourceResponse] = []
    named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    async for resource in sliced(request.resources):
        is_repeated = named[resource.resource_type, resource.resource_name] > 1
        outcome = (
            _denial(node, ctx, resource)
            or (_REPEATED if is_repeated else None)
            or await _alter(node, ctx, resource, validate_only=request.validate_only)
        )
        responses.append(
            wire.AlterConfigsResourceResponse(
                *outcome, resource.resource_type, resource.resource_name
            )
        )
    if not request.validate_only:
        _note(node, ctx, responses)
    return encode_response(ctx, wire.IncrementalAlterConfigsResponse(responses=responses))


def _denial(
    node: Node,
    ctx: RequestContext,
    resource: wire.AlterConfigsResource | replacing.AlterConfigsResource,
) -> _Outcome | None:
    return configs_denial(
        node, ctx, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name
    )


def _note(
    node: Node,
    ctx: RequestContext,
    responses: Sequence[wire.AlterConfigsResourceResponse | replacing.AlterConfigsResourceResponse],
) -> None:
    altered = [
        f"{_NOUNS[item.resource_type]} {item.resource_name}"
        for item in responses
        if not item.error_code
    ]
    record_change(node, ctx, "configs_altered", altered)


async def _alter(
    node: Node, ctx: RequestContext, resource: wire.AlterConfigsResource, *, validate_only: bool
) -> _Outcome:
    named = resource.resource_type, resource.resource_name
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return _alter_loggers(node, resource, validate_only=validate_only)
    for attempts_left in reversed(range(_ATTEMPTS_MAX)):
        try:
            _check_resource(node, named)
            present = node.image.configs.get(*named)
            requested = [(config.name, _value(node, named, config)) for config in resource.configs]
            derived_from = {
                config.name: present.get(config.name)
                for config in resource.configs
                if config.config_operation in _OF_LISTS
            }
            values = await _checked(node, named, present, requested)
        except _Refused as refused:
            return refused.outcome
        if not values:
            return _DONE
        request = AlterConfigs(
            changes=_changes(named, values, derived_from),
            validate_only=validate_only,
            forwarded_for=requester_of(node, ctx),
        )
        try:
            response = await node.client.alter_configs(request, timeout_s=_TIMEOUT_S)
        except (ControllerError, TimeoutError) as error:
            return code_of(error), str(error)
        # The response arrives only after this broker's metadata contains the concurrent change, so
        # that the next attempt uses the new list.
        if response.items[0].status is not Status.CONFIG_CHANGED or not attempts_left:
            return _outcome(response.items[0])
    raise AssertionError("the last attempt returns")


def _alter_loggers(
    node: Node, resource: wire.AlterConfigsResource, *, validate_only: bool
) -> _Outcome:
    try:
        alter_loggers(
            node.node_id, resource.resource_name, resource.configs, validate_only=validate_only
        )
    except LoggerRefused as refused:
        return refused.code, str(refused)
    return _DONE


def _value(node: Node, resource: _Resource, config: wire.AlterableConfig) -> str | None:
    """Return the value to set, or None for the default. Raises _Refused."""
    if config.config_operation == _DELETE:
        return None
    if config.value is None:
        problem = f"Null value not supported for : {config.name}"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    if config.config_operation == _SET:
        return config.value
    if config.config_operation not in _OF_LISTS:
        problem = f"config {config.name}: operation {config.config_operation} does not exist"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    default = _list_default(node, resource[0], config.name)
    if default is None:
        verb = "APPEND" if config.config_operation == _APPEND else "SUBTRACT"
        problem = f"Can't {verb} to key {config.name} because its type is not LIST."
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)
    present = node.image.configs.get(*resource).get(config.name, default)
    items = [item for item in present.split(",") if item]
    named = dict.fromkeys(item for item in config.value.split(",") if item)
    if config.config_operation == _APPEND:
        known = set(items)
        return ",".join([*items, *(item for item in named if item not in known)])
    return ",".join(item for item in items if item not in named)


def _list_default(node: Node, resource_type: int, name: str) -> str | None:
    """Return the default of a list config, or None if the config is not a list."""
    if resource_type == BROKER_RESOURCE:
        return list_default(node, name)
    known = TOPIC_CONFIGS.get(name) if resource_type == TOPIC_RESOURCE else None
    return known.default if known is not None and known.type is ConfigType.LIST else None


def _check_resource(node: Node, resource: _Resource) -> None:
    """Raise _Refused if the request for this resource must not be sent to the controller."""
    resource_type, name = resource
    if resource_type == BROKER_LOGGER_RESOURCE:
        problem = "AlterConfigs cannot change levels of loggers: use IncrementalAlterConfigs"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    if resource_type not in _ALTERED:
        problem = f"resource type {resource_type} has no configs that can be altered"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    if not name and resource_type in _NO_DEFAULTS:
        raise _Refused(ErrorCode.INVALID_REQUEST, _NO_DEFAULTS[resource_type])
    if resource_type == BROKER_RESOURCE:
        try:
            check_altered_name(node, name)
        except BrokerConfigRefused as refused:
            raise _Refused(ErrorCode.INVALID_REQUEST, str(refused)) from refused


async def _checked(
    node: Node,
    resource: _Resource,
    present: Mapping[str, str],
    values: Sequence[tuple[str, str | None]],
) -> Sequence[tuple[str, str | None]]:
    """Check the values that depend on the settings of this broker. Return the values to store.
    Raises _Refused.
    """
    resource_type, name = resource
    if resource_type == TOPIC_RESOURCE:
        await _check_schemas(node, present, dict(values))
        return values
    if len(dict(values)) != len(values):
        raise _Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if resource_type == BROKER_RESOURCE:
        try:
            return checked_values(node, name, present, values)
        except BrokerConfigRefused as refused:
            raise _Refused(ErrorCode.INVALID_REQUEST, str(refused)) from refused
    if resource_type == CLIENT_METRICS_RESOURCE:
        return values
    changed = {**present, **dict(values)}
    kept = {config: value for config, value in changed.items() if value is not None}
    if problem := group_problem(node.config, kept):
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)
    return values


async def _check_schemas(
    node: Node, present: Mapping[str, str], values: Mapping[str, str | None]
) -> None:
    """Raise _Refused if the change leaves the topic with an invalid combination of schema configs.
    Changes of other configs are not checked.
    """
    if not any(map(is_schema_config, values)):
        return
    changed = {**present, **values}
    kept = {config: value for config, value in changed.items() if value is not None}
    if found := await node.record_checks.problem(kept):
        raise _Refused(ErrorCode.INVALID_CONFIG, found)


def _changes(
    resource: _Resource,
    values: Sequence[tuple[str, str | None]],
    derived_from: Mapping[str, str | None] = MappingProxyType({}),
) -> list[ConfigChange]:
    return [
        ConfigChange(
            resource_type=resource[0],
            resource_name=resource[1],
            name=name,
            value=value,
            derived_from=derived_from.get(name, UNSET),
        )
        for name, value in values
    ]


def _outcome(result: ItemResult) -> _Outcome:
    return code_of_status(result.status), result.detail or None


# --- AlterConfigs ---------------------------------------------------------------------------------


async def handle_alter_configs(node: Node, ctx: RequestContext) -> Response:
    """AlterConfigs (33). The request replaces all configs of a resource, except the sources of
    forks and mirrors. The controller determines which configs are reset, because the metadata of a
    broker may be outdated.
    """
    request = decoded(ctx, replacing.decode_request)
    named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    outcomes: list[_Outcome | None] = []
    requested: dict[_Resource, Sequence[tuple[str, str | None]]] = {}
    async for item in sliced(request.resources):
        resource = item.resource_type, item.resource_name
        denial = _denial(node, ctx, item)
        if denial is not None:
            outcomes.append(denial)
            continue
        try:
            values = await _replacement(node, item, is_repeated=named[resource] > 1)
        except _Refused as refused:
            outcomes.append(refused.outcome)
        else:
            outcomes.append(None)
            requested[resource] = values
    results = (
        await _replace(node, ctx, requested, validate_only=request.validate_only)
        if requested
        else {}
    )
    responses = await listed(
        replacing.AlterConfigsResourceResponse(
            *(outcome or results[item.resource_type, item.resource_name]),
            item.resource_type,
            item.resource_name,
        )
        for item, outcome in zip(request.resources, outcomes, strict=True)
    )
    if not request.validate_only:
        _note(node, ctx, responses)
    return encode_response(ctx, replacing.AlterConfigsResponse(responses=responses))


async def _replacement(
    node: Node, item: replacing.AlterConfigsResource, *, is_repeated: bool
) -> Sequence[tuple[str, str | None]]:
    """Return the new values of all configs of the resource. Raises _Refused."""
    invalid = ErrorCode.INVALID_REQUEST
    if is_repeated:
        raise _Refused(*_REPEATED)
    named = item.resource_type, item.resource_name
    _check_resource(node, named)
    null = next((config.name for config in item.configs if config.value is None), None)
    if null is not None:
        raise _Refused(invalid, f"Null value not supported for : {null}")
    return await _checked(node, named, {}, [(config.name, config.value) for config in item.configs])


async def _replace(
    node: Node,
    ctx: RequestContext,
    wanted: Mapping[_Resource, Sequence[tuple[str, str | None]]],
    *,
    validate_only: bool,
) -> dict[_Resource, _Outcome]:
    """Replace the configs of resources. Return the outcome for each resource."""
    topics = [name for kind, name in wanted if kind == TOPIC_RESOURCE]
    others = [resource for resource in wanted if resource[0] != TOPIC_RESOURCE]
    changes = await listed(
        change for resource, values in wanted.items() for change in _changes(resource, values)
    )
    request = AlterConfigs(
        changes=changes,
        validate_only=validate_only,
        replaced_topics=topics,
        replaced=[
            ConfiguredResource(resource_type=kind, resource_name=name) for kind, name in others
        ],
        forwarded_for=requester_of(node, ctx),
    )
    resources = [*((TOPIC_RESOURCE, name) for name in topics), *others]
    try:
        response = await node.client.alter_configs(request, timeout_s=_TIMEOUT_S)
    except (ControllerError, TimeoutError) as error:
        return dict.fromkeys(resources, (code_of(error), str(error)))
    results = response.items[len(changes) :]
    return {resource: _outcome(result) for resource, result in zip(resources, results, strict=True)}
