"""Send commits to the controller one at a time, and retry each until its outcome is known."""

import asyncio
from collections.abc import Callable
from random import Random

import structlog

from penstock.base.backoff import Backoff
from penstock.base.ids import StreamId
from penstock.stream.config import StreamConfig
from penstock.stream.errors import ObjectNotPrepared, StreamFenced, StreamNotOpened, WalFenced
from penstock.stream.ports import CommitObjects, StreamMetadata

_log = structlog.get_logger(__name__)


class CommitSequencer:
    """Sends commits one after another.

    Between the first attempt of a commit and its success, this process commits nothing else, so a
    lost response cannot cause a later commit to overtake an earlier one. The controller checks that
    every range begins at the end of its stream.

    Callers acquire `lock`, send one or more commits, and update their own state before they release
    it.
    """

    def __init__(
        self,
        metadata: StreamMetadata,
        config: StreamConfig,
        rng: Random,
        on_stream_fenced: Callable[[StreamId], None],
    ) -> None:
        """on_stream_fenced: called for a stream that is deleted or owned by another broker. The
        next build must omit it.
        """
        self._metadata = metadata
        self._config = config
        self._rng = rng
        self._on_stream_fenced = on_stream_fenced
        self.lock = asyncio.Lock()

    def wal_store_bytes(self) -> int:
        """See `StreamMetadata.wal_store_bytes`."""
        return self._metadata.wal_store_bytes()

    async def send(self, build: Callable[[], CommitObjects], *, until: float | None = None) -> bool:
        """Send the commit returned by `build`. Retry without a limit, with pauses of up to
        retry_backoff_max_ms. The caller must hold `lock`.

        until: event loop time after which no attempt begins. Return True on success, and False
        after `until`, with an unknown outcome, or as soon as a prepared object has expired. Raises
        WalFenced if this broker incarnation may no longer commit.
        """
        assert self.lock.locked(), "hold the lock to send commits"
        backoff = Backoff(
            self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._rng
        )
        now = asyncio.get_running_loop().time
        while until is None or now() <= until:
            try:
                await self._metadata.commit(build())
            except WalFenced:
                raise
            except (StreamFenced, StreamNotOpened) as error:
                _log.warning(
                    "stream_fenced_at_commit", stream_id=error.stream_id, reason=str(error)
                )
                # A retry may omit ranges of streams that this broker no longer owns, but never adds
                # any: if an earlier attempt was committed, the controller skips the objects of a
                # retry.
                self._on_stream_fenced(error.stream_id)
            except ObjectNotPrepared as error:
                _log.warning("commit_refused_prepared_object_gone", reason=str(error))
                if until is not None:
                    return False
            except Exception as error:  # noqa: BLE001 - controllers fail in many ways; giving up would lose what is acknowledged
                _log.warning(
                    "commit_failed", attempt_count=backoff.attempt_count + 1, error=repr(error)
                )
            else:
                return True
            await asyncio.sleep(backoff.next_s())
        return False
