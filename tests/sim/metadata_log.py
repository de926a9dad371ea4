"""The metadata as committed by a majority, and checks of what controllers report.

A commit is on a majority of disks, every controller commits the same entry at an index, and a term
has one leader, which starts with the committed image. Votes and acknowledgments are durable before
they are sent, and responses contain only committed state.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from penstock.controller.api.messages import MetadataBatch, Reply
from penstock.controller.backup.snapshots import LoadedSnapshot
from penstock.controller.metadata.codec import decode_record, encode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import TopicUndeleted
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.majority import majority
from penstock.controller.raft.messages import (
    AppendReply,
    Entry,
    HardState,
    HeartbeatReply,
    Message,
    VoteReply,
)
from penstock.controller.raft.replicated_log import RaftQuorum
from tests.sim.disk import Disk

_reply_decoder = msgspec.msgpack.Decoder(Reply[Any])
_batch_decoder = msgspec.msgpack.Decoder(MetadataBatch)


class MetadataLog:
    def __init__(
        self,
        disks: Mapping[int, Disk],
        fail: Callable[[str], None],
        on_commit: Callable[[], None],
        now: Callable[[], float],
        begin: LoadedSnapshot | None = None,
    ) -> None:
        """One history. on_commit: called when the image has changed. begin: the start of a rebuilt
        cluster, whose image is the initial one.
        """
        self._disks = disks
        self._fail = fail
        self.on_commit = on_commit
        self._now = now
        self.image = MetadataImage() if begin is None else begin.image
        """The state of the committed records, which checks compare with."""
        self._first_offset, self._first_index = (
            (0, 0) if begin is None else (begin.base.offset, begin.base.index)
        )
        self.records: list[bytes] = []
        """Records after the begin."""
        self.undeleted: set[UUID] = set()
        """Topics that the last entry restored."""
        self.successor: MetadataLog | None = None
        """The history that a recovery began after this one."""
        self._entries: list[Entry] = []
        self._leaders: dict[int, int] = {}
        self._requested: dict[str, int] = {}
        self._heard: dict[tuple[int, int], dict[int, float]] = {}
        """The time of a voter's last response to the leader of a term, by leader and term."""

    @property
    def end_offset(self) -> int:
        return self._first_offset + len(self.records)

    def committed(self, controller: int, quorum: RaftQuorum, since: int) -> int:
        """Record that a controller's commit index has moved from `since` to the returned one."""
        core = quorum.core
        log, commit = core.log, core.commit
        for index in range(max(since, log.base.index) + 1, commit + 1):
            self._compare(controller, log.slice(index, 1, 1)[0], log.members.voters)
        return commit

    def leads(self, controller: int, epoch: int) -> None:
        if self._leaders.setdefault(epoch, controller) != controller:
            self._fail(
                f"epoch {epoch} is led by controller {self._leaders[epoch]} and by {controller}"
            )

    def leadership_begins(self, controller: int, image: MetadataImage) -> None:
        if image.end_offset > self.end_offset:
            self._fail(
                f"controller {controller} leads with records up to {image.end_offset},"
                f" {self.end_offset} are committed"
            )
        elif image.end_offset == self.end_offset and _records(image) != _records(self.image):
            self._fail(
                f"controller {controller} leads with an image of {image.end_offset} records that is"
                " not what was committed"
            )

    def compare(self, image: MetadataImage) -> None:
        """Check a complete image. If the history started empty, replay all records so far."""
        if image.end_offset > self.end_offset:
            self._fail(
                f"an image of {image.end_offset} records is served, {self.end_offset} are committed"
            )
        elif not self._first_offset:
            committed = MetadataImage()
            committed.apply_all(
                decode_record(record) for record in self.records[: image.end_offset]
            )
            if _records(image) != _records(committed):
                self._fail(
                    f"an image of {image.end_offset} records is served that is not what was"
                    " committed"
                )

    def says(self, message: Message) -> None:
        """Check a message from one voter to another, which will rely on it."""
        disk = self._disks[message.sender]
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            if not disk.has_voted(HardState(message.term, message.to)):
                self._fail(
                    f"controller {message.sender} votes for {message.to} in term {message.term},"
                    f" its disk has {disk.durable.hard}"
                )
        elif isinstance(message, AppendReply | HeartbeatReply):
            self._heard.setdefault((message.to, message.term), {})[message.sender] = self._now()
            if (
                isinstance(message, AppendReply)
                and not message.rejected
                and message.index
                > max(disk.durable.base.index + len(disk.durable.entries), self._first_index)
            ):
                self._fail(
                    f"controller {message.sender} acknowledges entry {message.index}, which is not"
                    " on its disk"
                )

    def proposed(self, epoch: int, records: Sequence[bytes], end_offset: int) -> None:
        """Check a successful proposal of this epoch."""
        end = end_offset - self._first_offset
        if self.records[end - len(records) : end] != list(records):
            self._fail(
                f"a proposal of epoch {epoch} that ends at {end_offset} is mistaken for committed,"
                f" {self.end_offset} records are"
            )

    def confirmed(
        self, controller: int, epoch: int, voters: Collection[int], since_s: float
    ) -> None:
        """Check a controller's claim that no other controller led at some moment since `since`.
        voters: its newest ones.
        """
        received = self._heard.get((controller, epoch), {})
        confirming = {
            controller,
            *(voter for voter, heard_s in received.items() if heard_s >= since_s),
        }.intersection(voters)
        if len(confirming) < majority(len(voters)):
            self._fail(
                f"controller {controller} takes epoch {epoch} for confirmed by {sorted(confirming)}"
                f" of {sorted(voters)}"
            )

    def requested(self, request_id: str) -> None:
        self._requested.setdefault(request_id, self.end_offset)

    def check_response(self, controller: str, method: str, request_id: str, data: bytes) -> None:
        reply = _reply_decoder.decode(data)
        if reply.offset <= 0:
            return
        if reply.offset > self.end_offset:
            self._fail(
                f"{controller} responds to {method} with offset {reply.offset},"
                f" {self.end_offset} are committed"
            )
        if reply.offset < self._requested.get(request_id, 0):
            self._fail(
                f"{controller} responds to {method} from offset {reply.offset},"
                f" {self._requested[request_id]} was committed before"
            )

    def told(self, controller: str, data: bytes) -> None:
        """Check a message of a stream of committed records."""
        batch = _batch_decoder.decode(data)
        if batch.snapshot and self.successor is not None and batch.base_offset > self.end_offset:
            # a controller that was left behind has loaded the state of the store
            self.successor.told(controller, data)
            return
        if batch.snapshot:
            if batch.base_offset > self.end_offset:
                self._fail(
                    f"{controller} sends a snapshot at {batch.base_offset}, {self.end_offset}"
                    " records are committed"
                )
            return
        at = batch.base_offset - self._first_offset
        if [bytes(record) for record in batch.records] != self.records[
            at : at + len(batch.records)
        ]:
            self._fail(
                f"{controller} sends records [{at}, {batch.end_offset}) that are not the committed"
                f" ones ({self.end_offset})"
            )

    def _compare(self, controller: int, entry: Entry, voters: Sequence[int]) -> None:
        committed = self._first_index + len(self._entries)
        if entry.index <= self._first_index:
            self._fail(
                f"controller {controller} commits entry {entry.index} of term {entry.term}, this"
                f" history begins at {self._first_index}"
            )
            return
        if entry.index <= committed:
            known = self._entries[entry.index - 1 - self._first_index]
            if entry != known:
                self._fail(
                    f"controller {controller} commits another entry {entry.index} of term"
                    f" {entry.term} than was committed ({known.term})"
                )
            return
        if entry.index != committed + 1:
            self._fail(
                f"controller {controller} commits entry {entry.index} first, nobody has committed"
                f" {committed + 1}"
            )
            return
        holders = [voter for voter in voters if self._disks[voter].holds(entry.index, entry.term)]
        if len(holders) < majority(len(voters)):
            self._fail(
                f"controller {controller} commits entry {entry.index} of term {entry.term}, which"
                f" only {holders} of {voters} have on disk"
            )
        self._entries.append(entry)
        if entry.records:
            self.records += entry.records
            records = [decode_record(record) for record in entry.records]
            self.image.apply_all(records)
            self.undeleted = {
                record.topic_id for record in records if isinstance(record, TopicUndeleted)
            }
            self.on_commit()


def _records(image: MetadataImage) -> list[bytes]:
    return sorted(encode_record(record) for record in ImageCopy.of(image).records())
