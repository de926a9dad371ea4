"""Feature levels: permitted changes, broker registration, and snapshots."""

import pytest

from penstock.base.ids import NodeId
from penstock.controller.api.messages import FeatureUpdate, Status, UpdateFeatures
from penstock.controller.managers import features, nodes
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.metadata.features import (
    GROUP_VERSION,
    OFFSETS_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    SUPPORTED,
    TRANSACTION_VERSION,
    newest_levels,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import FeatureRange, FeatureRecord, NodeRemoved
from tests.support.managers_cluster import ManagersCluster, registration, snapshot_of

UP, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture
def cluster() -> ManagersCluster:
    cluster = ManagersCluster()
    cluster.apply(newest_levels())
    return cluster


def update(
    cluster: ManagersCluster, *updates: tuple[str, int, int], dry: bool = False
) -> tuple[Status, str]:
    request = UpdateFeatures(
        updates=[FeatureUpdate(name=name, level=level, type=kind) for name, level, kind in updates],
        validate_only=dry,
    )
    result = features.update_features(cluster.image, request, controller_id=7)
    cluster.apply(result.records)
    return result.status, result.detail


def register(
    cluster: ManagersCluster, number: int, ranges: tuple[FeatureRange, ...], status: Status
) -> str:
    result = nodes.register_broker(cluster.image, registration(number, features=ranges))
    assert result.status is status
    cluster.apply(result.records)
    return result.detail


def test_a_new_cluster_has_the_newest_levels(cluster: ManagersCluster) -> None:
    assert cluster.image.features.finalized() == {
        TRANSACTION_VERSION: 2,
        GROUP_VERSION: 1,
        SHARE_VERSION: 1,
        STREAMS_VERSION: 1,
        OFFSETS_VERSION: 1,
    }


def test_an_older_cluster_keeps_its_features() -> None:
    image = MetadataImage()
    assert image.features.finalized() == {GROUP_VERSION: 1}
    assert image.features.level(TRANSACTION_VERSION) == 0


def test_upgrades_and_downgrades_require_the_right_update_type(cluster: ManagersCluster) -> None:
    assert update(cluster, (TRANSACTION_VERSION, 1, SAFE)) == (Status.OK, "")
    assert cluster.image.features.level(TRANSACTION_VERSION) == 1
    assert update(cluster, (TRANSACTION_VERSION, 0, UNSAFE)) == (Status.OK, "")
    assert cluster.image.features.finalized() == {
        GROUP_VERSION: 1,
        SHARE_VERSION: 1,
        STREAMS_VERSION: 1,
        OFFSETS_VERSION: 1,
    }
    assert update(cluster, (TRANSACTION_VERSION, 2, UP), (GROUP_VERSION, 1, UP))[0] is Status.OK
    assert cluster.image.features.level(TRANSACTION_VERSION) == 2


def test_validation_changes_nothing(cluster: ManagersCluster) -> None:
    assert update(cluster, (TRANSACTION_VERSION, 0, SAFE), dry=True) == (Status.OK, "")
    assert cluster.image.features.level(TRANSACTION_VERSION) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((TRANSACTION_VERSION, 3, UP), "Local controller 7 only supports versions 0-2"),
        (("nope", 1, UP), "Local controller 7 does not support this feature."),
        (("nope", 0, SAFE), "Feature nope not found."),
        ((GROUP_VERSION, -1, SAFE), "A feature version cannot be less than 0."),
        ((GROUP_VERSION, 1, 0), "The controller does not support the given upgrade type."),
        ((GROUP_VERSION, 1, 4), "The controller does not support the given upgrade type."),
        (
            (TRANSACTION_VERSION, 1, UP),
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade.",
        ),
    ],
)
def test_error_messages_match_kafka(
    cluster: ManagersCluster, change: tuple[str, int, int], reason: str
) -> None:
    """No part of the request is applied."""
    name, level, _ = change
    status, detail = update(cluster, (TRANSACTION_VERSION, 0, SAFE), change)
    assert status is Status.INVALID_FEATURE_LEVEL
    assert detail == f"Invalid update version {level} for feature {name}. {reason}"
    assert cluster.image.features.level(TRANSACTION_VERSION) == 2


def test_a_downgrade_cannot_raise_the_level(cluster: ManagersCluster) -> None:
    update(cluster, (TRANSACTION_VERSION, 1, SAFE))
    assert (
        "Can't downgrade to a newer version." in update(cluster, (TRANSACTION_VERSION, 2, SAFE))[1]
    )


def test_updates_per_request_are_limited(cluster: ManagersCluster) -> None:
    many = [(f"f{number}", 1, UP) for number in range(features.UPDATES_MAX + 1)]
    assert update(cluster, *many)[0] is Status.INVALID_REQUEST


def test_every_registered_broker_must_support_the_level() -> None:
    cluster = ManagersCluster()
    register(cluster, 1, SUPPORTED, Status.OK)
    register(cluster, 2, (), Status.OK)
    detail = update(cluster, (TRANSACTION_VERSION, 2, UP))[1]
    assert detail.endswith("Broker 2 does not support this feature.")
    older = (FeatureRange(TRANSACTION_VERSION, 0, 1),)
    register(cluster, 3, older, Status.OK)
    update(cluster, (TRANSACTION_VERSION, 1, UP))
    cluster.apply([NodeRemoved(NodeId(2))])
    detail = update(cluster, (TRANSACTION_VERSION, 2, UP))[1]
    assert detail.endswith("Broker 3 only supports versions 0-1")
    assert update(cluster, (TRANSACTION_VERSION, 1, UP))[0] is Status.OK


def test_a_broker_that_does_not_support_the_level_cannot_register(cluster: ManagersCluster) -> None:
    detail = register(cluster, 1, (), Status.INVALID_FEATURE_LEVEL)
    assert f"finalized version 2 of {TRANSACTION_VERSION}" in detail
    older = (FeatureRange(TRANSACTION_VERSION, 0, 1), *SUPPORTED[1:])
    assert "it supports 0-1" in register(cluster, 1, older, Status.INVALID_FEATURE_LEVEL)
    update(cluster, (TRANSACTION_VERSION, 1, SAFE))
    register(cluster, 1, older, Status.OK)
    many = tuple(FeatureRange(f"f{number}", 0, 1) for number in range(101))
    register(cluster, 2, many, Status.INVALID_REQUEST)


def test_a_snapshot_contains_the_levels(cluster: ManagersCluster) -> None:
    """It also contains a level of 0, which differs from no level."""
    register(cluster, 1, SUPPORTED, Status.OK)
    update(cluster, (GROUP_VERSION, 0, SAFE))
    copy = snapshot_of(cluster.image)
    assert copy == cluster.image
    assert copy.features.finalized() == {
        TRANSACTION_VERSION: 2,
        SHARE_VERSION: 1,
        STREAMS_VERSION: 1,
        OFFSETS_VERSION: 1,
    }


def test_a_delta_contains_the_features() -> None:
    delta = MetadataDelta.of(newest_levels())
    assert delta.features == {feature.name for feature in SUPPORTED}


@pytest.mark.parametrize("record", [FeatureRecord(TRANSACTION_VERSION, 3), FeatureRecord("new", 1)])
def test_a_process_that_does_not_support_the_level_stops(record: FeatureRecord) -> None:
    with pytest.raises(InvariantBroken, match="install the newer version"):
        MetadataImage().apply_all([record])
