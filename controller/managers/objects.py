"""The life of objects outside of commits: prepared, expired, destroyed, removed.

Invariant: an object is destroyed only when no range refers to it, and a WAL object committed in
place also only when no recovery can need its slot (below the WAL's committed slot, or the WAL
ended). Ages are measured by the caller (`controller.writer.timeline`), never by wall clocks. This
is the one place where objects are destroyed: requests only drop references, and a tick comes
behind, bounded.
Source: AutoMQ `S3ObjectControlManager`.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from base.ids import Millis, ObjectId
from controller.api.messages import (
    ObjectsPrepared,
    PreparedItem,
    PrepareObjects,
    Status,
)
from controller.managers.checks import check_node
from controller.managers.result import Refused, Result
from controller.metadata.image import MetadataImage
from controller.metadata.objects import ObjectPhase, ObjectState
from controller.metadata.records import (
    MetadataOffset,
    ObjectDestroyed,
    ObjectPrepared,
    ObjectRemoved,
    Record,
)
from stream.format.keys import data_key
from stream.ports import BrokerIncarnation

PREPARES_MAX = 1_000
PREPARED_TTL_MS = 60 * 60_000
"""Longer than any upload may take: a commit after it is refused, and the uploader has to begin
again.
"""

Age = Callable[[MetadataOffset], float]
"""For how many seconds at least what stands at an offset of the log has been committed."""


def prepare_objects(
    image: MetadataImage, request: PrepareObjects, _now_ms: Millis, *, ttl_ms: int = PREPARED_TTL_MS
) -> Result[ObjectsPrepared]:
    """Ids are contiguous and rise. Not idempotent: ids of a lost reply expire."""
    try:
        check_node(image, BrokerIncarnation(request.node_id, request.node_epoch))
        return prepared_items(image, request.count, ttl_ms)
    except Refused as refused:
        return refused.result()


def prepared_items(image: MetadataImage, count: int, ttl_ms: int) -> Result[ObjectsPrepared]:
    """Whoever it was that asked. Raises Refused."""
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
    """Destroy what was prepared and not committed in its time; whatever was PUT under its key is
    garbage.
    """
    expired = (
        state.object_id
        for state in image.objects.prepared()
        if age_s(state.since) * 1_000 >= state.ttl_ms
    )
    return _destroyed(image, expired, now_ms, limit)


def destroy_unreferenced(image: MetadataImage, now_ms: Millis, limit: int) -> list[Record]:
    """Destroy committed objects that no log refers to any more."""
    useless = (state.object_id for state in image.objects.unreferenced() if _may_go(image, state))
    return _destroyed(image, useless, now_ms, limit)


def deletable(
    image: MetadataImage, age_s: Age, grace_ms: int, late_put_grace_ms: int, limit: int
) -> list[ObjectState]:
    """Destroyed objects whose grace is over, oldest first: delete their bytes, then say
    `objects_removed`.

    late_put_grace_ms: of what was never committed, because the PUT of a writer that was stopped may
    land after its object has expired.
    """
    late_ms = max(grace_ms, late_put_grace_ms)
    due = sorted(
        (state.since, state.object_id)
        for state in image.objects.destroyed()
        if age_s(state.since) * 1_000 >= (grace_ms if state.was_committed else late_ms)
    )
    states = (image.objects.get(object_id) for _, object_id in due[:limit])
    return [state for state in states if state is not None]


def objects_removed(image: MetadataImage, object_ids: Iterable[ObjectId]) -> list[Record]:
    """Forget objects whose bytes are gone. What is unknown or not destroyed is skipped."""
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
