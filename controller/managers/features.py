"""Change finalized feature levels, and check that brokers support them (KIP-584, KIP-1022).

A level can be finalized only if this controller and every registered broker support it. The other
controllers are not checked, so upgrade the software of the entire quorum before its features.
"""

from collections.abc import Iterable, Sequence

from penstock.controller.api.messages import FeatureUpdate, Status, UpdateFeatures
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.features import (
    METADATA_VERSION,
    OFFSETS_VERSION,
    WAL_STORE,
    WAL_STORE_VERSION,
    joined_ids,
    supported_range,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import FeatureRange, FeatureRecord, Record

UPDATES_MAX = 1_000
FEATURES_PER_BROKER_MAX = 100
UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3
"""Update types use the numbers of Kafka's protocol."""


def update_features(
    image: MetadataImage,
    request: UpdateFeatures,
    *,
    controller_id: int,
    has_wal_store: bool = False,
) -> Result[None]:
    """Set feature levels. Either all updates are applied or none. If a feature is updated several
    times, the last update takes effect, as in Kafka. has_wal_store: whether this controller is
    configured with a WAL store.
    """
    if len(request.updates) > UPDATES_MAX:
        return Result(
            status=Status.INVALID_REQUEST,
            detail=f"{len(request.updates)} updates; at most {UPDATES_MAX} are allowed",
        )
    updates = {update.name: update for update in request.updates}
    records: list[Record] = []
    for update in updates.values():
        reason = _refusal(image, update, controller_id, has_wal_store=has_wal_store)
        if reason is not None:
            return Result(
                status=Status.INVALID_FEATURE_LEVEL,
                detail=f"Invalid update version {update.level} for feature {update.name}. {reason}",
            )
        if update.level != image.features.level(update.name):
            records.append(_record(image, update))
    return Result([] if request.validate_only else records)


def _record(image: MetadataImage, update: FeatureUpdate) -> FeatureRecord:
    if update.name != OFFSETS_VERSION or update.level == 0:
        return FeatureRecord(update.name, update.level)
    topic_ids = [topic.topic_id for topic in image.topics]
    topic_ids += [topic.topic_id for topic in image.frozen_topics.deleted()]
    return FeatureRecord(update.name, update.level, joined_ids(topic_ids))


def _refusal(
    image: MetadataImage, update: FeatureUpdate, controller_id: int, *, has_wal_store: bool
) -> str | None:
    if update.type not in {UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE}:
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if update.name == WAL_STORE_VERSION and not update.level and any(image.nodes.all_wal_stores()):
        return "The WALs of this cluster are, or were, in a WAL store."
    feature = _local_range(update.name, has_wal_store=has_wal_store)
    if feature is None and update.level == 0:
        return f"Feature {update.name} not found."
    unsupported = _unsupported(
        feature,
        update.level,
        f"Local controller {controller_id}",
        is_wal_store=update.name == WAL_STORE_VERSION,
    )
    if unsupported is None:
        unsupported = _unsupported_by_brokers(image, update)
    if unsupported is not None:
        return unsupported
    current = image.features.level(update.name)
    if update.level < current and update.type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade."
        )
    if update.level > current and update.type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _local_range(name: str, *, has_wal_store: bool) -> FeatureRange | None:
    return None if name == WAL_STORE_VERSION and not has_wal_store else supported_range(name)


def _unsupported_by_brokers(image: MetadataImage, update: FeatureUpdate) -> str | None:
    if update.level == 0 or update.name == METADATA_VERSION.name:
        return None
    for node in image.nodes:
        feature = _find(node.features, update.name)
        reason = _unsupported(
            feature,
            update.level,
            f"Broker {node.node_id}",
            is_wal_store=update.name == WAL_STORE_VERSION,
        )
        if reason is not None:
            return reason
    return None


def _unsupported(
    feature: FeatureRange | None, level: int, who: str, *, is_wal_store: bool
) -> str | None:
    if feature is None:
        needed = " It is not configured with wal.store." if is_wal_store else ""
        return f"{who} does not support this feature.{needed}"
    return None if feature.contains(level) else f"{who} only supports versions {feature.shown}"


def check_supported(
    image: MetadataImage, features: Sequence[FeatureRange], *, is_without_wal_store: bool = False
) -> None:
    """Check a broker at its registration. Raises Refused if it does not support a finalized level.
    A broker that sends no features runs an older version. is_without_wal_store: whether the broker
    supports WAL stores and is configured without one.
    """
    if len(features) > FEATURES_PER_BROKER_MAX:
        raise Refused(
            Status.INVALID_REQUEST,
            f"a broker may declare at most {FEATURES_PER_BROKER_MAX} features",
        )
    for name, level in image.features.items():
        feature = _find(features, name)
        if name == WAL_STORE_VERSION and is_without_wal_store:
            feature = WAL_STORE
        if level == 0 or (feature is not None and feature.contains(level)):
            continue
        wants = "does not know it" if feature is None else f"supports {feature.shown}"
        remedy = "Update its software, or downgrade the feature first"
        if name == WAL_STORE_VERSION and feature is None:
            remedy = "Configure it with the wal.store of the cluster"
        raise Refused(
            Status.INVALID_FEATURE_LEVEL,
            f"Unable to register because the broker does not support finalized version {level} of"
            f" {name}: it {wants}. {remedy}",
        )


def _find(features: Iterable[FeatureRange], name: str) -> FeatureRange | None:
    return next((feature for feature in features if feature.name == name), None)
