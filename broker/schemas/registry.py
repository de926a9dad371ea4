"""Client for a schema registry with Confluent's REST API.

It blocks: brokers call it in threads (`known_schemas`), the command line directly. Redirects are
not followed, so credentials are sent to one host only.
"""

import base64
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from penstock.base.tls_faults import reason_of

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
REFERENCES_MAX: Final = 64
_CHUNK_BYTES: Final = 64 << 10
_NOT_FOUND: Final = 404
_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(Exception):
    """The registry did not respond as expected. The message contains the registry and the
    request.
    """


class NotRegistered(RegistryError):
    """The schema or subject is not registered."""


class RegistryUrlInvalid(ValueError):
    """The URL is not a valid registry URL."""


class StoredSchema(Struct, frozen=True):
    """A schema in the registry. type: AVRO, JSON or PROTOBUF. references: (name, schema), each
    after the schemas it refers to.
    """

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class _Reference(Struct):
    name: str
    subject: str
    version: int


class _Answer(Struct, rename="camel"):
    schema: str
    id: int = -1
    schema_type: str = "AVRO"
    references: list[_Reference] | None = None


class _SubjectVersion(Struct):
    subject: str
    version: int


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's
        return None


class SchemaRegistry:
    """A registry at `http://HOST:PORT` or `https://USER:PASSWORD@HOST/PATH`.

    A response has at most ANSWER_BYTES_MAX and takes at most `timeout_s`; a schema has at most
    REFERENCES_MAX references in total.
    """

    def __init__(
        self,
        url: str,
        *,
        user_info: str = "",
        tls: ssl.SSLContext | None = None,
        ca_setting: str = "SSL_CERT_FILE",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """user_info: `USER:PASSWORD`, if the URL contains none. tls: None for the CAs of the
        operating system. ca_setting: the setting of the CA file, for errors.

        Raises RegistryUrlInvalid.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise RegistryUrlInvalid("http://HOST:PORT or https://HOST")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Accept": _ACCEPTED}
        if parts.username:
            user_info = ":".join(map(urllib.parse.unquote, (parts.username, parts.password or "")))
        if user_info:
            encoded = base64.b64encode(user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._timeout_s, self._ca_setting = timeout_s, ca_setting
        self._open = urllib.request.build_opener(
            _NoRedirects, urllib.request.HTTPSHandler(context=tls)
        ).open

    def by_id(self, number: int) -> StoredSchema:
        """Return a schema with its references. Raises RegistryError."""
        answer = self._get(f"/schemas/ids/{number}", _Answer)
        references: dict[str, str] = {}
        self._resolve(answer, references, set())
        return StoredSchema(answer.schema_type, answer.schema, tuple(references.items()))

    def subjects_of(self, number: int) -> list[str]:
        """Return the subjects under which a schema is registered. Raises RegistryError."""
        versions = self._get(f"/schemas/ids/{number}/versions", list[_SubjectVersion])
        return [version.subject for version in versions]

    def newest_id(self, subject: str) -> int:
        """Return the id of the newest schema of a subject. Raises RegistryError."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        answer: _Answer = self._get(path, _Answer)
        return answer.id

    def _resolve(self, answer: _Answer, found: dict[str, str], asked: set[tuple[str, int]]) -> None:
        for reference in answer.references or ():
            named = reference.subject, reference.version
            if named in asked:
                continue
            asked.add(named)
            if len(asked) > REFERENCES_MAX:
                raise RegistryError(
                    f"a schema of the schema registry at {self._base} has more than"
                    f" {REFERENCES_MAX} references"
                )
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            referenced = self._get(path, _Answer)
            self._resolve(referenced, found, asked)
            found[reference.name] = referenced.schema

    def _get(self, path: str, kind: Any) -> Any:  # noqa: ANN401 - of that type
        request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310 - http or https, checked above
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._open(request, timeout=self._timeout_s) as answer:
                return msgspec.json.decode(_read(answer, deadline), type=kind)
        except urllib.error.HTTPError as error:
            error.close()
            failure = NotRegistered if error.code == _NOT_FOUND else RegistryError
            raise failure(
                f"the schema registry at {self._base} returned {error.code} for GET {path}"
            ) from None
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError) as error:
            reason = reason_of(str(error), self._base, ca_setting=self._ca_setting)
            raise RegistryError(f"the schema registry at {self._base} failed: {reason}") from None


def _read(answer: HTTPResponse, deadline: float) -> bytes:
    """Raises TimeoutError, and ValueError for a response that is too long."""
    data = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f"the response is longer than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
    return bytes(data)
