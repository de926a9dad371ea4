"""A schema registry in this process, with the part of Confluent's API that the pipeline uses. It
keeps schemas in memory; every schema is a new version of the only subject.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@contextmanager
def serving() -> Iterator[str]:
    """Serve a registry until the block ends. Yield its URL."""
    schemas: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Register a schema: /subjects/SUBJECT/versions."""
            schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            schemas.append(schema | {"id": len(schemas) + 1})
            self._send(200, {"id": len(schemas)})

        def do_GET(self) -> None:
            """Return a schema: /schemas/ids/ID, or /subjects/SUBJECT/versions/latest."""
            last = self.path.rpartition("/")[2]
            number = int(last) if last.isdecimal() else len(schemas)
            if 1 <= number <= len(schemas):
                self._send(200, schemas[number - 1])
            else:
                self._send(404, {"error_code": 40403, "message": "not found"})

        def _send(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
