"""The driver of one Raft core, like etcd's `raft.Node`: it passes messages and the time to the
core, and the core's output to the disk and the network.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Protocol, TypeVar

from penstock.base.histogram import LatencyHistogram
from penstock.controller.api.errors import QuorumClosed
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.journal import Journal, Recovered
from penstock.controller.raft.log import RaftLog
from penstock.controller.raft.messages import Base, Message, Write

_T = TypeVar("_T")


class Transport(Protocol):
    """Sends messages to other voters. Messages may be lost, and sending never blocks."""

    def send(self, message: Message) -> None: ...


class RaftNode:
    """Runs one voter. Call `open`, then `start`, and `close` once.

    The messages of a write are sent only after the write is durable, and only one write is in
    progress at a time. Everything that arrives during a write is written with the next fdatasync.
    If the journal fails, the node ends. A disk with promises ignores messages after the start: the
    voter does not vote or acknowledge until the other voters, which may remember more promises,
    have had time to report them.
    """

    def __init__(self, journal: Journal, thread: Executor, changed: Callable[[], None]) -> None:
        """thread: runs the blocking calls of the journal one after another; `close` shuts it down.

        changed: called after every input, because the term, the leader, the commit index or the
        confirmed reads may have changed.
        """
        self._journal = journal
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._transport: Transport | None = None
        self._core: RaftCore | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._writing: asyncio.Future[None] | None = None
        self._writing_since_s = 0.0
        self._ignores_messages = False
        self.start_number = 0
        """Number of this start of the data directory, or 0 before the start."""
        self.writes = LatencyHistogram()
        """Time until journal frames are durable."""
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Done when the node has ended: with a result after `close`, otherwise with the exception
        that ended it.
        """

    @property
    def core(self) -> RaftCore:
        assert self._core is not None, "start() first"
        return self._core

    async def open(self) -> Recovered:
        """Return the contents of the journal. Raises JournalCorrupt."""
        return await self.blocking(self._journal.open)

    async def start(
        self,
        config: CoreConfig,
        recovered: Recovered,
        transport: Transport,
        rng: Random,
        *,
        commit: int,
    ) -> None:
        """Participate in the quorum. recovered: the initial log; its base may be newer than the
        base on disk.
        """
        self.start_number = await self.blocking(lambda: self._journal.start(recovered.base))
        log = RaftLog(recovered.base, recovered.entries)
        self._core = RaftCore(config, log, recovered.hard, rng, self.now_ms(), commit=commit)
        self._transport = transport
        if log.members.voters == (config.node_id,) and self._core.is_voter:
            self._core.campaign()
        elif recovered.hard.term or recovered.entries:
            self._ignores_messages = True
            self._loop.call_later(config.election_ms / 1_000, self.accept_messages)
        self.pump()

    async def close(self) -> None:
        """Close the node after the current write."""
        if not self.failed.done():
            self.failed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        await self.blocking(self._journal.close)
        self._thread.shutdown(wait=False)

    def accept_messages(self) -> None:
        """Accept messages, because no reachable voter has reported a promise that this disk
        lost.
        """
        self._ignores_messages = False

    def receive(self, message: Message) -> None:
        """Handle a message from another voter."""
        if self._core is not None and not self._ignores_messages and not self.failed.done():
            self._core.step(message, self.now_ms())
            self.pump()

    def check_running(self) -> None:
        """Raise QuorumClosed if the node has ended, or the error that ended it."""
        if self.failed.done():
            error = self.failed.exception()
            raise error or QuorumClosed("the quorum was stopped")

    async def compact(self, index: int) -> None:
        """Drop the entries up to `index` that are on disk and committed."""
        core = self.core
        core.log.compact(min(index, core.log.stable, core.commit))
        base: Base = core.log.base
        await self.blocking(lambda: self._journal.drop_before(base))

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    async def blocking(self, work: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._thread, work)

    def pump(self) -> None:
        """Process the output of the core. Call this after every input."""
        core = self.core
        if self.failed.done():
            return
        write = core.take_write()
        assert self._transport is not None
        for message in core.take_messages():
            self._transport.send(message)
        if write is not None:
            self._write(write)
        self._set_timer(core.deadline_ms)
        self._changed()

    def _write(self, write: Write) -> None:
        work = self._loop.run_in_executor(
            self._thread, self._journal.append, write.hard, write.base, write.entries
        )
        self._writing = work
        self._writing_since_s = self._loop.time()
        work.add_done_callback(self._written)

    def _written(self, work: "asyncio.Future[None]") -> None:
        self._writing = None
        error = work.exception()
        if error is not None:
            self.fail(error)
        elif not self.failed.done():
            took_s = self._loop.time() - self._writing_since_s
            self.writes.observe(took_s * 1_000)
            self.core.persisted(max(1, int(took_s * 1e6)))
            self.pump()

    def fail(self, error: BaseException) -> None:
        """End the node. Waiters fail with `error`."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()
            if self._timer is not None:
                self._timer.cancel()
        self._changed()

    def _set_timer(self, deadline_ms: int | None) -> None:
        """Set the timer. A timer that fires earlier is kept, and set again when it fires, because
        heartbeats change the deadline often and setting a timer is expensive.
        """
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.failed.done():
            return
        core = self.core
        now_ms = self.now_ms()
        deadline_ms = core.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            core.tick(now_ms)
            self.pump()
        else:
            self._set_timer(deadline_ms)
