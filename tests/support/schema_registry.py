"""A schema registry with the part of Confluent's REST API that serializers and brokers use, as a
server in its own threads.

It keeps schemas in memory, does not check compatibility, and can be made to fail.
"""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from penstock.protocol.registry.by_id import schemas_of


class SchemaRegistryServer:
    """`url` is its address. Ids start at 1."""

    def __init__(self, *, user_info: str = "") -> None:
        """user_info: `USER:PASSWORD` that every request must contain."""
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[str, list[int]] = {}
        self.requests: list[str] = []
        """Method and path of each request."""
        self.deleted: set[str] = set()
        """Soft-deleted subjects."""
        self.fails = False
        self.body: bytes | None = None
        """The response to every request, instead of the regular one."""
        self.hangs = threading.Event()
        self.hangs.set()
        """Requests wait while this event is cleared."""
        encoded = base64.b64encode(user_info.encode()).decode()
        self.authorization = f"Basic {encoded}" if user_info else None
        self.headers: dict[str, str] = {}
        """The headers of the last request to the registry."""
        self.token_status = 200
        self.token_life_s = 3_600
        self.token_body: bytes | None = None
        self.accepts_tokens = True
        self.tokens: list[str] = []
        """Bodies of token requests. Only the last token is valid: `token-N` after N requests."""
        self.url = ""

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Return the id of the schema; a known schema keeps its id."""
        body = {"schemaType": "AVRO", "references": [], **schema}
        body = {name: body[name] for name in ("schema", "schemaType", "references")}
        number = next((at for at, known in self.schemas.items() if known == body), 0)
        if not number:
            number = len(self.schemas) + 1
            self.schemas[number] = body
        versions = self.versions.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def grant(self, login: str | None, body: str) -> tuple[int, bytes]:
        """Respond to a token request of the client `client` with the secret `hunter2`."""
        self.tokens.append(body)
        if login != f"Basic {base64.b64encode(b'client:hunter2').decode()}":
            return 401, b'{"error": "invalid_client"}'
        token = f"token-{len(self.tokens)}"
        if self.accepts_tokens:
            self.authorization = f"Bearer {token}"
        if self.token_body is not None:
            return 200, self.token_body
        found = {"access_token": token, "expires_in": self.token_life_s, "token_type": "Bearer"}
        return self.token_status, json.dumps(found).encode()

    def respond(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = path.partition("?")[0].strip("/").split("/")
        match method, parts:
            case "POST", ["subjects", subject, "versions"]:
                number = self.register(subject, body)
                return 200, {"id": number, "guid": guid_of(number)}
            case "POST", ["subjects", subject]:
                requested = self.register(subject, body)
                return 200, self._version(subject, self.versions[subject].index(requested) + 1)
            case "GET", ["subjects", subject, "versions", version]:
                known = self.versions.get(subject, [])
                if subject in self.deleted and not path.endswith("?deleted=true"):
                    known = []
                at = len(known) if version == "latest" else int(version)
                if 0 < at <= len(known):
                    return 200, self._version(subject, at)
            case "GET", ["schemas", "ids", number]:
                if int(number) in self.schemas:
                    return 200, self.schemas[int(number)]
            case "GET", ["schemas", "guids", guid]:
                for number, known in self.schemas.items():
                    if guid == guid_of(number):
                        return 200, known
            case "GET", ["schemas", "ids", number, "versions"]:
                if int(number) in self.schemas:
                    return 200, [
                        {"subject": subject, "version": known.index(int(number)) + 1}
                        for subject, known in self.versions.items()
                        if int(number) in known
                    ]
            case _:
                return 404, {"error_code": 404, "message": "no such path"}
        return 404, {"error_code": 40403, "message": "not found"}

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.versions[subject][version - 1]
        guid = guid_of(number)
        own = {"subject": subject, "version": version, "id": number, "guid": guid}
        return own | self.schemas[number]


def guid_of(number: int) -> str:
    return str(UUID(int=number << 64 | number))


@contextmanager
def serving(
    registry: SchemaRegistryServer, tls: ssl.SSLContext | None = None
) -> Iterator[SchemaRegistryServer]:
    """Serve until the block ends, with TLS if there is a context."""
    schemas_of.cache_clear()  # an earlier registry may have used the same port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            registry.requests.append(f"{method} {self.path}")
            registry.hangs.wait()
            if self.path == "/token":
                self._send(*registry.grant(self.headers.get("Authorization"), content.decode()))
                return
            registry.headers = {name.lower(): value for name, value in self.headers.items()}
            status, found = 500, {"error_code": 50001, "message": "it fails"}
            if self.headers.get("Authorization") != registry.authorization:
                status, found = 401, {"error_code": 40101, "message": "who are you?"}
            elif not registry.fails:
                body = json.loads(content) if content else None
                status, found = registry.respond(method, self.path, body)
            data = json.dumps(found).encode() if registry.body is None else registry.body
            with suppress(ConnectionError):  # so that no client waits forever
                self._send(status, data)

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        registry.url = f"{scheme}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield registry
        finally:
            registry.hangs.set()
            server.shutdown()
            thread.join()
