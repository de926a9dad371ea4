"""Read and change feature levels.

Invariant: every failure is a KafkaFailed.
Source: KIP-584.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed, check
from penstock.protocol.error_codes import explain
from penstock.protocol.gen import api_versions, update_features

_UPGRADE = 1
_SAFE_DOWNGRADE = 2


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """A feature that the broker supports, and its level in the cluster; 0 if it is disabled."""

    name: str
    min_level: int
    max_level: int
    level: int


def listed_features(client: WireClient) -> list[FeatureLevel]:
    """Return the features by name. Raises KafkaFailed."""
    response = client.send_request(
        apis.API_VERSIONS,
        api_versions.ApiVersionsRequest("penstock", "1"),
        api_versions.ApiVersionsResponse,
    )
    check(response.error_code, None, "ApiVersions")
    levels = {item.name: item.max_version_level for item in response.finalized_features}
    return [
        FeatureLevel(item.name, item.min_version, item.max_version, levels.get(item.name, 0))
        for item in sorted(response.supported_features, key=lambda item: item.name)
    ]


def set_levels(
    client: WireClient, levels: Mapping[str, int], *, is_downgrade: bool, validate_only: bool
) -> None:
    """Set either all of these levels or none. Raises KafkaFailed."""
    kind = _SAFE_DOWNGRADE if is_downgrade else _UPGRADE
    request = update_features.UpdateFeaturesRequest(
        feature_updates=[
            update_features.FeatureUpdateKey(name, level, kind) for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    response = client.send_request(
        apis.UPDATE_FEATURES, request, update_features.UpdateFeaturesResponse
    )
    if response.error_code:
        raise KafkaFailed(explain(response.error_code, response.error_message))
