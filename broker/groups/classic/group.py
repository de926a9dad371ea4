"""One consumer group with the classic protocol, as a pure state machine (KIP-62, KIP-345, KIP-394,
KIP-814).

EMPTY -> PREPARING_REBALANCE -> COMPLETING_REBALANCE -> STABLE -> PREPARING_REBALANCE ...
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from penstock.broker.groups.classic.model import (
    CompleteJoin,
    CompleteSync,
    Effect,
    GroupLimits,
    JoinRequest,
    JoinResult,
    Member,
    PersistGroup,
    Protocol,
    SyncRequest,
    SyncResult,
    Token,
)
from penstock.broker.groups.common.model import GroupState
from penstock.protocol.error_codes import ErrorCode


class ClassicGroup:
    """A consumer group. Methods return the effects that the caller must execute, in order.
    Attributes are read-only for callers, except the limits.

    A generation has one leader and one protocol that every member offered. An assignment is
    returned only when its record is durable (`PersistGroup`, then `assignment_persisted`). Every
    parked request is completed by an event or by a deadline (`next_deadline_ms`, `tick`).
    """

    def __init__(
        self, group_id: str, limits: GroupLimits, new_member_id: Callable[[str], str]
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.limits = limits
        """May be replaced between two steps."""
        self._new_member_id = new_member_id
        self._pending: dict[str, int] = {}
        """Deadlines of member ids that were assigned under KIP-394 but not yet used to join."""
        self._rebalance_deadline_ms: int | None = None
        self._delay_until_ms: int | None = None
        """The first rebalance of an empty group waits for more members until this time."""
        self._sync_deadline_ms: int | None = None
        self._persisting: dict[str, bytes] | None = None
        self._replacing: list[tuple[int, Token, JoinResult]] = []
        """Responses to restarted static members, held back until the new member ids are durable.
        Each has its own PersistGroup effect; the first element is the generation of that effect.
        """

    # --- joining ----------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        """Handle JoinGroup. The response is immediate, or parked until all members have joined or
        the rebalance times out.
        """
        refusal = self._join_refusal(request)
        if refusal is not ErrorCode.NONE:
            return [CompleteJoin(token, JoinResult(error=refusal, member_id=request.member_id))]
        if request.member_id == "":
            return self._join_unknown(request, token, now_ms)
        return self._join_known(request, token, now_ms)

    def _join_refusal(self, request: JoinRequest) -> ErrorCode:
        limits = self.limits
        if (
            not limits.session_timeout_min_ms
            <= request.session_timeout_ms
            <= limits.session_timeout_max_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not request.protocol_type or not request.protocols or not self._supports(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        newcomer = (
            request.member_id not in self.members and request.instance_id not in self.static_members
        )
        if newcomer and len(self.members) >= limits.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _supports(self, request: JoinRequest) -> bool:
        others = [
            member for member in self.members.values() if member.member_id != request.member_id
        ]
        if not others:
            return True
        if request.protocol_type != self.protocol_type:
            return False
        return bool(_common([request.protocols, *(member.protocols for member in others)]))

    def _join_unknown(self, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        if request.instance_id is not None:
            if request.instance_id in self.static_members:
                return self._replace_static(request, token, now_ms)
            return self._add(self._new_member_id(request.instance_id), request, token, now_ms)
        member_id = self._new_member_id(request.client_id)
        if request.needs_known_member_id:
            if len(self._pending) >= self.limits.members_max:
                # The oldest member id will most likely never be used. If it is, its client starts
                # over.
                del self._pending[next(iter(self._pending))]
            self._pending[member_id] = now_ms + request.session_timeout_ms
            return [
                CompleteJoin(
                    token, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
                )
            ]
        return self._add(member_id, request, token, now_ms)

    def _join_known(self, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        if self._pending.pop(request.member_id, None) is not None:
            return self._add(request.member_id, request, token, now_ms)
        error = self._identity_error(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return [CompleteJoin(token, JoinResult(error=error, member_id=request.member_id))]
        member = self.members[request.member_id]
        unchanged = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return [CompleteJoin(token, self._join_response(member))]
        if self.state is GroupState.STABLE and unchanged and member.member_id != self.leader:
            self._touch(member, now_ms)
            return [CompleteJoin(token, self._join_response(member))]
        # A client that sends a second JoinGroup no longer waits for the first one.
        effects = self._fail_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._update(member, request)
        member.join_token = token
        return effects + self._rebalance(now_ms)

    def _identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _add(self, member_id: str, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocol_type,
            request.protocols,
            join_token=token,
        )
        self._touch(member, now_ms)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if request.instance_id is not None:
            self.static_members[request.instance_id] = member_id
        if self._delay_until_ms is not None and self._rebalance_deadline_ms is not None:
            self._delay_until_ms = min(
                now_ms + self.limits.initial_rebalance_delay_ms, self._rebalance_deadline_ms
            )
        return self._rebalance(now_ms)

    def _replace_static(self, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        """Replace the old entry of a restarted static member (KIP-345), without a rebalance if the
        member has not changed.
        """
        assert request.instance_id is not None
        old = self.members.pop(self.static_members[request.instance_id])
        member_id = self._new_member_id(request.instance_id)
        effects = self._fail_parked(old, ErrorCode.FENCED_INSTANCE_ID)
        unchanged = old.protocols == request.protocols
        old.member_id = member_id
        self._update(old, request)
        self._touch(old, now_ms)
        self.members[member_id] = old
        self.static_members[request.instance_id] = member_id
        former_leader = self.leader or ""
        if former_leader not in self.members:
            self.leader = member_id
        if self.state is GroupState.STABLE and unchanged:
            response = self._join_response(old)
            if self.leader != former_leader:
                response = _without_assigning(response, former_leader, request)
            self._replacing.append((self.generation, token, response))
            return [*effects, PersistGroup(self.generation)]
        old.join_token = token
        return effects + self._rebalance(now_ms)

    @staticmethod
    def _update(member: Member, request: JoinRequest) -> None:
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def _fail_parked(self, member: Member, error: ErrorCode) -> list[Effect]:
        """Complete the parked requests of the member with an error."""
        return self._fail_join(member, error) + self._fail_sync(member, error)

    @staticmethod
    def _fail_join(member: Member, error: ErrorCode) -> list[Effect]:
        if member.join_token is None:
            return []
        token, member.join_token = member.join_token, None
        return [CompleteJoin(token, JoinResult(error=error, member_id=member.member_id))]

    @staticmethod
    def _fail_sync(member: Member, error: ErrorCode) -> list[Effect]:
        if member.sync_token is None:
            return []
        token, member.sync_token = member.sync_token, None
        return [CompleteSync(token, SyncResult(error=error))]

    # --- rebalancing ------------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> list[Effect]:
        """Start a rebalance unless one is in preparation, and complete it if all members have
        joined.
        """
        effects: list[Effect] = []
        if self.state is not GroupState.PREPARING_REBALANCE:
            if self.state is GroupState.COMPLETING_REBALANCE:
                effects += self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
            was_empty = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING_REBALANCE
            self._persisting = None
            self._sync_deadline_ms = None
            self._rebalance_deadline_ms = now_ms + max(
                (member.rebalance_timeout_ms for member in self.members.values()), default=0
            )
            delay_ms = self.limits.initial_rebalance_delay_ms
            self._delay_until_ms = (
                min(now_ms + delay_ms, self._rebalance_deadline_ms)
                if was_empty and delay_ms > 0
                else None
            )
        return effects + self._complete_join_if_all_here(now_ms)

    def _complete_join_if_all_here(self, now_ms: int) -> list[Effect]:
        if (
            self.state is not GroupState.PREPARING_REBALANCE
            or self._delay_until_ms is not None
            or self._pending
        ):
            return []
        if any(member.join_token is None for member in self.members.values()):
            return []
        return self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> list[Effect]:
        """Remove the members that have not rejoined, except for static members, and start the next
        generation with the remaining ones.
        """
        for member in list(self.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._drop(member)
        self._rebalance_deadline_ms = self._delay_until_ms = None
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            return [PersistGroup(self.generation)]
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol = self.vote(self.members.values())
        joined = [member for member in self.members.values() if member.join_token is not None]
        if self.leader not in self.members or self.members[self.leader].join_token is None:
            self.leader = (joined or list(self.members.values()))[0].member_id
        self._sync_deadline_ms = now_ms + max(
            member.rebalance_timeout_ms for member in self.members.values()
        )
        effects: list[Effect] = []
        for member in joined:
            assert member.join_token is not None
            effects.append(CompleteJoin(member.join_token, self._join_response(member)))
            member.join_token = None
            self._touch(member, now_ms)
        return effects

    @staticmethod
    def vote(members: Collection[Member]) -> str:
        """Choose the protocol. Each member votes for its first protocol that all members support.
        The protocol with the most votes wins; ties are broken alphabetically.
        """
        common = _common(member.protocols for member in members)
        votes: dict[str, int] = {}
        for member in members:
            choice = next(offered.name for offered in member.protocols if offered.name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name])

    def _join_response(self, member: Member) -> JoinResult:
        assert self.protocol is not None
        all_members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader:
            all_members = tuple(
                (m.member_id, m.instance_id, m.metadata_for(self.protocol))
                for m in self.members.values()
            )
        return JoinResult(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=all_members,
        )

    # --- syncing ----------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, token: Token, now_ms: int) -> list[Effect]:
        """Handle SyncGroup. Followers are parked until the leader's assignment is durable."""
        error = self._sync_refusal(request)
        if error is not ErrorCode.NONE:
            return [CompleteSync(token, SyncResult(error=error))]
        member = self.members[request.member_id]
        self._touch(member, now_ms)
        if self.state is GroupState.STABLE:
            return [CompleteSync(token, self._sync_response(member))]
        effects = self._fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        if member.member_id == self.leader and self._persisting is None:
            self._persisting = {
                member_id: request.assignments.get(member_id, b"") for member_id in self.members
            }
            for member_id, assignment in self._persisting.items():
                self.members[member_id].assignment = assignment
            effects.append(PersistGroup(self.generation))
        return effects

    def _sync_refusal(self, request: SyncRequest) -> ErrorCode:
        error = self.check_member(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol is not None and request.protocol != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return (
            ErrorCode.REBALANCE_IN_PROGRESS
            if self.state is GroupState.PREPARING_REBALANCE
            else ErrorCode.NONE
        )

    def assignment_persisted(self, generation: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Handle the outcome of PersistGroup. An outcome for an earlier generation is ignored,
        except for restarted static members.
        """
        for index, (of_generation, token, response) in enumerate(self._replacing):
            if of_generation == generation:
                del self._replacing[index]
                refused = JoinResult(error=error, member_id="")
                return [CompleteJoin(token, response if error is ErrorCode.NONE else refused)]
        if (
            self.state is not GroupState.COMPLETING_REBALANCE
            or generation != self.generation
            or self._persisting is None
        ):
            return []
        self._persisting = None
        if error is not ErrorCode.NONE:
            for member in self.members.values():
                member.assignment = b""
            return self._fail_syncs(error) + self._rebalance(now_ms)
        self.state = GroupState.STABLE
        self._sync_deadline_ms = None
        effects: list[Effect] = []
        for member in self.members.values():
            self._touch(member, now_ms)
            if member.sync_token is not None:
                effects.append(CompleteSync(member.sync_token, self._sync_response(member)))
                member.sync_token = None
        return effects

    def _sync_response(self, member: Member) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _fail_syncs(self, error: ErrorCode) -> list[Effect]:
        effects: list[Effect] = []
        for member in self.members.values():
            member.assignment = b""
            effects += self._fail_sync(member, error)
        return effects

    # --- staying and leaving ----------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Check that the caller is a member of the current generation. The checks are in Kafka's
        order, because clients depend on the error code.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._identity_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._touch(self.members[member_id], now_ms)
        return (
            ErrorCode.REBALANCE_IN_PROGRESS
            if self.state is GroupState.PREPARING_REBALANCE
            else ErrorCode.NONE
        )

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Check whether this caller may commit offsets. While the group has no members, a
        standalone consumer (generation -1) may commit with any member id, because KIP-848 clients
        generate their own.

        transactional: as in Kafka, a transactional commit is allowed during a rebalance and does
        not extend the member's session; producers older than KIP-447, which send no member id, may
        always commit.
        """
        is_anonymous = member_id == "" and instance_id is None
        if generation < 0 and (self.state is GroupState.EMPTY or (transactional and is_anonymous)):
            return ErrorCode.NONE
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE or transactional:
            return error
        self._touch(self.members[member_id], now_ms)
        return (
            ErrorCode.REBALANCE_IN_PROGRESS
            if self.state is GroupState.COMPLETING_REBALANCE
            else ErrorCode.NONE
        )

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[ErrorCode, list[Effect]]:
        """Handle LeaveGroup for one member. An administrator may identify a static member by its
        instance id alone.
        """
        if instance_id is not None and member_id == "":
            member_id = self.static_members.get(instance_id, "")
        if instance_id is None and self._pending.pop(member_id, None) is not None:
            return ErrorCode.NONE, self._complete_join_if_all_here(now_ms)
        error = self._identity_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error, []
        return ErrorCode.NONE, self._remove(self.members[member_id], now_ms)

    def _remove(self, member: Member, now_ms: int) -> list[Effect]:
        effects = self._fail_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._drop(member)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            return effects + self._rebalance(now_ms)
        return effects + self._complete_join_if_all_here(now_ms)

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        if (
            member.instance_id is not None
            and self.static_members.get(member.instance_id) == member.member_id
        ):
            del self.static_members[member.instance_id]
        if self.leader == member.member_id:
            self.leader = None

    def _touch(self, member: Member, now_ms: int) -> None:
        member.session_deadline_ms = now_ms + member.session_timeout_ms

    # --- timers -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due next, or None if no deadline is pending."""
        deadlines = [
            member.session_deadline_ms for member in self.members.values() if not member.is_parked
        ]
        deadlines += self._pending.values()
        if self._delay_until_ms is not None:
            deadlines.append(self._delay_until_ms)
        elif self._rebalance_deadline_ms is not None:
            deadlines.append(self._rebalance_deadline_ms)
        if self._sync_deadline_ms is not None and self._persisting is None:
            deadlines.append(self._sync_deadline_ms)
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Expire sessions and unused member ids, and handle the deadlines for the initial delay,
        the rebalance and the sync.
        """
        effects: list[Effect] = []
        for member_id in [
            member_id for member_id, deadline_ms in self._pending.items() if deadline_ms <= now_ms
        ]:
            del self._pending[member_id]
        for member in self._expired(now_ms):
            effects += self._remove(member, now_ms)
        if (
            self._sync_deadline_ms is not None
            and self._sync_deadline_ms <= now_ms
            and self._persisting is None
        ):
            for member in [m for m in self.members.values() if m.sync_token is None]:
                self._drop(member)
            effects += self._rebalance(now_ms)
        if self._delay_until_ms is not None and self._delay_until_ms <= now_ms:
            self._delay_until_ms = None
        if self._rebalance_deadline_ms is not None and self._rebalance_deadline_ms <= now_ms:
            return effects + self._complete_join(now_ms)
        return effects + self._complete_join_if_all_here(now_ms)

    def _expired(self, now_ms: int) -> Sequence[Member]:
        return [
            member
            for member in self.members.values()
            if not member.is_parked and member.session_deadline_ms <= now_ms
        ]

    # --- loading and unloading --------------------------------------------------------------------

    def restore(
        self,
        *,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        leader: str | None,
        members: Sequence[Member],
        now_ms: int,
    ) -> None:
        """Restore the state from the last group record. All session timeouts restart, so that
        members have time to find the new coordinator.
        """
        self.generation, self.protocol_type, self.protocol, self.leader = (
            generation,
            protocol_type,
            protocol,
            leader,
        )
        self.members = {member.member_id: member for member in members}
        self.static_members = {
            member.instance_id: member.member_id
            for member in members
            if member.instance_id is not None
        }
        self.state = GroupState.STABLE if members else GroupState.EMPTY
        for member in members:
            self._touch(member, now_ms)

    def request_rejoin(self, now_ms: int) -> list[Effect]:
        """Start a rebalance after `restore` if the group has members but no leader, because it was
        converted from a consumer group (KIP-848).
        """
        is_new = bool(self.members) and self.leader is None
        return self._rebalance(now_ms) if is_new else []

    def take_over(self, generation: int, members: Sequence[Member], now_ms: int) -> list[Effect]:
        """Continue a consumer group (KIP-848) whose members all use the classic protocol. They must
        rejoin.
        """
        self.restore(
            generation=generation,
            protocol_type=members[0].protocol_type,
            protocol=None,
            leader=None,
            members=members,
            now_ms=now_ms,
        )
        self.protocol = self.vote(members)
        return self._rebalance(now_ms)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Complete all parked requests with an error, because this broker is no longer the
        coordinator or the group is no longer classic.
        """
        self.state = GroupState.DEAD
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._fail_parked(member, error)
        effects += [CompleteJoin(token, JoinResult(error=error)) for _, token, _ in self._replacing]
        self._replacing.clear()
        return effects

    def check_invariants(self) -> None:
        """Check the invariants. Tests call this after every event."""
        for member_id, member in self.members.items():
            assert member.member_id == member_id
            assert member.join_token is None or self.state is GroupState.PREPARING_REBALANCE
            assert member.sync_token is None or self.state is GroupState.COMPLETING_REBALANCE
        for instance_id, member_id in self.static_members.items():
            assert self.members[member_id].instance_id == instance_id
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            assert self.members
            assert self.protocol is not None
        if self.state is GroupState.PREPARING_REBALANCE:
            assert self._rebalance_deadline_ms is not None


def _common(offers: Iterable[Sequence[Protocol]]) -> set[str]:
    """Return the names of the protocols that all members offer."""
    first, *others = ({offered.name for offered in protocols} for protocols in offers)
    return first.intersection(*others)


def _without_assigning(
    response: JoinResult, former_leader: str, request: JoinRequest
) -> JoinResult:
    """Return a response that prevents a restarted leader from assigning partitions. Clients older
    than KIP-814 receive another member id as the leader.
    """
    if request.understands_skip:
        return replace(response, skip_assignment=True)
    return replace(response, leader=former_leader, members=())
