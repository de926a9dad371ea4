"""Tokens for a schema registry from an identity provider, with the grant `client_credentials`.

Redirects are not followed, because they would reveal the secret to another host. Error messages
never contain tokens or secrets. Source: RFC 6749, section 4.4.
"""

import base64
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from threading import Lock
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from penstock.base.tls_faults import reason_of
from penstock.protocol.registry.http import (
    REFUSED,
    is_header_value,
    is_passing,
    is_passing_status,
    read_response,
)
from penstock.protocol.registry.model import RegistryError, RegistryUnavailable

KEPT_SHARE: Final = 0.8
"""Fraction of its lifetime for which a token is used."""

_INVALID: Final = 400
LIFE_S: Final = 300.0
"""Lifetime of a token without `expires_in`."""


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = LIFE_S


class BearerTokens:
    """Requests and caches tokens. Thread-safe; requests are serialized."""

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str,
        *,
        open_request: Callable[..., Any],
        ca_setting: str,
        timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._ca_setting, self._timeout_s = url, ca_setting, timeout_s
        self._open, self._now_s = open_request, now_s
        login = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self._headers = {"Accept": "application/json", "Authorization": f"Basic {login}"}
        form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._form = urlencode(form).encode()
        self._lock = Lock()
        self._known = ("", float("-inf"))
        """The current token, and the time at which to request another one."""

    def token(self) -> str:
        """Return a token. Raise RegistryError."""
        with self._lock:
            token, until_s = self._known
            if self._now_s() >= until_s:
                requested_s = self._now_s()
                found = self._request()
                token = found.access_token
                self._known = token, requested_s + found.expires_in * KEPT_SHARE
            return token

    def drop(self, token: str) -> None:
        """Drop a token that the registry rejects, so that the next call requests another one."""
        with self._lock:
            if token == self._known[0]:
                self._known = ("", float("-inf"))

    def _request(self) -> _Token:
        request = urllib.request.Request(self._url, self._form, self._headers)  # noqa: S310 - http or https, checked by the caller
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._open(request, timeout=self._timeout_s) as response:
                found = msgspec.json.decode(read_response(response, deadline), type=_Token)
                if not found.access_token or not is_header_value(found.access_token):
                    raise ValueError("the token is empty or contains characters that HTTP forbids")
                return found
        except urllib.error.HTTPError as error:
            error.close()
            text = f"the token endpoint {self._url} returned {error.code}"
            if is_passing_status(error.code):
                raise RegistryUnavailable(text) from None
            if error.code in {_INVALID, *REFUSED}:
                text += ": it refuses the client id, its secret or the scope"
            raise RegistryError(text) from None
        except msgspec.MsgspecError:
            raise RegistryError(f"the response of {self._url} is not a token") from None
        except (OSError, HTTPException, ValueError) as error:
            reason = reason_of(str(error), self._url, ca_setting=self._ca_setting)
            failure = RegistryUnavailable if is_passing(error) else RegistryError
            raise failure(f"the token endpoint {self._url} failed: {reason}") from None
