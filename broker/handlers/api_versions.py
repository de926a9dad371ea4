"""ApiVersions: return the supported APIs (KIP-35, KIP-511, KIP-584). The request is allowed before
authentication and in any version, and never closes the connection.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext, Response, SoftwareInfo
from penstock.broker.requests.node import Handler, Node
from penstock.controller.metadata.features import (
    METADATA_VERSION,
    WAL_STORE_VERSION,
    supported_features,
)
from penstock.protocol import apis, framing
from penstock.protocol.gen import api_versions
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_CHARS_MAX: Final = 256
"""Maximum length of client software names and versions, because each connection stores them. Longer
ones are truncated.
"""
_FIRST_WITH_SOFTWARE: Final = 3
_FIRST_WITH_RANGES_FROM_ZERO: Final = 4


def make_handler(served_keys: Iterable[int]) -> Handler:
    """Return a handler that lists the supported APIs, in the order of `protocol.apis.APIS`.

    The response to an unknown version is encoded as version 0 and contains error code 35 and the
    whole list; the request body is not read. Version 3 omits supported features whose range starts
    at 0, because old clients cannot decode them (KAFKA-17011).
    """
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
            api_versions.decode_request,
            ctx.frame,
            ctx.body_offset,
            ctx.api_version,
            ELEMENTS_AT_ONCE_MAX,
        )
        has_software = ctx.api_version >= _FIRST_WITH_SOFTWARE
        if has_software and not _is_valid(request):
            message = api_versions.ApiVersionsResponse(
                error_code=ErrorCode.INVALID_REQUEST, api_keys=[]
            )
        else:
            if has_software:
                ctx.connection.client_software = _software(
                    request.client_software_name[:_SOFTWARE_CHARS_MAX],
                    request.client_software_version[:_SOFTWARE_CHARS_MAX],
                )
            message = api_versions.ApiVersionsResponse(
                api_keys=announced,
                supported_features=_supported(node, ctx.api_version),
                finalized_features_epoch=node.image.end_offset,
                finalized_features=[
                    api_versions.FinalizedFeatureKey(name, level, level)
                    for name, level in _finalized(node)
                ],
            )
        return framing.encode_response_frame(
            api, ctx.api_version, ctx.correlation_id, api_versions.encode_response, message
        )

    return handle_api_versions


@lru_cache(maxsize=256)
def _software(name: str, version: str) -> SoftwareInfo:
    """Return one shared object per software name and version, to save memory."""
    return SoftwareInfo(name, version)


def _finalized(node: Node) -> Iterable[tuple[str, int]]:
    fixed = {METADATA_VERSION.name: METADATA_VERSION.max_level}
    return (fixed | node.image.features.finalized()).items()


def _supported(node: Node, version: int) -> list[api_versions.SupportedFeatureKey]:
    # Every broker of a cluster with this feature enabled supports it.
    has_wal_store = node.image.features.level(WAL_STORE_VERSION) > 0
    return [
        api_versions.SupportedFeatureKey(feature.name, feature.min_level, feature.max_level)
        for feature in (METADATA_VERSION, *supported_features(has_wal_store=has_wal_store))
        if feature.min_level > 0 or version >= _FIRST_WITH_RANGES_FROM_ZERO
    ]


def _is_valid(request: api_versions.ApiVersionsRequest) -> bool:
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )
