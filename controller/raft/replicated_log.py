"""The replicated log of the runtime (`Quorum`), implemented with Raft for one or more voters.
Records are not decoded.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

import structlog

from penstock.base.histogram import LatencyHistogram
from penstock.controller.api.errors import (
    ChangeRefused,
    JournalStateLost,
    NotLeader,
    SnapshotCorrupt,
    SnapshotMissing,
)
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset
from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.directory import DataDirectory
from penstock.controller.raft.identity import Identity
from penstock.controller.raft.journal import Journal, Recovered
from penstock.controller.raft.messages import Base, Endpoint, HardState, Members, Message, Start
from penstock.controller.raft.node import RaftNode, Transport

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Leadership:
    """The current leader. address: address of the leader, or "" if unknown.

    active: whether this process leads in `epoch`, which is Raft's term. If so, everything that
    earlier leaders committed is also committed here, and an image at `committed_offset` is
    complete. False during a leadership transfer, when proposals are rejected.
    """

    active: bool
    epoch: ControllerEpoch
    address: str = ""


@dataclass(frozen=True, slots=True)
class CommittedRecords:
    """Committed records [base_offset, base_offset + len(records)) as they were proposed."""

    base_offset: MetadataOffset
    records: list[bytes]

    @property
    def end_offset(self) -> MetadataOffset:
        return MetadataOffset(self.base_offset + len(self.records))


class Quorum(Protocol):
    """A log of encoded records, replicated to a majority of voters. Offsets have no gaps, and
    records can be read only after they are committed.
    """

    @property
    def leadership(self) -> Leadership: ...

    @property
    def controllers(self) -> tuple[str, ...]:
        """Known addresses of all controllers."""
        ...

    @property
    def first_offset(self) -> MetadataOffset:
        """Offset of the oldest record in the log. Only snapshots contain older records."""
        ...

    @property
    def committed_offset(self) -> MetadataOffset:
        """Exclusive end of the committed records."""
        ...

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        """Commit records and return the committed end offset. Raises QuorumClosed, JournalFailed,
        and NotLeader if `epoch` has ended. The caller must then drop its image, because its last
        records may not be committed.
        """
        ...

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        """Return the committed records from `offset` on, within the limit, but at least one if
        there are any. Requires first_offset <= offset <= committed_offset.
        """
        ...

    async def wait_committed(self, offset: MetadataOffset) -> None:
        """Wait until a record at or after `offset` is committed. Raises QuorumClosed."""
        ...

    async def confirm(self, epoch: ControllerEpoch) -> None:
        """Wait until a majority has confirmed, after this call, that `epoch` still leads. Reads may
        then be served. Raises the errors of `propose`.
        """
        ...

    def point_at(self, offset: MetadataOffset) -> Base:
        """Return the log position of a snapshot with the records below `offset`, all of which must
        be committed.
        """
        ...

    async def drop_before(self, offset: MetadataOffset) -> None:
        """Drop records below `offset`, which a snapshot must contain. Some of them may remain."""
        ...


@dataclass(frozen=True, slots=True)
class _Proposed:
    index: int
    term: int
    end_offset: MetadataOffset
    response: "asyncio.Future[MetadataOffset]"


class RaftQuorum:
    """Runs one controller of a Raft quorum: a voter, a learner, or a controller that is not a
    member.

    addresses: configured host:port by controller. An address in the log takes precedence.
    """

    def __init__(
        self,
        directory: DataDirectory,
        identity: Identity,
        config: CoreConfig,
        addresses: Mapping[int, str],
        rng: Random,
    ) -> None:
        """identity: identity of the opened directory."""
        self._identity = identity
        self._config = config
        self._addresses = dict(addresses)
        self._rng = rng
        self._node = RaftNode(
            Journal(directory.journal, identity), directory.thread, self._publish_changes
        )
        self._loop = asyncio.get_running_loop()
        self._leadership = Leadership(active=False, epoch=ControllerEpoch(0))
        self._committed = MetadataOffset(0)
        self._commit_moved = asyncio.Event()
        self._proposed: deque[_Proposed] = deque()
        self._reads: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._epoch_ends: list[tuple[ControllerEpoch, asyncio.Future[None]]] = []
        self.began_empty = False
        """Whether the disk contained no records at startup, so that all records came from a
        snapshot or from other controllers. A failed start of an empty disk leaves entries without
        records.
        """
        self.begun = Start()
        """The initial state of this start of the controller, set by `start`."""
        self._accepted_by: set[int] = set()
        """Voters that do not know of any promise that this disk has lost."""
        self._endpoints_heard: dict[int, Endpoint] = {}
        """Endpoints that controllers have sent. The leader proposes new ones."""
        self._has_new_endpoints = False
        self._was_outside = False
        self._transferring_to: int | None = None
        self._members_seen = Members(())
        self._leader_seen = (ControllerEpoch(-1), "")
        self.leader_changes = 0
        """Number of leader changes after the first known leader."""
        self.failed = self._node.failed
        """Done when the quorum ends: with a result after `close`, otherwise with an exception such
        as JournalFailed.
        """

    async def start(
        self,
        members: Members,
        snapshot: Base | None,
        transport: Transport,
        *,
        passed_over: SnapshotCorrupt | None = None,
    ) -> None:
        """Recover and participate in the quorum.

        snapshot: base of the newest intact snapshot, which the caller has loaded. passed_over: set
        if a newer snapshot is damaged. members: members of a new cluster; empty for an existing
        cluster, whose leader sends them.

        Raises JournalCorrupt, JournalStateLost, SnapshotMissing (records before the journal are
        missing), and SnapshotCorrupt if `began_empty` and `passed_over` is set: only the damaged
        snapshot may contain the records after the older one, for example after `penstock controller
        recover`.
        """
        recovered = await self._node.open()
        if recovered.cut_bytes:
            _log.warning("journal_torn_tail_truncated", bytes=recovered.cut_bytes)
        self.began_empty = not any(entry.records for entry in recovered.entries)
        if self.began_empty and passed_over is not None:
            raise passed_over
        if recovered.base.index > (snapshot.index if snapshot else 0):
            raise SnapshotMissing(recovered.base.offset, snapshot.offset if snapshot else None)
        if snapshot is not None:
            _join(recovered, snapshot)
        if not recovered.base.members.voters:
            recovered.base = Base(
                recovered.base.index, recovered.base.term, recovered.base.offset, members
            )
        await self._node.start(
            self._config, recovered, transport, self._rng, commit=snapshot.index if snapshot else 0
        )
        core = self.core
        self.begun = Start(
            self._node.start_number,
            self._rng.getrandbits(63),
            core.term,
            core.vote,
            core.log.last_index,
        )
        core.promises.refusal(core.id, self._config.directory, self.begun)

    async def close(self) -> None:
        """Complete the current write and stop. Waiters fail with QuorumClosed."""
        await self._node.close()
        self._publish_changes()

    def receive(self, message: Message) -> None:
        """Handle a message from another voter."""
        self._node.receive(message)

    def refusal(self, member: int, directory: str, start: Start) -> str:
        """See `Promises.refusal`."""
        return self.core.promises.refusal(member, directory, start) if self.begun.number else ""

    def responded(self, member: int, why: str) -> None:
        """Record that another controller has checked the initial state of this start. why: what
        this disk has lost, or "" if that controller does not know of any loss.
        """
        if why:
            self._retire(member, why)
            return
        self._accepted_by.add(member)
        if {*self.core.log.members.voters} <= {*self._accepted_by, self.core.id}:
            self._node.accept_messages()

    def _retire(self, member: int, why: str) -> None:
        if self.failed.done():
            return
        error = JournalStateLost(str(self._identity), f"{why}, as controller {member} remembers")
        self._node.fail(error)
        _log.critical(
            "controller_state_lost",
            controller_id=self.core.id,
            remembered_by=member,
            detail=str(error),
        )
        self._identity.retire(why)

    @property
    def members(self) -> Members:
        """The newest members in the log. Empty before `start`."""
        return self._members_seen

    @property
    def is_outside(self) -> bool:
        """Whether this disk is not a member of the quorum, because it was removed or has not been
        added yet.
        """
        core = self.core
        return (
            bool(core.log.members.voters)
            and not core.is_member
            and core.log.members_index <= core.commit
        )

    @property
    def controllers(self) -> tuple[str, ...]:
        """See Quorum.controllers."""
        members = self._members_seen
        return tuple(filter(None, (self.address_of(node_id) for node_id in members.everyone)))

    def address_of(self, node_id: int | None) -> str:
        """Return the address of a controller from the log or, if there is none, from the
        configuration. Return "" if it is unknown.
        """
        if node_id is None:
            return ""
        return self._members_seen.endpoint(node_id).address or self._addresses.get(node_id, "")

    def introduce(self, endpoint: Endpoint) -> None:
        """Record the endpoint that a controller has sent, which may be this one. If the controller
        is a member, the leader proposes the endpoint to all members.
        """
        if self._endpoints_heard.get(endpoint.node_id) != endpoint:
            self._endpoints_heard[endpoint.node_id] = endpoint
            self._has_new_endpoints = True
            self._loop.call_soon(self._propose_endpoints)

    async def change(self, members: Members) -> None:
        """Commit a membership change. Raises ChangeRefused, NotLeader, QuorumClosed,
        JournalFailed.
        """
        core = self.core
        self._node.check_running()
        if not core.is_leader:
            raise NotLeader(self._leadership.address)
        if members == core.log.members and core.log.members_index <= core.commit:
            return
        why = core.propose_members(members)
        if why is not None:
            raise ChangeRefused(why)
        proposed = _Proposed(
            core.log.members_index,
            core.term,
            MetadataOffset(core.log.end_offset),
            self._loop.create_future(),
        )
        self._proposed.append(proposed)
        self._node.pump()
        await proposed.response

    @property
    def writes(self) -> LatencyHistogram:
        """Latency of journal writes."""
        return self._node.writes

    @property
    def core(self) -> RaftCore:
        return self._node.core

    @property
    def leadership(self) -> Leadership:
        return self._leadership

    @property
    def first_offset(self) -> MetadataOffset:
        return MetadataOffset(self.core.log.base.offset)

    @property
    def committed_offset(self) -> MetadataOffset:
        return self._committed

    @property
    def needs_snapshot(self) -> bool:
        """Whether the leader's log starts after the end of our log. The caller must then load the
        newest snapshot and call `installed`.
        """
        return self.core.needs_snapshot > self.core.commit

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        """See Quorum.propose. This takes one write and one fdatasync here and on a majority: 0.5 to
        5 ms.
        """
        core = self.core
        self._node.check_running()
        index = core.propose(list(records)) if core.term == epoch else None
        if index is None:
            raise NotLeader(self._leadership.address)
        proposed = _Proposed(
            index, core.term, MetadataOffset(core.log.end_offset), self._loop.create_future()
        )
        self._proposed.append(proposed)
        self._node.pump()
        return await proposed.response

    async def confirm(self, epoch: ControllerEpoch) -> None:
        """See Quorum.confirm. This takes one round trip to a majority, and none in a quorum of
        one.
        """
        core = self.core
        self._node.check_running()
        number = core.read_round() if core.term == epoch else None
        if number is None:
            raise NotLeader(self._leadership.address)
        response: asyncio.Future[None] = self._loop.create_future()
        self._reads.append((number, response))
        self._node.pump()
        await response

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        """See Quorum.read. The records are in memory and are not copied."""
        log, commit = self.core.log, self.core.commit
        assert log.base.offset <= offset <= self._committed, (
            f"read at {offset} outside [{log.base.offset}, {self._committed}]"
        )
        records: list[bytes] = []
        index = log.index_at(offset)
        skip = offset - log.offset_at(index)
        size_bytes = 0
        while index < commit and (not records or size_bytes < max_bytes):
            index += 1
            for record in log.slice(index, 1, 1)[0].records[skip:]:
                size_bytes += len(record)
                if records and size_bytes > max_bytes:
                    break
                records.append(record)
            skip = 0
        return CommittedRecords(offset, records)

    async def wait_committed(self, offset: MetadataOffset) -> None:
        """See Quorum.wait_committed."""
        while self._committed <= offset:
            self._node.check_running()
            await self._commit_moved.wait()

    async def wait_changed(self) -> None:
        """Wait for the next commit, leadership change or need for a snapshot. May also return at
        other times.
        """
        self._node.check_running()
        await self._commit_moved.wait()

    def point_at(self, offset: MetadataOffset) -> Base:
        """See Quorum.point_at."""
        log = self.core.log
        index = min(log.index_at(offset), self.core.commit)
        term = log.term_at(index)
        assert term is not None, (
            f"offset {offset} is before the log, which begins at {log.base.offset}"
        )
        return Base(index, term, log.offset_at(index), log.members_at(index))

    async def drop_before(self, offset: MetadataOffset) -> None:
        """See Quorum.drop_before. This deletes whole segment files. It also starts a new segment,
        so that the next call can delete the current one.
        """
        await self._node.compact(self.core.log.covered_index(offset))

    def installed(self, base: Base) -> None:
        """Continue from `base`, after a snapshot at this position was loaded into the image."""
        self.core.installed(base)
        self._node.pump()

    def transfer(self, target: int) -> bool:
        """Start transferring leadership to another voter. Return whether the transfer has
        started.
        """
        begun = self.core.transfer(target)
        self._node.pump()
        return begun

    def end_of(self, epoch: ControllerEpoch) -> "asyncio.Future[None]":
        """Return a future that is done when this process no longer leads `epoch`. Cancel the future
        when it is no longer needed.
        """
        over: asyncio.Future[None] = self._loop.create_future()
        self._epoch_ends.append((epoch, over))
        self._complete_epoch_ends()
        return over

    def _complete_epoch_ends(self) -> None:
        for epoch, over in self._epoch_ends:
            if not over.done() and not (
                self._leadership.active and self._leadership.epoch == epoch
            ):
                over.set_result(None)
        self._epoch_ends = [end for end in self._epoch_ends if not end[1].done()]

    def _publish_changes(self) -> None:
        """Complete decided proposals and reads, and publish changes. Called after every input."""
        if self.failed.done():
            self._end()
            return
        core = self.core
        self._settle_proposals(core)
        self._settle_reads(core)
        committed = MetadataOffset(core.log.offset_at(core.commit))
        self._publish_members(core)
        self._publish_is_outside()
        if core.transferring_to not in {None, self._transferring_to}:
            _log.info(
                "leadership_transfer_started",
                target=core.transferring_to,
                fsync_p99_us=core.fsyncs.p99_us,
            )
        self._transferring_to = core.transferring_to
        leads = core.is_ready_to_serve and core.transferring_to is None
        leadership = Leadership(leads, ControllerEpoch(core.term), self.address_of(core.leader))
        has_committed, self._committed = committed != self._committed, committed
        has_new_leadership, self._leadership = leadership != self._leadership, leadership
        if has_committed or has_new_leadership or core.needs_snapshot > core.commit:
            self._wake()
        if has_new_leadership:
            self._count_leader(leadership)
            self._complete_epoch_ends()
            self._has_new_endpoints = True
        if (
            self._has_new_endpoints
            and core.is_ready_to_serve
            and core.log.members_index <= core.commit
        ):
            self._has_new_endpoints = False
            self._loop.call_soon(self._propose_endpoints)

    def _count_leader(self, shown: Leadership) -> None:
        leader = (shown.epoch, shown.address)
        if shown.address and leader != self._leader_seen:
            self.leader_changes += bool(self._leader_seen[1])
            self._leader_seen = leader

    def _publish_members(self, core: RaftCore) -> None:
        members = core.log.members
        if members is self._members_seen:
            return
        if members != self._members_seen:
            addresses = [endpoint.address for endpoint in members.endpoints]
            _log.info(
                "quorum_members",
                voters=members.voters,
                learners=members.learners,
                version=members.version,
                addresses=addresses,
            )
        self._members_seen = members
        self._wake()

    def _publish_is_outside(self) -> None:
        """Wake waiters when this controller leaves or joins the quorum, because this does not
        change any offset.
        """
        was_outside, self._was_outside = self._was_outside, self.is_outside
        if was_outside != self._was_outside:
            self._wake()

    def _propose_endpoints(self) -> None:
        """Propose new addresses and disks as one membership change. If this is not possible now, it
        is retried later.
        """
        if self.failed.done() or not self.core.is_ready_to_serve:
            return
        core = self.core
        members = membership.introduced(core.log.members, self._endpoints_heard.values())
        if members == core.log.members:
            return
        self._has_new_endpoints = True
        if core.propose_members(members) is None:
            self._node.pump()

    def _settle_proposals(self, core: RaftCore) -> None:
        while self._proposed:
            first = self._proposed[0]
            if first.index <= core.commit and core.log.term_at(first.index) in {first.term, None}:
                _resolve(first.response, first.end_offset)
            elif core.is_leader and core.term == first.term:
                return
            else:
                _refuse(first.response, NotLeader(self.address_of(core.leader)))
            self._proposed.popleft()

    def _settle_reads(self, core: RaftCore) -> None:
        if not self._reads:
            return
        confirmed = core.confirmed_round if core.is_leader else 0
        while self._reads and (self._reads[0][0] <= confirmed or not core.is_leader):
            _, response = self._reads.popleft()
            if core.is_leader:
                _resolve(response, None)
            else:
                _refuse(response, NotLeader(self.address_of(core.leader)))

    def _end(self) -> None:
        """Fail all waiters, because this controller no longer participates."""
        self._leadership = Leadership(active=False, epoch=self._leadership.epoch)
        try:
            self._node.check_running()
        except Exception as error:  # noqa: BLE001 - whatever ended the node is what its waiters get
            for proposed in self._proposed:
                _refuse(proposed.response, error)
            for _, response in self._reads:
                _refuse(response, error)
        self._proposed.clear()
        self._reads.clear()
        self._wake()
        self._complete_epoch_ends()

    def _wake(self) -> None:
        waiters, self._commit_moved = self._commit_moved, asyncio.Event()
        waiters.set()


def _resolve(response: "asyncio.Future[_T]", value: _T) -> None:
    if not response.done():
        response.set_result(value)


def _refuse(response: "asyncio.Future[_T]", error: Exception) -> None:
    if not response.done():
        response.set_exception(error)


def _join(recovered: Recovered, snapshot: Base) -> None:
    """Replace the journal with a snapshot if the journal does not reach it, because the disk is
    behind or was lost.
    """
    at = snapshot.index - recovered.base.index
    if at == 0 or (
        at <= len(recovered.entries) and recovered.entries[at - 1].term == snapshot.term
    ):
        return
    if recovered.entries:
        _log.warning(
            "journal_behind_snapshot_replaced",
            journal_end=recovered.entries[-1].index,
            snapshot_index=snapshot.index,
        )
    recovered.base = snapshot
    recovered.entries = []
    if recovered.hard.term < snapshot.term:
        recovered.hard = HardState(snapshot.term)
