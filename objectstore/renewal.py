"""Renew temporary credentials in the background.

Invariant: a thread renews credentials while requests use the old ones. Requests wait only if no
credentials are valid. There is no timer: obstore requests new credentials at the latest 5 minutes
before `expires_at` (object_store, client/token.rs). Must not import botocore.
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
from typing import Any, Final, Protocol

from penstock.base.backoff import Backoff
from penstock.base.log import get_logger
from penstock.objectstore.errors import SignInFailed
from penstock.objectstore.metered import StoreMeter

_log = get_logger(__name__)

RETRIABLE_STATUSES: Final = frozenset({408, 410, 429})
"""Statuses of a token endpoint, in addition to 5xx, after which a retry may succeed."""
_RENEW_BEFORE_S: Final = 900.0
"""Time before the expiry at which credentials are renewed, as in botocore. Credentials that are
valid for less than 30 minutes are renewed after half of that time.
"""
_READ_AGAIN_S: Final = 300.0
"""Interval for rereading keys that do not expire, because other programs may replace them."""
_ASKS_BEFORE_S: Final = 300.0
_FIRST_PAUSE_MS: Final = 1_000
_PAUSE_MAX_MS: Final = 60_000


class Credentials(Protocol):
    """The result of a sign-in."""

    @property
    def left_s(self) -> float | None:
        """How long the credentials are valid, in seconds; None if they do not expire."""
        ...

    def fields(self) -> dict[str, Any]:
        """Return the credentials in the form that obstore expects, without `expires_at`."""
        ...


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """AWS access keys."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    left_s: float | None

    def fields(self) -> dict[str, Any]:
        """See Credentials.fields."""
        return {
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class BearerToken:
    """An OAuth 2.0 access token."""

    token: str = field(repr=False)
    left_s: float | None

    def fields(self) -> dict[str, Any]:
        """See Credentials.fields."""
        return {"token": self.token}


class RenewedCredentials:
    """A credential provider for obstore."""

    def __init__(
        self,
        sign_in: Callable[[], Credentials],
        meter: StoreMeter | None = None,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """sign_in: may block; raises SignInFailed, or OSError if a retry may succeed.

        wait_s: how long a request waits if there are no valid credentials.
        """
        self._sign_in = sign_in
        self._meter = meter or StoreMeter()
        self._wait_s = wait_s
        self._clock = clock
        self._lock = Lock()
        self._keys: Credentials | None = None
        self._expires_at = 0.0
        self._renew_at = 0.0
        self._renewal: Future[Any] | None = None
        self._failure: OSError | SignInFailed = OSError()
        self._backoff = _new_backoff()

    def __call__(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return valid credentials, or an awaitable for them. Called in the client's threads.

        Raises OSError if a retry may succeed, and SignInFailed if it cannot.
        """
        with self._lock:
            now = self._clock()
            if now >= self._renew_at and self._renewal is None:
                self._start(now)
            if self._keys is not None and now < self._expires_at:
                return self._given(self._keys)
            if self._renewal is None:
                raise type(self._failure)(str(self._failure))
            return self._wait(self._renewal)

    def _given(self, keys: Credentials) -> dict[str, Any]:
        until = min(self._expires_at, self._renew_at + _ASKS_BEFORE_S)
        return {**keys.fields(), "expires_at": datetime.fromtimestamp(until, UTC)}

    async def _wait(self, renewal: "Future[dict[str, Any]]") -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.wrap_future(renewal)
        except TimeoutError:
            raise OSError(
                f"no credentials after {self._wait_s:g} s: the sign-in has not ended"
            ) from None

    def _start(self, now: float) -> None:
        renewal: Future[dict[str, Any]] = Future()
        # Mark as running, so that a cancelled request does not cancel the renewal for others.
        renewal.set_running_or_notify_cancel()
        thread = Thread(target=self._renew, args=(renewal,), name="penstock-sign-in", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            self._failure = OSError(str(error))
            self._renew_at = now + self._backoff.next_s()
        else:
            self._renewal = renewal  # while the lock is free, because the thread needs it to finish

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

    def _renewed(self, keys: Credentials) -> dict[str, Any]:
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
                "object_store_credentials_renewal_failed",
                reason=str(error),
                keys_expire_s=max(0, round(left_s)) if left_s < math.inf else None,
                next_try_s=round(pause_s, 1),
            )
        return failure


def _new_backoff() -> Backoff:
    return Backoff(_FIRST_PAUSE_MS, _PAUSE_MAX_MS, Random())  # noqa: S311 (jitter, not a secret)
