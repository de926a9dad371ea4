"""An S3 server that responds slowly to the first read of records, and forwards requests to another
server.
"""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DELAY_S = 1.5
"""Longer than the delay after which `deploy.output.Progress` shows a bar."""


@contextmanager
def slow_store(url: str) -> Generator[str]:
    """Yield the URL of a store with the objects of another one. url: ends with an endpoint."""
    bucket, _, endpoint = url.partition("endpoint=")
    delays_s = iter((DELAY_S,))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if "/data/" in self.path or "/wal/" in self.path:
                time.sleep(next(delays_s, 0))
            requested = {name: value for name, value in self.headers.items() if name != "Host"}
            request = urllib.request.Request(
                endpoint + self.path, headers=requested, method=self.command
            )
            try:
                response = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                body = response.read()
                self.send_response(response.status)
                for name, value in response.headers.items():
                    if name.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"{bucket}endpoint=http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
