"""Quorum requests, which the leader handles: describe it, add, promote and remove members, and
transfer leadership (KIP-595, KIP-853).
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from penstock.controller.active.server import About
from penstock.controller.api import messages as m
from penstock.controller.api.errors import ChangeRefused, NotLeader
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.records import ControllerEpoch
from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.majority import majority
from penstock.controller.raft.messages import Members
from penstock.controller.raft.replicated_log import RaftQuorum

_log = structlog.get_logger(__name__)

CATCH_UP_S_MAX = 2.0
"""Maximum time that one request waits for a learner; after that, the sender retries. It is shorter
than an attempt of `ControllerClient`.
"""

LAG_ENTRIES_MAX = 100
"""Maximum lag at which a learner may become a voter. Such a lag does not delay commits, because the
next append brings the learner up to date.
"""


class QuorumChanges:
    """Makes one change at a time, and commits it before it responds. A learner becomes a voter only
    after it has caught up. A voter is removed only if the remaining voters can still commit. A
    leader transfers leadership before it is removed. `controller.raft.membership` checks the
    requirements of Raft.
    """

    def __init__(self, config: ControllerConfig, quorum: RaftQuorum) -> None:
        self._config = config
        self._quorum = quorum
        self._loop = asyncio.get_running_loop()
        self._change_under_way = ""

    def methods(self) -> Mapping[type[m.Message], About]:
        """Return the handler of each request class."""
        return {
            m.DescribeQuorum: self._describe,
            m.AddLearner: self._add_learner,
            m.AddVoter: self._add_voter,
            m.RemoveController: self._remove,
            m.TransferLeadership: self._transfer,
        }

    async def _describe(
        self, _: m.DescribeQuorum, timeout_s: float | None
    ) -> m.Reply[m.QuorumStatus]:
        del timeout_s
        core = self._leading()
        members = core.log.members
        status = m.QuorumStatus(
            cluster_id=self._config.cluster_id,
            leader_id=core.id,
            leader_epoch=ControllerEpoch(core.term),
            high_watermark=core.commit,
            log_end=core.log.last_index,
            committed_offset=self._quorum.committed_offset,
            version=members.version,
            is_changing=self._is_changing(core),
            members=[self._member(core, members, node_id) for node_id in members.everyone],
        )
        return self._reply(value=status)

    def _member(self, core: RaftCore, members: Members, node_id: int) -> m.QuorumMember:
        now_ms = int(self._loop.time() * 1_000)
        progress = core.progress_of(node_id)
        end, fetched_ms, caught_up_ms, fsync_us = (
            core.log.stable,
            now_ms,
            now_ms,
            core.fsyncs.p99_us,
        )
        if progress is not None:
            end, fetched_ms, caught_up_ms, fsync_us = (
                progress.match,
                progress.heard_ms,
                progress.caught_up_ms,
                progress.fsync_us,
            )
        return m.QuorumMember(
            node_id=node_id,
            address=self._quorum.address_of(node_id),
            directory_id=members.endpoint(node_id).directory,
            is_voter=node_id in members.voters,
            log_end=end,
            lag=core.log.last_index - end,
            last_fetch_ms=max(0, now_ms - fetched_ms),
            last_caught_up_ms=max(0, now_ms - caught_up_ms) if caught_up_ms else -1,
            fsync_p99_us=fsync_us,
        )

    async def _add_learner(self, request: m.AddLearner, timeout_s: float | None) -> m.Reply[Any]:
        del timeout_s
        if not await self._is_free():
            return self._pending()
        members = self._leading().log.members
        listed = members.endpoint(request.node_id)
        if request.node_id in members.everyone and listed.directory != request.directory_id:
            detail = (
                f"controller {request.node_id} is in the quorum with another data directory"
                f" ({listed.directory or 'not known yet'}): if that one is lost, run `penstock"
                f" quorum remove {request.node_id}` first; otherwise give this one another node.id"
            )
            return self._reply(m.Status.DUPLICATE_VOTER, detail)
        return await self._change(
            f"controller {request.node_id} becomes a learner",
            membership.added_learner(
                members, request.node_id, request.address, request.directory_id
            ),
        )

    async def _add_voter(self, request: m.AddVoter, timeout_s: float | None) -> m.Reply[Any]:
        what = f"controller {request.controller} becomes a voter"
        if not await self._is_free():
            return self._pending()
        self._change_under_way = what
        try:
            deadline = self._loop.time() + min(CATCH_UP_S_MAX, timeout_s or CATCH_UP_S_MAX)
            while (lag := self._lag_of(request.controller)) != 0:
                if lag is None:
                    detail = (
                        f"no learner {request.controller}: start it with an empty data directory"
                        " and --controller-quorum-join-servers HOST:PORT of a controller"
                    )
                    return self._reply(m.Status.VOTER_NOT_FOUND, detail)
                if self._loop.time() >= deadline:
                    return self._reply(
                        m.Status.CONTROLLER_BUSY,
                        f"controller {request.controller} lacks {lag} entries",
                    )
                await asyncio.sleep(self._config.raft_heartbeat_ms / 2_000)
        finally:
            self._change_under_way = ""
        if not await self._is_free():
            return self._pending()
        members = self._leading().log.members
        node_id = self._find(members, request.controller)
        if node_id is None:
            return self._reply(
                m.Status.VOTER_NOT_FOUND,
                f"controller {request.controller} was removed in the meantime",
            )
        return await self._change(what, membership.promoted(members, node_id))

    def _lag_of(self, controller: str) -> int | None:
        """Return the number of entries that a learner lacks. Return 0 if these are few enough or
        the controller is already a voter, or None if the controller does not exist.
        """
        core = self._leading()
        node_id = self._find(core.log.members, controller)
        if node_id is None:
            return None
        progress = core.progress_of(node_id)
        if progress is None or node_id in core.log.members.voters:
            return 0
        lag = core.log.last_index - progress.match
        is_there = (
            int(self._loop.time() * 1_000) - progress.heard_ms < self._config.election_timeout_ms
        )
        return 0 if progress.caught_up_ms and is_there and lag <= LAG_ENTRIES_MAX else max(1, lag)

    def _find(self, members: Members, controller: str) -> int | None:
        found = (
            node_id
            for node_id in members.everyone
            if controller in {str(node_id), self._quorum.address_of(node_id)}
        )
        return next(found, None)

    async def _remove(self, request: m.RemoveController, timeout_s: float | None) -> m.Reply[Any]:
        del timeout_s
        if not await self._is_free():
            return self._pending()
        core = self._leading()
        members = core.log.members
        if request.node_id not in members.everyone:
            return self._reply(
                m.Status.VOTER_NOT_FOUND,
                f"controller {request.node_id} is not in the quorum {members.everyone}",
            )
        left = [voter for voter in members.voters if voter != request.node_id]
        alive = [voter for voter in left if self._is_heard(core, voter)]
        if request.node_id in members.voters and len(alive) < majority(len(left)):
            detail = (
                f"of the remaining voters, {left}, only {alive} respond, which is no majority."
                " Start one of the others first"
            )
            return self._reply(m.Status.NO_MAJORITY, detail)
        if request.node_id == core.id:
            return await self._hand_over(
                core, max(alive, key=lambda voter: self._match(core, voter), default=None)
            )
        return await self._change(
            f"controller {request.node_id} leaves", membership.removed(members, request.node_id)
        )

    async def _transfer(
        self, request: m.TransferLeadership, timeout_s: float | None
    ) -> m.Reply[Any]:
        del timeout_s
        core = self._leading()
        if request.node_id == core.id:
            return self._reply()
        others = [
            voter
            for voter in core.log.members.voters
            if voter != core.id and self._is_heard(core, voter)
        ]
        if request.node_id >= 0 and request.node_id not in others:
            return self._reply(
                m.Status.VOTER_NOT_FOUND,
                f"controller {request.node_id} is not a voter that responds; these are: {others}",
            )
        target = (
            request.node_id
            if request.node_id >= 0
            else max(others, key=lambda voter: self._match(core, voter), default=None)
        )
        try:
            return await self._hand_over(core, target)
        except NotLeader:
            return self._reply()

    async def _hand_over(self, core: RaftCore, target: int | None) -> m.Reply[Any]:
        """Transfer leadership. Raises NotLeader once another controller leads. The caller must
        then send the request to that controller.
        """
        if target is None:
            return self._reply(m.Status.NO_MAJORITY, "there is no other voter that could lead")
        if not self._quorum.transfer(target):
            return self._pending()
        # This controller stops serving immediately, but remains the leader until the target is
        # elected.
        deadline = self._loop.time() + self._config.election_timeout_ms / 1_000
        while core.is_leader and core.transferring_to == target:
            if self._loop.time() >= deadline:
                break
            await asyncio.sleep(self._config.raft_heartbeat_ms / 4_000)
        if core.vote == core.id:
            # A retry would make the quorum unavailable again.
            return self._reply(
                m.Status.VOTER_NOT_FOUND, f"controller {target} has not taken over in time"
            )
        raise NotLeader(self._quorum.leadership.address)

    def _is_heard(self, core: RaftCore, voter: int) -> bool:
        if voter == core.id:
            return True
        progress = core.progress_of(voter)
        now_ms = int(self._loop.time() * 1_000)
        return (
            progress is not None and now_ms - progress.heard_ms < self._config.election_timeout_ms
        )

    @staticmethod
    def _match(core: RaftCore, voter: int) -> int:
        progress = core.progress_of(voter)
        return core.log.stable if progress is None else progress.match

    async def _is_free(self) -> bool:
        """Wait until no change is in progress. Return False after one election timeout. Most
        changes, including those of controller addresses, take milliseconds.
        """
        deadline = self._loop.time() + self._config.election_timeout_ms / 1_000
        while self._change_under_way or self._is_changing(self._leading()):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(self._config.raft_heartbeat_ms / 4_000)
        return True

    @staticmethod
    def _is_changing(core: RaftCore) -> bool:
        return core.log.members_index > core.commit

    async def _change(self, what: str, members: Members) -> m.Reply[Any]:
        self._change_under_way = what
        try:
            await self._quorum.change(members)
        except ChangeRefused as error:
            return self._reply(m.Status.CHANGE_PENDING, str(error))
        finally:
            self._change_under_way = ""
        _log.info("quorum_changed", what=what, version=members.version)
        return self._reply()

    def _pending(self) -> m.Reply[Any]:
        what = (
            self._change_under_way
            or "the last change is not committed yet, or leadership is being transferred"
        )
        return self._reply(m.Status.CHANGE_PENDING, f"one change at a time: {what}")

    def _leading(self) -> RaftCore:
        """Return the Raft core if this controller leads. Raises NotLeader."""
        if not self._quorum.leadership.active:
            raise NotLeader(self._quorum.leadership.address)
        return self._quorum.core

    def _reply(
        self, status: m.Status = m.Status.OK, detail: str = "", value: m.QuorumStatus | None = None
    ) -> m.Reply[Any]:
        return m.Reply(
            status=status,
            detail=detail,
            value=value,
            controller_epoch=self._quorum.leadership.epoch,
        )
