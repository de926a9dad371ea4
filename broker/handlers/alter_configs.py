"""IncrementalAlterConfigs and AlterConfigs: change configs of topics at the controller.

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
from collections.abc import Sequence
from typing import Final, TypeAlias

from broker.errors import ErrorCode, code_of, code_of_status
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen import alter_configs as replacing
from broker.wire.gen import incremental_alter_configs as wire
from controller.api.errors import ControllerError
from controller.api.messages import AlterConfigs, ConfigChange, ItemResult
from controller.metadata.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_TIMEOUT_S: Final = 30.0
_Outcome: TypeAlias = tuple[ErrorCode, str | None]
_Outcomes: TypeAlias = dict[str, _Outcome]
_DONE: Final = ErrorCode.NONE, None


async def handle_incremental_alter_configs(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(wire.decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    responses: list[wire.AlterConfigsResourceResponse] = []
    for resource in request.resources:
        response = wire.AlterConfigsResourceResponse(
            0, None, resource.resource_type, resource.resource_name
        )
        response.error_code, response.error_message = await _alter(
            node, resource, validate_only=request.validate_only
        )
        responses.append(response)
    return encode_response(ctx, wire.IncrementalAlterConfigsResponse(responses=responses))


async def _alter(
    node: Node, resource: wire.AlterConfigsResource, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    changes: list[ConfigChange] = []
    for config in resource.configs:
        value = _value(node, resource, config)
        if isinstance(value, ErrorCode):
            return (
                value,
                (
                    f"config {config.name!r}: operation {config.config_operation} with value"
                    f" {config.value!r} is not allowed"
                ),
            )
        changes.append(
            ConfigChange(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                name=config.name,
                value=value,
            )
        )
    if not changes:
        return ErrorCode.NONE, None
    try:
        items = (
            await node.client.alter_configs(
                AlterConfigs(changes=changes, validate_only=validate_only), timeout_s=_TIMEOUT_S
            )
        ).items
    except (ControllerError, TimeoutError) as error:
        return code_of(error), str(error)
    return code_of_status(items[0].status), items[0].detail or None


def _value(
    node: Node, resource: wire.AlterConfigsResource, config: wire.AlterableConfig
) -> str | ErrorCode | None:
    """Return the value to set, None for the default, or an error."""
    if config.config_operation == _DELETE:
        return None
    if config.value is None or config.config_operation not in {_SET, _APPEND, _SUBTRACT}:
        return ErrorCode.INVALID_REQUEST
    if config.config_operation == _SET:
        return config.value
    known = TOPIC_CONFIGS.get(config.name)
    if (
        resource.resource_type != TOPIC_RESOURCE
        or known is None
        or known.type is not ConfigType.LIST
    ):
        return ErrorCode.INVALID_CONFIG
    present = node.image.configs.topic(resource.resource_name).get(config.name, known.default)
    items = [item for item in present.split(",") if item]
    named = [item for item in config.value.split(",") if item]
    if config.config_operation == _APPEND:
        return ",".join([*items, *(item for item in named if item not in items)])
    return ",".join(item for item in items if item not in named)


# --- AlterConfigs ---------------------------------------------------------------------------------


async def handle_alter_configs(node: Node, ctx: RequestContext) -> Response:
    """AlterConfigs (33)."""
    request = framing.decode_body(
        replacing.decode_request, ctx.frame, ctx.body_offset, ctx.api_version
    )
    named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    outcomes = [
        _refusal(item, is_repeated=named[item.resource_type, item.resource_name] > 1)
        for item in request.resources
    ]
    asked = [
        item
        for item, outcome in zip(request.resources, outcomes, strict=True)
        if outcome is None and item.resource_type == TOPIC_RESOURCE
    ]
    results = (
        await _replace(node, asked, validate_only=request.validate_only) if asked else _Outcomes()
    )
    responses = [
        replacing.AlterConfigsResourceResponse(
            *(outcome or results.get(item.resource_name, _DONE)),
            item.resource_type,
            item.resource_name,
        )
        for item, outcome in zip(request.resources, outcomes, strict=True)
    ]
    return encode_response(ctx, replacing.AlterConfigsResponse(responses=responses))


def _refusal(item: replacing.AlterConfigsResource, *, is_repeated: bool) -> _Outcome | None:
    """Return why the controller is not asked about this resource; None if it is, or if there is
    nothing to do.
    """
    invalid = ErrorCode.INVALID_REQUEST
    if is_repeated:
        return invalid, "the request names this resource more than once"
    if item.resource_type == BROKER_RESOURCE:
        problem = "brokers are configured by their file and restarted; they have no dynamic configs"
        return (ErrorCode.INVALID_CONFIG, problem) if item.configs else None
    if item.resource_type != TOPIC_RESOURCE:
        return invalid, f"resource type {item.resource_type} has no configs that can be altered"
    if not item.resource_name:
        return invalid, "there are no configs for all topics: name one"
    null = next((config.name for config in item.configs if config.value is None), None)
    return None if null is None else (invalid, f"config {null!r}: null is not a value")


async def _replace(
    node: Node, items: Sequence[replacing.AlterConfigsResource], *, validate_only: bool
) -> _Outcomes:
    """Replace the configs of topics. Returns the outcomes by topic."""
    changes = [
        ConfigChange(
            resource_type=TOPIC_RESOURCE,
            resource_name=item.resource_name,
            name=config.name,
            value=config.value,
        )
        for item in items
        for config in item.configs
    ]
    topics = [item.resource_name for item in items]
    try:
        answer = await node.client.alter_configs(
            AlterConfigs(changes=changes, validate_only=validate_only, replaced_topics=topics),
            timeout_s=_TIMEOUT_S,
        )
    except (ControllerError, TimeoutError) as error:
        return dict.fromkeys(topics, (code_of(error), str(error)))
    results = answer.items[len(changes) :]
    return {topic: _outcome(result) for topic, result in zip(topics, results, strict=True)}


def _outcome(result: ItemResult) -> _Outcome:
    return code_of_status(result.status), result.detail or None
