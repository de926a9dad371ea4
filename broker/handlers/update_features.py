"""UpdateFeatures (KIP-584, KIP-1022): change finalized feature levels at the controller.

If any update is rejected, none is applied, and the response contains the error of the first
rejected one. `allow_downgrade` of version 0 has no effect, as in Kafka.
"""

from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_cluster, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.api.errors import ControllerError, RequestRefused
from penstock.controller.api.messages import FeatureUpdate, Status, UpdateFeatures
from penstock.protocol.gen.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    decode_request,
)

_TIMEOUT_S: Final = 30.0
_LAST_WITH_RESULTS: Final = 1


async def handle_update_features(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.ALTER)
    response = UpdateFeaturesResponse(error_message=None)
    try:
        await node.client.update_features(_updates(node, ctx, request), timeout_s=_TIMEOUT_S)
    except (ControllerError, TimeoutError) as error:
        response.error_code, response.error_message = code_of(error), _reason(error)
    else:
        if not request.validate_only:
            levels = [
                f"{item.feature}={item.max_version_level}" for item in request.feature_updates
            ]
            record_change(node, ctx, "features_updated", levels)
        if ctx.api_version <= _LAST_WITH_RESULTS:
            response.results = [
                UpdatableFeatureResult(name, ErrorCode.NONE, ErrorCode.NONE.name)
                for name in dict.fromkeys(update.feature for update in request.feature_updates)
            ]
    return encode_response(ctx, response)


def _updates(node: Node, ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeatures:
    return UpdateFeatures(
        updates=[
            FeatureUpdate(
                name=update.feature, level=update.max_version_level, type=update.upgrade_type
            )
            for update in request.feature_updates
        ],
        validate_only=request.validate_only,
        forwarded_for=requester_of(node, ctx),
    )


def _reason(error: Exception) -> str:
    if isinstance(error, RequestRefused) and error.status is Status.INVALID_FEATURE_LEVEL:
        return (
            "The update failed for all features since the following feature had an error:"
            f" {error.detail}"
        )
    return str(error)
