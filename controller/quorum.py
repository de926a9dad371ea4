"""The replicated log as the runtime sees it, and a quorum of one.

Invariants: `propose` returns when its records are committed, and nobody reads a record before; offsets are contiguous; a proposal of an
epoch that is over raises `NotLeader` and the runtime then forgets its image. One proposal is under way at a time (the runtime batches), so
a core with many voters fits behind the same port: it calls `on_leadership` when it gains or loses leadership and gives the new epoch.
Must not decode records. Source: Raft reference 5; KRaft `RaftClient`.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from controller.errors import JournalFailed, QuorumClosed, SnapshotMissing
from controller.journal import Journal
from controller.metadata.records import ControllerEpoch, MetadataOffset

_log = structlog.get_logger()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads. active: this process does, under `epoch`. address: of the leader, if known."""

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
    """A log of encoded records that a majority holds."""

    @property
    def leadership(self) -> Leadership: ...

    @property
    def first_offset(self) -> MetadataOffset:
        """Oldest record that can still be read; older ones are only in snapshots."""
        ...

    @property
    def committed_offset(self) -> MetadataOffset:
        """Exclusive end of what is committed."""
        ...

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        """Committed end offset, once these records are committed. Raises NotLeader, QuorumClosed, JournalFailed."""
        ...

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        """Committed records from `offset` on, at least one if there is one; needs first_offset <= offset <= committed_offset."""
        ...

    async def wait_committed(self, offset: MetadataOffset) -> None:
        """Returns when something at or behind `offset` is committed. Raises QuorumClosed."""
        ...

    async def drop_before(self, offset: MetadataOffset) -> None:
        """Forget records below `offset`, which a snapshot covers; may keep some of them."""
        ...

    def on_leadership(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` at every change of leadership from now on."""
        ...


class SingleQuorum:
    """A quorum of one: what its journal holds is committed. Blocking file work runs in one thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._first = MetadataOffset(0)
        self._records: list[bytes] = []
        self._ends: list[int] = []
        self._bytes_dropped = 0
        self._epoch = ControllerEpoch(0)
        self._active = False
        self._failure: Exception | None = None
        self._proposing = False
        self._committed = asyncio.Event()

    async def start(self, snapshot_offset: MetadataOffset | None, snapshot_epoch: ControllerEpoch) -> None:
        """Recover the journal and lead under a new epoch. Raises JournalCorrupt, SnapshotMissing (a gap before the journal)."""
        recovered = await self._blocking(self._journal.open)
        if recovered.cut_bytes:
            _log.warning("journal_torn_end_cut", bytes=recovered.cut_bytes, end_offset=recovered.end_offset)
        if recovered.first_offset > (snapshot_offset or 0):
            raise SnapshotMissing(recovered.first_offset, snapshot_offset)
        self._epoch = ControllerEpoch(max(recovered.epoch, snapshot_epoch) + 1)
        first, records = recovered.first_offset, recovered.records
        if snapshot_offset is not None and snapshot_offset > recovered.end_offset:
            _log.warning("journal_behind_snapshot_replaced", journal_end=recovered.end_offset, snapshot_offset=snapshot_offset)
            await self._blocking(self._journal.reset)
            first, records = snapshot_offset, []
        self._first = first
        self._append_to_tail(records)
        end = MetadataOffset(first + len(records))
        await self._blocking(lambda: self._journal.start(end, self._epoch))
        self._active = True

    async def close(self) -> None:
        """Stop leading; a proposal under way is finished first. Waiters get QuorumClosed."""
        self._active = False
        self._failure = self._failure or QuorumClosed("the quorum was stopped")
        self._committed.set()
        await self._blocking(self._journal.close)
        self._thread.shutdown(wait=False)

    @property
    def leadership(self) -> Leadership:
        return Leadership(active=self._active, epoch=self._epoch)

    @property
    def first_offset(self) -> MetadataOffset:
        return self._first

    @property
    def committed_offset(self) -> MetadataOffset:
        return MetadataOffset(self._first + len(self._records))

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        """See Quorum.propose. Cost: one write and one fdatasync, 0.2 to 4 ms."""
        if self._failure is not None:
            raise self._failure
        assert epoch == self._epoch, f"proposal of epoch {epoch}, this is {self._epoch}"
        assert not self._proposing, "one proposal at a time"
        base = self.committed_offset
        self._proposing = True
        try:
            await self._blocking(lambda: self._journal.append(base, epoch, records))
        except JournalFailed as error:
            self._failure = error
            self._active = False
            self._committed.set()
            raise
        finally:
            self._proposing = False
        self._append_to_tail(records)
        return self.committed_offset

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        """See Quorum.read. From memory; records are not copied."""
        at = offset - self._first
        assert 0 <= at <= len(self._records), f"read at {offset} outside [{self._first}, {self.committed_offset}]"
        before = self._ends[at - 1] if at else self._bytes_dropped
        stop = max(at + 1, bisect_right(self._ends, before + max_bytes, lo=at))
        return CommittedRecords(offset, self._records[at:stop])

    async def wait_committed(self, offset: MetadataOffset) -> None:
        """See Quorum.wait_committed."""
        while self.committed_offset <= offset:
            if self._failure is not None:
                raise self._failure
            await self._committed.wait()

    async def drop_before(self, offset: MetadataOffset) -> None:
        """See Quorum.drop_before. Deletes whole segment files; a new one is begun here so that the next snapshot can drop this one."""
        await self._blocking(lambda: self._journal.roll(self._epoch))
        first = await self._blocking(lambda: self._journal.drop_before(offset))
        count = first - self._first
        if count > 0:
            self._bytes_dropped = self._ends[count - 1]
            del self._records[:count], self._ends[:count]
            self._first = first

    def on_leadership(self, listener: Callable[[Leadership], None]) -> None:
        """See Quorum.on_leadership. A quorum of one leads from start to close: there is nothing to call."""

    def _append_to_tail(self, records: Sequence[bytes]) -> None:
        begin = self._ends[-1] if self._ends else self._bytes_dropped
        self._records.extend(records)
        self._ends.extend(list(accumulate((len(record) for record in records), initial=begin))[1:])
        waiters, self._committed = self._committed, asyncio.Event()
        waiters.set()

    async def _blocking(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
