"""Send commits to the controller one at a time, and repeat each until its outcome is known.

Invariant: between the first try of a commit and its success, this process commits nothing else. A
lost reply can therefore never let a later commit overtake an earlier one (the controller checks
that every range begins at the end of its stream). A repeated commit may only lose ranges: those of
streams that the controller says are not ours. Must not know what is committed.
Source: AutoMQ `S3Storage` commit executor.
"""

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
        """on_stream_fenced: called for a stream that another broker owns or that is deleted. The
        next build must leave it out.
        """
        self._metadata = metadata
        self._config = config
        self._rng = rng
        self._on_stream_fenced = on_stream_fenced
        self.lock = asyncio.Lock()

    async def send(self, build: Callable[[], CommitObjects], *, until: float | None = None) -> bool:
        """Commit what `build` returns. Repeat without a limit, with pauses of up to
        retry_backoff_max_ms. The caller must hold `lock`.

        until: a time of the loop's clock after which no try begins. Return False then, with an
        unknown outcome, and as soon as a prepared object has expired; return True on success.
        Raises WalFenced when this start of the broker may not commit any more.
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
