"""Open and trim streams. Streams are created and removed with topics, and closed by commits."""

from penstock.base.ids import Millis, StreamId
from penstock.controller.api.messages import (
    OpenedStreamItem,
    OpenStreamItem,
    OpenStreams,
    Status,
    StreamsOpened,
    TrimStream,
)
from penstock.controller.managers.checks import (
    check_count,
    check_epoch,
    check_node,
    check_owner,
    check_stream,
)
from penstock.controller.managers.deleted_records import trim_grace
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Record, StreamOpened, StreamTrimmed
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topics import PartitionKey, leader_of
from penstock.stream.ports import BrokerIncarnation

OPENS_MAX = 2_000


def open_streams(image: MetadataImage, request: OpenStreams) -> Result[StreamsOpened]:
    """Open streams. Each succeeds or fails separately. Opening a stream again with the same owner
    and epoch succeeds without a record. Only the leader of the partition may open its streams, with
    its leader epoch.
    """
    me = BrokerIncarnation(request.node_id, request.node_epoch)
    try:
        check_node(image, me)
        check_count("streams", len(request.items), OPENS_MAX)
    except Refused as refused:
        return refused.result()
    records: list[Record] = []
    items: list[OpenedStreamItem] = []
    seen: set[StreamId] = set()
    for item in request.items:
        try:
            if item.stream_id in seen:
                raise Refused(
                    Status.DUPLICATE_IN_REQUEST, f"stream {item.stream_id} is in the request twice"
                )
            seen.add(item.stream_id)
            stream = _openable(image, me, item)
        except Refused as refused:
            items.append(OpenedStreamItem(status=refused.status, detail=refused.detail))
            continue
        if not stream.opened:
            records.append(StreamOpened(item.stream_id, item.epoch, me.node_id, me.node_epoch))
        items.append(
            OpenedStreamItem(start_offset=stream.start_offset, end_offset=stream.next_offset)
        )
    return Result(records, value=StreamsOpened(items=items))


def trim_stream(
    image: MetadataImage, request: TrimStream, now_ms: Millis, *, grace_ms: int = 0
) -> Result[None]:
    """Set the start offset of a stream. Unless the removed records are retained, it may be higher
    than the committed end, because their data may still be in a WAL. A retry succeeds without
    records.

    grace_ms: grace period of topics without their own; 0 if records are not retained.
    """
    me = BrokerIncarnation(request.node_id, request.node_epoch)
    try:
        check_node(image, me)
        stream = check_stream(image, request.stream_id)
        check_epoch(stream, request.epoch)
        check_owner(stream, me)
        if request.start_offset < stream.start_offset:
            detail = (
                f"stream {stream.stream_id} starts at {stream.start_offset}; it cannot move back"
                f" to {request.start_offset}"
            )
            raise Refused(Status.OFFSET_NOT_MATCHED, detail)
    except Refused as refused:
        return refused.result()
    if request.start_offset == stream.start_offset:
        return Result()
    grace = trim_grace(image, stream, now_ms, wanted=request.keep, default_ms=grace_ms)
    if grace is not None and request.start_offset > stream.end_offset:
        detail = (
            f"stream {stream.stream_id} ends at {stream.end_offset}: what is below"
            f" {request.start_offset} cannot be kept before it is committed"
        )
        return Refused(Status.OFFSET_NOT_MATCHED, detail).result()
    return Result([StreamTrimmed(request.stream_id, request.start_offset, grace)])


def _openable(image: MetadataImage, me: BrokerIncarnation, item: OpenStreamItem) -> StreamState:
    stream = check_stream(image, item.stream_id)
    if stream.epoch > item.epoch:
        raise Refused(
            Status.STREAM_FENCED,
            f"stream {stream.stream_id} was opened with epoch {stream.epoch}, newer than"
            f" {item.epoch}",
        )
    if stream.epoch == item.epoch and stream.owner != me:
        owner = f"node {stream.node_id} epoch {stream.node_epoch}"
        raise Refused(
            Status.STREAM_FENCED,
            f"stream {stream.stream_id} was opened with epoch {stream.epoch} by {owner}",
        )
    _check_leader(image, stream, me, item)
    if stream.opened and stream.epoch < item.epoch:
        owner = f"node {stream.node_id} epoch {stream.node_epoch}"
        raise Refused(
            Status.STREAM_NOT_CLOSED,
            f"stream {stream.stream_id} is still open for {owner} with epoch {stream.epoch}",
        )
    return stream


def _check_leader(
    image: MetadataImage, stream: StreamState, me: BrokerIncarnation, item: OpenStreamItem
) -> None:
    """Check the leader in the partition record, so that a former leader cannot open the stream with
    a late request.
    """
    partition = image.topics.partition(PartitionKey(stream.topic_id, stream.partition))
    if partition is None:
        raise Refused(
            Status.STREAM_NOT_EXIST, f"the partition of stream {stream.stream_id} does not exist"
        )
    if leader_of(partition) != me or partition.leader_epoch != item.epoch:
        leader = (
            f"node {partition.leader} epoch {partition.leader_node_epoch}, leader epoch"
            f" {partition.leader_epoch}"
        )
        raise Refused(
            Status.STREAM_FENCED,
            f"stream {stream.stream_id} belongs to a partition led by {leader}; the request has"
            f" {item.epoch}",
        )
