"""Sign in to Google Cloud with a token from another identity provider (`external_account` files).

Google's STS exchanges a token from a file or a URL for an access token, which may then be used to
impersonate a service account. Source: RFC 8693; Google AIP-4117; IAM Credentials API,
`generateAccessToken`.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from penstock.objectstore.errors import InvalidStoreConfig, SignInFailed
from penstock.objectstore.own_network import is_loopback
from penstock.objectstore.renewal import RETRIABLE_STATUSES, BearerToken

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_TIMEOUT_S: Final = 10.0
_RESPONSE_BYTES_MAX: Final = 1 << 20
_LIFETIME_S: Final = 3_600


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of the other provider's token. field: field of a JSON document that contains the
    token; None for plain text.
    """

    file: str | None
    url: str | None = dataclasses.field(repr=False)
    headers: Mapping[str, str] = dataclasses.field(repr=False)
    field: str | None

    def read(self) -> str:
        """Return the token. Raises SignInFailed, or OSError if a retry may succeed."""
        if self.file is not None:
            place, text = self.file, _read(self.file)
        else:
            assert self.url is not None
            place, text = _shown(self.url), _send(self.url, None, self.headers)
        if self.field is None:
            return text.strip()
        return _string(_json(text, place), self.field, place)


@dataclass(frozen=True, slots=True)
class ExternalAccount:
    """A file of type `external_account`."""

    audience: str
    subject_token_type: str
    token_url: str
    source: _Source
    impersonation_url: str | None
    lifetime_s: int

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "ExternalAccount":
        """Raises InvalidStoreConfig, whose text follows "the file is not supported"."""
        source = content.get("credential_source")
        if not isinstance(source, dict):
            raise InvalidStoreConfig("it has no credential_source")
        impersonation: Any = content.get("service_account_impersonation") or {}
        account = cls(
            audience=_required(content, "audience"),
            subject_token_type=_required(content, "subject_token_type"),
            token_url=_url(_required(content, "token_url")),
            source=_source(source),  # pyright: ignore[reportUnknownArgumentType]
            impersonation_url=content.get("service_account_impersonation_url"),
            lifetime_s=int(impersonation.get("token_lifetime_seconds", _LIFETIME_S)),
        )
        if account.impersonation_url is not None:
            _url(account.impersonation_url)
        return account

    def sign_in(self) -> BearerToken:
        """Return an access token. Blocks. Raises SignInFailed, or OSError if a retry may
        succeed.
        """
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "audience": self.audience,
            "scope": _SCOPE,
            "subject_token": self.source.read(),
            "subject_token_type": self.subject_token_type,
        }
        response = _json(_send(self.token_url, urlencode(form).encode(), {}), self.token_url)
        token = _string(response, "access_token", self.token_url)
        if self.impersonation_url is None:
            return BearerToken(token, float(response.get("expires_in", _LIFETIME_S)))
        return self._impersonate(token, self.impersonation_url)

    def _impersonate(self, token: str, url: str) -> BearerToken:
        body = json.dumps({"scope": [_SCOPE], "lifetime": f"{self.lifetime_s}s"}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        response = _json(_send(url, body, headers), url)
        try:
            expires = datetime.fromisoformat(_string(response, "expireTime", url))
        except ValueError:
            raise SignInFailed(f"{url} returned an expireTime that is not a time") from None
        left_s = (expires - datetime.now(UTC)).total_seconds()
        return BearerToken(_string(response, "accessToken", url), left_s)


def _source(source: Mapping[str, Any]) -> _Source:
    file, url = source.get("file"), source.get("url")
    if "environment_id" in source or (file is None) == (url is None):
        raise InvalidStoreConfig(
            "its credential_source must have a file or a url; those of AWS and executables are not"
            " implemented"
        )
    form: Any = source.get("format") or {}
    is_json = form.get("type", "text") == "json"
    return _Source(
        file,
        None if url is None else _url(url, may_be_plain=True),
        source.get("headers") or {},
        _required(form, "subject_token_field_name") if is_json else None,
    )


def _required(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidStoreConfig(f"it has no {name}")
    return value


def _url(url: str, *, may_be_plain: bool = False) -> str:
    """Return the URL, which must use TLS because tokens are sent to it, except for servers on this
    machine.
    """
    scheme = urlsplit(url).scheme
    if scheme == "https" or (scheme == "http" and (may_be_plain or is_loopback(url))):
        return url
    raise InvalidStoreConfig(f"{_shown(url)!r} is not an https URL")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise SignInFailed(
            f"credential_source names {path!r}, which cannot be read: {error.strerror}"
        ) from None


def _send(url: str, body: bytes | None, headers: Mapping[str, str]) -> str:
    """Return the body of the response to a GET, or to a POST of a body."""
    request = Request(url, body, dict(headers))  # noqa: S310 (_url has checked the scheme)
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            data: bytes = response.read(_RESPONSE_BYTES_MAX)
            return data.decode()
    except HTTPError as error:
        url = _shown(url)
        with error:
            text = " ".join(error.read(500).decode(errors="replace").split())
        fault = f"{url} responded with {error.code}: {text}"
        if error.code >= 500 or error.code in RETRIABLE_STATUSES:
            raise OSError(fault) from None
        raise SignInFailed(
            f"{fault}. Check the identity pool and provider, and that the principal may use the"
            " service account (roles/iam.workloadIdentityUser)"
        ) from None
    except OSError as error:
        raise OSError(f"{_shown(url)} did not respond: {error}") from None


def _shown(url: str) -> str:
    """Return the URL without its parameters, which may be secret, for use in errors."""
    return url.partition("?")[0]


def _json(text: str, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SignInFailed(f"{place} has no JSON object")
    return found  # pyright: ignore[reportUnknownVariableType]


def _string(content: Mapping[str, Any], name: str, place: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not value:
        raise SignInFailed(f"{place} has no {name}")
    return value
