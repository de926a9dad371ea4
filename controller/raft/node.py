"""Drives one core: messages and time in, disk and network out.

Invariants: the core's contract (`core`): a write's messages leave only when it is durable, and one
write is under way. Whatever arrives while the disk is busy shares the next fdatasync. A journal
that fails ends the node: `failed` tells, nothing more is sent. Listeners are called from inside an
input, after everything was handed out. A disk that has promised something is deaf at first: it
neither votes nor acknowledges until the other voters, who may remember more, have had the time to
say so. Must not know what a record is.
Source: etcd `raft.Node`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Protocol, TypeVar

from base.histogram import LatencyHistogram
from controller.api.errors import QuorumClosed
from controller.raft.core import RaftCore
from controller.raft.core_config import CoreConfig
from controller.raft.journal import Journal, Recovered
from controller.raft.log import RaftLog
from controller.raft.messages import Base, Message, Write

_T = TypeVar("_T")


class Transport(Protocol):
    """Gets messages to other voters, or loses them; never blocks."""

    def send(self, message: Message) -> None: ...


class RaftNode:
    """One voter. `open`, then `start`; `close` once."""

    def __init__(self, journal: Journal, thread: Executor, changed: Callable[[], None]) -> None:
        """thread: does the journal's work, one piece after another; `close` ends it.

        changed: called after every input, when term, leader, commit or confirmed reads may have
        moved.
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
        """Of the data directory; 0: not started yet."""
        self.writes = LatencyHistogram()
        """Frames of the journal until they were durable."""
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Done when the node is over: with a result after `close`, with the exception that ended it
        otherwise.
        """

    @property
    def core(self) -> RaftCore:
        assert self._core is not None, "start() first"
        return self._core

    async def open(self) -> Recovered:
        """What the disk holds. Raises JournalCorrupt."""
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
        """Take part, with a log that `recovered` describes (its base may be newer than the
        disk's).
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
        """A write under way is finished first."""
        if not self.failed.done():
            self.failed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        await self.blocking(self._journal.close)
        self._thread.shutdown(wait=False)

    def accept_messages(self) -> None:
        """No other voter that can be reached knows of a promise that this disk forgot."""
        self._ignores_messages = False

    def receive(self, message: Message) -> None:
        """A message of another voter."""
        if self._core is not None and not self._ignores_messages and not self.failed.done():
            self._core.step(message, self.now_ms())
            self.pump()

    def check_running(self) -> None:
        """Raises QuorumClosed, or what ended the node."""
        if self.failed.done():
            error = self.failed.exception()
            raise error or QuorumClosed("the quorum was stopped")

    async def compact(self, index: int) -> None:
        """Forget entries up to `index`, as far as they are on the disk."""
        core = self.core
        core.log.compact(min(index, core.log.stable, core.commit))
        base: Base = core.log.base
        await self.blocking(lambda: self._journal.drop_before(base))

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    async def blocking(self, work: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._thread, work)

    def pump(self) -> None:
        """Hand out what the core has; call it after every input."""
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
        """Send nothing any more; waiters get `error`."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()
            if self._timer is not None:
                self._timer.cancel()
        self._changed()

    def _set_timer(self, deadline_ms: int | None) -> None:
        """An earlier timer may stand: it looks again when it rings. Heartbeats move the deadline
        often, timers are dear.
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
