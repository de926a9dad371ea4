"""Obtain OAUTHBEARER tokens from an identity provider, with the grants `client_credentials` and
`jwt-bearer`, or from a file, like Kafka's clients.

Source: RFC 6749, section 4.4; RFC 7523; KIP-768, KIP-1139; Kafka `ClientCredentialsJwtRetriever`,
`JwtBearerJwtRetriever`, `FileJwtRetriever`.
"""

import base64
import json
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request
from uuid import uuid4

from penstock.base.client_tls import client_tls
from penstock.base.tls_faults import reason_of
from penstock.deploy.clients.assertions import GRANT, Assertion
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.registry.http import RESPONSE_BYTES_MAX, opener

TIMEOUT_S: Final = 10.0
_SCHEMES: Final = ("https", "http", "file")
_JWT_PARTS: Final = 3


# Invariants: one request per token, limited to `TIMEOUT_S` and `RESPONSE_BYTES_MAX`. Redirects are
# not followed, because they would reveal the secret to another host. Error messages never contain
# tokens or secrets.
@dataclass(frozen=True, slots=True, repr=False)
class TokenSource:
    """The source of a client's tokens.

    url: the token endpoint, or `file:PATH` for a token in a file. The other fields are for an
    endpoint; scope and ca (a PEM file of CAs) may be empty. assertion: replaces id and secret.
    """

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    ca: str = ""
    assertion: Assertion | None = None

    @property
    def is_file(self) -> bool:
        return urlsplit(self.url).scheme == "file"

    def check(self) -> None:
        """Raises ValueError, whose message never contains a secret."""
        if urlsplit(self.url).scheme not in _SCHEMES:
            raise ValueError(
                f"sasl.oauthbearer.token.endpoint.url={self.url!r} is not allowed: https://..., "
                "http://... or file:PATH of a token"
            )
        if self.is_file or self.assertion is not None:
            return
        if not (self.client_id and self.client_secret):
            raise ValueError(
                "sasl.oauthbearer.client.credentials.client.id and"
                " sasl.oauthbearer.client.credentials.client.secret are missing (or"
                " sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or clientId and"
                " clientSecret in sasl.jaas.config)"
            )

    def token(self) -> str:
        """Return a token. Raises KafkaFailed."""
        try:
            return self._read() if self.is_file else self._request()
        except HTTPError as error:
            error.close()
            reason = f"it responded with {error.code} {error.reason}"
        except (OSError, HTTPException, ValueError) as error:
            reason = reason_of(str(error), self.url, ca_setting="https.ca.location")
        raise KafkaFailed(f"no token from {self.url}: {reason}")

    def refresh(self, _config: str) -> tuple[str, float]:
        """Return a token and its expiry in seconds since 1970, as confluent-kafka's `oauth_cb`
        does. Raises KafkaFailed.
        """
        token = self.token()
        try:
            return token, end_of(token)
        except ValueError as error:
            raise KafkaFailed(f"the token from {self.url} {error}") from None

    def _read(self) -> str:
        with Path(unquote(urlsplit(self.url).path)).open(encoding="ascii") as file:
            return _checked(file.read(RESPONSE_BYTES_MAX))

    def _request(self) -> str:
        headers = {"Accept": "application/json"}
        if self.assertion is None:
            login = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
            form = {"grant_type": "client_credentials"}
        else:
            assertion = self.assertion.make(int(time.time()), lambda: str(uuid4()))
            form = {"grant_type": GRANT, "assertion": assertion}
        if self.scope:
            form["scope"] = self.scope
        request = Request(  # noqa: S310 - `check` limits the schemes
            self.url, urlencode(form).encode(), headers
        )
        with opener(client_tls(self.ca)).open(request, timeout=TIMEOUT_S) as response:
            document = response.read(RESPONSE_BYTES_MAX)
        try:
            found: Any = json.loads(document)
            return _checked(str(found["access_token"]))
        except (KeyError, TypeError, RecursionError):
            raise ValueError("the response has no access_token") from None


def _checked(token: str) -> str:
    """Return the token without surrounding whitespace. Raises ValueError."""
    token = token.strip()
    if not token or not token.isascii() or any(char.isspace() for char in token):
        raise ValueError("the response is not a token")
    return token


def end_of(token: str) -> float:
    """Return the expiry of a token, in seconds since 1970. Raises ValueError."""
    parts = token.split(".")
    try:
        if len(parts) != _JWT_PARTS:
            raise ValueError
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("is not a JWT with an exp claim") from None
