"""Add the store in which brokers open their WALs, and abandon one that is lost."""

from collections.abc import Sequence

from penstock.base.ids import WalStoreId
from penstock.controller.api.messages import AbandonWalStore, Status
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.features import WAL_STORE_VERSION
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import WalStoreLost, WalStoreRecord
from penstock.stream.ports import IN_STORE, WalStoreIdentity

_NAMED_MAX = 10
"""Number of brokers listed in an error."""


def add_wal_store(image: MetadataImage, found: WalStoreIdentity, url: str) -> Result[None]:
    """Add a WAL store with this identity, which is stored in it. Repeating it changes nothing.

    Refuses with INVALID_FEATURE_LEVEL before `wal.store.version` is upgraded, and with
    INVALID_REQUEST if the store belongs to another cluster or was abandoned, or the cluster has
    another one.
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
    try:
        check_new(image, url)
    except Refused as refused:
        return refused.result()
    if found.store_id != next_store_id(image):
        return _refused(f"WAL store {found.store_id} at {url} was abandoned: use an empty prefix")
    return Result([WalStoreRecord(found.store_id, found.uuid, url)])


def check_new(image: MetadataImage, url: str) -> None:
    """Check that a WAL store at this URL may be added after others were abandoned. Raises Refused.

    A lost store may look like an empty one at its URL, for example an unmounted directory. Every
    live broker must reach the new one.
    """
    lost = list(image.nodes.lost_wal_stores())
    if url in {store.url for store in lost}:
        raise Refused(
            Status.INVALID_REQUEST,
            f"the WAL store at {url} was abandoned: use another bucket, prefix or directory",
        )
    without = [
        node.node_id
        for node in image.nodes
        if not node.fenced and all(item.name != WAL_STORE_VERSION for item in node.features)
    ]
    if lost and without:
        raise Refused(
            Status.INVALID_REQUEST,
            f"brokers {_joined(without)} are not configured with wal.store: set it to {url} and"
            " restart them first",
        )


def next_store_id(image: MetadataImage) -> WalStoreId:
    return WalStoreId(
        max((store.store_id for store in image.nodes.all_wal_stores()), default=IN_STORE) + 1
    )


def abandon_wal_store(
    image: MetadataImage, request: AbandonWalStore, leases_end_in_s: float
) -> Result[None]:
    """Abandon a WAL store. Repeating it changes nothing. leases_end_in_s: how long the dead writer
    of a WAL in it may still acknowledge records.

    Refuses with INVALID_REQUEST if there is no such store, or a live broker has its WAL in it: it
    would acknowledge records that are lost with its process; and with NODE_IN_USE for a dead one
    that still has a lease. From then on no WAL is placed there, so every WAL in the store has a
    dead writer, and `failover.end_lost_wals` can end it.
    """
    store = image.nodes.wal_store(request.store_id)
    if store is None or store.uuid != request.uuid:
        known = ", ".join(
            f"{store.store_id} with UUID {store.uuid}" for store in image.nodes.all_wal_stores()
        )
        return _refused(
            f"there is no WAL store {request.store_id} with UUID {request.uuid}; known are:"
            f" {known or 'none'}"
        )
    if image.nodes.is_wal_store_lost(request.store_id):
        return Result()
    if users := brokers_in(image, request.store_id):
        return _refused(
            f"the WALs of live brokers {_joined(users)} are in WAL store {request.store_id}: they"
            " leave it once it fails for wal.fallback.after.ms; if that is 0, stop them first"
        )
    if leases_end_in_s > 0:
        return Result(
            status=Status.NODE_IN_USE,
            detail=(
                "a broker that died recently may still acknowledge records for"
                f" {leases_end_in_s:.0f} s: try again then"
            ),
        )
    return Result([WalStoreLost(request.store_id)])


def brokers_in(image: MetadataImage, store_id: WalStoreId) -> list[int]:
    """Return the live brokers whose WALs are in this store, in order."""
    return sorted(
        wal.writer.node_id
        for wal in image.nodes.running_wals()
        if wal.store_id == store_id and image.nodes.is_alive(wal.writer)
    )


def _joined(node_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(node_ids)[:_NAMED_MAX]))
    rest_count = len(node_ids) - _NAMED_MAX
    return f"{shown} and {rest_count} more" if rest_count > 0 else shown


def _refused(detail: str) -> Result[None]:
    return Result(status=Status.INVALID_REQUEST, detail=detail)
