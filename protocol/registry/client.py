"""Client for a schema registry with Confluent's REST API.

The client blocks: brokers call it in threads (`broker.schemas.known_schemas`), other programs use
it through a cache (`by_id`). Redirects are not followed, so credentials are sent only to one host.
"""

import base64
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from penstock.base.tls_faults import reason_of
from penstock.protocol.registry.bearer_tokens import BearerTokens
from penstock.protocol.registry.http import (
    REFUSED,
    is_header_value,
    is_passing,
    is_passing_status,
    opener,
    read_response,
    split_url,
)
from penstock.protocol.registry.model import (
    NotRegistered,
    RegistryError,
    RegistrySettingInvalid,
    RegistryUnavailable,
    StoredSchema,
)

TIMEOUT_S: Final = 10.0
REFERENCES_MAX: Final = 64
_MESSAGE_BYTES_MAX: Final = 4 << 10
_NOT_FOUND: Final = 404
_NOT_REGISTERED: Final = frozenset({40401, 40402, 40403})
"""Error codes for an unknown subject, version and schema. Other 404s mean that the path is
wrong.
"""

_UNAUTHORIZED: Final = 401
_IN_CONTEXT: Final = re.compile(r":(\.[^:]+):(.*)")
"""Matches a subject in a context other than the default one."""

_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"


class _Reference(Struct):
    name: str
    subject: str
    version: int


class _SchemaResponse(Struct, rename="camel"):
    schema: str
    id: int = -1
    schema_type: str = "AVRO"
    references: list[_Reference] | None = None


class _Failure(Struct):
    error_code: int = 0


class _SubjectVersion(Struct):
    subject: str
    version: int


class _Unauthorized(RegistryError):
    """The credentials are invalid, or a token has expired."""


class SchemaRegistry:
    """A registry at `http://HOST:PORT` or `https://USER:PASSWORD@HOST/PATH`.

    A response has at most `http.RESPONSE_BYTES_MAX` bytes and takes at most `timeout_s`; a schema
    has at most REFERENCES_MAX references in total.
    """

    def __init__(
        self,
        url: str,
        *,
        user_info: str = "",
        token: str = "",
        tokens: BearerTokens | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        ca_setting: str = "SSL_CERT_FILE",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """user_info: `USER:PASSWORD`, if the URL contains none. token: a bearer token. tokens: the
        source of tokens that expire. headers: sent with each request. tls: None for the CAs of the
        operating system. ca_setting: the setting for the CA file, used in errors.

        Raises RegistrySettingInvalid.
        """
        parts = split_url(url)
        if not is_header_value(token):
            raise RegistrySettingInvalid("the bearer token contains characters that HTTP forbids")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Accept": _ACCEPTED, **(headers or {})}
        self._tokens = tokens
        if parts.username:
            user_info = ":".join(map(urllib.parse.unquote, (parts.username, parts.password or "")))
        if user_info:
            encoded = base64.b64encode(user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        elif token:
            self._headers |= _bearer(token)
        self._timeout_s, self._ca_setting = timeout_s, ca_setting
        self._open = opener(tls).open

    def by_id(self, number: int) -> StoredSchema:
        """Return a schema with its references. Raises RegistryError."""
        return self._whole(self._get(f"/schemas/ids/{number}", _SchemaResponse))

    def by_guid(self, guid: str) -> StoredSchema:
        """Return a schema with its references. Raises RegistryError."""
        return self._whole(self._get(f"/schemas/guids/{quote(guid, safe='')}", _SchemaResponse))

    def newest(self, subject: str) -> tuple[int, StoredSchema]:
        """Return the newest schema of a subject and its id. Raises RegistryError, including for
        subjects in a context, because their ids would refer to another context.
        """
        if found := _IN_CONTEXT.fullmatch(subject):
            raise RegistryError(
                f"subject {subject!r} is in a context, where ids have another meaning: give the URL"
                f" {self._base}/contexts/{quote(found[1])} and the subject {found[2]!r}"
            )
        response: _SchemaResponse = self._get(_version_path(subject, "latest"), _SchemaResponse)
        return response.id, self._whole(response)

    def subjects_of(self, number: int) -> list[str]:
        """Return the subjects under which a schema is registered. Raises RegistryError."""
        versions = self._get(f"/schemas/ids/{number}/versions", list[_SubjectVersion])
        return [version.subject for version in versions]

    def _whole(self, response: _SchemaResponse) -> StoredSchema:
        references: dict[str, str] = {}
        self._resolve(response, references, {})
        return StoredSchema(response.schema_type, response.schema, tuple(references.items()))

    def _resolve(
        self,
        response: _SchemaResponse,
        found: dict[str, str],
        requested: dict[tuple[str, int], str],
    ) -> None:
        for reference in response.references or ():
            named = reference.subject, reference.version
            if named not in requested:
                if len(requested) >= REFERENCES_MAX:
                    raise RegistryError(
                        f"a schema of the schema registry at {self._base} has more than"
                        f" {REFERENCES_MAX} references"
                    )
                # Schemas may still reference a soft-deleted schema.
                path = _version_path(reference.subject, str(reference.version))
                referenced = self._get(f"{path}?deleted=true", _SchemaResponse)
                requested[named] = referenced.schema
                self._resolve(referenced, found, requested)
            found.setdefault(reference.name, requested[named])

    @property
    def url(self) -> str:
        """The URL without credentials."""
        return self._base

    def _get(self, path: str, kind: Any) -> Any:  # noqa: ANN401 - of that type
        if self._tokens is None:
            return self._response(path, kind, self._headers)
        token = self._tokens.token()
        try:
            return self._response(path, kind, self._headers | _bearer(token))
        except _Unauthorized:
            self._tokens.drop(token)  # the token may have been revoked
        return self._response(path, kind, self._headers | _bearer(self._tokens.token()))

    def _response(self, path: str, kind: Any, headers: dict[str, str]) -> Any:  # noqa: ANN401 - of that type
        request = urllib.request.Request(self._base + path, headers=headers)  # noqa: S310 - http or https, checked above
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._open(request, timeout=self._timeout_s) as response:
                return msgspec.json.decode(read_response(response, deadline), type=kind)
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(error, path) from None
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError) as error:
            reason = reason_of(str(error), self._base, ca_setting=self._ca_setting)
            failure = RegistryUnavailable if is_passing(error) else RegistryError
            raise failure(f"the schema registry at {self._base} failed: {reason}") from None

    def _failure(self, error: urllib.error.HTTPError, path: str) -> RegistryError:
        """Return the error for an unsuccessful response."""
        text = f"the schema registry at {self._base} returned {error.code} for GET {path}"
        if error.code == _NOT_FOUND:
            if _error_code(error) in _NOT_REGISTERED:
                return NotRegistered(text)
            return RegistryError(f"{text}: its URL has no API of a schema registry")
        if error.code in REFUSED:
            kind = _Unauthorized if error.code == _UNAUTHORIZED else RegistryError
            return kind(f"{text}: it refuses the credentials, or their user this schema")
        if is_passing_status(error.code):
            return RegistryUnavailable(text)
        return RegistryError(text)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _version_path(subject: str, version: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{version}"


def _error_code(error: urllib.error.HTTPError) -> int:
    """Return the registry's error code, or 0 if the response is not from a registry."""
    try:
        return msgspec.json.decode(error.read(_MESSAGE_BYTES_MAX), type=_Failure).error_code
    except (OSError, HTTPException, ValueError, msgspec.MsgspecError):
        return 0
