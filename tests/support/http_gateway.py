"""An HTTP gateway in front of a server. Like real gateways and networks, it can lose requests and
responses, reject requests, or hang.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import PATIENCE_S

FORWARDED_S = PATIENCE_S
_OF_THE_CONNECTION = {"connection", "transfer-encoding", "content-length", "keep-alive", "expect"}


class Fate(Enum):
    """What happens to a request."""

    FORWARDED = "forwarded"
    TIMED_OUT = "done, but the response is 504"
    CUT = "done, and then the connection ends"
    SILENT = "done, but without a response"
    REFUSED = "not done, the response is 403"
    UNAVAILABLE = "not done, the response is 503"


_NOT_DONE = {Fate.REFUSED: (403, "not allowed"), Fate.UNAVAILABLE: (503, "try again")}


@dataclass(frozen=True, slots=True)
class Asked:
    """A received request. `path` does not include the query."""

    method: str
    path: str
    authorization: str

    def is_commit(self, table: str) -> bool:
        """Return whether the request changes a table that exists or is being created."""
        return self.method == "POST" and self.path.endswith(f"/tables/{table}")


class HttpGateway:
    """`requested` contains the requests so far, and `statuses` the statuses of the server's
    responses; `decide` returns the fate of a request.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.requested: list[Asked] = []
        self.statuses: list[int] = []
        self.decide: Callable[[Asked], Fate] = lambda _: Fate.FORWARDED
        self.is_over = threading.Event()
        self.url = ""

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(
            self.target.removeprefix("http://"), timeout=FORWARDED_S
        )
        sent = {
            name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION
        }
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            kept = {
                name: value
                for name, value in response.getheaders()
                if name.lower() not in _OF_THE_CONNECTION or method == "HEAD"
            }
            return response.status, kept, response.read()
        finally:
            connection.close()


def _error(code: int, message: str) -> bytes:
    return f'{{"error": {{"message": "{message}", "type": "Gateway", "code": {code}}}}}'.encode()


@contextmanager
def http_gateway(target: str) -> Iterator[HttpGateway]:
    """Run a gateway before the server at `target`, http://HOST:PORT."""
    gateway = HttpGateway(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self._body()
            requested = Asked(
                self.command, self.path.partition("?")[0], self.headers.get("Authorization", "")
            )
            fate = gateway.decide(requested)
            gateway.requested.append(requested)
            if fate in _NOT_DONE:
                code, message = _NOT_DONE[fate]
                self._respond(code, {}, _error(code, message))
                return
            status, headers, data = gateway.forward(
                self.command, self.path, dict(self.headers), body
            )
            gateway.statuses.append(status)
            if fate is Fate.TIMED_OUT:
                self._respond(504, {}, _error(504, "no response in time"))
            elif fate is Fate.FORWARDED:
                self._respond(status, headers, data)
            else:
                if fate is Fate.SILENT:
                    gateway.is_over.wait()
                self.close_connection = True
                self.connection.close()

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = b""
            while length := int(self.rfile.readline().partition(b";")[0], 16):
                found += self.rfile.read(length)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return found

        def _respond(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _do

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield gateway
    finally:
        gateway.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
