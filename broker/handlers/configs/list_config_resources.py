"""ListConfigResources (KIP-1142): list topics, brokers, loggers, and the groups and client metrics
subscriptions that have configs. Version 0 lists only subscriptions.
"""

from collections.abc import Collection, Iterator
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.advertised import live_nodes
from penstock.broker.requests.authorization import check_cluster
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.metadata.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from penstock.protocol.gen.list_config_resources import (
    ConfigResource,
    ListConfigResourcesResponse,
    decode_request,
)

_TYPES: Final = frozenset(
    {
        TOPIC_RESOURCE,
        BROKER_RESOURCE,
        BROKER_LOGGER_RESOURCE,
        CLIENT_METRICS_RESOURCE,
        GROUP_RESOURCE,
    }
)
_FIRST_WITH_TYPES: Final = 1


def handle_list_config_resources(node: Node, ctx: RequestContext) -> Response:
    """List the resources of the requested types, or of all types if none are given. Returns
    UNSUPPORTED_VERSION for an unknown type, as Kafka does.
    """
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE_CONFIGS)
    wanted = set(request.resource_types)
    if ctx.api_version < _FIRST_WITH_TYPES:
        wanted = {CLIENT_METRICS_RESOURCE}
    if not wanted <= _TYPES:
        return encode_response(
            ctx, ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        )
    found = list(_resources(node, wanted or _TYPES))
    return encode_response(ctx, ListConfigResourcesResponse(config_resources=found))


def _resources(node: Node, wanted: Collection[int]) -> Iterator[ConfigResource]:
    for of_broker in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        if of_broker in wanted:
            for state in live_nodes(node):
                yield ConfigResource(str(state.node_id), of_broker)
    if TOPIC_RESOURCE in wanted:
        for topic in node.image.topics:
            yield ConfigResource(topic.name, TOPIC_RESOURCE)
    for named in (CLIENT_METRICS_RESOURCE, GROUP_RESOURCE):
        if named in wanted:
            for name in node.image.configs.names(named):
                yield ConfigResource(name, named)
