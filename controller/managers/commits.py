"""Commit objects to logs, replace compacted ranges, close streams and advance the WAL in one
transaction.
"""

from collections.abc import Collection

from penstock.base.ids import (
    Millis,
    NodeId,
    ObjectId,
    StreamId,
    WalSequence,
)
from penstock.controller.api.messages import (
    CloseItem,
    Commit,
    CommitObject,
    ReplacedItem,
    Status,
)
from penstock.controller.managers.checks import check_count, check_epoch, check_node, check_owner
from penstock.controller.managers.elections import Elector
from penstock.controller.managers.log_changes import RANGES_MAX, LogChanges, check_objects, prepared
from penstock.controller.managers.log_replacement import NewRange, replace_ranges
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.records import (
    RangeEntry,
    Record,
    StreamClosed,
    WalPlaced,
    WalRecord,
)
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topics import PartitionKey, in_order, is_moving
from penstock.stream.ports import IN_STORE, BrokerIncarnation

CLOSES_MAX = 2_000


def commit(
    image: MetadataImage, request: Commit, now_ms: Millis, *, live: Collection[NodeId] = ()
) -> Result[None]:
    """Commit `stream.ports.CommitObjects`. live: brokers that can be elected for the partitions of
    closed streams.

    The request is applied completely or not at all. A retry after a lost reply succeeds without
    records. Data that is already committed, and data of deleted streams, is skipped. The
    transaction that closes the last stream of a moving partition elects its next leader. Objects
    without references are destroyed later, by `objects.destroy_unreferenced`.

    Refuses with NODE_* (this incarnation has ended), STREAM_FENCED or STREAM_NOT_OPENED (the stream
    has another owner or is closed), OFFSET_NOT_MATCHED (a range or a close is not at the end of its
    stream), OBJECT_NOT_EXIST (the object was not prepared or has expired, or the slot may be
    deleted), COMPACTED_OBJECTS_NOT_FOUND (the sources changed, so plan again), and INVALID_REQUEST.
    """
    try:
        check_node(image, BrokerIncarnation(request.node_id, request.node_epoch))
        _check_limits(request)
        return Result(_Commit(image, request, now_ms, live).run())
    except Refused as refused:
        return refused.result()


def _check_limits(request: Commit) -> None:
    check_count("replaced ranges", len(request.replaced), RANGES_MAX)
    check_count("closes", len(request.closes), CLOSES_MAX)
    check_objects(request.objects)
    ids = [item.object_id for item in request.objects if item.object_id is not None]
    if len(set(ids)) != len(ids):
        raise Refused(Status.DUPLICATE_IN_REQUEST, "the request contains an object id twice")


class _Commit:
    def __init__(
        self, image: MetadataImage, request: Commit, now_ms: Millis, live: Collection[NodeId]
    ) -> None:
        self._image = image
        self._request = request
        self._now_ms = now_ms
        self._live = live
        self._me = BrokerIncarnation(request.node_id, request.node_epoch)
        self._changes = LogChanges(image, now_ms)
        self._closed: set[StreamId] = set()
        self._sources: dict[StreamId, list[ReplacedItem]] = {}
        self._replacing: dict[StreamId, list[NewRange]] = {}

    def run(self) -> list[Record]:
        repeated = self._is_repeat()
        if not repeated:
            for source in self._request.replaced:
                self._sources.setdefault(source.stream_id, []).append(source)
        for item in self._request.objects:
            if item.object_id is None:
                self._changes.commit_in_place(item, self._me, self._appended(item, None))
            elif not repeated:
                self._changes.commit_prepared(
                    item, item.object_id, self._appended(item, item.object_id)
                )
        for stream_id, sources in self._sources.items():
            stream = self._image.streams.get(stream_id)
            if stream is not None:
                self._check_replacer(stream)
                self._changes.records += replace_ranges(
                    stream,
                    sources,
                    self._replacing.get(stream_id, []),
                    self._request.cleaned_end,
                    self._request.tombstones_kept_ms,
                )
        for close in self._request.closes:
            self._close(close)
        self._elect()
        if self._request.wal_committed is not None:
            self._advance_wal(self._request.wal_committed)
        return self._changes.records

    def _check_replacer(self, stream: StreamState) -> None:
        """Any live broker may replace ranges of a closed stream with equivalent ones, because
        `replace_ranges` verifies that they are. Only the owner may remove records.
        """
        if stream.opened or self._request.cleaned_end:
            check_owner(stream, self._me)

    def _is_repeat(self) -> bool:
        """Return whether all prepared objects of the request are already committed: the request is
        a retry after a lost reply. Brokers commit either all of them or none.
        """
        states = [
            prepared(self._image, item, item.object_id)
            for item in self._request.objects
            if item.object_id is not None
        ]
        committed = [state for state in states if state.was_committed]
        if committed and len(committed) < len(states):
            raise Refused(
                Status.INVALID_REQUEST,
                f"object {committed[0].object_id} was committed by another request",
            )
        return bool(committed)

    def _appended(self, item: CommitObject, object_id: ObjectId | None) -> list[RangeEntry]:
        """Return the ranges of one object that extend their streams. Collect the ranges that
        replace others.
        """
        ranges: list[RangeEntry] = []
        for part in item.ranges:
            if part.stream_id in self._sources:
                if object_id is None:
                    raise Refused(
                        Status.INVALID_REQUEST,
                        f"stream {part.stream_id}: a WAL object cannot replace anything",
                    )
                self._replacing.setdefault(part.stream_id, []).append(NewRange(object_id, part))
                continue
            stream = self._image.streams.get(part.stream_id)
            if stream is None or self._changes.holds(part):
                continue
            check_owner(stream, self._me)
            self._changes.append(stream, part)
            ranges.append(part)
        return ranges

    def _close(self, close: CloseItem) -> None:
        stream = self._image.streams.get(close.stream_id)
        if stream is None:
            return
        end = max(self._changes.end_of(stream), stream.start_offset)
        name = f"stream {stream.stream_id}"
        if stream.epoch > close.epoch and close.end_offset <= end:
            return  # closed by the first attempt; another broker has opened it
        check_epoch(stream, close.epoch)
        if stream.owner != self._me:
            raise Refused(
                Status.STREAM_FENCED,
                f"{name} belongs to node {stream.node_id} epoch {stream.node_epoch}",
            )
        if close.end_offset != end:
            raise Refused(
                Status.OFFSET_NOT_MATCHED,
                f"{name} ends at {end} and cannot be closed at {close.end_offset}",
            )
        if stream.opened and close.stream_id not in self._closed:
            self._closed.add(close.stream_id)
            self._changes.records.append(
                StreamClosed(close.stream_id, close.epoch, close.end_offset)
            )

    def _elect(self) -> None:
        """Elect leaders for partitions that wait for these closes. Partitions without an eligible
        broker wait for `elect_leaderless`.
        """
        keys: set[PartitionKey] = set()
        for stream_id in self._closed:
            stream = self._image.streams.get(stream_id)
            if stream is not None:
                keys.add(PartitionKey(stream.topic_id, stream.partition))
        moving = [
            found
            for key in sorted(keys, key=in_order)
            if (found := self._image.topics.partition(key)) is not None and is_moving(found)
        ]
        if not moving:
            return
        elector = Elector(self._image, self._live)
        for partition in moving:
            if elector.eligible and not any(map(self._is_open, partition.stream_ids)):
                self._changes.records.append(elector.elect(partition, self._now_ms))

    def _is_open(self, stream_id: StreamId) -> bool:
        stream = self._image.streams.get(stream_id)
        return stream is not None and stream.opened and stream_id not in self._closed

    def _advance_wal(self, committed: WalSequence) -> None:
        wal = self._image.nodes.wal(self._me)
        if wal is not None and committed > wal.committed:
            record = WalRecord(
                self._me.node_id,
                self._me.node_epoch,
                committed,
                wal.recoverer.node_id,
                wal.recoverer.node_epoch,
            )
            self._changes.records.append(record)
            if self._request.moves_wal:
                self._changes.records.append(self._place_wal(wal))

    def _place_wal(self, wal: WalState) -> WalPlaced:
        """Place the WAL in another store. Only a request that advances the committed slot can do
        this. Otherwise, a late copy of the request could assign slots that were written later to
        the wrong store. A WAL store that is being drained is still accepted: see
        `stream.upload.move_commit`.
        """
        request, me = self._request, self._me
        store_id, needed = request.wal_store_id, self._image.nodes.needed_wal_store
        is_needed = needed is not None and (store_id, request.wal_store_uuid) == (
            needed.store_id,
            needed.uuid,
        )
        if store_id != IN_STORE and not is_needed:
            raise Refused(
                Status.INVALID_REQUEST,
                f"WAL store {store_id} with UUID {request.wal_store_uuid} is not the one of this"
                " cluster",
            )
        if not any(self._image.nodes.all_wal_stores()):
            raise Refused(Status.INVALID_REQUEST, "this cluster has no WAL store")
        left = sorted({*wal.left, wal.store_id} - {store_id})
        return WalPlaced(me.node_id, me.node_epoch, store_id, tuple(left))
