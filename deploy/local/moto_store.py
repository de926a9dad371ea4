"""Serve the S3 API for a local cluster: moto's S3 backend in memory, in a small threaded server.

Arguments: `--bucket NAME [--fd SOCKET | [--host HOST] --port PORT]`. moto checks and writes in two
steps, so writes and LISTs are serialized. werkzeug's server is not used because it drops data.
"""

import argparse
import gc
import io
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.base.listeners import is_loopback
from penstock.deploy.local.signatures import SECRET_VARIABLE, is_signed
from penstock.deploy.node import lifeline

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

COUNTS_PATH: Final = "/-/counts"
_OBJECT_IN_MEMORY_BYTES_MAX: Final = 1 << 30
"""Maximum size of objects in memory; moto moves larger ones to temporary files. With moto's
default, an 8 MiB PUT would take twice as long.
"""

_SWITCH_INTERVAL_S: Final = 0.000_5
"""Maximum time for which a computing thread keeps the GIL. A request releases the GIL about ten
times, and may wait this long each time. With Python's default of 5 ms, PUTs took 200 ms instead of
4 ms while there were readers.
"""

_NO_BODY: Final = frozenset({"204", "304"})

Response = tuple[str, list[tuple[str, str]], bytes]
"""Status line, headers and body."""


class Front:
    """Calls moto, counts requests, and serializes writes."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()

    def respond(self, method: str, environ: dict[str, Any], size_bytes: int) -> Response:
        with self._counting:
            if environ["PATH_INFO"] == COUNTS_PATH:
                counts = json.dumps(self._counts).encode()
                return "200 OK", [("Content-Type", "application/json")], counts
            self._counts[method] += 1
            self._counts[f"{method}_bytes"] += size_bytes
        if method not in {"PUT", "POST", "DELETE"} and "list-type=" not in environ["QUERY_STRING"]:
            return self._call(environ)
        with self._writing:
            return self._call(environ)

    def _call(self, environ: dict[str, Any]) -> Response:
        from werkzeug.test import run_wsgi_app

        chunks, status, headers = run_wsgi_app(self._app, environ, buffered=True)
        return status, list(headers), b"".join(chunks)


def check_installed() -> None:
    """Raise ExpectedError with the install command if moto or a package required by its server is
    missing.
    """
    missing = next(
        (name for name in ("moto", "flask", "flask_cors") if find_spec(name) is None), None
    )
    if missing is not None:
        raise ExpectedError(
            f"the local S3 server needs the package {missing}: {install_hint('local')}"
        )


def make_front(*buckets: str) -> Front:
    """Return moto's S3 with these buckets. This takes about 1 s, because it imports moto."""
    os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(_OBJECT_IN_MEMORY_BYTES_MAX))
    from moto.moto_server import werkzeug_app
    from werkzeug.test import Client

    # The variable MOTO_DISABLE_GLOBAL_CORS has no effect if moto was imported earlier.
    werkzeug_app.DISABLE_GLOBAL_CORS = True  # type: ignore[attr-defined]
    app = werkzeug_app.create_backend_app("s3")
    for bucket in buckets:
        response = Client(app).put(f"/{bucket}", headers={"Host": "127.0.0.1"})
        assert response.status_code == 200, response.data
    return Front(app)


def serve(front: Front, listening: socket.socket, secret: str = "") -> None:
    """Serve until the process ends, with one thread for each connection. secret: the key with which
    clients must sign requests; empty for no signatures.
    """
    host, port = listening.getsockname()[:2]
    handler = type(
        "Handler",
        (_Handler,),
        {
            "front": front,
            "server_address": (host, port),
            "secret": secret,
            "is_local": is_loopback(host),
        },
    )
    server = _Server((host, port), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # moto's requests leave reference cycles; each full collection would also traverse its modules
    # and pause the store for 150 ms.
    gc.freeze()
    server.serve_forever(poll_interval=60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that are killed during a request, and print other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # typeshed names the parameter's type privately


class _Lines(io.BufferedReader):
    """The input of a connection. has_ended: whether it ended within a line, which the standard
    library treats as the end of the headers.
    """

    has_ended = False

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.has_ended = self.has_ended or not line.endswith(b"\n")
        return line


class _Handler(BaseHTTPRequestHandler):
    """Serves HTTP/1.1 with persistent connections. It reads the whole body before it responds, and
    sends the response in one piece.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    front: Front
    server_address: tuple[str, int]
    secret: str
    is_local: bool

    def setup(self) -> None:
        super().setup()
        self.rfile = self._lines = _Lines(self.rfile.detach())

    def _respond(self) -> None:
        if (
            self._lines.has_ended
        ):  # The client has disconnected while sending headers: like S3, do nothing.
            self.close_connection = True
            return
        has_length = "Content-Length" in self.headers
        if "Transfer-Encoding" in self.headers or (
            self.command in {"PUT", "POST"} and not has_length
        ):
            self.send_error(411, "Length Required")
            self.close_connection = True
            return
        size_bytes = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size_bytes) if size_bytes else b""
        if len(body) < size_bytes:  # The client disconnected: like S3, store nothing.
            self.close_connection = True
            return
        if not self._is_allowed(body):
            self.send_error(403, "Forbidden")
            self.close_connection = True
            return
        status, headers, content = self.front.respond(self.command, self._environ(body), size_bytes)
        lines = [
            f"HTTP/1.1 {status}",
            f"Date: {self.date_time_string()}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        is_logged = any(name.lower() == "content-length" for name, _ in headers)
        if not is_logged and status[:3] not in _NO_BODY:
            lines.append(f"Content-Length: {len(content)}")
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        self.wfile.write(head if self.command == "HEAD" else head + content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _respond

    def _is_allowed(self, body: bytes) -> bool:
        """Reject requests from web pages, identified by `Origin` or by a name that resolves to this
        machine (DNS rebinding), and requests without a signature.
        """
        host = self.headers.get("Host", "")
        if "Origin" in self.headers or (self.is_local and not _is_local_name(host)):
            return False
        if not self.secret or (self.command == "GET" and self.path == COUNTS_PATH):
            return True
        headers = {name.lower(): value for name, value in self.headers.items()}
        return is_signed(self.secret, self.command, self.path, headers, body, now=datetime.now(UTC))

    def _environ(self, body: bytes) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        host, port = self.server_address
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "REQUEST_URI": self.path,
            "RAW_URI": self.path,
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "SERVER_PROTOCOL": self.request_version,
            "REMOTE_ADDR": self.client_address[0],
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in self.headers.items():
            key = "HTTP_" + name.upper().replace("-", "_")
            if key not in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}:
                environ[key] = f"{environ[key]},{value}" if key in environ else value
        return environ

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Do not log requests, because a line per request takes time and would flood the
        terminal.
        """


def _is_local_name(host: str) -> bool:
    """Return whether a `Host` header refers to this machine. Browsers resolve subdomains of
    localhost themselves.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name) or name.endswith(".localhost")


def main(arguments: list[str] | None = None, leave: Callable[[int], None] = os._exit) -> None:
    """Run the server. SIGTERM and SIGINT stop it immediately, because it has no state to save."""
    lifeline.die_with_parent(os.environ)
    parser = argparse.ArgumentParser(
        prog="python -m penstock.deploy.local.moto_store", allow_abbrev=False
    )
    parser.add_argument("--bucket", required=True, action="append")
    parser.add_argument("--fd", type=int, help="file descriptor of a listening socket")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to bind; 0.0.0.0 or :: in containers"
    )
    parser.add_argument("--port", type=int, default=0)
    requested = parser.parse_args(arguments)
    try:
        check_installed()
    except ExpectedError as error:
        sys.exit(f"error: {error}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: leave(0))
    listening = (
        socket.socket(fileno=requested.fd)
        if requested.fd is not None
        else listen(requested.port, requested.host)
    )
    serve(make_front(*requested.bucket), listening, os.environ.get(SECRET_VARIABLE, ""))


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a listening socket, by default for this machine only. Clients that connect before the
    server accepts must wait.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=256)
    listening.set_inheritable(True)
    return listening


if __name__ == "__main__":
    main()
