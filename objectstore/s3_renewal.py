"""Keep temporary keys valid while requests use them.

Invariant: a renewal runs in a thread of its own, and requests use the old keys until it ends, so
neither the event loop nor a request waits for it; requests wait only if there are no valid keys.
The client asks for keys, so nothing runs while there are no requests. Must not import botocore.
Source: object_store's client/token.rs, which asks again 5 minutes before `expires_at`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from threading import Lock, Thread
from typing import Any, Final

from penstock.base.backoff import Backoff
from penstock.base.log import get_logger
from penstock.objectstore.errors import SignInFailed
from penstock.objectstore.metered import StoreMeter

_log = get_logger(__name__)

_RENEW_BEFORE_S: Final = 900.0
"""As in botocore. Keys with a lifetime of less than 30 minutes are renewed at half of it."""
_READ_AGAIN_S: Final = 300.0
"""How often keys that do not expire are read again: other programs replace them in the files."""
_ASKS_BEFORE_S: Final = 300.0
_FIRST_PAUSE_MS: Final = 1_000
_PAUSE_MAX_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Keys, and for how long they are valid."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    left_s: float | None
    """None: they do not expire."""


class RenewedKeys:
    """A credential provider of obstore."""

    def __init__(
        self,
        sign_in: Callable[[], SignedIn],
        meter: StoreMeter | None = None,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """sign_in: may block; raises SignInFailed, or OSError if another try may succeed.

        wait_s: limits the wait of a request that has no keys.
        """
        self._sign_in = sign_in
        self._meter = meter or StoreMeter()
        self._wait_s = wait_s
        self._clock = clock
        self._lock = Lock()
        self._keys: SignedIn | None = None
        self._expires_at = 0.0
        self._renew_at = 0.0
        self._renewal: Future[Any] | None = None
        self._failure: OSError | SignInFailed = OSError()
        self._backoff = _new_backoff()

    def __call__(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return valid keys, or the wait for them. Called in threads of the client.

        Raises SignInFailed if there were never any keys, and OSError if another try may succeed.
        """
        with self._lock:
            now = self._clock()
            if now >= self._renew_at and self._renewal is None:
                self._start()
            if self._keys is not None and now < self._expires_at:
                return self._given(self._keys)
            if self._renewal is None:
                raise type(self._failure)(str(self._failure))
            return self._wait(self._renewal)

    def _given(self, keys: SignedIn) -> dict[str, Any]:
        until = min(self._expires_at, self._renew_at + _ASKS_BEFORE_S)
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.fromtimestamp(until, UTC),
        }

    async def _wait(self, renewal: "Future[dict[str, Any]]") -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.wrap_future(renewal)
        except TimeoutError:
            raise OSError(
                f"no AWS credentials after {self._wait_s:g} s: the sign-in has not ended"
            ) from None

    def _start(self) -> None:
        self._renewal = Future()
        self._renewal.set_running_or_notify_cancel()  # so that no request cancels it for others
        Thread(
            target=self._renew, args=(self._renewal,), name="penstock-sign-in", daemon=True
        ).start()

    def _renew(self, renewal: "Future[dict[str, Any]]") -> None:
        meter, began = self._meter.of("sign_in"), time.monotonic()
        try:
            keys = self._sign_in()
        except Exception as error:  # noqa: BLE001 (requests wait for this thread)
            meter.errors[type(error).__name__] += 1
            renewal.set_exception(self._failed(error))
        else:
            renewal.set_result(self._renewed(keys))
        finally:
            meter.latencies.observe((time.monotonic() - began) * 1_000)

    def _renewed(self, keys: SignedIn) -> dict[str, Any]:
        with self._lock:
            now, left_s = self._clock(), keys.left_s
            self._keys = keys
            if left_s is None:
                self._expires_at, self._renew_at = math.inf, now + _READ_AGAIN_S
            else:
                self._expires_at = now + left_s
                self._renew_at = now + max(left_s - _RENEW_BEFORE_S, left_s / 2)
            self._backoff = _new_backoff()
            self._renewal = None
            return self._given(keys)

    def _failed(self, error: Exception) -> Exception:
        with self._lock:
            now, pause_s = self._clock(), self._backoff.next_s()
            self._renew_at = now + pause_s
            self._renewal = None
            may_retry = self._keys is not None or isinstance(error, OSError)
            self._failure = OSError(str(error)) if may_retry else SignInFailed(str(error))
            failure, left_s = self._failure, self._expires_at - now
            is_renewal = self._keys is not None
        if is_renewal:
            _log.warning(
                "object_store_keys_not_renewed",
                reason=str(error),
                keys_expire_s=max(0, round(left_s)) if left_s < math.inf else None,
                next_try_s=round(pause_s, 1),
            )
        return failure


def _new_backoff() -> Backoff:
    return Backoff(_FIRST_PAUSE_MS, _PAUSE_MAX_MS, Random())  # noqa: S311 (jitter, not a secret)
