"""ApiVersions: return the supported APIs. Served before any other request, in any version, and it
never closes the connection.

Invariant: the answer to an unknown version is error 35 in the encoding of v0, with the whole list,
and the request body is not read. The response header is always v0, because the client does not know
the version of the answer yet. Features: none of `transaction.version`, `group.version`,
`share.version`. The first and the last would switch clients to protocols that are not served; the
consumer group protocol needs none, because clients look for its APIs.

Source: KIP-35, KIP-511, KIP-584; Kafka's ApiVersionsRequest.isValid.
"""

import re
from collections.abc import Iterable
from typing import Final

from broker.errors import ErrorCode
from broker.handlers.node import Handler, Node
from broker.network.request import RequestContext, Response
from broker.wire import apis, framing
from broker.wire.gen import api_versions

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE: Final = 3


def make_handler(served_keys: Iterable[int]) -> Handler:
    """Return a handler that announces the served APIs, in the order of `broker.wire.apis.APIS`."""
    served = set(served_keys) | {apis.API_VERSIONS.key}
    announced = [
        api_versions.ApiVersion(api.key, api.announced_min, api.max)
        for api in apis.APIS.values()
        if api.key in served
    ]

    def handle_api_versions(node: Node, ctx: RequestContext) -> Response:
        api = apis.API_VERSIONS
        if not api.serves(ctx.api_version):
            message = api_versions.ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=announced
            )
            return framing.encode_response_frame(
                api, 0, ctx.correlation_id, api_versions.encode_response, message
            )
        request = framing.decode_body(
            api_versions.decode_request, ctx.frame, ctx.body_offset, ctx.api_version
        )
        if ctx.api_version >= _FIRST_WITH_SOFTWARE and not _is_valid(request):
            message = api_versions.ApiVersionsResponse(
                error_code=ErrorCode.INVALID_REQUEST, api_keys=[]
            )
        else:
            message = api_versions.ApiVersionsResponse(
                api_keys=announced, finalized_features_epoch=0
            )
        return framing.encode_response_frame(
            api, ctx.api_version, ctx.correlation_id, api_versions.encode_response, message
        )

    return handle_api_versions


def _is_valid(request: api_versions.ApiVersionsRequest) -> bool:
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )
