"""Stand-in for Google Cloud Storage: the part of its XML API that obstore uses, in memory.

It follows Google's reference, because fake-gcs-server 1.56 does not support PUT of the XML API. It
is weaker than the service: one lock for all conditions, any token, and no rate limits, holds or
retention policies. Source: Cloud Storage XML API reference.
"""

import argparse
import hashlib
import json
import re
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE_KEYS_MAX: Final = 1_000
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Stored:
    data: bytes
    generation: int
    etag: str
    modified: datetime


@dataclass
class Bucket:
    objects: dict[str, Stored] = field(default_factory=dict[str, Stored])
    keys: list[str] = field(default_factory=list[str])
    """Sorted by key: Python compares code points, like Google compares UTF-8."""


Response: TypeAlias = tuple[int, bytes, dict[str, str]]


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.buckets: dict[str, Bucket] = {}
        self.generation = 1_700_000_000_000_000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        """Create a bucket: the only request of the JSON API that is supported."""
        name = json.loads(self._body())["name"]
        with self.server.lock:
            self.server.buckets.setdefault(name, Bucket())
        self._send(200, b"{}")

    def do_PUT(self) -> None:
        self._respond(self._put, self._body())

    def do_GET(self) -> None:
        self._respond(self._get, b"")

    def do_HEAD(self) -> None:
        self._respond(self._get, b"")

    def do_DELETE(self) -> None:
        self._respond(self._delete, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Suppress the log."""

    def _respond(self, handle: Callable[[Bucket, str, bytes], Response], body: bytes) -> None:
        try:
            if not self.headers.get("Authorization"):
                raise Refused(401, "AuthenticationRequired", "Authentication required.")
            parts = urlsplit(self.path)
            name, _, key = parts.path.removeprefix("/").partition("/")
            with self.server.lock:
                bucket = self.server.buckets.get(unquote(name))
                if bucket is None:
                    raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")
                status, data, headers = handle(bucket, unquote(key), body)
        except Refused as error:
            status, headers = error.status, {"Content-Type": "application/xml; charset=UTF-8"}
            data = (
                "<?xml version='1.0' encoding='UTF-8'?>"
                f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
            ).encode()
        self._send(status, data, headers)

    def _put(self, bucket: Bucket, key: str, body: bytes) -> Response:
        found = bucket.objects.get(key)
        requested = self.headers.get("x-goog-if-generation-match")
        if requested is not None and not requested.isdecimal():
            raise Refused(400, "InvalidArgument", "Invalid argument.")
        if requested is not None and int(requested) != (found.generation if found else 0):
            raise Refused(
                412,
                "PreconditionFailed",
                "At least one of the pre-conditions you specified did not hold.",
            )
        if found is None:
            insort(bucket.keys, key)
        self.server.generation += 1
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        stored = Stored(body, self.server.generation, etag, datetime.now(UTC))
        bucket.objects[key] = stored
        return 200, b"", _headers(stored)

    def _get(self, bucket: Bucket, key: str, _: bytes) -> Response:
        if not key:
            return self._list(bucket)
        stored = bucket.objects.get(key)
        if stored is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        size = len(stored.data)
        requested = _RANGE.fullmatch(self.headers.get("Range", ""))
        if requested is None:
            return 200, stored.data, _headers(stored)
        first, last = requested.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= size:
            raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")
        shown = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return 206, stored.data[start:end], _headers(stored) | shown

    def _list(self, bucket: Bucket) -> Response:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, token = query.get("prefix", ""), query.get("continuation-token", "")
        after = max(token, query.get("start-after", ""))
        at = max(bisect_left(bucket.keys, prefix), bisect_right(bucket.keys, after))
        page = bucket.keys[at : at + PAGE_KEYS_MAX]
        found = [key for key in page if key.startswith(prefix)]
        entries = "".join(_entry(key, bucket.objects[key]) for key in found)
        if len(found) == PAGE_KEYS_MAX:
            entries += f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>"
        body = (
            "<?xml version='1.0' encoding='UTF-8'?>"
            "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
            f"{entries}</ListBucketResult>"
        )
        return 200, body.encode(), {"Content-Type": "application/xml; charset=UTF-8"}

    def _delete(self, bucket: Bucket, key: str, _: bytes) -> Response:
        if bucket.objects.pop(key, None) is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        del bucket.keys[bisect_left(bucket.keys, key)]
        return 204, b"", {}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _headers(stored: Stored) -> dict[str, str]:
    return {
        "ETag": stored.etag,
        "x-goog-generation": str(stored.generation),
        "Last-Modified": format_datetime(stored.modified, usegmt=True),
    }


def _entry(key: str, stored: Stored) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><Generation>{stored.generation}</Generation>"
        f"<LastModified>{stored.modified:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size></Contents>"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    Server(parser.parse_args().port).serve_forever()
