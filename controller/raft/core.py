"""The Raft state machine of one voter, without I/O: elections, replication, commits, reads,
leadership transfer and membership changes.

See Raft sections 5 to 7; Ongaro's thesis 3.10, 4, 6.4, 9.6; etcd/raft `raft.go`.
"""

from enum import Enum
from random import Random

from penstock.controller.raft import majority, membership
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.log import RaftLog
from penstock.controller.raft.messages import (
    NOBODY,
    Append,
    AppendReply,
    Base,
    Entry,
    HardState,
    HeartbeatReply,
    Install,
    Members,
    Message,
    Promise,
    TimeoutNow,
    Vote,
    VoteReply,
    Write,
)
from penstock.controller.raft.progress import Progress, State
from penstock.controller.raft.promises import Promises
from penstock.controller.raft.volume import Candidate, FsyncWindow, SlowVolume


class Role(Enum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class RaftCore:
    """The state of one voter. The contract with the driver is that of etcd's `Ready`.

    The messages of `take_messages` may be sent immediately. The messages of a write from
    `take_write` may be sent once the write is durable; the driver then calls `persisted`. Only one
    write is in progress at a time. Votes, vote requests and append replies are sent only with or
    after such a write. Appends of the leader do not wait for its own disk, but the leader counts
    its own log only after `persisted`. Replies to heartbeats do not wait for the disk either, so a
    leader does not lose its majority because a follower's disk stalls.

    With check-quorum, a leader steps down before any voter that heard from it can vote for another
    candidate, so the leadership lease depends only on the rates of the clocks.
    """

    def __init__(
        self,
        config: CoreConfig,
        log: RaftLog,
        hard: HardState,
        rng: Random,
        now_ms: int,
        *,
        commit: int = 0,
    ) -> None:
        """commit: index that is known to be committed, from a snapshot."""
        self._config = config
        self._rng = rng
        self._now_ms = now_ms
        self.id = config.node_id
        self.log = log
        self.term = max(hard.term, log.last_term)
        self.vote = hard.vote if hard.term == self.term else NOBODY
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit = max(log.base.index, commit)
        self.needs_snapshot = 0
        """Minimum index of a snapshot that must be loaded from the store, because the leader's log
        starts after the end of our log. 0 if no snapshot is needed.
        """
        self.transferring_to: int | None = None
        self._transfer_until_ms = 0
        self._saved = HardState(hard.term, hard.vote)
        self._base_to_write: Base | None = None
        self._messages: list[Message] = []
        self._after_write: list[Message] = []
        self._in_flight: Write | None = None
        self._votes: dict[int, bool] = {}
        self._progress: dict[int, Progress] = {}
        self._round = 0
        self._round_acknowledged = 0
        self._promises_to_send: tuple[Promise, ...] = ()
        self._term_start = 0
        self._heartbeat_at_ms = 0
        self.promises = Promises()
        """Promises made by the disks of all controllers, including this one."""
        self.fsyncs = FsyncWindow()
        self._volume = SlowVolume(config.heartbeat_ms * 500, config.election_ms)
        self._heard_leader_ms = now_ms - config.election_ms
        self._election_at_ms = 0
        self._reset_election_timer()

    # --- queries ----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_ready_to_serve(self) -> bool:
        """Whether this voter leads and knows that all entries of earlier leaders are committed
        (Raft section 8).
        """
        return self.is_leader and self.commit >= self._term_start

    @property
    def deadline_ms(self) -> int | None:
        """Time of the next `tick`, or None if no timer is pending."""
        if not self.is_leader:
            return self._election_at_ms if self.may_campaign else None
        return self._heartbeat_at_ms if self._progress else None

    @property
    def is_voter(self) -> bool:
        """Whether this controller, with this disk, is a voter in the newest member list of the
        log.
        """
        return self.log.members.is_voter(self.id, self._config.directory)

    @property
    def may_campaign(self) -> bool:
        """Whether this controller may campaign: it is a voter in the newest member list, or was a
        voter before this list if the list is not committed yet. If one of two voters is removed,
        only the removed voter may be able to commit its removal.
        """
        log = self.log
        if log.members_index <= self.commit:
            return self.is_voter
        return self.is_voter or log.members_at(log.members_index - 1).is_voter(
            self.id, self._config.directory
        )

    @property
    def is_member(self) -> bool:
        return self.log.members.lists(self.id, self._config.directory)

    def progress_of(self, member: int) -> Progress | None:
        """Return the progress of another member."""
        return self._progress.get(member)

    @property
    def confirmed_round(self) -> int:
        """Newest heartbeat round that a majority has acknowledged. No other leader was elected
        before this round was sent.
        """
        return self._majority_reached(
            {peer: progress.round for peer, progress in self._progress.items()}, self._round
        )

    def take_messages(self) -> list[Message]:
        """Return the messages that may be sent now."""
        messages, self._messages = self._messages, []
        return messages

    def take_write(self) -> Write | None:
        """Return the next write, or None if there is none or if a write is in progress. If there is
        nothing to write, the messages that waited for a write are released.
        """
        if self._in_flight is not None:
            return None
        hard = HardState(self.term, self.vote)
        entries = self.log.unwritten()
        base = self._take_base()
        if hard == self._saved and not entries and base is None:
            released, self._after_write = self._after_write, []
            self._release(released)
            return None
        messages, self._after_write = self._after_write, []
        self._in_flight = Write(
            None if hard == self._saved else hard, base, entries, messages, self.log.last_index
        )
        self._saved = hard
        self.log.handed_over()
        return self._in_flight

    def persisted(self, took_us: int = 0) -> None:
        """Record that the current write is durable. took_us: duration of the write, or 0 if
        unknown.
        """
        if took_us:
            self.fsyncs.add(took_us, self._now_ms)
        write, self._in_flight = self._in_flight, None
        assert write is not None, "no write is under way"
        self.log.persisted(write.last_index)
        self._release(write.messages)
        if self.is_leader:
            self._advance_commit()

    # --- inputs -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Advance the time. The driver calls this at `deadline_ms`."""
        self._now_ms = max(self._now_ms, now_ms)
        if not self.is_leader:
            if self._now_ms >= self._election_at_ms and self.may_campaign:
                self._start_pre_vote()
            return
        if self._now_ms - self._quorum_contact_ms() >= self._config.election_ms:
            self._become_follower(self.term, None)
            return
        if self.transferring_to is not None and self._now_ms >= self._transfer_until_ms:
            self._abandon_transfer()
            return
        if self._now_ms >= self._heartbeat_at_ms:
            # Heartbeat rounds for reads do not postpone this, because only ticks detect a slow
            # disk.
            self._heartbeat_at_ms = self._now_ms + self._config.heartbeat_ms
            self._heartbeat()
            self._leave_slow_volume()

    def campaign(self) -> None:
        """Campaign now instead of at the deadline, because a quorum with one voter does not have to
        wait.
        """
        if not self.is_leader and self.may_campaign:
            self._start_pre_vote()

    def propose(self, records: list[bytes], members: Members | None = None) -> int | None:
        """Append to the leader's log. Return the index, or None if this node is not the leader or
        is transferring leadership.
        """
        if not self.is_leader or self.transferring_to is not None:
            return None
        index = self._append_own(records, members)
        self._broadcast()
        return index

    def propose_members(self, members: Members) -> str | None:
        """Propose a membership change, which takes effect immediately (Raft section 6). Return the
        reason why it is rejected, or None.
        """
        if not self.is_leader or self.transferring_to is not None:
            return "this controller is not the leader"
        if members == self.log.members:
            return None
        why = membership.refusal(
            self.log.members,
            members,
            is_pending=self.log.members_index > self.commit,
            has_committed_in_term=self.is_ready_to_serve,
        )
        if why is None:
            self.propose([], members)
        return why

    def read_round(self) -> int | None:
        """Start a heartbeat round and return its number, or None if no read can be served now. A
        read may be served once `confirmed_round` reaches this number.
        """
        if not self.is_ready_to_serve:
            return None
        self._heartbeat()
        return self._round

    def transfer(self, target: int) -> bool:
        """Transfer leadership to another voter. After one election timeout, the transfer is
        abandoned, and this voter campaigns. Proposals are rejected during the transfer. Return
        whether it has started.
        """
        if (
            not self.is_leader
            or target == self.id
            or target not in self.log.members.voters
            or self.transferring_to is not None
        ):
            return False
        self.transferring_to = target
        self._transfer_until_ms = self._now_ms + self._config.election_ms
        self._send_appends(target)
        self._finish_transfer(target)
        return True

    def installed(self, base: Base) -> None:
        """Continue from `base`, the end of a snapshot that the driver has loaded."""
        if base.index > self.commit:
            self.log.reset(base)
            self._base_to_write = self.log.base
            self.commit = base.index
            if self.leader is not None and not self.is_leader:
                self._reply(AppendReply(self.id, self.leader, self.term, self.commit))
        if self.commit >= self.needs_snapshot:
            self.needs_snapshot = 0

    def step(self, message: Message, now_ms: int) -> None:
        """Handle a message."""
        self._now_ms = max(self._now_ms, now_ms)
        if message.to != self.id:
            return
        if isinstance(message, Vote):
            self._on_vote(message)
        elif isinstance(message, VoteReply):
            self._on_vote_reply(message)
        elif message.term < self.term:
            self._on_earlier_term(message)
        else:
            if message.term > self.term:
                self._become_follower(message.term, None)
            self._on_current_term(message)

    # --- elections --------------------------------------------------------------------------------

    def _start_pre_vote(self) -> None:
        """Request pre-votes, to find out whether an election can be won before a new term disrupts
        the other voters.
        """
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._reset_election_timer()
        self._votes = {self.id: True}
        last, last_term = self.log.last_index, self.log.last_term
        for voter in self.log.members.voters:
            if voter != self.id:
                self._messages.append(
                    Vote(self.id, voter, self.term + 1, last, last_term, pre=True)
                )
        self._count_votes()

    def _start_election(self, *, transfer: bool) -> None:
        """Start a new term and request votes. Like all votes, our own vote counts once it is
        durable.
        """
        self._new_term(self.term + 1)
        self.vote = self.id
        self.role = Role.CANDIDATE
        self.leader = None
        self._reset_election_timer()
        self._votes = {}
        last, last_term = self.log.last_index, self.log.last_term
        for voter in self.log.members.voters:
            if voter == self.id:
                self._after_write.append(VoteReply(self.id, self.id, self.term, granted=True))
            else:
                self._after_write.append(
                    Vote(self.id, voter, self.term, last, last_term, transfer=transfer)
                )

    def _abandon_transfer(self) -> None:
        """Campaign for a new term. The service of the old term ended when the transfer started, so
        late requests of that term must not be executed a second time.
        """
        self._become_follower(self.term, None)
        if self.may_campaign:
            self._start_election(transfer=True)

    def _on_vote(self, request: Vote) -> None:
        if self.is_ready_to_serve and request.sender not in self.log.members.everyone:
            self._send_removal(request.sender)
        disrupts = request.term > self.term and not request.transfer
        if disrupts and self._has_live_leader():
            return
        if request.pre:
            self._respond_to_pre_vote(request)
        else:
            self._respond_to_vote(request)

    def _has_live_leader(self) -> bool:
        """Return whether this voter leads or has heard from a leader within the election
        timeout.
        """
        if self.is_leader:
            return True
        silent_ms = self._now_ms - self._heard_leader_ms
        return self.leader is not None and silent_ms < self._config.election_ms

    def _respond_to_pre_vote(self, request: Vote) -> None:
        """Respond immediately, because a pre-vote does not change durable state."""
        granted = request.term > self.term and self._is_up_to_date(request)
        term = request.term if granted else self.term
        self._messages.append(VoteReply(self.id, request.sender, term, granted, pre=True))

    def _respond_to_vote(self, request: Vote) -> None:
        """Grant at most one vote per term. The reply is sent after the vote is durable."""
        if request.term > self.term:
            self._become_follower(request.term, None)
        may_vote = self.vote == request.sender or (self.vote == NOBODY and self.leader is None)
        granted = request.term == self.term and may_vote and self._is_up_to_date(request)
        if granted:
            self.vote = request.sender
            self._reset_election_timer()
        self._after_write.append(VoteReply(self.id, request.sender, self.term, granted))

    def _is_up_to_date(self, request: Vote) -> bool:
        """Return whether the candidate's log ends in a later term, or in the same term and is at
        least as long (Raft section 5.4.1).
        """
        return (request.last_term, request.last_index) >= (self.log.last_term, self.log.last_index)

    def _on_vote_reply(self, reply: VoteReply) -> None:
        if reply.term > self.term and not (reply.pre and reply.granted):
            self._become_follower(reply.term, None)
            return
        expected = (
            (Role.PRE_CANDIDATE, self.term + 1)
            if reply.pre and reply.granted
            else (Role.CANDIDATE, self.term)
        )
        if reply.pre and not reply.granted:
            expected = (Role.PRE_CANDIDATE, self.term)
        if (self.role, reply.term) == expected:
            if reply.granted and not reply.pre:
                self.promises.voted(reply.sender, reply.term, self.id)
            self._votes[reply.sender] = reply.granted
            self._count_votes()

    def _count_votes(self) -> None:
        result = majority.tally(self.log.members.voters, self._votes)
        if result is majority.Tally.LOST:
            self._become_follower(self.term, None)
        elif result is majority.Tally.WON and self.role is Role.PRE_CANDIDATE:
            self._start_election(transfer=False)
        elif result is majority.Tally.WON:
            self._become_leader()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.id
        self.transferring_to = None
        self.needs_snapshot = 0
        self._progress = {}
        self._sync_progress()
        self._volume.gained(self._now_ms)
        self._term_start = self._append_own([], None)
        self._heartbeat_at_ms = self._now_ms + self._config.heartbeat_ms
        self._broadcast()

    def _become_follower(self, term: int, leader: int | None) -> None:
        """Become a follower, either in a new term or because the leadership or the election was
        lost.
        """
        self._new_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.transferring_to = None
        self._progress = {}
        self._reset_election_timer()

    def _new_term(self, term: int) -> None:
        """Start a later term. Messages that wait for the disk belong to the old term and are
        discarded.
        """
        if term > self.term:
            self.term = term
            self.vote = NOBODY
            self._round_acknowledged = 0
            self._after_write.clear()

    def _reset_election_timer(self) -> None:
        election_ms = self._config.election_ms
        self._election_at_ms = self._now_ms + election_ms + self._rng.randrange(election_ms)

    # --- following --------------------------------------------------------------------------------

    def _on_earlier_term(self, message: Message) -> None:
        """Inform the leader of an earlier term that its term has ended."""
        if isinstance(message, Append | Install):
            self._reply(AppendReply(self.id, message.sender, self.term, 0, rejected=True))

    def _on_current_term(self, message: Message) -> None:
        if isinstance(message, Append | Install):
            assert not self.is_leader, (
                f"two leaders of term {self.term}: {self.id} and {message.sender}"
            )
            if self.role is not Role.FOLLOWER:
                self._become_follower(self.term, message.sender)
            self.leader = message.sender
            self._heard_leader_ms = self._now_ms
            self._reset_election_timer()
            if isinstance(message, Append):
                self.promises.learn(message.promises)
            self._on_append(message) if isinstance(message, Append) else self._on_install(message)
            self._respond_to_heartbeat(message)
        elif isinstance(message, AppendReply) and self.is_leader:
            self._on_append_reply(message)
        elif isinstance(message, HeartbeatReply) and self.is_leader:
            progress = self._progress.get(message.sender)
            if progress is not None:
                progress.contacted(message.round, message.sent_ms)
        elif isinstance(message, TimeoutNow) and self.is_voter and not self.is_leader:
            self._start_election(transfer=True)

    def _on_append(self, append: Append) -> None:
        log = self.log
        if append.prev_index < self.commit:
            self._reply_accepted(append, self.commit)
        elif log.matches(append.prev_index, append.prev_term):
            log.accept(append.entries)
            last = append.prev_index + len(append.entries)
            self.commit = max(self.commit, min(append.commit, last))
            self._reply_accepted(append, last)
        else:
            index, term = log.last_agreeing(append.prev_index, append.prev_term)
            self._reply(
                AppendReply(
                    self.id,
                    append.sender,
                    self.term,
                    append.prev_index,
                    rejected=True,
                    hint_index=index,
                    hint_term=term,
                    round=append.round,
                    sent_ms=append.sent_ms,
                    fsync_us=self.fsyncs.p99_us,
                )
            )

    def _reply_accepted(self, message: Append | Install, index: int) -> None:
        fsync_us = self.fsyncs.p99_us
        self._reply(
            AppendReply(
                self.id,
                message.sender,
                self.term,
                index,
                round=message.round,
                sent_ms=message.sent_ms,
                fsync_us=fsync_us,
            )
        )

    def _on_install(self, install: Install) -> None:
        if install.index > self.commit:
            self.needs_snapshot = max(self.needs_snapshot, install.index)
        self._reply_accepted(install, self.commit)

    def _respond_to_heartbeat(self, message: Append | Install) -> None:
        """Respond immediately to the first message of each heartbeat round if the disk is busy.

        The term must be durable first, because a voter that has lost its term could follow the
        previous leader.
        """
        write = self._in_flight
        if (
            write is not None
            and write.hard is None
            and self._saved.term == self.term
            and message.round > self._round_acknowledged
        ):
            self._round_acknowledged = message.round
            self._messages.append(
                HeartbeatReply(self.id, message.sender, self.term, message.round, message.sent_ms)
            )

    def _reply(self, reply: AppendReply) -> None:
        """Send the reply once everything that it acknowledges is durable. It replaces an earlier
        waiting reply that it covers, so that replies do not accumulate while the disk stalls.
        """
        waiting = self._after_write
        last = waiting[-1] if waiting else None
        if (
            isinstance(last, AppendReply)
            and (last.to, last.rejected, reply.rejected) == (reply.to, False, False)
            and last.index <= reply.index
        ):
            waiting.pop()
        waiting.append(reply)

    # --- leading ----------------------------------------------------------------------------------

    def _append_own(self, records: list[bytes], members: Members | None) -> int:
        log = self.log
        log.append(Entry(log.last_index + 1, self.term, log.end_offset, records, members))
        if members is not None:
            self._sync_progress()
        return log.last_index

    def _sync_progress(self) -> None:
        """Track the progress of all other members of the newest member list. Removed members are
        tracked until they have received their removal.

        If a disk was replaced, the old progress does not apply to the new disk, even if the
        controller id is the same.
        """
        members, known = self.log.members, self._progress
        for member in members.everyone:
            directory = members.endpoint(member).directory
            progress = known.get(member)
            if member == self.id:
                continue
            if (
                progress is None
                or progress.directory not in {"", directory}
                or progress.leaves_at_ms
            ):
                known[member] = Progress(self.log.last_index + 1, self._now_ms, directory)
            else:
                progress.directory = directory

    def _send_removal(self, member: int) -> None:
        """Send the log up to the removal to a removed member that campaigns. This is done only
        once.
        """
        if member not in self._progress:
            self._progress[member] = progress = Progress(self.log.last_index + 1, self._now_ms)
            progress.leaves_at_ms = self._now_ms + self._config.election_ms
            self._send_appends(member)

    def _forget_removed(self) -> None:
        """Stop tracking removed members one election timeout after their removal was committed."""
        log, now_ms = self.log, self._now_ms
        for member in [member for member in self._progress if member not in log.members.everyone]:
            leaves_at_ms = self._progress[member].leaves_at_ms
            if not leaves_at_ms and log.members_index <= self.commit:
                self._progress[member].leaves_at_ms = now_ms + self._config.election_ms
            elif leaves_at_ms and now_ms >= leaves_at_ms:
                del self._progress[member]

    def _leave_slow_volume(self) -> None:
        recent_ms = self._now_ms - self._config.election_ms
        target = self._volume.target(
            self._now_ms,
            self.fsyncs,
            (
                Candidate(member, progress.match, progress.fsync_us)
                for member, progress in self._progress.items()
                if member in self.log.members.voters and progress.heard_ms > recent_ms
            ),
        )
        if target is not None:
            self.transfer(target)

    def _heartbeat(self) -> None:
        """Start a heartbeat round. The replies also reveal lost messages."""
        self._forget_removed()
        self._round += 1
        self.promises.acknowledged(self.id, self.term, self.log.stable, self.commit)
        self._promises_to_send = self.promises.promises_of(self.log.members.voters)
        for member, progress in self._progress.items():
            progress.probe_is_out = False
            if progress.state is State.SNAPSHOT:
                self._send_install(member)
            elif progress.state is State.PROBE:
                self._send_appends(member)
            else:
                self._send_append(member, progress, [])
        self._promises_to_send = ()

    def _broadcast(self) -> None:
        for member in self._progress:
            self._send_appends(member)

    def _send_appends(self, member: int) -> None:
        """Send as many entries as the follower's window allows. A probe is sent even without
        entries.
        """
        config, log, progress = self._config, self.log, self._progress[member]
        while progress.may_send(config.inflight_count_max, config.inflight_bytes_max):
            if log.term_at(progress.next - 1) is None:
                progress.snapshot()
                self._send_install(member)
                return
            entries = log.slice(progress.next, config.append_count_max, config.append_bytes_max)
            if not entries and progress.state is State.REPLICATE:
                return
            self._send_append(member, progress, entries)
            last = entries[-1].index if entries else progress.next - 1
            progress.sent(last, sum(entry.size_bytes for entry in entries))

    def _send_append(self, member: int, progress: Progress, entries: list[Entry]) -> None:
        prev = progress.next - 1
        prev_term = self.log.term_at(prev)
        if prev_term is None:
            progress.snapshot()
            self._send_install(member)
            return
        self._messages.append(
            Append(
                self.id,
                member,
                self.term,
                prev,
                prev_term,
                entries,
                self.commit,
                self._round,
                self._now_ms,
                self._promises_to_send,
            )
        )
        progress.commit_sent = self.commit

    def _send_install(self, member: int) -> None:
        self._messages.append(
            Install(self.id, member, self.term, self.log.base.index, self._round, self._now_ms)
        )

    def _on_append_reply(self, reply: AppendReply) -> None:
        progress = self._progress.get(reply.sender)
        if progress is None:
            return
        progress.responded(reply.round, reply.sent_ms)
        progress.fsync_us = reply.fsync_us
        if reply.rejected:
            agreed, _ = self.log.last_agreeing(reply.hint_index, reply.hint_term)
            if progress.rejected(reply.index, agreed):
                self._send_appends(reply.sender)
            return
        is_news = progress.acknowledged(reply.index)
        if progress.match == self.log.last_index:
            progress.caught_up_ms = self._now_ms
        if progress.state is State.SNAPSHOT and progress.match >= self.log.base.index:
            progress.probe(progress.match + 1)
        elif progress.state is State.PROBE:
            progress.replicate()
        if is_news:
            self._advance_commit()
            self.promises.acknowledged(reply.sender, reply.term, reply.index, self.commit)
        if not self.is_leader:
            return
        self._send_appends(reply.sender)
        self._send_commit(reply.sender, progress)
        self._finish_transfer(reply.sender)

    def _finish_transfer(self, member: int) -> None:
        """Ask the target to campaign immediately if it has the whole log."""
        if member == self.transferring_to and self._progress[member].match == self.log.last_index:
            self._messages.append(TimeoutNow(self.id, member, self.term))

    def _advance_commit(self) -> None:
        matches = {member: progress.match for member, progress in self._progress.items()}
        index = self._majority_reached(matches, self.log.stable)
        if index <= self.commit or not self._may_commit(index):
            return
        self.commit = index
        for member, progress in self._progress.items():
            self._send_commit(member, progress)
        if self.log.members_index <= index and self.id not in self.log.members.voters:
            self._become_follower(self.term, None)

    def _send_commit(self, member: int, progress: Progress) -> None:
        """Send the commit index immediately instead of with the next heartbeat, because followers
        serve committed records.
        """
        if progress.state is State.REPLICATE and progress.commit_sent < self.commit:
            self._send_append(member, progress, [])

    def _may_commit(self, index: int) -> bool:
        """Return whether the leader may commit `index` by counting replicas: only entries of its
        own term (Raft section 5.4.2).
        """
        return self.log.term_at(index) == self.term

    def _quorum_contact_ms(self) -> int:
        """Return the send time of the newest message that a majority has acknowledged. At that
        time, a majority still followed this leader.
        """
        return self._majority_reached(
            {member: progress.contact_ms for member, progress in self._progress.items()},
            self._now_ms,
        )

    def _majority_reached(self, values: dict[int, int], own: int) -> int:
        return majority.reached(self.log.members.voters, values | {self.id: own})

    # --- disk -------------------------------------------------------------------------------------

    def _take_base(self) -> Base | None:
        base, self._base_to_write = self._base_to_write, None
        return base

    def _release(self, messages: list[Message]) -> None:
        """Send messages that have waited for the disk. Messages to this voter (its own vote) are
        handled immediately.
        """
        for message in messages:
            if message.to == self.id:
                self.step(message, self._now_ms)
            else:
                self._messages.append(message)
