"""UpdateFeatures: refuse every update, because brokers have no features with levels.

All features are unknown, so the reason is that of Kafka for an unknown one. An error is that of the
first update, and none is made.
Source: KIP-584, KIP-1022; Kafka `FeatureControlManager`.
"""

from typing import Final

from broker.errors import ErrorCode
from broker.handlers.dispatch import encode_response
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.wire import framing
from broker.wire.gen.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesResponse,
    decode_request,
)

_FIRST_WITH_TYPE: Final = 1
_TYPES: Final = frozenset({1, 2, 3})
"""Upgrade, safe downgrade, unsafe downgrade."""


def handle_update_features(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    response = UpdateFeaturesResponse(error_message=None)
    if request.feature_updates:
        update = request.feature_updates[0]
        response.error_code = ErrorCode.INVALID_UPDATE_VERSION
        response.error_message = (
            "The update failed for all features since the following feature had an error: Invalid"
            f" update version {update.max_version_level} for feature {update.feature}."
            f" {_reason(update, ctx.api_version)}"
        )
    return encode_response(ctx, response)


def _reason(update: FeatureUpdateKey, version: int) -> str:
    if version >= _FIRST_WITH_TYPE and update.upgrade_type not in _TYPES:
        return "The controller does not support the given upgrade type."
    if update.max_version_level < 0:
        return "A feature version cannot be less than 0."
    if update.max_version_level == 0:
        return f"Feature {update.feature} not found."
    return "No broker supports this feature."
