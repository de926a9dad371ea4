"""IncrementalAlterConfigs: change configs of topics at the controller.

Invariant: either all changes of one resource are made or none; resources are independent. Appending
to a list and removing from it are computed from this broker's image: two concurrent clients may
undo each other's change, as in Kafka.
Source: KIP-339; Kafka `ConfigurationControlManager`.
"""

from typing import Final

from broker.errors import ErrorCode, code_of, code_of_status
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen import incremental_alter_configs as wire
from controller.api.errors import ControllerError
from controller.api.messages import AlterConfigs, ConfigChange
from controller.metadata.configs import TOPIC_RESOURCE
from controller.metadata.topic_configs import TOPIC_CONFIGS, ConfigType

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_TIMEOUT_S: Final = 30.0


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
