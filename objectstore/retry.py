"""Retry every operation of the port, with a deadline for each call.

Invariant: a conditional write that succeeded is never reported as rejected. If a 412 follows a lost
response, the stored object is compared with the body: if they are equal, the write succeeded.
Bodies of conditional writes must thus differ between writers (they contain node id and epoch).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from penstock.base.backoff import Backoff
from penstock.base.buffers import Buffer
from penstock.base.log import get_logger
from penstock.base.slow_calls import SLOW_S
from penstock.objectstore.body import join_body
from penstock.objectstore.errors import (
    DeadlineExceeded,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    Unavailable,
)
from penstock.objectstore.ports import Body, ObjectInfo, ObjectStore, ObjectTail

_log = get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pauses between attempts, and the deadline of a call."""

    backoff_ms: int = 50
    """Maximum length of the first pause. The p50 of a small request to S3 is about 20 ms."""
    backoff_max_ms: int = 5_000
    deadline_ms: int = 30_000
    """Timeout of one call including all attempts (of one page for a list)."""


class RetryingStore:
    """Wraps a store and retries every retriable error until the deadline.

    If the first attempt of a plain `put` is delayed in the store, it may overwrite a newer write of
    the key, so use `put_if_match` for keys that change.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
        name: str = "",
        on_slow: Callable[[], None] | None = None,
    ) -> None:
        """clock, sleep: in seconds, as in the event loop. name: the name of the store, for errors.
        on_slow: called by each call that takes SLOW_S.
        """
        self._store = store
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or Random()  # noqa: S311 (jitter, not a secret)
        self._name = name
        self._on_slow = on_slow

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._retry("get", key, lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        return await self._retry(
            "get_range", key, lambda: self._store.get_range(key, start, length)
        )

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        return await self._retry("get_tail", key, lambda: self._store.get_tail(key, length))

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return await self._retry("head", key, lambda: self._store.head(key))

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        data = join_body(body)
        return await self._retry("put", key, lambda: self._store.put(key, data))

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        data = join_body(body)
        return await self._retry_conditional(
            "put_if_absent", key, data, lambda: self._store.put_if_absent(key, data)
        )

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match.

        PreconditionFailed does not prove that nothing was written: the response may have been lost,
        and another writer may have replaced the object before the comparison. Read the object to
        find out.
        """
        data = join_body(body)
        return await self._retry_conditional(
            "put_if_match", key, data, lambda: self._store.put_if_match(key, data, etag)
        )

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. Continues after the last key if a page fails."""
        seen, left = start_after, limit
        found: AsyncIterator[ObjectInfo] | None = None

        async def next_found() -> ObjectInfo | None:
            nonlocal found
            if found is None:
                found = self._store.list(prefix, start_after=seen, limit=max(left, 0))
            try:
                return await anext(found, None)
            except ObjectStoreError:
                found = None
                raise

        while (info := await self._retry("list", prefix, next_found)) is not None:
            seen = info.key
            yield info
            left -= 1
            if not left:
                return

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        await self._retry("delete", keys[0] if keys else "", lambda: self._store.delete(keys))

    async def close(self) -> None:
        """Close the wrapped store."""
        await self._store.close()

    async def _retry(self, operation: str, key: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        if self._on_slow is None:
            return await self._retry_until_deadline(operation, key, attempt)
        timer = asyncio.get_running_loop().call_later(SLOW_S, self._on_slow)
        try:
            return await self._retry_until_deadline(operation, key, attempt)
        finally:
            timer.cancel()

    async def _retry_until_deadline(
        self, operation: str, key: str, attempt: Callable[[], Awaitable[_T]]
    ) -> _T:
        deadline = self._clock() + self._policy.deadline_ms / 1_000
        backoff = Backoff(self._policy.backoff_ms, self._policy.backoff_max_ms, self._rng)
        last_error: ObjectStoreError | None = None
        while (remaining_s := deadline - self._clock()) > 0:
            try:
                async with asyncio.timeout(remaining_s):
                    return await attempt()
            except TimeoutError:
                break
            except ObjectStoreError as error:
                if not error.retriable:
                    raise
                last_error = error
            pause_s = backoff.next_s()
            _log.info(
                "object_store_call_failed",
                operation=operation,
                key=key,
                failures=backoff.attempt_count,
                error=str(last_error),
            )
            await self._sleep(min(pause_s, max(0.0, deadline - self._clock())))
        raise DeadlineExceeded(
            operation, key, self._policy.deadline_ms, last_error, store=self._name
        ) from last_error

    async def _retry_conditional(
        self, operation: str, key: str, data: bytes, write: Callable[[], Awaitable[str]]
    ) -> str:
        outcome_unknown = False

        async def attempt() -> str:
            nonlocal outcome_unknown
            try:
                return await write()
            except Unavailable:
                outcome_unknown = True
                raise
            except PreconditionFailed:
                etag = await self._etag_if_ours(key, data) if outcome_unknown else None
                if etag is None:
                    raise
                return etag

        return await self._retry(operation, key, attempt)

    async def _etag_if_ours(self, key: str, data: bytes) -> str | None:
        """Return the etag of the stored object if it equals `data`. Sends two requests, only after
        a lost response.
        """
        try:
            info = await self._store.head(key)
            if info.size_bytes != len(data) or await self._store.get(key) != data:
                return None
        except ObjectNotFound:
            return None
        return info.etag
