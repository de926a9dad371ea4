"""The S3 of a local cluster: moto's S3 backend behind a threaded HTTP/1.1 server, in memory, gone with its process.

Invariants: a conditional PUT is atomic (moto looks and writes in two steps, so PUTs take turns here; their bodies arrive side by side);
connections stay open between requests. Must not import moto's other services: they cost a second and 50 MB.
`GET /-/counts` tells how many requests of each kind were served and how many bytes they carried.

    python -m deploy.cluster.moto_store --bucket NAME [--fd LISTENING_SOCKET | --port PORT]
"""

import argparse
import io
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from deploy import lifeline

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

COUNTS_PATH: Final = "/-/counts"
_OBJECT_IN_MEMORY_BYTES_MAX: Final = 1 << 30
"""moto moves larger objects to temporary files, which would cost an 8 MiB PUT half its speed."""


class Front:
    """Counts, and lets PUTs through one at a time."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        method = str(environ["REQUEST_METHOD"])
        if environ["PATH_INFO"] == COUNTS_PATH:
            return self._answer_counts(start_response)
        size_bytes = int(environ.get("CONTENT_LENGTH") or 0)
        with self._counting:
            self._counts[method] += 1
            self._counts[f"{method}_bytes"] += size_bytes
        if method not in {"PUT", "POST"}:
            return self._app(environ, start_response)
        if size_bytes:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size_bytes))
        with self._writing:
            return self._app(environ, start_response)

    def _answer_counts(self, start_response: "StartResponse") -> Iterable[bytes]:
        import msgspec

        with self._counting:
            body = msgspec.json.encode(dict(self._counts))
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def make_front(bucket: str) -> Front:
    """moto's S3 with one bucket in it. Slow (about 1 s): it imports moto."""
    os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(_OBJECT_IN_MEMORY_BYTES_MAX))
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.test import Client

    app = create_backend_app("s3")
    response = Client(app).put(f"/{bucket}", headers={"Host": "127.0.0.1"})
    assert response.status_code == 200, response.data
    return Front(app)


def serve(front: Front, listening: socket.socket) -> None:
    """Serve until the process ends. One thread for each connection."""
    from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nothing: a line for each request costs time and floods the terminal."""

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's name
            """Nothing: broken connections of killed brokers are what this store is for."""

    host, port = listening.getsockname()[:2]
    server = ThreadedWSGIServer(host, port, cast("Any", front), handler=Handler, fd=listening.fileno())
    server.daemon_threads = True
    server.serve_forever()


def main(arguments: list[str] | None = None, leave: Callable[[int], None] = os._exit) -> None:
    """Process entry. SIGTERM and SIGINT end it at once: there is nothing to save."""
    lifeline.hold(os.environ)
    parser = argparse.ArgumentParser(prog="python -m deploy.cluster.moto_store", allow_abbrev=False)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--fd", type=int, help="a socket that listens already")
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: leave(0))
    listening = socket.socket(fileno=asked.fd) if asked.fd is not None else listen(asked.port)
    serve(make_front(asked.bucket), listening)


def listen(port: int) -> socket.socket:
    """A listening socket on this machine only. Clients that connect before anybody serves it wait, they do not fail."""
    listening = socket.create_server(("127.0.0.1", port), backlog=256)
    listening.set_inheritable(True)
    return listening


if __name__ == "__main__":
    main()
