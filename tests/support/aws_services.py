"""Servers of AWS that issue keys, and an S3 server that rejects expired keys: IMDSv2, the endpoints
of ECS and EKS Pod Identity, and the SSO portal.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "metadata-token"
POD_TOKEN = "pod-token"
SSO_TOKEN = "sso-token"
_KEY = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/s3/")


@dataclass
class AwsServices:
    lifetime_s: float = 3_600
    failure: int = 0
    """Status with which the credential endpoints fail, or 0 if they succeed."""
    code: str = ""
    """Error code of these failures."""
    url: str = ""
    issued: list[str] = field(default_factory=list)
    """The issued access keys, in order."""
    expires_at: dict[str, float] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    """The access key of each request to S3."""
    regions: set[str] = field(default_factory=set)
    """The regions in the signatures of requests to S3."""
    refused: list[str] = field(default_factory=list)
    """The access keys that have expired."""

    def keys(self, source: str) -> tuple[str, datetime]:
        key = f"ASIA{source}{len(self.issued)}"
        until = time.time() + self.lifetime_s
        self.issued.append(key)
        self.expires_at[key] = until
        return key, datetime.fromtimestamp(until, UTC)

    def respond(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        if path.startswith("/bucket/"):
            return self._s3(headers)
        if self.failure:
            return self.failure, f"<E><Error><Code>{self.code}</Code></Error></E>".encode()
        if path == "/latest/api/token":
            return (200, TOKEN.encode()) if method == "PUT" else (405, b"")
        if path.startswith("/latest/meta-data/iam/security-credentials/"):
            if headers.get("x-aws-ec2-metadata-token") != TOKEN:
                return 401, b""
            return 200, self._named("EC2") if path.endswith("/role") else b"role"
        if path == "/ecs":
            return 200, self._named("ECS")
        if path == "/eks":
            is_pod = headers.get("authorization") == POD_TOKEN
            return (200, self._named("EKS")) if is_pod else (401, b"")
        if path.startswith("/federation/credentials"):
            if headers.get("x-amz-sso_bearer_token") != SSO_TOKEN:
                return 401, b'{"__type":"UnauthorizedException","message":"Session token invalid"}'
            key, until = self.keys("SSO")
            return 200, json.dumps(
                {
                    "roleCredentials": {
                        "accessKeyId": key,
                        "secretAccessKey": "s",
                        "sessionToken": f"of {key}",
                        "expiration": int(until.timestamp() * 1_000),
                    }
                }
            ).encode()
        return 403, (
            b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not allowed to assume"
            b" the role</Message></Error></ErrorResponse>"
        )

    def _s3(self, headers: dict[str, str]) -> tuple[int, bytes]:
        found = _KEY.search(headers.get("authorization", ""))
        assert found
        key, region = found.groups()
        self.regions.add(region)
        self.used.append(key)
        has_expired = self.expires_at.get(key, time.time() + 1) <= time.time()
        has_token = headers.get("x-amz-security-token") == f"of {key}"
        if has_expired or (key in self.expires_at and not has_token):
            self.refused.append(key)
            return 400, b"<Error><Code>ExpiredToken</Code><Message>has expired</Message></Error>"
        return 200, b""

    def _named(self, source: str) -> bytes:
        key, until = self.keys(source)
        return json.dumps(
            {
                "Code": "Success",
                "AccessKeyId": key,
                "SecretAccessKey": "s",
                "Token": f"of {key}",
                "Expiration": f"{until:%Y-%m-%dT%H:%M:%S.%fZ}",
            }
        ).encode()


@contextmanager
def aws_services() -> Iterator[AwsServices]:
    services = AwsServices()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = services.respond(self.command, self.path, headers)
            self.send_response(status)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = respond

        def log_message(self, *args: object) -> None:
            """Suppress the output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        services.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield services
        finally:
            server.shutdown()
