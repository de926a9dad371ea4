"""Ask a schema registry with Confluent's REST API for schemas.

Limits: each request waits TIMEOUT_S, and reads SCHEMA_BYTES_MAX.
"""

import base64
import urllib.error
import urllib.parse
import urllib.request
from typing import Final
from urllib.parse import quote

import msgspec

from deploy.errors import DeployError, UsageError

TIMEOUT_S: Final = 10.0
SCHEMA_BYTES_MAX: Final = 16 << 20


class SchemaRegistry:
    """A registry at `http://HOST:PORT` or `https://USER:PASSWORD@HOST`."""

    def __init__(self, url: str) -> None:
        """Raises UsageError."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("--schema-registry is not allowed: http://HOST:PORT or https://HOST")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if parts.username:
            user = ":".join(map(urllib.parse.unquote, (parts.username, parts.password or "")))
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def by_id(self, number: int) -> bytes:
        """Return the text of a schema. Raises DeployError."""
        return str(self._get(f"/schemas/ids/{number}")["schema"]).encode()

    def newest(self, subject: str) -> tuple[int, bytes]:
        """Return the id and the text of the newest schema of a subject. Raises DeployError."""
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return int(str(found["id"])), str(found["schema"]).encode()

    def _get(self, path: str) -> dict[str, object]:
        request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310 - http or https, checked above
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return msgspec.json.decode(answer.read(SCHEMA_BYTES_MAX), type=dict[str, object])
        except urllib.error.HTTPError as error:
            error.close()
            raise DeployError(
                f"the schema registry at {self._base} answers {error.code} to GET {path}"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise DeployError(f"the schema registry at {self._base} failed: {error}") from None
