"""Write one object to a WAL slot and determine whether the slot contains it: with retries, a
comparison after 412 (Precondition Failed), and a hedge for slow PUTs.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

import structlog

from penstock.base.backoff import Backoff
from penstock.base.histogram import LatencyHistogram
from penstock.base.ids import WalSequence
from penstock.objectstore.errors import ObjectStoreError, PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.errors import FormatUnknown, ObjectCorrupt, WalFailed, WalFenced
from penstock.stream.format.builder import BuiltObject
from penstock.stream.format.decoder import NeedMore, parse_tail
from penstock.stream.format.layout import FOOTER_BYTES, TAIL_BYTES

_log = structlog.get_logger(__name__)

_FIRST_GUESS_S = 1.0
_DURATION_WEIGHT = 0.1
_SIZE_UNIT_BYTES = 1 << 20
DOUBTFUL_S = 1.0
"""A PUT that takes this long may have been affected by an outage, because the store client also
retries.
"""
_HEDGES_SAVED_MAX = 3.0
"""Maximum number of hedges that accumulate in a quiet period."""


@dataclass(slots=True)
class PutCounts:
    """PUT counters. latencies: durations of slot writes, from the first attempt until the outcome
    is certain.
    """

    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    written_bytes: int = 0
    hedge_count: int = 0
    retry_count: int = 0


class SlotWriter:
    """Writes slots, and measures how long PUTs take. There is one per WAL.

    Every attempt sends the same bytes to the same key, so retries and hedges leave exactly one
    object. Success means that the footer of the stored object equals that of the written one; the
    footer contains the CRCs of every block and of the header, which includes the writer and the
    slot. WalFenced means that the slot contains another intact object, which no retry can change.

    Durations are measured per unit of size (one unit, and one for each MiB), because a bulk of 8
    MiB takes longer than a small one. Hedges are limited to a share of all PUTs: a store that is
    slow because it is overloaded must not receive twice the load.
    """

    def __init__(self, store: ObjectStore, config: StreamConfig, rng: Random) -> None:
        self._store = store
        self.config = config
        """May be replaced; the new values apply from the next PUT on."""
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._unit_s = _FIRST_GUESS_S
        self._hedges_left = _HEDGES_SAVED_MAX
        self._tries: set[asyncio.Task[None]] = set()
        self.counts = PutCounts()

    async def write(self, key: str, sequence: WalSequence, built: BuiltObject) -> bool:
        """Wait until the slot contains the object. Return whether the store worked as usual, that
        is, no attempt failed and the write took less than DOUBTFUL_S. Raises WalFenced, or
        WalFailed if the outcome is not certain by the deadline.
        """
        begun = self._clock()
        deadline = begun + self.config.wal_put_deadline_ms / 1000
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self._rng)
        while True:
            try:
                async with asyncio.timeout(self.config.wal_put_attempt_ms / 1000):
                    is_clean = await self._round(key, sequence, built)
            except (ObjectStoreError, ObjectCorrupt, TimeoutError) as error:
                pause_s = backoff.next_s()
                if self._clock() + pause_s > deadline:
                    raise WalFailed(
                        sequence, f"{backoff.attempt_count} attempts, last error: {error!r}"
                    ) from error
                self.counts.retry_count += 1
                _log.warning(
                    "wal_put_failed",
                    sequence=sequence,
                    attempt_count=backoff.attempt_count,
                    error=repr(error),
                )
                await asyncio.sleep(pause_s)
            else:
                took_s = self._clock() - begun
                self.counts.latencies.observe(took_s * 1_000)
                self.counts.written_bytes += built.size_bytes
                self._unit_s += (took_s / _units(built) - self._unit_s) * _DURATION_WEIGHT
                self._hedges_left = min(
                    _HEDGES_SAVED_MAX, self._hedges_left + self.config.wal_hedge_percent / 100
                )
                return is_clean and not backoff.attempt_count and took_s < DOUBTFUL_S

    async def stopped(self) -> None:
        """Wait until no attempt is in flight. Cancel the writes first."""
        while self._tries:
            await asyncio.wait(self._tries)

    async def _round(self, key: str, sequence: WalSequence, built: BuiltObject) -> bool:
        """Make one attempt, and a hedge if it is slow. The first success or fence determines the
        outcome, otherwise the last error does. Return whether no attempt failed before the success.
        """
        if not self.config.wal_hedge_factor:
            await self._try(key, sequence, built)
            return True
        running = {self._begin(key, sequence, built)}
        failure: BaseException | None = None
        try:
            patience_s = max(
                self.config.wal_hedge_min_ms / 1000,
                self.config.wal_hedge_factor * self._unit_s * _units(built),
            )
            done, running = await asyncio.wait(running, timeout=patience_s)
            if not done and self._hedges_left >= 1:
                self._hedges_left -= 1
                self.counts.hedge_count += 1
                running.add(self._begin(key, sequence, built))
            while done or running:
                if not done:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors = [task.exception() for task in done]
                for error in errors:
                    if isinstance(error, WalFenced):
                        raise error
                    failure = error or failure
                if None in errors:
                    return failure is None
                done.clear()
            assert failure is not None, "every attempt has ended, none of them with success"
            raise failure
        finally:
            for task in running:
                task.cancel()

    def _begin(self, key: str, sequence: WalSequence, built: BuiltObject) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._try(key, sequence, built))
        self._tries.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tries.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the error of the losing attempt; otherwise, asyncio logs it

    async def _try(self, key: str, sequence: WalSequence, built: BuiltObject) -> None:
        """PUT once. If the slot is taken, compare the stored object.

        Only an intact object of any version is conclusive: damaged bytes raise ObjectCorrupt, and
        the caller tries again.
        """
        try:
            await self._store.put_if_absent(key, built.chunks)
        except PreconditionFailed:
            tail = await self._store.get_tail(key, TAIL_BYTES)
            if tail.size_bytes == built.size_bytes and tail.data[-FOOTER_BYTES:] == built.footer:
                return
            if len(tail.data) != min(TAIL_BYTES, tail.size_bytes):
                raise ObjectCorrupt(
                    key,
                    0,
                    f"the response contains {len(tail.data)} bytes of a tail of {tail.size_bytes}",
                ) from None
            try:
                found = parse_tail(tail.data, tail.size_bytes, key)
            except FormatUnknown as error:
                # The slot contains another intact object, most likely the fence of a newer broker.
                raise WalFenced(sequence, f"an object with {error.what}") from None
            by = "an object that is not ours"
            if not isinstance(found, NeedMore):
                by = (
                    f"a {found.header.role.name} object of node {found.header.writer.node_id} epoch"
                    f" {found.header.writer.node_epoch}"
                )
            raise WalFenced(sequence, by) from None


def _units(built: BuiltObject) -> float:
    return 1 + built.size_bytes / _SIZE_UNIT_BYTES
