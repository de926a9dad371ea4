"""Commit bulk rewrites, in which a job outside the brokers replaces ranges of a data stream with
objects that it has written. See docs/design/compaction.md.
"""

from collections.abc import Sequence

from penstock.base.ids import Millis, ObjectId, Offset
from penstock.controller.api.messages import (
    ItemResult,
    ItemResults,
    ObjectsPrepared,
    ReplacedItem,
    Status,
)
from penstock.controller.api.rewrite_messages import (
    ITEMS_MAX,
    SOURCES_MAX,
    CommitRewrite,
    PrepareRewrite,
    RewriteItem,
    RewriteSource,
)
from penstock.controller.managers.checks import check_count, check_stream
from penstock.controller.managers.log_changes import LogChanges, check_objects, prepared
from penstock.controller.managers.log_replacement import NewRange, replace_ranges
from penstock.controller.managers.objects import PREPARED_TTL_MS, prepared_items
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Record
from penstock.controller.metadata.streams import StreamState
from penstock.stream.format.keys import parse_data_key
from penstock.stream.ports import ObjectRole

TTL_MS_MIN = 1_000


def prepare_rewrite(
    image: MetadataImage, request: PrepareRewrite, _now_ms: Millis
) -> Result[ObjectsPrepared]:
    """Prepare objects like `objects.prepare_objects`, but for any requester and with the time limit
    of the request.
    """
    try:
        if not TTL_MS_MIN <= request.ttl_ms <= PREPARED_TTL_MS:
            raise Refused(
                Status.INVALID_REQUEST,
                f"ttl_ms {request.ttl_ms}; {TTL_MS_MIN} to {PREPARED_TTL_MS} are allowed",
            )
        return prepared_items(image, request.count, request.ttl_ms)
    except Refused as refused:
        return refused.result()


def commit_rewrite(
    image: MetadataImage, request: CommitRewrite, now_ms: Millis
) -> Result[ItemResults]:
    """Commit replacements. Each item succeeds or fails separately.

    Sources are removed from the index only if they are unchanged since the job read them and the
    replacement covers exactly the same offsets. The end, owner and epoch of the stream do not
    change, so no fence is needed, regardless of which broker leads the partition. A retry after a
    lost reply succeeds without records.

    Refuses the request with STREAM_NOT_EXIST (the topic was deleted) and INVALID_REQUEST. Rejects
    an item with COMPACTED_OBJECTS_NOT_FOUND (its sources changed) or OBJECT_NOT_EXIST (the new
    object was not prepared or has expired).
    """
    try:
        _check_limits(request)
        stream = check_stream(image, request.stream_id)
        if stream.kind != "data":
            raise Refused(
                Status.INVALID_REQUEST,
                f"stream {stream.stream_id} is not a data stream: its broker compacts it",
            )
    except Refused as refused:
        return refused.result()
    records: list[Record] = []
    results: list[ItemResult] = []
    for item in request.items:
        if request.is_ordered and results and results[-1].status:
            results.append(ItemResult(status=results[-1].status, detail=results[-1].detail))
            continue
        try:
            records += _exchange(image, stream, item, request, now_ms)
            results.append(ItemResult())
        except Refused as refused:
            results.append(ItemResult(status=refused.status, detail=refused.detail))
    return Result(records, value=ItemResults(items=results))


def _check_limits(request: CommitRewrite) -> None:
    check_count("items", len(request.items), ITEMS_MAX)
    check_count("sources", sum(len(item.sources) for item in request.items), SOURCES_MAX)
    check_objects([item.new for item in request.items])
    starts = [source.start_offset for item in request.items for source in item.sources]
    if len(set(starts)) != len(starts):
        raise Refused(Status.DUPLICATE_IN_REQUEST, "the request contains a source twice")
    for item in request.items:
        new = item.new
        of_stream = [part.stream_id for part in new.ranges] == [request.stream_id]
        if (
            not of_stream
            or not item.sources
            or new.role != ObjectRole.STREAM
            or new.object_id is None
        ):
            detail = (
                f"object {new.key!r}: a prepared stream object with one range of stream"
                f" {request.stream_id}, and its sources, are required"
            )
            raise Refused(Status.INVALID_REQUEST, detail)


def _exchange(
    image: MetadataImage,
    stream: StreamState,
    item: RewriteItem,
    request: CommitRewrite,
    now_ms: Millis,
) -> Sequence[Record]:
    assert item.new.object_id is not None
    if prepared(image, item.new, item.new.object_id).was_committed:
        return ()
    changes = LogChanges(image, now_ms)
    changes.commit_prepared(item.new, item.new.object_id, ())
    sources = [
        ReplacedItem(
            stream_id=stream.stream_id,
            object_id=_object_of(image, stream, source),
            start_offset=source.start_offset,
            end_offset=source.end_offset,
        )
        for source in item.sources
    ]
    # Only log compaction orders its replacements. The request does not contain the end of the
    # compacted part, so the end of the stream is used.
    cleaned_end = stream.end_offset if request.is_ordered else Offset(0)
    return [
        *changes.records,
        *replace_ranges(
            stream,
            sources,
            [NewRange(item.new.object_id, part) for part in item.new.ranges],
            cleaned_end,
            request.tombstones_kept_ms,
        ),
    ]


def _object_of(image: MetadataImage, stream: StreamState, source: RewriteSource) -> ObjectId:
    """Look up the object id of a source by its key, because the manifest contains no ids."""
    in_place = image.objects.in_place(source.key)
    object_id = parse_data_key(source.key) if in_place is None else in_place.object_id
    if object_id is None:
        if source.end_offset > stream.start_offset:
            span = f"[{source.start_offset}, {source.end_offset})"
            raise Refused(
                Status.COMPACTED_OBJECTS_NOT_FOUND,
                f"stream {stream.stream_id}: {source.key!r} no longer contains {span}",
            )
        return ObjectId(-1)
    return object_id
