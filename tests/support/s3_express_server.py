"""Stand-in for S3 Express One Zone: the part of the directory bucket API that obstore uses, in
memory.

It is an HTTPS proxy for the real addresses, so that clients use real URLs. It follows the AWS
reference ("Differences for directory buckets"), but is weaker: one lock, no rate limits.
"""

import argparse
import hashlib
import hmac
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from uuid import uuid4
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from tests.support.certs import Authority

ZONE: Final = "use1-az4"
REGION: Final = "us-east-1"
SUFFIX: Final = f".s3express-{ZONE}.{REGION}.amazonaws.com"
CA_NAME: Final = "s3-express.ca.pem"
SESSION_S: Final = 300.0
PAGE_KEYS_MAX: Final = 1_000
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_SIGNATURE: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=(\w+)"
)
_TOKEN: Final = "x-amz-s3session-token"


@dataclass(frozen=True)
class Stored:
    data: bytes
    etag: str
    modified: datetime


@dataclass(frozen=True)
class Session:
    bucket: str
    secret: str
    token: str
    ends: float


@dataclass
class Bucket:
    objects: dict[str, Stored] = field(default_factory=dict[str, Stored])
    lists: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The keys of the next pages, by continuation token."""


Response: TypeAlias = tuple[int, bytes, dict[str, str]]


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Server(ThreadingHTTPServer):
    """keys: secret keys by access key. session_s: the lifetime of sessions. `sessions` counts
    them.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, port: int, directory: Path, keys: dict[str, str], session_s: float = SESSION_S
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        authority = Authority(directory, "s3-express")
        files = authority.make("s3-express", hosts=(f"*{SUFFIX}",))
        self.ca = authority.file
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(files.certificate, files.key)
        self.keys = keys
        self.session_s = session_s
        self.lock = threading.Lock()
        self.buckets: dict[str, Bucket] = {}
        self.sessions: dict[str, Session] = {}
        self.rng = Random(0)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables for clients."""
        return {"HTTPS_PROXY": self.address, "AWS_CA_BUNDLE": str(self.ca)}

    def handle_error(self, request: object, client_address: object) -> None:
        """Suppress the traceback of a disconnected client."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_CONNECT(self) -> None:
        """Terminate TLS for the requested host here."""
        if not self.path.removesuffix(":443").endswith(SUFFIX):
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)  # type: ignore[assignment]

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # closes TLS; the base class closes only its socket

    def do_PUT(self) -> None:
        if not isinstance(self.connection, ssl.SSLSocket):
            with self.server.lock:
                self.server.buckets.setdefault(self.path.removeprefix("/"), Bucket())
            self._send(200, b"", {})
            return
        self._respond(self._put)

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_HEAD(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._delete)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Suppress the log."""

    def _respond(self, handle: Callable[[Bucket, str, bytes], Response]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            if not isinstance(self.connection, ssl.SSLSocket):
                raise Refused(400, "InvalidRequest")
            path = unquote(urlsplit(self.path).path.removeprefix("/"))
            name = self.headers["Host"].removesuffix(SUFFIX)
            with self.server.lock:
                if "session" in self._query:
                    status, data, headers = self._create_session(name)
                else:
                    self._check_session(name)
                    status, data, headers = handle(self._bucket(name), path, body)
        except Refused as error:
            status, headers = error.status, {"Content-Type": "application/xml"}
            data = f"<Error><Code>{error.code}</Code><Message>-</Message></Error>".encode()
        self._send(status, data, headers)

    @property
    def _query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    def _bucket(self, name: str) -> Bucket:
        found = self.server.buckets.get(name)
        if found is None:
            raise Refused(404, "NoSuchBucket")
        return found

    def _create_session(self, bucket: str) -> Response:
        self._check_signature(self.server.keys.get(self._access_key))
        self._bucket(bucket)
        access_key = uuid4().hex
        ends = time.monotonic() + self.server.session_s
        session = Session(bucket, uuid4().hex, uuid4().hex, ends)
        self.server.sessions[access_key] = session
        expires = datetime.fromtimestamp(time.time() + self.server.session_s, UTC)
        return (
            200,
            (
                "<CreateSessionResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Credentials>"
                f"<SessionToken>{session.token}</SessionToken>"
                f"<SecretAccessKey>{session.secret}</SecretAccessKey>"
                f"<AccessKeyId>{access_key}</AccessKeyId>"
                f"<Expiration>{expires:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
                "</Credentials></CreateSessionResult>"
            ).encode(),
            {"Content-Type": "application/xml"},
        )

    def _check_session(self, bucket: str) -> None:
        session = self.server.sessions.get(self._access_key)
        if session is None or session.bucket != bucket:
            raise Refused(403, "AccessDenied")
        if self.headers.get(_TOKEN) != session.token:
            raise Refused(403, "AccessDenied")
        self._check_signature(session.secret)
        if time.monotonic() >= session.ends:
            raise Refused(400, "ExpiredToken")

    @property
    def _access_key(self) -> str:
        found = _SIGNATURE.match(self.headers.get("Authorization", ""))
        return found[1] if found else ""

    def _check_signature(self, secret: str | None) -> None:
        """Check the version 4 signature, except for the body."""
        found = _SIGNATURE.match(self.headers.get("Authorization", ""))
        if found is None or secret is None:
            raise Refused(403, "AccessDenied")
        _, scope, names, signature = found.groups()
        parts = urlsplit(self.path)
        pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
        canonical = "\n".join(
            (
                self.command,
                parts.path,
                "&".join(
                    f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs
                ),
                *(f"{name}:{self.headers[name].strip()}" for name in names.split(";")),
                "",
                names,
                self.headers["x-amz-content-sha256"],
            )
        )
        signed = "\n".join(
            (
                "AWS4-HMAC-SHA256",
                self.headers["x-amz-date"],
                scope,
                hashlib.sha256(canonical.encode()).hexdigest(),
            )
        )
        key = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(hmac.digest(key, signed.encode(), "sha256").hex(), signature):
            raise Refused(403, "SignatureDoesNotMatch")

    def _put(self, bucket: Bucket, key: str, body: bytes) -> Response:
        found = bucket.objects.get(key)
        if self.headers.get("If-None-Match") == "*" and found is not None:
            raise Refused(412, "PreconditionFailed")
        etag = self.headers.get("If-Match")
        if etag is not None and found is None:
            raise Refused(404, "NoSuchKey")
        if etag is not None and found is not None and etag != found.etag:
            raise Refused(412, "PreconditionFailed")
        stored = Stored(body, f'"{uuid4().hex}"', datetime.now(UTC))
        bucket.objects[key] = stored
        return 200, b"", {"ETag": stored.etag}

    def _get(self, bucket: Bucket, key: str, _: bytes) -> Response:
        if not key:
            return self._list(bucket)
        stored = bucket.objects.get(key)
        if stored is None:
            raise Refused(404, "NoSuchKey")
        shown = {
            "ETag": stored.etag,
            "Last-Modified": format_datetime(stored.modified, usegmt=True),
        }
        size = len(stored.data)
        requested = _RANGE.fullmatch(self.headers.get("Range", ""))
        if requested is None:
            return 200, stored.data, shown
        first, last = requested.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= size:
            raise Refused(416, "InvalidRange")
        shown["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return 206, stored.data[start:end], shown

    def _list(self, bucket: Bucket) -> Response:
        """Return a page in random order. A prefix must end with the delimiter."""
        query = self._query
        prefix = query.get("prefix", "")
        if "start-after" in query or (prefix and not prefix.endswith("/")):
            raise Refused(400, "InvalidRequest")
        token = query.get("continuation-token")
        if token is None:
            left = [key for key in bucket.objects if key.startswith(prefix)]
            self.server.rng.shuffle(left)
        elif token in bucket.lists:
            left = bucket.lists.pop(token)
        else:
            raise Refused(400, "InvalidArgument")
        page, left = left[:PAGE_KEYS_MAX], left[PAGE_KEYS_MAX:]
        entries = "".join(
            _entry(key, stored) for key in page if (stored := bucket.objects.get(key)) is not None
        )
        if left:
            token = uuid4().hex
            bucket.lists[token] = left
            entries += f"<NextContinuationToken>{token}</NextContinuationToken>"
        body = (
            "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
            f"<IsTruncated>{str(bool(left)).lower()}</IsTruncated>{entries}</ListBucketResult>"
        )
        return 200, body.encode(), {"Content-Type": "application/xml"}

    def _delete(self, bucket: Bucket, _: str, body: bytes) -> Response:
        if "delete" not in self._query:
            raise Refused(405, "MethodNotAllowed")
        keys = [name.text or "" for name in ET.fromstring(body).iterfind("{*}Object/{*}Key")]
        for key in keys:
            bucket.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        result = f"<DeleteResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{deleted}</DeleteResult>"
        return 200, result.encode(), {"Content-Type": "application/xml"}

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(key: str, stored: Stored) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key>"
        f"<LastModified>{stored.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size>"
        "<StorageClass>EXPRESS_ONEZONE</StorageClass></Contents>"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--access-key", required=True)
    parser.add_argument("--secret-key", required=True)
    parser.add_argument("--session-s", type=float, default=SESSION_S)
    given = parser.parse_args()
    keys = {given.access_key: given.secret_key}
    Server(given.port, given.directory, keys, given.session_s).serve_forever()


if __name__ == "__main__":
    main()
