"""One commit to the controller at a time, repeated until its outcome is known.

Invariant: between the first try of a commit and its success nothing else is committed by this
process, so a lost reply can never make a later commit overtake an earlier one (the controller
checks that every range begins at the stream's end). What a repeated commit holds may only shrink,
by streams that the controller says are not ours. Must not know what is committed. Source: AutoMQ
`S3Storage` commit executor.
"""

import asyncio
from collections.abc import Callable
from random import Random

import structlog

from base.backoff import Backoff
from base.ids import StreamId
from stream.config import StreamConfig
from stream.errors import ObjectNotPrepared, StreamFenced, StreamNotOpened, WalFenced
from stream.ports import CommitObjects, StreamMetadata

_log = structlog.get_logger(__name__)


class CommitSequencer:
    """Send commits one after the other.

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
        """on_stream_fenced: the stream is somebody else's (or deleted); the next build must leave
        it out.
        """
        self._metadata = metadata
        self._config = config
        self._rng = rng
        self._on_stream_fenced = on_stream_fenced
        self.lock = asyncio.Lock()

    async def send(self, build: Callable[[], CommitObjects], *, until: float | None = None) -> bool:
        """Commit what `build` gives, with pauses of up to retry_backoff_max_ms between tries and no
        limit to their number.

        until: of the loop's clock, begin no try after it; then the answer is False and the outcome
        unknown. It is False at once when a prepared object has expired. The caller must hold
        `lock`. Raises WalFenced: this start of the broker may not commit any more.
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
