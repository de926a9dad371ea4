"""Prepare, expire, destroy and remove objects.

Requests only drop references to objects. The periodic task of this module deletes a limited number
of objects at a time. `controller.active.record_ages` measures their age, without wall clocks.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from penstock.base.ids import Millis, ObjectId
from penstock.controller.api.messages import (
    ObjectsPrepared,
    PreparedItem,
    PrepareObjects,
    Status,
)
from penstock.controller.managers.checks import check_node
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase, ObjectState
from penstock.controller.metadata.records import (
    MetadataOffset,
    ObjectDestroyed,
    ObjectPrepared,
    ObjectRemoved,
    Record,
)
from penstock.stream.format.keys import WAL_STORE_ROOT, data_key
from penstock.stream.ports import BrokerIncarnation

PREPARES_MAX = 1_000
PREPARED_TTL_MS = 60 * 60_000
"""Longer than any upload takes. A later commit is rejected, and the uploader must start over."""

Age = Callable[[MetadataOffset], float]
"""Returns a lower bound for the seconds since the record at a log offset was committed."""


def prepare_objects(
    image: MetadataImage, request: PrepareObjects, _now_ms: Millis, *, ttl_ms: int = PREPARED_TTL_MS
) -> Result[ObjectsPrepared]:
    """Prepare objects with contiguous, increasing ids. Not idempotent: if the reply is lost, the
    ids expire.
    """
    try:
        check_node(image, BrokerIncarnation(request.node_id, request.node_epoch))
        return prepared_items(image, request.count, ttl_ms)
    except Refused as refused:
        return refused.result()


def prepared_items(image: MetadataImage, count: int, ttl_ms: int) -> Result[ObjectsPrepared]:
    """Prepare objects for any requester. Raises Refused."""
    if not 1 <= count <= PREPARES_MAX:
        raise Refused(
            Status.INVALID_REQUEST, f"{count} objects to prepare; 1 to {PREPARES_MAX} are allowed"
        )
    first = image.next_object_id
    items = [
        PreparedItem(object_id=ObjectId(number), key=data_key(ObjectId(number)))
        for number in range(first, first + count)
    ]
    records: list[Record] = [
        ObjectPrepared(item.object_id, item.key, ttl_ms, image.end_offset) for item in items
    ]
    return Result(records, value=ObjectsPrepared(items=items))


def expire_prepared(image: MetadataImage, now_ms: Millis, age_s: Age, limit: int) -> list[Record]:
    """Destroy objects that were prepared but not committed in time. Any data stored under their
    keys is garbage.
    """
    expired = (
        state.object_id
        for state in image.objects.prepared()
        if age_s(state.since) * 1_000 >= state.ttl_ms
    )
    return _destroyed(image, expired, now_ms, limit)


def destroy_unreferenced(image: MetadataImage, now_ms: Millis, limit: int) -> list[Record]:
    """Destroy committed objects without references. Slots that recovery may need are not destroyed.
    It no longer needs slots below the committed slot or slots of ended WALs.
    """
    useless = (state.object_id for state in image.objects.unreferenced() if _may_go(image, state))
    return _destroyed(image, useless, now_ms, limit)


def deletable(
    image: MetadataImage,
    age_s: Age,
    grace_ms: int,
    late_put_grace_ms: int,
    limit: int,
    *,
    in_wal_stores: bool = False,
) -> list[ObjectState]:
    """Return destroyed objects whose grace period has ended, oldest first. The caller deletes their
    bytes and then calls `objects_removed`.

    late_put_grace_ms: grace period of objects that were never committed, because the PUT of a
    paused writer may arrive after the object has expired. in_wal_stores: whether to return objects
    in WAL stores instead of objects in the cluster's own store. Younger objects are not examined,
    because the deletion of a topic may destroy a million objects.
    """
    found: list[ObjectState] = []
    for state in image.objects.destroyed():
        age_ms = age_s(state.since) * 1_000
        if age_ms < grace_ms or len(found) == limit:
            break
        if state.key.startswith(WAL_STORE_ROOT) == in_wal_stores and (
            state.was_committed or age_ms >= late_put_grace_ms
        ):
            found.append(state)
    return found


def objects_removed(image: MetadataImage, object_ids: Iterable[ObjectId]) -> list[Record]:
    """Remove objects whose bytes are deleted. Unknown objects and objects that are not destroyed
    are skipped.
    """
    states = (image.objects.get(object_id) for object_id in dict.fromkeys(object_ids))
    return [
        ObjectRemoved(state.object_id)
        for state in states
        if state is not None and state.phase == ObjectPhase.DESTROYED
    ]


def _may_go(image: MetadataImage, state: ObjectState) -> bool:
    return state.wal is None or image.nodes.wal_is_past(state.wal, state.wal_sequence)


def _destroyed(
    image: MetadataImage, object_ids: Iterable[ObjectId], now_ms: Millis, limit: int
) -> list[Record]:
    return [
        ObjectDestroyed(object_id, now_ms, image.end_offset)
        for object_id in sorted(islice(object_ids, limit))
    ]
