"""IncrementalAlterConfigs and AlterConfigs: change configs of topics and groups at the controller.

AlterConfigs is the older API: the request names all configs of a resource, and those that it does
not name get their defaults, except the source of a fork. The controller decides which ones these
are, because the metadata of a broker may lag.
Invariant: either all changes of one resource are made or none; resources are independent. Appending
to a list and removing from it are computed from this broker's image: two concurrent clients may
undo each other's change, as in Kafka.
Limits: the controller limits the changes of a request; an answer of it takes at most _TIMEOUT_S.
Source: KIP-133, KIP-339; Kafka `ConfigurationControlManager`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from broker.errors import ErrorCode, code_of, code_of_status
from broker.groups.configs import group_problem
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen import alter_configs as replacing
from broker.wire.gen import incremental_alter_configs as wire
from controller.api.errors import ControllerError
from controller.api.messages import AlterConfigs, ConfigChange, ConfiguredResource, ItemResult
from controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_TIMEOUT_S: Final = 30.0
_Outcome: TypeAlias = tuple[ErrorCode, str | None]
_Resource: TypeAlias = tuple[int, str]
_DONE: Final = ErrorCode.NONE, None
_ALTERED: Final = frozenset({TOPIC_RESOURCE, GROUP_RESOURCE})
_NO_DEFAULTS: Final = {
    TOPIC_RESOURCE: "there are no configs for all topics: name one",
    GROUP_RESOURCE: "Default group resources are not allowed.",
}


class _Refused(Exception):
    """Raised for a resource that is not changed, with the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.outcome = code, message


async def handle_incremental_alter_configs(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(wire.decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    responses: list[wire.AlterConfigsResourceResponse] = []
    for resource in request.resources:
        outcome = await _alter(node, resource, validate_only=request.validate_only)
        responses.append(
            wire.AlterConfigsResourceResponse(
                *outcome, resource.resource_type, resource.resource_name
            )
        )
    return encode_response(ctx, wire.IncrementalAlterConfigsResponse(responses=responses))


async def _alter(
    node: Node, resource: wire.AlterConfigsResource, *, validate_only: bool
) -> _Outcome:
    named = resource.resource_type, resource.resource_name
    try:
        _check_resource(named, is_changed=bool(resource.configs))
        values = [(config.name, _value(node, named, config)) for config in resource.configs]
        _check_values(node, named, node.image.configs.get(*named), values)
    except _Refused as refused:
        return refused.outcome
    if not values:
        return _DONE
    request = AlterConfigs(changes=_changes(named, values), validate_only=validate_only)
    try:
        answer = await node.client.alter_configs(request, timeout_s=_TIMEOUT_S)
    except (ControllerError, TimeoutError) as error:
        return code_of(error), str(error)
    return _outcome(answer.items[0])


def _value(node: Node, resource: _Resource, config: wire.AlterableConfig) -> str | None:
    """Return the value to set, None for the default. Raises _Refused."""
    if config.config_operation == _DELETE:
        return None
    if config.value is None:
        problem = f"Null value not supported for : {config.name}"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    if config.config_operation == _SET:
        return config.value
    if config.config_operation not in {_APPEND, _SUBTRACT}:
        problem = f"config {config.name}: operation {config.config_operation} does not exist"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    known = TOPIC_CONFIGS.get(config.name) if resource[0] == TOPIC_RESOURCE else None
    if known is None or known.type is not ConfigType.LIST:
        verb = "APPEND" if config.config_operation == _APPEND else "SUBTRACT"
        problem = f"Can't {verb} to key {config.name} because its type is not LIST."
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)
    present = node.image.configs.get(*resource).get(config.name, known.default)
    items = [item for item in present.split(",") if item]
    named = [item for item in config.value.split(",") if item]
    if config.config_operation == _APPEND:
        return ",".join([*items, *(item for item in named if item not in items)])
    return ",".join(item for item in items if item not in named)


def _check_resource(resource: _Resource, *, is_changed: bool) -> None:
    """Raises _Refused if the controller is not asked about this resource."""
    resource_type, name = resource
    if resource_type == BROKER_RESOURCE and is_changed:
        problem = "brokers are configured by their file and restarted; they have no dynamic configs"
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)
    if resource_type not in {*_ALTERED, BROKER_RESOURCE}:
        problem = f"resource type {resource_type} has no configs that can be altered"
        raise _Refused(ErrorCode.INVALID_REQUEST, problem)
    if not name and resource_type in _NO_DEFAULTS:
        raise _Refused(ErrorCode.INVALID_REQUEST, _NO_DEFAULTS[resource_type])


def _check_values(
    node: Node,
    resource: _Resource,
    present: Mapping[str, str],
    values: Sequence[tuple[str, str | None]],
) -> None:
    """Check what depends on the settings of this broker. Raises _Refused."""
    if resource[0] != GROUP_RESOURCE:
        return
    if len(dict(values)) != len(values):
        raise _Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    changed = {**present, **dict(values)}
    kept = {name: value for name, value in changed.items() if value is not None}
    if problem := group_problem(node.config, kept):
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)


def _changes(resource: _Resource, values: Sequence[tuple[str, str | None]]) -> list[ConfigChange]:
    return [
        ConfigChange(resource_type=resource[0], resource_name=resource[1], name=name, value=value)
        for name, value in values
    ]


def _outcome(result: ItemResult) -> _Outcome:
    return code_of_status(result.status), result.detail or None


# --- AlterConfigs ---------------------------------------------------------------------------------


async def handle_alter_configs(node: Node, ctx: RequestContext) -> Response:
    """AlterConfigs (33)."""
    request = framing.decode_body(
        replacing.decode_request, ctx.frame, ctx.body_offset, ctx.api_version
    )
    named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    outcomes = [
        _refusal(node, item, is_repeated=named[item.resource_type, item.resource_name] > 1)
        for item in request.resources
    ]
    asked = [
        item
        for item, outcome in zip(request.resources, outcomes, strict=True)
        if outcome is None and item.resource_type in _ALTERED
    ]
    results = await _replace(node, asked, validate_only=request.validate_only) if asked else {}
    responses = [
        replacing.AlterConfigsResourceResponse(
            *(outcome or results.get((item.resource_type, item.resource_name), _DONE)),
            item.resource_type,
            item.resource_name,
        )
        for item, outcome in zip(request.resources, outcomes, strict=True)
    ]
    return encode_response(ctx, replacing.AlterConfigsResponse(responses=responses))


def _refusal(
    node: Node, item: replacing.AlterConfigsResource, *, is_repeated: bool
) -> _Outcome | None:
    """Return why the controller is not asked about this resource; None if it is, or if there is
    nothing to do.
    """
    if is_repeated:
        return ErrorCode.INVALID_REQUEST, "the request names this resource more than once"
    named = item.resource_type, item.resource_name
    null = next((config.name for config in item.configs if config.value is None), None)
    try:
        _check_resource(named, is_changed=bool(item.configs))
        if null is not None:
            return ErrorCode.INVALID_REQUEST, f"Null value not supported for : {null}"
        _check_values(node, named, {}, [(config.name, config.value) for config in item.configs])
    except _Refused as refused:
        return refused.outcome
    return None


async def _replace(
    node: Node, items: Sequence[replacing.AlterConfigsResource], *, validate_only: bool
) -> dict[_Resource, _Outcome]:
    """Replace the configs of resources. Returns the outcomes by resource."""
    items = sorted(items, key=lambda item: item.resource_type != TOPIC_RESOURCE)
    resources = [(item.resource_type, item.resource_name) for item in items]
    changes = [
        change
        for item, resource in zip(items, resources, strict=True)
        for change in _changes(resource, [(config.name, config.value) for config in item.configs])
    ]
    request = AlterConfigs(
        changes=changes,
        validate_only=validate_only,
        replaced_topics=[name for kind, name in resources if kind == TOPIC_RESOURCE],
        replaced=[
            ConfiguredResource(resource_type=kind, resource_name=name)
            for kind, name in resources
            if kind != TOPIC_RESOURCE
        ],
    )
    try:
        answer = await node.client.alter_configs(request, timeout_s=_TIMEOUT_S)
    except (ControllerError, TimeoutError) as error:
        return dict.fromkeys(resources, (code_of(error), str(error)))
    results = answer.items[len(changes) :]
    return {resource: _outcome(result) for resource, result in zip(resources, results, strict=True)}
