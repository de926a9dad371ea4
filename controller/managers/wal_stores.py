"""Add the store in which brokers open their WALs, drain it, or abandon it after a loss."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from penstock.base.ids import WalStoreId
from penstock.controller.api.messages import (
    AbandonWalStore,
    DrainWalStore,
    Progress,
    RegisterBroker,
    Status,
)
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.features import WAL_STORE_VERSION
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import DrainState, WalState
from penstock.controller.metadata.objects import ObjectState
from penstock.controller.metadata.records import (
    FeatureRange,
    Record,
    WalStoreDrain,
    WalStoreLost,
    WalStoreRecord,
)
from penstock.stream.format.keys import parse_wal_key
from penstock.stream.ports import IN_STORE, WalStoreIdentity

_NAMED_MAX = 10
"""Maximum number of brokers listed in an error."""


def add_wal_store(image: MetadataImage, found: WalStoreIdentity, url: str) -> Result[None]:
    """Add a WAL store with the identity that was read from it. Repeating this does not change
    anything.

    Refuses with INVALID_FEATURE_LEVEL before `wal.store.version` is upgraded. Refuses with
    INVALID_REQUEST if the store belongs to another cluster or has ended, or if the cluster has
    another WAL store.
    """
    current = image.nodes.needed_wal_store
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
        return _refused(f"WAL store {found.store_id} at {url} has ended: use an empty prefix")
    return Result([WalStoreRecord(found.store_id, found.uuid, url)])


def check_new(image: MetadataImage, url: str) -> None:
    """Check that a WAL store at this URL may be added after others have ended. Raises Refused.

    The URL must be a new one: a lost store may look like an empty one at the same URL (for example,
    an unmounted directory), and a drained store contains fences. All live brokers must be
    configured with the new store: a broker with the URL of an ended store would look there for the
    ranges of the new store.
    """
    ended = list(image.nodes.ended_wal_stores())
    if url in {store.url for store in ended}:
        raise Refused(
            Status.INVALID_REQUEST,
            f"the WAL store at {url} was abandoned or drained: use another bucket, prefix or"
            " directory",
        )
    without = [
        node.node_id
        for node in image.nodes
        if not node.fenced and all(item.name != WAL_STORE_VERSION for item in node.features)
    ]
    if ended and without:
        raise Refused(
            Status.INVALID_REQUEST,
            f"brokers {_joined(without)} are not configured with wal.store, or started with a store"
            f" that has ended or did not respond: set it to {url} and restart them first",
        )


def features_of(image: MetadataImage, request: RegisterBroker) -> tuple[FeatureRange, ...]:
    """Return the features of a broker at its registration, without `wal.store.version` if the
    broker may be configured with a WAL store that has ended.
    """
    ended = list(image.nodes.ended_wal_stores())
    may_be_ended = (
        request.is_wal_store_down
        or request.wal_store_url in {store.url for store in ended}
        or request.wal_store_uuid in {store.uuid for store in ended}
    )
    if ended and image.nodes.needed_wal_store is None and may_be_ended:
        return _without_wal_store(request.features)
    return request.features


def _without_wal_store(features: Sequence[FeatureRange]) -> tuple[FeatureRange, ...]:
    return tuple(item for item in features if item.name != WAL_STORE_VERSION)


def _ended(image: MetadataImage, end: WalStoreDrain | WalStoreLost) -> list[Record]:
    """Return the records that end a WAL store. They remove `wal.store.version` from the features of
    the live brokers, which are still configured with this store.
    """
    return [
        end,
        *(
            msgspec.structs.replace(node, features=_without_wal_store(node.features))
            for node in image.nodes
            if not node.fenced and any(item.name == WAL_STORE_VERSION for item in node.features)
        ),
    ]


def next_store_id(image: MetadataImage) -> WalStoreId:
    return WalStoreId(
        max((store.store_id for store in image.nodes.all_wal_stores()), default=IN_STORE) + 1
    )


def abandon_wal_store(
    image: MetadataImage, request: AbandonWalStore, leases_end_in_s: float
) -> Result[None]:
    """Abandon a WAL store. Repeating this does not change anything. leases_end_in_s: how long dead
    writers of WALs in the store may still acknowledge records.

    Refuses with INVALID_REQUEST if there is no such store. Also refuses while a live broker has its
    WAL in the store, because it would acknowledge records that are lost with its process, and with
    NODE_IN_USE while a dead broker still has a lease. No WAL is placed in the store after that, so
    all of its WALs have dead writers, and `failover.end_lost_wals` can end them.
    """
    if unknown := _unknown(image, request.store_id, request.uuid):
        return _refused(unknown)
    if image.nodes.is_wal_store_lost(request.store_id):
        return Result()
    if image.nodes.is_wal_store_ended(request.store_id):
        return _refused(f"WAL store {request.store_id} was drained: nothing is in it")
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
    return Result(_ended(image, WalStoreLost(request.store_id)))


def drain_wal_store(image: MetadataImage, request: DrainWalStore) -> Result[Progress | None]:
    """Start or undo the draining of a WAL store, and return the number of WALs and objects left in
    it. Repeating the request ends the store once nothing is left.

    Refuses with INVALID_REQUEST if there is no such store or it has ended.
    """
    store_id, nodes = request.store_id, image.nodes
    if unknown := _unknown(image, store_id, request.uuid):
        return _refused(unknown)
    if nodes.is_wal_store_lost(store_id):
        return _refused(f"WAL store {store_id} was abandoned")
    state = nodes.drain_of(store_id)
    if request.is_undone:
        if state == DrainState.ENDED:
            return _refused(
                f"WAL store {store_id} was drained: configure another bucket, prefix or directory"
            )
        return _drained(store_id, DrainState.USED if state else None, 0)
    left = len(wals_in(image, store_id)) + len(placed_in(image, store_id))
    if state == DrainState.USED:
        next_state = None if request.is_repeated else DrainState.DRAINING
        return _drained(store_id, next_state, max(left, 1))
    if state == DrainState.DRAINING and not left:
        return Result(
            _ended(image, WalStoreDrain(store_id, DrainState.ENDED)), value=Progress(remaining=0)
        )
    return _drained(store_id, None, left)


def _drained(
    store_id: WalStoreId, state: DrainState | None, remaining: int
) -> Result[Progress | None]:
    return Result(
        [] if state is None else [WalStoreDrain(store_id, state)],
        value=Progress(remaining=remaining),
    )


def wals_in(image: MetadataImage, store_id: WalStoreId) -> list[WalState]:
    """Return the WALs in this store that have not ended. Their writers are alive, or they are dead
    and the WAL is waiting for recovery.
    """
    return [wal for wal in image.nodes.running_wals() if wal.store_id == store_id]


def placed_in(image: MetadataImage, store_id: WalStoreId) -> list[ObjectState]:
    """Return the slots in this store that are registered as objects. Logs refer to them, or they
    will be deleted once no reader needs them. This takes O(objects committed in place).
    """
    return [
        state
        for state in image.objects.placed()
        if (slot := parse_wal_key(state.key)) is not None and slot.wal_store == store_id
    ]


def brokers_in(image: MetadataImage, store_id: WalStoreId) -> list[int]:
    """Return the live brokers whose WALs are in this store, in order."""
    return sorted(
        wal.writer.node_id
        for wal in image.nodes.running_wals()
        if wal.store_id == store_id and image.nodes.is_alive(wal.writer)
    )


def _unknown(image: MetadataImage, store_id: WalStoreId, uuid: UUID) -> str:
    """Return an error if this cluster has no WAL store with this id and UUID; otherwise ""."""
    store = image.nodes.wal_store(store_id)
    if store is not None and store.uuid == uuid:
        return ""
    known = ", ".join(
        f"{store.store_id} with UUID {store.uuid}" for store in image.nodes.all_wal_stores()
    )
    return f"there is no WAL store {store_id} with UUID {uuid}; known are: {known or 'none'}"


def _joined(node_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(node_ids)[:_NAMED_MAX]))
    rest_count = len(node_ids) - _NAMED_MAX
    return f"{shown} and {rest_count} more" if rest_count > 0 else shown


def _refused(detail: str) -> Result[None]:
    return Result(status=Status.INVALID_REQUEST, detail=detail)
