"""Add the store in which brokers open their WALs."""

from penstock.controller.api.messages import Status
from penstock.controller.managers.result import Result
from penstock.controller.metadata.features import WAL_STORE_VERSION
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import WalStoreRecord
from penstock.stream.ports import WalStoreIdentity


def add_wal_store(image: MetadataImage, found: WalStoreIdentity, url: str) -> Result[None]:
    """Add a WAL store with this identity, which is stored in it. Repeating it changes nothing.

    Refuses with INVALID_FEATURE_LEVEL before `wal.store.version` is upgraded, and with
    INVALID_REQUEST if the store belongs to another cluster, or the cluster has another one.
    """
    current = image.nodes.current_wal_store
    if current is not None and (current.store_id, current.uuid) == (found.store_id, found.uuid):
        return Result()
    if current is not None:
        return _refused(
            f"the WALs of this cluster are in WAL store {current.store_id} at {current.url} with"
            f" UUID {current.uuid}, not in store {found.store_id} at {url} with UUID {found.uuid}:"
            " configure and mount the same store on all nodes"
        )
    if found.cluster_id != image.cluster_id:
        return _refused(
            f"the WAL store at {url} belongs to cluster {found.cluster_id!r}: use another prefix"
        )
    if image.features.level(WAL_STORE_VERSION) == 0:
        return Result(
            status=Status.INVALID_FEATURE_LEVEL,
            detail=f"the cluster does not use its WAL store until {WAL_STORE_VERSION} is upgraded",
        )
    return Result([WalStoreRecord(found.store_id, found.uuid, url)])


def _refused(detail: str) -> Result[None]:
    return Result(status=Status.INVALID_REQUEST, detail=detail)
